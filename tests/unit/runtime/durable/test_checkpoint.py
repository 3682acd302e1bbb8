"""Checkpoints of a real RocksDB: which files are sent, that they are from one instant, and that none is left behind."""

import asyncio
import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from rocksdict import AccessType, Rdict, WriteBatch

from adapter.errors import DiskFullError, OverloadedError, StorageFailedError
from adapter.runtime.durable import rocks
from adapter.runtime.durable.checkpoint import DIRECTORY, Checkpoints, File, Known, Sent

FAMILIES = ("data", "meta")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[rocks.Database]:
    """An open database with some rows."""
    opened = rocks.open_store(tmp_path / "db", FAMILIES, "advice")
    for at in range(100):
        opened.db.put(b"%03d" % at, b"value" * 10)
    yield opened
    opened.close()


async def taken(checkpoints: Checkpoints, into: Path | None = None, known: Sequence[File] = ()) -> tuple[list[File], list[File]]:
    """The files of a checkpoint that were sent, and those that were not."""
    sent, had, data = [], [], b""
    async for part in checkpoints.read(known):
        if isinstance(part, Sent):
            assert (len(data), hashlib.sha256(data).digest()) == part.file[1:]
            sent.append(part.file)
            if into:
                (into / part.file.name).write_bytes(data)
            data = b""
        elif isinstance(part, Known):
            had.append(part.file)
        else:
            data += part
    return sent, had


async def test_a_file_is_known_by_its_content(tmp_path: Path, database: rocks.Database) -> None:
    """Names and sizes come again where a store was put back."""
    checkpoints = Checkpoints(database.db, tmp_path)
    first, _ = await taken(checkpoints)
    assert {"CURRENT"} < {file.name for file in first}
    database.db.put(b"more", b"value")
    sent, had = await taken(checkpoints, known=first)
    assert had
    assert set(had) < set(first)
    assert not {*sent} & {*first}
    others = [file._replace(sha256=bytes(32)) for file in had]
    sent, still = await taken(checkpoints, known=others)
    assert {*had} <= {*sent}
    assert not still


async def test_there_is_one_at_a_time_and_none_is_left(tmp_path: Path, database: rocks.Database) -> None:
    """Also when nobody reads it to its end."""
    checkpoints = Checkpoints(database.db, tmp_path)
    reading = checkpoints.read(())
    await anext(reading)
    with pytest.raises(OverloadedError, match="is being taken already"):
        await taken(checkpoints)
    assert (tmp_path / DIRECTORY).exists()
    await reading.aclose()
    assert not (tmp_path / DIRECTORY).exists()
    assert (await taken(checkpoints))[0]


async def test_one_whose_caller_has_gone_is_not_made(tmp_path: Path, database: rocks.Database) -> None:
    """Its thread may come to it when what was to be removed behind it has been removed already."""
    checkpoints = Checkpoints(database.db, tmp_path)
    checkpoints._make([])
    assert [path.name for path in tmp_path.iterdir()] == ["db"]  # noqa: ASYNC240 - of a test
    reading = asyncio.create_task(anext(checkpoints.read(())))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (await taken(checkpoints))[0]
    assert not (tmp_path / DIRECTORY).exists()


def test_what_a_killed_process_left_is_removed_by_the_next_open(tmp_path: Path, database: rocks.Database) -> None:
    """Half made ones as well."""
    for name in (DIRECTORY, f"{DIRECTORY}.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "000001.sst").touch()
    Checkpoints(database.db, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


async def test_a_store_that_is_closed_or_full_takes_none(
    tmp_path: Path, database: rocks.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint must not be what fills the disk, nor keep a closed database open."""
    checkpoints = Checkpoints(database.db, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
        with pytest.raises(DiskFullError, match="1,000,000 are free"):
            await taken(checkpoints)
    checkpoints.finish()
    with pytest.raises(StorageFailedError, match="the store was closed"):
        await taken(checkpoints)
    assert not (tmp_path / DIRECTORY).exists()


async def test_the_rows_of_all_column_families_are_from_one_instant(tmp_path: Path, database: rocks.Database) -> None:
    """Each batch writes the same number into both, while checkpoints are taken; the numbers rise."""
    handles = [database.db.get_column_family_handle(name) for name in FAMILIES]
    written, stop = [0], threading.Event()

    def write() -> None:
        for number in count(1):
            if stop.is_set():
                return
            batch = WriteBatch(raw_mode=True)
            for handle in handles:
                batch.put(b"number", b"%d" % number, handle)
            database.db.write(batch)
            written[0] = number

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for at in range(5):
            before = written[0]
            copy = tmp_path / f"copy-{at}"
            copy.mkdir()
            await taken(Checkpoints(database.db, tmp_path), copy)
            numbers = _numbers(copy)
            assert len(set(numbers)) == 1
            assert numbers[0] >= before
    finally:
        stop.set()
        thread.join()
        handles.clear()


def _numbers(copy: Path) -> list[int]:
    opened: Callable[[], Rdict] = lambda: Rdict(  # noqa: E731
        str(copy), rocks.options(create=False), {name: rocks.options() for name in FAMILIES}, access_type=AccessType.read_only()
    )
    with opened() as db:
        return [int(db.get_column_family(name).get(b"number") or b"0") for name in FAMILIES]
