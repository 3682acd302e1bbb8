"""The journal of real processes under load: killed with SIGKILL, on a disk that is full or read-only, and stopped."""

import contextlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pyarrow as pa
import pyarrow.parquet as pq

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import DEFAULT_NAMESPACE, CommitMode, OffsetKey
from adapter.model.schemas import JOURNAL, KINDS
from adapter.rpc import offsets_pb
from adapter.testing.history import History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability import machine
from tests.durability.load import (
    CALL_S,
    LIMIT_S,
    Positions,
    random_instants,
    remote_records,
    running_load,
    status_when,
)
from tests.durability.machine import mounted

KILLS = 6
AGE_MS = 250  # of a segment
LAST = 2**40  # above all that the load commits
MOVED = [f"queue-{number}" for number in range(8)]


class Journal(NamedTuple):
    """What was read back."""

    rows: list[dict[str, Any]]
    files: list[Path]

    def of(self, kind: str, group: str | None = None) -> list[dict[str, Any]]:
        """The rows of a kind."""
        return [row for row in self.rows if row["kind"] == kind and group in {None, row["group"]}]

    def newest(self) -> Positions:
        """The largest position of each key."""
        found: Positions = {}
        for row in self.rows:
            if row["kind"] != "heartbeat":
                key = OffsetKey(row["namespace"], row["group"], row["shard"])
                found[key] = max(found.get(key, (0, 0)), (row["epoch"], row["offset"]))
        return found


def journal_in(path: Path) -> Journal:
    """Every finished segment: each is whole, of its date, and no row is there twice."""
    files = sorted(path.glob("date=*/broker=*/*.parquet"), key=lambda found: found.name)
    rows, names = [], Counter[tuple[str, int]]()
    for found in files:
        table: pa.Table = pq.ParquetFile(found).read()
        assert table.schema == JOURNAL
        run = found.name[:13]
        for row in table.to_pylist():
            assert row["kind"] in KINDS
            assert f"date={row['at']:%Y-%m-%d}" == found.parts[-3]
            names[run, row["seq"]] += 1
            rows.append(row)
    assert not [name for name, times in names.items() if times > 1]
    for run in {found.name[:13] for found in files}:
        numbers = [int(found.stem[-8:]) for found in files if found.name[:13] == run]
        assert numbers == list(range(len(numbers)))
    return Journal(rows, files)


async def remote(meta: ServiceProcess) -> Positions:
    """Everything in the Meta Service."""
    async with GrpcMetaClient.open(MetaSection(endpoints=(meta.address,), timeout_ms=5_000)) as client:
        return {key: record.position for key, record in (await remote_records(client)).items()}


def journaling(directory: Path, meta: ServiceProcess, journal: Path) -> ServiceProcess:
    """An adapter that keeps a journal."""
    extra = f"[journal]\npath = '{journal}'\nsegment_max_age_ms = {AGE_MS}"
    return adapter_process(directory, meta.address, top="broker = 'b/1'", extra=extra)


async def _assert_behind(journal: Path, meta: ServiceProcess) -> None:
    """The journal tells nothing that the Meta Service does not hold. Read first: the other only grows."""
    told = journal_in(journal).newest()
    held = await remote(meta)
    # A rewind is told when it is committed, and in the Meta Service after the next flush.
    told = {key: position for key, position in told.items() if key.group != "rewinds"}
    assert {key: position for key, position in told.items() if position > held.get(key, (0, 0))} == {}


async def _rewind_and_reset(service: ServiceProcess, group: str) -> tuple[list[Any], list[Any]]:
    """Rewind some shards, then reset them; returns what the journal has to say of it."""
    async with OffsetClient.connect(service.address, CALL_S) as client:
        for at, shard in enumerate(MOVED):
            await client.commit(group, {shard: 100 + at})
        for at, shard in enumerate(MOVED):
            await client.commit(group, {shard: 50 + at}, mode=CommitMode.OVERWRITE)
        request = offsets_pb.ResetOffsetsRequest(group=group, shards=MOVED, to_offset=7, execute=True)
        await client.admin.ResetOffsets(request, timeout=CALL_S)
    rewinds = [(shard, 1, 100 + at, 2, 50 + at) for at, shard in enumerate(MOVED)]
    return rewinds, [(shard, 2, 50 + at, 2**32, 7) for at, shard in enumerate(MOVED)]


def _moves(rows: list[dict[str, Any]]) -> list[Any]:
    return [tuple(row[name] for name in ("shard", "from_epoch", "from_offset", "epoch", "offset")) for row in rows]


