"""Runs of fast commits over a simulated disk: one write of all, or no effect of any; memory equals the disk."""

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import AdapterError, DiskFullError, StorageFailedError
from adapter.model.records import OffsetRecord
from tests.unit.helpers import key, record
from tests.unit.sidecar.engine.fast_requests import Request, request
from tests.unit.sidecar.engine.fast_store import Store
from tests.unit.sidecar.engine.standing import NOW_MS

SHARDS = "abc"


def test_all_runs_of_a_group_commit_are_one_write() -> None:
    """Of all callers; each new value has a write counter of its own and is dirty."""
    store = Store().holds(a=1, b=1, c=1)
    before = store.platter.unsynced
    assert store.commit([request("a", offset=5)], [request("b", offset=6), request("c", offset=7)]) == [1, 2]
    assert store.platter.unsynced == before + 1
    assert store.offsets() == {"a": 5, "b": 6, "c": 7}
    assert store.dirty.keys() == {key("a"), key("b"), key("c")}
    assert store.store.seq == store.disk.watermark == 6
    store.again()


def test_a_shard_may_go_on_several_times_in_a_turn() -> None:
    """The last value is stored, cached and flushed; the bookkeeping counts each."""
    store = Store().holds(a=1)
    assert store.commit([request("a", offset=5), request("a", offset=6)], [request("a", offset=6)], [request("a", offset=9)]) == [
        2,
        1,
        1,
    ]
    assert store.store.find(key("a")) == (record(9, committed_at_ms=NOW_MS), 4)
    ((shards, held),) = [(list(found), found["a"]) for found in store.dirty.take().values()]
    assert (shards, held[:2]) == (["a"], ((1, 9, True, NOW_MS, "", "", 0), 4))
    store.again()


def test_a_run_counts_up_to_what_the_fast_path_leaves() -> None:
    """The rest of the run waits for the declined request; other runs do not."""
    store = Store().holds(a=5, b=5)
    back, bad = request("a", offset=4), Request()
    runs = [request("a", offset=6), back, request("a", offset=7)], [bad, request("b", offset=9)], [request("b", offset=6)]
    assert store.commit(*runs) == [1, 0, 1]
    assert store.offsets() == {"a": 6, "b": 6}
    store.again()


def test_nothing_but_confirmations_writes_nothing() -> None:
    """Commits of the stored offsets need no write, and clean keys stay clean."""
    store = Store().holds(a=5)
    assert store.commit([request("a", offset=6)]) == [1]
    store.dirty.take()
    store.dirty.acknowledge(key("a"))
    before = store.platter.unsynced
    assert store.commit([request("a", offset=6)], [request("a", offset=6), request("a", offset=6)], now_ms=NOW_MS - 5) == [1, 2]
    assert (store.platter.unsynced, len(store.dirty)) == (before, 0)
    assert store.commit() == []


@pytest.mark.parametrize("error", [DiskFullError("full"), StorageFailedError("broken")], ids=lambda error: type(error).__name__)
def test_a_group_commit_that_cannot_be_written_leaves_all_as_it_was(error: AdapterError) -> None:
    """Memory, counters, digest and dirty keys; also of a shard that moved twice or was only confirmed."""
    store = Store().holds(a=1, b=2)
    store.commit([request("b", offset=3)])
    before, platter = store.state(), store.platter.version
    store.disk.refuses = error
    with pytest.raises(type(error)):
        store.commit([request("a", offset=5), request("a", offset=6)], [request("a", offset=6)], [request("b", offset=4)])
    assert (store.state(), store.platter.version) == (before, platter)
    if isinstance(error, DiskFullError):
        assert store.commit([request("a", offset=5)]) == [1]
        assert store.offsets() == {"a": 5, "b": 3}
    else:
        with pytest.raises(StorageFailedError):  # until it is opened again, also for what stands already
            store.commit([request("b", offset=3)])
    again = store.again()
    assert again.store.get(key("b"))
    assert again.commit([request("b", offset=8)]) == [1]


