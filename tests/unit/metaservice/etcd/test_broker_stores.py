"""The reports of brokers' local stores in Raft groups of which one does not answer."""

from adapter.errors import MetaUnavailableError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd.broker_stores import EtcdStores
from adapter.metaservice.etcd.keys import Keys
from adapter.model.records import STORE_ID_BYTES, KnownStore, StoreReport
from tests.unit.fake_etcd import FakeCluster

REPORT = StoreReport("b0", "/store", bytes(STORE_ID_BYTES), 7)
NOW_MS = 1_800_000_000_000


async def test_a_report_is_known_at_its_new_home_when_the_old_one_falls_silent() -> None:
    """Else an adapter that has nothing new to report would be told, and tell, that the Meta Service has lost something."""
    a, b = FakeCluster("a"), FakeCluster("b")
    stores = EtcdStores({"a": a, "b": b}, Keys(EtcdSection().prefix))  # type: ignore[dict-item]  # as much of them as it uses

    async def report(home: str) -> KnownStore | None:
        return await stores.report(home, "c", REPORT, b"", NOW_MS, set())

    await report("a")
    assert await report("b") == KnownStore(REPORT, NOW_MS)
    a.fail = lambda _: MetaUnavailableError("silent")
    assert await report("b") == KnownStore(REPORT, NOW_MS)
