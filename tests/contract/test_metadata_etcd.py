"""Metadata in etcd when a reply is lost: a compare-and-set reports that, every other call is repeated."""

import pytest

from adapter.errors import MetaUnavailableError
from adapter.metaservice.etcd.client import Call, EtcdCluster, R
from adapter.metaservice.etcd.metadata import EtcdMetadata
from adapter.metaservice.metadata import Entry, Page
from tests.contract.etcd import shared_members, shared_section

C = "c"


class Losing(EtcdCluster):
    """A client that loses its next `losing` replies; the calls are applied."""

    losing = 0
    asked = 0

    async def ask(self, endpoint: str, call: Call[R]) -> R:
        """Call the member, then lose the reply if the test wants it."""
        self.asked += 1
        answer = await super().ask(endpoint, call)
        if self.losing:
            self.losing -= 1
            raise MetaUnavailableError(f"{endpoint}: the answer was lost")
        return answer


async def test_a_compare_and_set_whose_answer_was_lost_is_not_sent_again() -> None:
    """A repetition would find its own write and report a conflict, although it was applied. The outcome is unknown."""
    section = shared_section()
    async with Losing.open("metadata", shared_members(), section) as cluster:
        assert isinstance(cluster, Losing)
        store = EtcdMetadata(cluster, section.prefix)
        await store.open()
        cluster.asked = 0
        cluster.losing = 1
        with pytest.raises(MetaUnavailableError, match="key 'k': it is unknown whether it was written: read it again"):
            await store.put(C, "k", b"ours", 0)
        assert cluster.asked == 1
        found = await store.get(C, "k")
        assert found == Entry("k", b"ours", found.revision if found else 0)
        cluster.losing, cluster.asked = 1, 0
        with pytest.raises(MetaUnavailableError, match="key 'k': it is unknown whether it was written: read it again"):
            await store.delete(C, "k", found.revision)
        assert cluster.asked == 1
        assert await store.get(C, "k") is None


async def test_a_put_whose_answer_was_lost_is_sent_again() -> None:
    """The result is the same; so it is for a delete and a read."""
    section = shared_section()
    async with Losing.open("metadata", shared_members(), section) as cluster:
        assert isinstance(cluster, Losing)
        store = EtcdMetadata(cluster, section.prefix)
        await store.open()
        cluster.asked = 0
        cluster.losing = 1
        revision = await store.put(C, "k", b"v")
        cluster.losing = 1
        assert await store.get(C, "k") == Entry("k", b"v", revision)
        cluster.losing = 1
        await store.delete(C, "k")
        cluster.losing = 1
        assert await store.list_page(C, "", 10, "") == Page([], "")
