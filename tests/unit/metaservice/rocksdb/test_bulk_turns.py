"""Bulk calls of the embedded engine yield to other tasks: a save never waits for a whole bulk call."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import DiskFullError
from adapter.metaservice.bulk_checks import check
from adapter.metaservice.engine import RawPage
from adapter.metaservice.rocksdb import reads
from adapter.metaservice.rocksdb.engine import MERGE_SLICE, SLICE, RocksDbEngine
from adapter.metaservice.scan_replies import values
from adapter.model.codec import decode_key, encode_key, encode_record, pack_names
from adapter.model.records import SaveEntry
from adapter.runtime.slices import ITERATIONS
from tests.embedded_engine import opened
from tests.unit.helpers import key, record

CLUSTER = "c"
SLICES = 6
KEYS = [encode_key(key(f"{at:05}")) for at in range(SLICES * SLICE)]
RECORDS = [encode_record(record(5, committed_at_ms=1))] * len(KEYS)
Call = Callable[[RocksDbEngine], Awaitable[object]]


def stands(engine: RocksDbEngine, packed: bytes) -> bool:
    """Whether a record is stored under a key."""
    return engine._standing(pack_names(CLUSTER) + packed) is not None


def keys_of(page: RawPage) -> list[bytes]:
    """The keys of a page, without the cluster."""
    return [packed.removeprefix(pack_names(CLUSTER)) for packed in values(page.packed.keys, page.packed.key_sizes)]


CALLS: dict[str, Call] = {
    "check": lambda _: check(KEYS, RECORDS, 1),
    "merge": lambda engine: engine.merge(CLUSTER, KEYS, RECORDS),
    "scan_page": lambda engine: engine.scan_page(CLUSTER, (), len(KEYS), b"", b""),
    "split": lambda engine: engine.split(CLUSTER, (), 4),
}


@pytest.mark.parametrize("name", CALLS)
async def test_others_have_turns_between_the_slices(tmp_path: Path, name: str) -> None:
    """Other tasks run at least once for each slice."""
    async with opened(tmp_path) as engine:
        await engine.merge(CLUSTER, KEYS, RECORDS)
        call = asyncio.ensure_future(CALLS[name](engine))
        turns = 0
        while not call.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= SLICES
        await call


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.get(CLUSTER, [decode_key(packed) for packed in KEYS]),
        lambda engine: engine.drop_tombstones(1),
        lambda engine: engine.delete(CLUSTER, "default", "g", ()),
        lambda engine: engine.expire(CLUSTER, "default", "g", 2, 3),
    ],
    ids=["get", "drop_tombstones", "delete", "expire"],
)
async def test_what_reads_much_lets_calls_be_delivered_between_the_slices(tmp_path: Path, call: Call) -> None:
    """The server begins one in each iteration of the event loop: with one iteration for each slice, all would wait."""
    async with opened(tmp_path) as engine:
        await engine.merge(CLUSTER, KEYS, RECORDS)
        running = asyncio.ensure_future(call(engine))
        turns = 0
        while not running.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= ITERATIONS * (SLICES - 1)
        await running


async def test_a_save_passes_a_long_merge(tmp_path: Path) -> None:
    """It is written before the merge ends."""
    async with opened(tmp_path) as engine:
        merge = asyncio.create_task(engine.merge(CLUSTER, KEYS, RECORDS))
        while not stands(engine, KEYS[0]):  # noqa: ASYNC110 - every turn of the loop counts
            await asyncio.sleep(0)
        save = asyncio.create_task(engine.save(CLUSTER, [SaveEntry(key("save"), record(1))]))
        while not stands(engine, encode_key(key("save"))):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not stands(engine, KEYS[-1])
        await asyncio.gather(merge, save)


async def test_a_page_of_large_records_ends_early_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page must fit into a message; no record is left out."""
    monkeypatch.setattr(reads, "PAGE_BYTES", 2 * SLICE * len(RECORDS[0]))
    async with opened(tmp_path) as engine:
        await engine.merge(CLUSTER, KEYS, RECORDS)
        found: list[bytes] = []
        after, pages = b"", 0
        while after or not pages:
            page = await engine.scan_page(CLUSTER, (), len(KEYS), after, b"")
            found += keys_of(page)
            after, pages = page.after, pages + 1
        assert (found, pages) == (KEYS, SLICES // 2 + 1)


async def test_a_merge_on_a_full_disk_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that was written stays; the same request then writes the rest."""
    async with opened(tmp_path) as engine:
        write, writes = engine._write_batch, count(1)

        def fails_late(*batch: Any) -> None:
            if next(writes) == len(KEYS) // MERGE_SLICE:
                raise DiskFullError("full by the test")
            write(*batch)

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_write_batch", fails_late)
            with pytest.raises(DiskFullError):
                await engine.merge(CLUSTER, KEYS, RECORDS)
        assert (stands(engine, KEYS[0]), stands(engine, KEYS[-1])) == (True, False)
        assert await _kept(engine) == KEYS[:-MERGE_SLICE]
        assert (await engine.merge(CLUSTER, KEYS, RECORDS)).applied == len(KEYS)
        assert await _kept(engine) == KEYS


async def _kept(engine: RocksDbEngine) -> Sequence[bytes]:
    return keys_of(await engine.scan_page(CLUSTER, (), 2 * len(KEYS), b"", b""))


@pytest.mark.parametrize("name", ["delete", "expire"])
async def test_tombstones_are_written_in_slices(tmp_path: Path, name: str) -> None:
    """A group may have any number of shards: in one step the tombstones of 100,000 would hold up all calls for a second."""
    async with opened(tmp_path) as engine:
        await engine.merge(CLUSTER, KEYS, RECORDS)
        whole, written = engine._put, []

        def put(changes: Mapping[bytes, bytes], *others: Any) -> None:
            written.append(len(changes))
            whole(changes, *others)

        engine._put = put  # type: ignore[method-assign, assignment]
        call: dict[str, Call] = {
            "delete": lambda engine: engine.delete(CLUSTER, "default", "g", ()),
            "expire": lambda engine: engine.expire(CLUSTER, "default", "g", 2, 3),
        }
        await call[name](engine)
        assert sum(written) == len(KEYS)
        assert max(written) <= SLICE
