"""The embedded engine replies only after the sync: adapters mark acknowledged records as clean (3)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapter.errors import StorageFailedError
from adapter.metaservice.engine import Expiry, MergeCounts
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.records import SaveEntry, SaveOutcome, Status
from adapter.testing.waiting import eventually
from tests.unit.helpers import key, record

CLUSTER = "c"
STORED = record(5, committed_at_ms=1)
Change = Callable[[RocksDbEngine], Awaitable[object]]

CHANGES: dict[str, tuple[Change, object]] = {
    "save": (
        lambda engine: engine.save(CLUSTER, [SaveEntry(key(), record(9))]),
        [SaveOutcome(Status.APPLIED, record(9))],
    ),
    "a save that changes nothing": (
        lambda engine: engine.save(CLUSTER, [SaveEntry(key(), STORED)]),
        [SaveOutcome(Status.APPLIED, STORED)],
    ),
    "merge": (
        lambda engine: engine.merge(CLUSTER, [encode_key(key())], [encode_record(record(9))]),
        MergeCounts(1, 0),
    ),
    "save_packed": (lambda engine: engine.save_packed(CLUSTER, [encode_key(key())], [encode_record(record(9))]), []),
    "delete": (lambda engine: engine.delete(CLUSTER, "default", "g", []), None),
    "expire": (lambda engine: engine.expire(CLUSTER, "default", "g", 2, 3), Expiry(1)),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_is_answered_after_its_sync(tmp_path: Path, name: str) -> None:
    """Also if nothing is written, since the stored record may come from a save that is not synced yet."""
    change, answer = CHANGES[name]
    engine = RocksDbEngine.open(tmp_path / "meta")
    where = pack_names(CLUSTER, *key())
    await engine._write(CLUSTER, [(key(), STORED)], lambda record: record)
    work = asyncio.ensure_future(change(engine))
    if answer != [SaveOutcome(Status.APPLIED, STORED)]:
        await eventually(lambda: engine._standing(where) != STORED)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not work.done()
    syncing = asyncio.create_task(engine.run())
    assert await work == answer
    syncing.cancel()
    await asyncio.wait([syncing])
    engine.close()


READS: dict[str, Change] = {
    "get": lambda engine: engine.get(CLUSTER, [key()]),
    "group_page": lambda engine: engine.group_page(CLUSTER, "default", "g", 10, 1_000, ""),
    "list_page": lambda engine: engine.list_page(CLUSTER, (), 10, b""),
    "scan_page": lambda engine: engine.scan_page(CLUSTER, (), 10, b"", b""),
    "split": lambda engine: engine.split(CLUSTER, (), 2),
}


@pytest.mark.parametrize("name", READS)
async def test_a_read_waits_for_the_sync_of_what_it_shows(tmp_path: Path, name: str) -> None:
    """Otherwise an adapter would mark a record as clean that a power cut removes."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    await engine._write(CLUSTER, [(key(), STORED)], lambda record: record)
    read = asyncio.ensure_future(READS[name](engine))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not read.done()
    syncing = asyncio.create_task(engine.run())
    assert await read == await READS[name](engine)
    syncing.cancel()
    await asyncio.wait([syncing])
    engine.close()


@pytest.mark.parametrize("name", READS)
async def test_a_read_of_what_is_synced_waits_for_nothing(tmp_path: Path, name: str) -> None:
    """No sync runs in this test, so a wait would never end."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    await READS[name](engine)
    engine.close()


@pytest.mark.parametrize("problem", ["IO error: the disk is gone", "Corruption: block checksum mismatch"])
async def test_a_write_that_fails_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    """Also of damage that a compaction has met: RocksDB refuses each write behind it, and a new process says what to do."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    running = asyncio.create_task(engine.run())

    class Broken:
        def write(self, _: object) -> None:
            raise Exception(problem)  # noqa: TRY002 - as RocksDB's

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_db", Broken())
        with pytest.raises(StorageFailedError, match=problem):
            await engine.save(CLUSTER, [SaveEntry(key(), record(9))])
    with pytest.raises(ExceptionGroup) as ended:
        await running
    assert ended.group_contains(StorageFailedError, match=problem)
    engine.close()
