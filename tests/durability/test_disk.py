"""A disk that fails, is full, read-only or gone under a running process: no false acknowledgement, and it heals by itself."""

import contextlib
import re
import time
from pathlib import Path

import grpc
import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.testing.history import ADAPTER, META, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually, positions
from tests.durability import machine
from tests.durability.callers import WAIT_S, Answer, Callers, check_local, check_remote, health_turns, under
from tests.durability.load import status_when
from tests.durability.machine import ALONE, NOWHERE, Strace, mounted

RESUMED_S = 5.0  # the bar: no pause between two attempts to open the store is longer
PAUSE = re.compile(r"\bpause_s=([0-9.]+)")
ALARM = "store.acknowledged_writes_lost"
WRITE_THROUGH = "[[policy]]\ngroups = 'through-*'\nmode = 'write_through'\n"


def _between(answers: list[Answer], sent_after: float, answered_before: float) -> list[Answer]:
    return [answer for answer in answers if answer.sent_at > sent_after and answer.answered_at < answered_before]


def _reopen_attempts(service: ServiceProcess) -> int:
    return service.log.count("what=reopen")


async def _resumes(service: ServiceProcess, load: Callers) -> None:
    """Wait until a commit that is sent from now on is acknowledged. The adapter never paused for longer than it may."""
    now = time.time()
    await eventually(lambda: bool(load.acknowledged) and load.acknowledged[-1].sent_at > now, WAIT_S)
    pauses = [float(found) for line in service.log.splitlines() if "what=reopen" in line for found in PAUSE.findall(line)]
    assert len(pauses) == _reopen_attempts(service)
    assert all(pause_s <= RESUMED_S for pause_s in pauses)


async def _assert_nothing_lost(service: ServiceProcess, meta: ServiceProcess, history: History) -> None:
    """Locally, also after a kill -9, and in the Meta Service after a drain; and no alarm says otherwise."""
    await check_local(service, history)
    service.kill()
    service.start()
    await check_local(service, history)
    assert ALARM not in service.log
    assert service.stop() == 0
    history.carrying().done()
    await check_remote(meta, history)


@pytest.mark.parametrize("wal_sync", ["always", "interval"])
async def test_after_a_failed_sync_nothing_is_acknowledged_until_a_new_open(wal_sync: str, tmp_path: Path) -> None:
    """A failed fsync is final: health says so at once, and only a new open tells what there really is (1)."""
    machine.require(f"fdatasync EIO on the adapter under load, wal_sync {wal_sync}", machine.strace)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address, wal_sync=wal_sync)
    history = History()
    with ended(meta, service):
        meta.start()
        service.start()
        async with under(Callers(service.address, history)) as load:
            await load.acknowledged_more()
            with Strace(service.pid, tmp_path / "trace", error="EIO") as fault:
                attached_at = time.time()
                await health_turns(service, serving=False)
                await eventually(lambda: "store.failed" in service.log, WAIT_S)
                noticed_at = time.time()
                await load.refused_more()
                await eventually(lambda: _reopen_attempts(service) > 1, WAIT_S)
                assert not service.healthy()
                detached_at = time.time()
            await health_turns(service, serving=True)
            await load.acknowledged_more()
        assert fault.failures
        # With `interval` commits count until the failed sync is noticed; with `always` each waits for a sync of its own.
        assert not _between(load.acknowledged, attached_at if wal_sync == "always" else noticed_at, detached_at)
        assert {answer.code for answer in load.refused} == {grpc.StatusCode.UNAVAILABLE}
        await _assert_nothing_lost(service, meta, history)


@pytest.mark.parametrize("wal_sync", ["always", "interval"])
async def test_a_failed_sync_is_told_when_nobody_commits_any_more(wal_sync: str, tmp_path: Path) -> None:
    """The last commit before the silence: `always` refuses it; in both modes health and the reopening need no next one."""
    machine.require(f"fdatasync EIO on an idle adapter, wal_sync {wal_sync}", machine.strace)
    service = adapter_process(tmp_path, NOWHERE, wal_sync=wal_sync, extra=ALONE)
    history = History()
    with ended(service):
        service.start()
        last = Callers(service.address, history, callers=1, shards=1)
        await last.run(turns=1)
        await status_when(service.address, lambda status: not status.unsynced_writes)  # else its sync is the one that fails
        with Strace(service.pid, tmp_path / "trace", error="EIO") as fault:
            await last.run(turns=1)
            assert len(last.acknowledged) == (1 if wal_sync == "always" else 2)
            await health_turns(service, serving=False)
            assert fault.failures
        await health_turns(service, serving=True)
        await check_local(service, history)


async def test_a_store_that_vanished_is_not_begun_anew(tmp_path: Path) -> None:
    """Its directory disappears (an unmounted disk) while the store has to be opened again: an empty one is no answer (1)."""
    machine.require("a store that vanishes after fdatasync EIO", machine.strace)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address)
    store, away = tmp_path / "a" / "adapter", tmp_path / "away"
    history = History()
    with ended(meta, service):
        meta.start()
        service.start()
        async with under(Callers(service.address, history)) as load:
            await load.acknowledged_more()
            with Strace(service.pid, tmp_path / "trace", error="EIO"):
                await eventually(lambda: _reopen_attempts(service) > 0, WAIT_S)
                store.rename(away)
            enough = _reopen_attempts(service) + 2
            assert service.process is not None
            ended_itself = service.process.poll
            await eventually(lambda: store.exists() or _reopen_attempts(service) >= enough or ended_itself() is not None, WAIT_S)
            assert not (store / "db" / "CURRENT").exists()
            away.rename(store)
            if ended_itself() is not None:
                service.start()
            await health_turns(service, serving=True)
        await _assert_nothing_lost(service, meta, history)