def test_what_stands_on_the_disk_without_its_watermark_is_not_acknowledged() -> None:
    """The next process finds the write, and reports no loss."""
    store = Store().holds(a=1)
    assert store.store.get(key("a"))
    store.disk.watermark_fails = True
    with pytest.raises(StorageFailedError):
        store.commit([request("a", offset=5)])
    with pytest.raises(StorageFailedError):
        store.commit([request("a", offset=1)])
    again = Store(store.platter)
    assert (again.store.loss, again.offsets()) == (None, {"a": 5})


def test_a_process_that_dies_in_the_write_has_stored_all_or_nothing() -> None:
    """Killed before the batch: nothing. Between batch and watermark: everything, acknowledged to nobody."""
    for operations, expected in ((0, {"a": 1, "b": 1}), (1, {"a": 5, "b": 6})):
        store = Store().holds(a=1, b=1)
        store.disk.fuse = operations
        with pytest.raises(StorageFailedError):
            store.commit([request("a", offset=5)], [request("b", offset=6)])
        again = Store(store.platter)
        assert (again.store.loss, again.offsets()) == (None, expected)


def test_whatever_is_raised_halfway_nothing_of_the_group_commit_is_left() -> None:
    """The exception comes in the second run, when the first one is prepared."""
    store = Store().holds(a=1, b=1)
    before = store.state()
    strange = cast("Request", SimpleNamespace())
    with pytest.raises(AttributeError):
        store.commit([request("a", offset=5), request("a", offset=6)], [request("b", offset=7), strange])
    assert store.state() == before
    assert store.commit([request("a", offset=2)]) == [1]
    store.again()


COMMITS = st.tuples(st.sampled_from(SHARDS), st.integers(0, 6), st.sampled_from([0, 0, 1, 2]))
RUNS = st.lists(st.lists(COMMITS, max_size=4), min_size=1, max_size=3)
TURNS = st.lists(st.tuples(RUNS, st.booleans(), st.integers(-1, 1)), max_size=8)


@given(TURNS)
def test_group_commits_do_what_their_commits_do_one_by_one(
    groups: list[tuple[list[list[tuple[str, int, int]]], bool, int]],
) -> None:
    """After any history both leave the same records, memory, counters and dirty keys; the next open finds no loss."""
    together, apart = Store().holds(a=0, b=3), Store().holds(a=0, b=3)
    now_ms = NOW_MS
    for runs, refused, passes in groups:
        now_ms += passes
        requests = [[request(shard, offset=offset, epoch=epoch) for shard, offset, epoch in run] for run in runs]
        together.disk.refuses = DiskFullError("full") if refused else None
        version, before = together.platter.version, together.state()
        try:
            counts = together.commit(*requests, now_ms=now_ms)
        except DiskFullError:
            assert (together.platter.version, together.state()) == (version, before)
            continue
        together.disk.refuses = None
        for run, count in zip(requests, counts, strict=True):
            taken = [apart.commit([one], now_ms=now_ms) for one in run[: count + 1]]
            assert taken == [[1]] * count + [[0]] * (len(run) > count)
    assert together.state() == apart.state()
    assert together.dirty.take() == apart.dirty.take()
    together.again()


def test_a_record_is_what_a_commit_makes_of_it() -> None:
    """The epoch and the labels stay, the metadata is removed, as on the general path; in the cache and on the disk."""
    store = Store()
    store.store.write({key("a"): OffsetRecord(4, 1, metadata="m", topic="t", partition=3)})
    assert store.commit([request("a", offset=2, epoch=4)], [request("a", offset=3, epoch=3)]) == [1, 0]
    after = OffsetRecord(4, 2, committed_at_ms=NOW_MS, topic="t", partition=3)
    assert store.store.get(key("a")) == after
    assert [stored.record for stored in store.store.scan()] == [after]
