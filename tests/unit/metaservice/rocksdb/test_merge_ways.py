"""A merge may look at a range, get each key, or add without either: what is stored, counted and recorded is the same."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from adapter.metaservice.bulk import Merge
from adapter.metaservice.engine import Differing, MergeCounts
from adapter.metaservice.rocksdb import engine as rocksdb_engine
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.records import EPOCH_MAX, OffsetKey, OffsetRecord, SaveEntry
from adapter.runtime.durable import rocks
from tests.embedded_engine import opened
from tests.unit.helpers import key, record, tombstone

CLUSTER = "c"
Entry = tuple[OffsetKey, OffsetRecord]
Told = tuple[MergeCounts, list[Differing]]

OFFERED = st.builds(
    OffsetRecord,
    st.sampled_from([0, 1, 2, 2**32, EPOCH_MAX]),
    st.integers(0, 3),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from(["", "m"]),
    st.sampled_from(["", "t", "tt"]),
    st.integers(0, 1),
)
SHARDS = st.integers(0, 11).map(lambda at: key(f"{at:02}"))
REQUESTS = st.lists(
    st.lists(st.tuples(SHARDS, OFFERED), min_size=1, max_size=9).flatmap(
        lambda entries: st.sampled_from([entries, sorted(dict(entries).items())])
    ),
    min_size=4,
    max_size=16,
)


async def merged(directory: Path, requests: Sequence[Sequence[Entry]]) -> tuple[list[Told], list[Entry], int]:
    """What the merges said, what is stored after them and another start, and the number of the last write."""
    told: list[Told] = []
    async with opened(directory) as engine:
        for at, entries in enumerate(requests):
            keys, records = [encode_key(where) for where, _ in entries], [encode_record(found) for _, found in entries]
            if at % 2 or len(set(keys)) < len(keys):
                told.append((await engine.merge(CLUSTER, keys, records), []))
            else:
                told.append((MergeCounts(0, 0), await engine.save_packed(CLUSTER, keys, records)))
    async with opened(directory) as engine:  # refuses wrong counts of rows and wrong sums of write counters
        page = await engine.list_page(CLUSTER, (), 1_000, b"")
        return told, page.entries, engine.marks()[0].revision


@settings(max_examples=20, deadline=None, phases=[Phase.generate])  # to shrink a failure takes minutes
@given(REQUESTS)
def test_all_ways_to_merge_end_alike(requests: list[list[Entry]]) -> None:
    """In answers, records, and the bookkeeping of the store, in slices of any size (2)."""
    found = []
    for size, ways in ((3, True), (1_000, True), (1_000, False)):
        with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
            patch.setattr(rocksdb_engine, "MERGE_SLICE", size)
            if not ways:
                patch.setattr(rocks, "rows_between", lambda _db, _keys: None)
                patch.setattr(Merge, "added", lambda _self, _records: None)
            found.append(asyncio.run(merged(Path(directory), requests)))
    assert found[1] == found[2]
    assert found[0][:2] == found[1][:2]  # a key that comes twice may be written twice, in two slices


async def test_new_keys_and_the_same_again_need_no_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In key order. In another order each key is looked up."""
    guarded: list[str] = []

    def noting(call: Callable[..., object], *arguments: object) -> object:
        guarded.append(getattr(call, "__name__", ""))
        return call(*arguments)

    async with opened(tmp_path) as engine:
        monkeypatch.setattr(rocks, "guarded", noting)
        entries = [(key(f"{at:04}"), record(at + 1)) for at in range(1_500)]
        for offered, gets in ((entries, 0), (entries, 0), (entries[::-1], 2)):
            guarded.clear()
            keys, records = [encode_key(where) for where, _ in offered], [encode_record(found) for _, found in offered]
            assert await engine.merge(CLUSTER, keys, records) == MergeCounts(1_500, 0)
            assert guarded.count("get") == gets


async def test_keys_that_come_back_from_a_sweep_are_new(tmp_path: Path) -> None:
    """Between removed rows, and behind them, merges find what stands."""
    async with opened(tmp_path) as engine:
        dead = [(key(f"{at:05}"), tombstone(1)) for at in range(2_000)]
        await engine.merge(CLUSTER, [encode_key(where) for where, _ in dead], [encode_record(found) for _, found in dead])
        await engine.save(CLUSTER, [SaveEntry(key("01000"), record(7, 3)), SaveEntry(key("01999x"), record(8))])
        assert await engine.drop_tombstones(2**62) == 1_999
        back = [encode_key(where) for where, _ in dead] + [encode_key(key("01999x"))]
        assert await engine.merge(CLUSTER, back, [encode_record(record(5))] * len(back)) == MergeCounts(1_999, 2)
        assert engine._standing(pack_names(CLUSTER, *key("01000"))) == record(7, 3)
    async with opened(tmp_path) as engine:
        assert (await engine.split(CLUSTER, (), 1)).records == 2_001


async def test_merges_saves_and_deletes_of_sorted_keys_at_the_same_time_lower_nothing(tmp_path: Path) -> None:
    """What a merge found absent is absent when it is written (2)."""
    keys = [key(f"{at:04}") for at in range(3_000)]
    random = Random(7)

    async def merge(engine: RocksDbEngine, offset: int) -> None:
        start = random.randrange(1_000)
        some = keys[start : start + 2_000]
        await engine.merge(CLUSTER, [*map(encode_key, some)], [encode_record(record(offset))] * len(some))

    async with opened(tmp_path) as engine:
        await asyncio.gather(
            *(merge(engine, offset) for offset in (30, 10, 20)),
            *(engine.save(CLUSTER, [SaveEntry(where, record(40))]) for where in keys[::50]),
        )
        found = dict((await engine.list_page(CLUSTER, (), 10_000, b"")).entries)
    assert {found[where] for where in keys[::50]} == {record(40)}
    assert {found[where].offset for where in keys[1_000:2_000] if where not in keys[::50]} == {30}
    async with opened(tmp_path):
        pass