def _fill(disk: Path) -> Path:
    """Take every free byte of a file system with one file."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


async def _check_reads(service: ServiceProcess, history: History) -> None:
    reading = history.reading(ADAPTER)
    async with OffsetClient.connect(service.address, WAIT_S) as client:
        groups = {key.group for key in history.least()}
        found = [await client.read(group, mode=ReadMode.MEMORY) for group in groups]
    reading.found(positions(row for rows in found for row in rows.values()))
    assert history.check() == []


@pytest.mark.parametrize("wal_sync", ["always", "interval"])
async def test_a_full_disk_refuses_commits_and_heals(wal_sync: str, tmp_path: Path) -> None:
    """Refused with RESOURCE_EXHAUSTED and what to do; reads go on; with space again, commits count, and survive a kill (1)."""
    machine.require(f"a full 8 MB tmpfs, wal_sync {wal_sync}", machine.tmpfs)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address, wal_sync=wal_sync, store=tmp_path / "disk" / "adapter")
    history = History()
    with mounted(tmp_path / "disk", machine.tmpfs_options(8)) as disk, ended(meta, service):
        meta.start()
        service.start()
        async with under(Callers(service.address, history)) as load:
            await load.acknowledged_more()
            filler = _fill(disk)
            await load.refused_more()
            assert {answer.code for answer in load.refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}, load.refused[-1].text
            assert str(disk) in load.refused[-1].text
            assert "no space left" in load.refused[-1].text
            await status_when(service.address, lambda status: status.store.disk_full)
            await _check_reads(service, history)
            filler.unlink()
            await _resumes(service, load)
            await load.acknowledged_more()
            await status_when(service.address, lambda status: not status.store.disk_full)
        await _assert_nothing_lost(service, meta, history)


async def test_a_kill_on_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The start is refused, with the reason, for as long as there is no space; then every acknowledged commit is there (1)."""
    machine.require("kill -9 on a full 8 MB tmpfs", machine.tmpfs)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address, store=tmp_path / "disk" / "adapter")
    history = History()
    with mounted(tmp_path / "disk", machine.tmpfs_options(8)) as disk, ended(meta, service):
        meta.start()
        service.start()
        async with under(Callers(service.address, history)) as load:
            await load.acknowledged_more()
            filler = _fill(disk)
            await load.refused_more()
            service.kill()
        with pytest.raises(RuntimeError, match="No space left on device"):
            service.start()
        assert service.process is not None
        assert service.process.wait(WAIT_S) == 1
        assert "Traceback" not in service.log
        filler.unlink()
        service.start()
        await _assert_nothing_lost(service, meta, history)


async def test_a_read_only_disk_refuses_commits_and_heals(tmp_path: Path) -> None:
    """As the kernel does it after an error of the device; mounted anew, everything that was acknowledged is there (1)."""
    machine.require("an ext4 image that turns read-only", machine.loop_ext4, machine.tmpfs)
    image = machine.make_ext4(tmp_path / "image", megabytes=32)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address, wal_sync="always", store=tmp_path / "disk" / "adapter")
    history = History()
    # Below the disk is a read-only directory: between the mounts there is nothing that could be written.
    with mounted(tmp_path / "disk", ["-t", "tmpfs", "-o", "ro", "tmpfs"]) as disk, ended(meta, service):
        with mounted(disk, machine.loop_options(image)):
            meta.start()
            service.start()
            load = Callers(service.address, history)
            async with under(load):
                await load.acknowledged_more()
                machine.run("mount", "-o", "remount,abort", str(disk))
                aborted_at = time.time()
                await health_turns(service, serving=False)
                await load.refused_more()
            assert not _between(load.acknowledged, aborted_at, time.time())
            assert {answer.code for answer in load.refused} == {grpc.StatusCode.UNAVAILABLE}
        async with under(load):
            with mounted(disk, machine.loop_options(machine.copied(image, tmp_path / "copy"))):
                await _resumes(service, load)
                await _assert_nothing_lost(service, meta, history)


async def test_a_meta_service_whose_sync_fails_ends_and_adapters_keep_everything(tmp_path: Path) -> None:
    """It exits with 1: no save counts after the failure, cached commits go on, and all is pushed after its restart (1, 3, 4)."""
    machine.require("fdatasync EIO on the Meta Service", machine.strace)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address, extra=WRITE_THROUGH)
    history = History()
    with ended(meta, service):
        meta.start()
        service.start()
        cached = Callers(service.address, history)
        written = Callers(service.address, history, group="through", places=(ADAPTER, META))
        async with under(cached), under(written):
            await written.acknowledged_more()
            with Strace(meta.pid, tmp_path / "trace", error="EIO"):
                attached_at = time.time()
                assert meta.process is not None
                await eventually(lambda: meta.process is not None and meta.process.poll() is not None, WAIT_S)
            assert meta.process.returncode == 1
            await cached.acknowledged_more()
            await written.refused_more()
            assert not _between(written.acknowledged, attached_at, time.time())
            meta.start()
            await written.acknowledged_more()
        assert service.stop() == 0
        history.carrying().done()
        await check_remote(meta, history)