async def test_a_killed_adapters_journal_is_whole_and_true(tmp_path: Path) -> None:
    """Every segment is readable, no row is there twice, none tells more than the Meta Service holds; at the end, all of it."""
    instants = random_instants()
    path = tmp_path / "journal"
    meta = meta_process(tmp_path / "m")
    service = journaling(tmp_path / "a", meta, path)
    history = History()
    with ended(service, meta):
        meta.start()
        service.start()
        async with running_load(service.tcp_address, history, consumers=3) as load:
            for _ in range(KILLS):
                await load.progress()
                await status_when(service.address, lambda status: status.journal.rows > 0)
                await anyio.sleep(instants.uniform(0, 0.6))
                service.kill()
                await _assert_behind(path, meta)
                service.start()
            await load.progress()
            await load.pause()
            async with OffsetClient.connect(service.address, CALL_S) as client:
                for at, key in enumerate(sorted(load.keys)):
                    await client.commit(key.group, {key.shard: LAST + at}, namespace=key.namespace)
            rewinds, resets = await _rewind_and_reset(service, "moved")
            assert service.stop() == 0
        journal = journal_in(path)
        assert not list((path / ".open").rglob("*.batches"))
        assert len({found.name[:13] for found in journal.files}) == KILLS + 1
        held = await remote(meta)
        assert journal.newest() == held
        assert len(held) == len(load.keys) + len(MOVED)
        assert (_moves(journal.of("rewind", "moved")), _moves(journal.of("reset", "moved"))) == (rewinds, resets)
        for row in journal.of("rewind", "rewinds"):
            assert (row["epoch"], row["offset"]) == (row["from_epoch"] + 1, row["from_offset"] - 5)


async def test_a_full_disk_of_the_journal_is_no_trouble_of_commits(tmp_path: Path) -> None:
    """Shown and tried again, while every commit and flush goes on; with space, nothing is missing or there twice."""
    machine.require("a journal on a full 4 MB tmpfs", machine.tmpfs)
    meta = meta_process(tmp_path / "m")
    service = journaling(tmp_path / "a", meta, tmp_path / "disk" / "journal")
    with mounted(tmp_path / "disk", machine.tmpfs_options(4)) as disk, ended(service, meta):
        meta.start()
        service.start()
        async with running_load(service.tcp_address, History(), consumers=2) as load:
            await load.progress()
            await status_when(service.address, lambda status: status.journal.segments > 0)
            filler = _fill(disk)
            told = await status_when(service.address, lambda status: bool(status.journal.last_error))
            assert "No space left" in told.journal.last_error
            flushed_at_ms = (await status_when(service.address)).last_flush_at_ms
            await load.progress(200)
            during = await status_when(service.address, lambda status: status.last_flush_at_ms > flushed_at_ms)
            assert (during.state, during.last_flush_error) == (offsets_pb.StatusReply.SERVING, "")
            filler.unlink()
            rows = during.journal.rows
            await status_when(service.address, lambda status: not status.journal.last_error and status.journal.rows > rows)
            await load.pause()
            assert not load.failures
        assert service.stop() == 0
        assert "journal.incomplete" not in service.log
        assert journal_in(disk / "journal").newest() == await remote(meta)


async def test_an_adapter_with_a_read_only_journal_serves(tmp_path: Path) -> None:
    """It says so; once the directory can be written to, the journal has what was noted meanwhile."""
    machine.require("a journal on a read-only tmpfs", machine.tmpfs)
    meta = meta_process(tmp_path / "m")
    service = journaling(tmp_path / "a", meta, tmp_path / "disk" / "journal")
    with mounted(tmp_path / "disk", ["-t", "tmpfs", "-o", "ro", "tmpfs"]) as disk, ended(service, meta):
        meta.start()
        service.start()
        async with OffsetClient.connect(service.address, CALL_S) as client:
            await client.commit("g", {"s": 5})
            await client.flush()
        told = await status_when(service.address, lambda status: bool(status.journal.last_error))
        assert "Read-only file system" in told.journal.last_error
        machine.run("mount", "-o", "remount,rw", str(disk))
        await status_when(service.address, lambda status: not status.journal.last_error)
        assert service.stop() == 0
        assert [row["offset"] for row in journal_in(disk / "journal").of("flush")] == [5]


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return filler


async def test_a_second_adapter_of_the_same_name_serves_without_its_journal(tmp_path: Path) -> None:
    """It says why; when the first one is gone, killed or not, it goes on with the journal."""
    path = tmp_path / "journal"
    meta = meta_process(tmp_path / "m")
    first, second = (journaling(tmp_path / name, meta, path) for name in ("a", "b"))
    with ended(first, second, meta):
        meta.start()
        first.start()
        await status_when(first.address, lambda status: status.journal.segments > 0)
        second.start()
        told = await status_when(second.address, lambda status: bool(status.journal.last_error))
        assert "another adapter writes here as 'b/1': give each its own broker" in told.journal.last_error
        async with OffsetClient.connect(second.address, CALL_S) as client:
            await client.commit("g", {"s": 5})
            await client.flush()
        first.kill()
        await status_when(second.address, lambda status: status.journal.rows > 0)
        assert second.stop() == 0
    (row,) = journal_in(path).of("flush")
    assert (row["namespace"], row["group"], row["offset"]) == (DEFAULT_NAMESPACE, "g", 5)


async def test_a_removed_journal_begins_anew(tmp_path: Path) -> None:
    """Somebody deletes the whole directory of a running adapter."""
    path = tmp_path / "journal"
    meta = meta_process(tmp_path / "m")
    service = journaling(tmp_path / "a", meta, path)
    with ended(service, meta):
        meta.start()
        service.start()
        await status_when(service.address, lambda status: status.journal.segments > 0)
        shutil.rmtree(path)
        await eventually(lambda: bool(list(path.glob("date=*/*/*.parquet"))), LIMIT_S)
        assert service.stop() == 0
