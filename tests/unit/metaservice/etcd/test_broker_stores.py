"""The reports of brokers' local stores in Raft groups of which one does not answer, or from which they move."""

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
OTHER = REPORT._replace(store_id=b"sixteen bytes, 2", flushed_seq=1)
NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000

KEYS = Keys(EtcdSection().prefix)
FENCE = etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.VALUE, key=KEYS.fence, value=b"1")


@pytest.fixture
def groups() -> dict[str, FakeCluster]:
    """Two Raft groups with the same fence."""
    found = {"a": FakeCluster("a"), "b": FakeCluster("b")}
    for group in found.values():
        group.put(KEYS.fence, b"1")
    return found


async def _report(
    groups: dict[str, FakeCluster], *places: str, report: StoreReport = REPORT, replaces: bytes = b"", now_ms: int = NOW_MS
) -> KnownStore | None:
    """`places`: the home, and where it was before if a move is under way."""
    stores = EtcdStores(groups, KEYS)  # type: ignore[arg-type]  # as much of them as it uses
    return await stores.report(places[0], dict.fromkeys(places, FENCE), "c", report, replaces, now_ms, set())


async def test_a_report_is_known_at_its_new_home_when_the_old_one_falls_silent(groups: dict[str, FakeCluster]) -> None:
    """Else an adapter that has nothing new to report would be told, and tell, that the Meta Service has lost something."""
    await _report(groups, "a")
    assert await _report(groups, "b") == KnownStore(REPORT, NOW_MS)
    groups["a"].fail = lambda _: MetaUnavailableError("silent")
    assert await _report(groups, "b") == KnownStore(REPORT, NOW_MS + 1)


async def test_while_a_report_moves_nobody_is_told_less_than_what_its_old_home_has(groups: dict[str, FakeCluster]) -> None:
    """Beside a silent old home: no answer instead of nothing, which would hide a store that was replaced or put back."""
    await _report(groups, "a")
    groups["a"].fail = lambda _: MetaUnavailableError("silent")
    with pytest.raises(MetaUnavailableError, match="silent"):
        await _report(groups, "b", "a", report=OTHER)
    groups["a"].fail = lambda _: None
    assert await _report(groups, "b", "a", report=OTHER) == KnownStore(REPORT, NOW_MS)


async def test_what_is_at_its_new_home_does_not_wait_for_the_old_one(groups: dict[str, FakeCluster]) -> None:
    """As offsets that are copied do not."""
    await _report(groups, "a")
    await _report(groups, "b", "a")
    groups["a"].fail = lambda _: MetaUnavailableError("silent")
    assert await _report(groups, "b", "a") == KnownStore(REPORT, NOW_MS + 1)


async def test_an_old_layout_is_refused_where_a_report_was_as_well(groups: dict[str, FakeCluster]) -> None:
    """Else a process that has not heard of the move could still write there what is not copied."""
    groups["a"].put(KEYS.fence, b"0")
    with pytest.raises(LayoutChangedError):
        await _report(groups, "b", "a")
    assert not any(key.startswith(KEYS.stores) for group in groups.values() for key in group.kvs)


async def test_the_later_one_of_two_reports_is_told_whatever_the_clocks_say(groups: dict[str, FakeCluster]) -> None:
    """The earlier one was stored by a process whose clock is ahead, in a Raft group that an earlier version left it in."""
    await _report(groups, "a", now_ms=NOW_MS + HOUR_MS)
    later = REPORT._replace(flushed_seq=9)
    await _report(groups, "b", report=later)
    assert await _report(groups, "b") == KnownStore(later, NOW_MS + HOUR_MS + 1)
    await _report(groups, "b", report=OTHER, replaces=REPORT.store_id)
    known = await _report(groups, "b", report=OTHER)
    assert known
    assert known.store == OTHER


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
