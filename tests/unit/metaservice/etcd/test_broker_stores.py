"""The reports of brokers' local stores in Raft groups of which one does not answer."""

import pytest

from adapter.errors import MetaUnavailableError, StoreDamagedError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd.broker_stores import EtcdStores
from adapter.metaservice.etcd.fences import LayoutChangedError
from adapter.metaservice.etcd.keys import Keys
from adapter.model.records import STORE_ID_BYTES, KnownStore, StoreReport
from adapter.rpc import etcd_pb
from tests.unit.fake_etcd import FakeCluster

REPORT = StoreReport("b0", "/store", bytes(STORE_ID_BYTES), 7)
NOW_MS = 1_800_000_000_000


KEYS = Keys(EtcdSection().prefix)
FENCE = etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.VALUE, key=KEYS.fence, value=b"1")


@pytest.fixture
def groups() -> dict[str, FakeCluster]:
    """Two Raft groups with the same fence."""
    found = {"a": FakeCluster("a"), "b": FakeCluster("b")}
    for group in found.values():
        group.put(KEYS.fence, b"1")
    return found


async def _report(groups: dict[str, FakeCluster], home: str) -> KnownStore | None:
    stores = EtcdStores(groups, KEYS)  # type: ignore[arg-type]  # as much of them as it uses
    return await stores.report(home, FENCE, "c", REPORT, b"", NOW_MS, set())


async def test_a_report_is_known_at_its_new_home_when_the_old_one_falls_silent(groups: dict[str, FakeCluster]) -> None:
    """Else an adapter that has nothing new to report would be told, and tell, that the Meta Service has lost something."""
    await _report(groups, "a")
    assert await _report(groups, "b") == KnownStore(REPORT, NOW_MS)
    groups["a"].fail = lambda _: MetaUnavailableError("silent")
    assert await _report(groups, "b") == KnownStore(REPORT, NOW_MS)


async def test_a_report_for_an_old_layout_is_refused_by_the_fence_and_stored_nowhere(groups: dict[str, FakeCluster]) -> None:
    """So a process that has no other calls learns of the change."""
    groups["a"].put(KEYS.fence, b"2")
    with pytest.raises(LayoutChangedError):
        await _report(groups, "a")
    assert not any(key.startswith(KEYS.stores) for group in groups.values() for key in group.kvs)


async def test_a_value_of_another_program_is_told_by_its_key_and_keeps_no_old_report(groups: dict[str, FakeCluster]) -> None:
    """A report in the background ended the process by it, and so did the removal of old ones."""
    await _report(groups, "a")
    groups["a"].put(KEYS.stores + b"\0", b"of another program")
    assert await EtcdStores(groups, KEYS).forget(NOW_MS + 1) == 1  # type: ignore[arg-type]
    groups["b"].put(KEYS.store("c", REPORT.broker, REPORT.path), b"of another program")
    with pytest.raises(StoreDamagedError, match="was not written by a Meta Service"):
        await _report(groups, "a")
