"""The wall clock jumps an hour back and an hour forth under the running processes (libfaketime): nothing depends on it."""

import time
from pathlib import Path

import anyio

from adapter.client.client import OffsetClient
from adapter.model.records import FIRST_EPOCH, CommitMode, OffsetKey, ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.history import History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests import forking
from tests.durability import machine
from tests.durability.callers import WAIT_S, Callers, check_local, check_remote, remote_positions, under

HOUR_S = 3600
LOOKS_S = 1  # until a running process looks again how far its clock is off
PROBE = "probe"  # a place of its own for the commits that only ask for the time
ALARM = "store.acknowledged_writes_lost"


class Clock:
    """The wall clock of some processes, off by whole seconds. Their monotonic clock stays, as when a person sets the time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, offset_s: int) -> None:
        """Jump, in one step."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}s\n")
        new.rename(self._file)

    def rules(self, *services: ServiceProcess) -> None:
        """Processes started from now on have this clock."""
        of_all = {
            "LD_PRELOAD": str(machine.faketime_library()),
            "FAKETIME_CACHE_DURATION": str(LOOKS_S),
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",  # files keep their times
        }
        for service in services:
            service.launched_by = forking.beginning_with(of_all)
            service.environment = {"FAKETIME_TIMESTAMP_FILE": str(self._file)}


async def _committed_at(service: ServiceProcess, meta: ServiceProcess, history: History) -> float:
    """The time (Unix seconds) that the adapter gives to a commit made now; returns when the Meta Service has that commit."""
    key = OffsetKey("default", "probe", "s")
    async with OffsetClient.connect(service.address, WAIT_S) as client:
        offset = time.monotonic_ns()
        write = history.begin(key, (FIRST_EPOCH, offset), places=[PROBE])
        await client.commit(key.group, {key.shard: offset})
        write.acknowledged()
        flush = history.carrying(PROBE)
        await client.persist(key.group)
        flush.done()
        at_ms = (await client.read(key.group, [key.shard]))[key.shard].committed_at_ms
    await check_remote(meta, history)
    return at_ms / 1000


async def _flushed_without_being_asked(service: ServiceProcess, meta: ServiceProcess, history: History) -> None:
    """Wait until the Meta Service has what is acknowledged by now, and check that no age was measured by the wall clock."""
    by_now = history.least()
    deadline = time.monotonic() + WAIT_S
    found: dict[OffsetKey, tuple[int, int]] = {}
    while any(found.get(key, (0, 0)) < acknowledged for key, acknowledged in by_now.items()):
        assert time.monotonic() < deadline, "flushes have stopped"
        found = await remote_positions(meta, by_now)
    async with OffsetClient.connect(service.address, WAIT_S) as client:
        status = await client.status()
        while not status.meta_available:  # at one instant, a save that was slow may have failed
            assert time.monotonic() < deadline, status.last_flush_error
            await anyio.sleep(0.1)
            status = await client.status()
    assert 0 <= status.oldest_dirty_seconds < HOUR_S / 2
    assert 0 <= status.uptime_seconds < HOUR_S / 2


async def test_commits_and_flushes_go_on_when_the_clock_jumps(tmp_path: Path) -> None:
    """An hour back, an hour forth, and to the truth, in both processes and opposite ways: nothing stops or goes back (2)."""
    machine.require("a clock that jumps by an hour under load", machine.faketime)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address)
    clock, meta_clock = Clock(tmp_path / "clock"), Clock(tmp_path / "meta-clock")
    clock.rules(service)
    meta_clock.rules(meta)
    history = History()
    with ended(meta, service):
        meta.start()
        service.start()
        async with under(Callers(service.address, history)) as load:
            for jump_s in (-HOUR_S, HOUR_S, 0):
                clock.set(jump_s)
                meta_clock.set(-jump_s)
                while abs(await _committed_at(service, meta, history) - time.time() - jump_s) > HOUR_S / 2:
                    await load.acknowledged_more(10)
                await load.acknowledged_more(100)
                await _flushed_without_being_asked(service, meta, history)
                await check_local(service, history)
        assert service.stop() == 0
        history.carrying().done()
        await check_remote(meta, history)


async def test_restarts_at_another_hour_lose_nothing(tmp_path: Path) -> None:
    """Started before the times of its own files, or long after, killed or stopped: everything is there, nothing alarms (1)."""
    machine.require("a restart with the clock an hour off", machine.faketime)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address)
    clock = Clock(tmp_path / "clock")
    clock.rules(service, meta)
    history = History()
    with ended(meta, service):
        for start_s in (HOUR_S, -HOUR_S):
            clock.set(start_s)
            meta.start()
            service.start()
            await check_local(service, history)
            await Callers(service.address, history).run(turns=5)
            service.kill()
            clock.set(-start_s)
            service.start()
            await check_local(service, history)
            assert service.stop() == 0
            history.carrying().done()
            await check_remote(meta, history)
            assert meta.stop() == 0
    assert ALARM not in service.log


async def test_the_clock_decides_no_merge(tmp_path: Path) -> None:
    """Only (epoch, offset) does: what was committed by an earlier clock wins when it is the larger, on both ways (2)."""
    machine.require("merges with the clock an hour off", machine.faketime)
    meta = meta_process(tmp_path / "m")
    service = adapter_process(tmp_path / "a", meta.address)
    clock = Clock(tmp_path / "clock")
    clock.rules(service)
    with ended(meta, service):
        meta.start()
        clock.set(HOUR_S)
        service.start()
        async with OffsetClient.connect(service.address, WAIT_S) as client:
            await client.commit("g", {"pushed": 100, "adopted": 100, "rewound": 100})
            await client.flush()
            meta.kill()
            clock.set(-HOUR_S)
            await anyio.sleep(2 * LOOKS_S)
            await client.commit("g", {"pushed": 200})
            await client.commit("g", {"rewound": 50}, mode=CommitMode.OVERWRITE)
            await client.commit("g", {"rewound": 60})
        service.kill()
        meta.start()
        await _commit_through_another_adapter(tmp_path / "other", meta, clock, {"adopted": 300})
        service.start()
        async with OffsetClient.connect(service.address, WAIT_S) as client:
            for mode in (ReadMode.MEMORY, ReadMode.STORE):
                found = {shard: (row.epoch, row.offset) for shard, row in (await client.read("g", mode=mode)).items()}
                assert found == {"pushed": (1, 200), "adopted": (1, 300), "rewound": (2, 60)}
        assert service.stop() == 0
        local = {OffsetKey("default", "g", shard): position for shard, position in found.items()}
        assert await remote_positions(meta, local) == local


async def _commit_through_another_adapter(directory: Path, meta: ServiceProcess, clock: Clock, offsets: dict[str, int]) -> None:
    other = adapter_process(directory, meta.address)
    clock.rules(other)
    with ended(other):
        other.start()
        async with OffsetClient.connect(other.address, WAIT_S) as client:
            await client.commit("g", offsets)
        assert other.stop() == 0


async def test_groups_of_an_adapter_whose_clock_is_days_slow_are_not_swept(tmp_path: Path) -> None:
    """Its times are moved to the Meta Service's clock when they are saved. Both warn, and it sweeps nothing itself."""
    machine.require("an adapter with the clock eight days slow", machine.faketime)
    meta = meta_process(tmp_path / "m")
    sweeping = "[expiry]\nretention_hours = 168\ninterval_ms = 50"
    slow = adapter_process(tmp_path / "slow", meta.address, top="broker = 'slow'", extra=sweeping)
    right = adapter_process(tmp_path / "right", meta.address, top="broker = 'right'", extra=sweeping)
    clock = Clock(tmp_path / "clock")
    clock.rules(slow)
    clock.set(-8 * 24 * HOUR_S)
    with ended(meta, slow, right):
        meta.start()
        slow.launch()
        right.start()
        slow.wait_ready()
        async with OffsetClient.connect(slow.address, WAIT_S) as client:
            await client.commit("live", {"s": 5})
            await client.flush()
            status = await client.status()
            assert status.clock_is_off
            assert -8 * 24 * HOUR_S - HOUR_S < status.clock_skew_seconds < -8 * 24 * HOUR_S + HOUR_S
        async with OffsetClient.connect(right.address, WAIT_S) as client:
            found = (await client.read("live", mode=ReadMode.STORE))["s"]
            assert abs(found.committed_at_ms / 1000 - time.time()) < HOUR_S
            # A group that is old indeed goes by the sweep after the one that leaves the live one.
            request = commits_of("old", time.time() - 9 * 24 * HOUR_S)
            for _ in range(2):
                await client.store.CommitOffsets(request)
                await client.flush()
                await eventually(lambda: right.log.count("expiry.expired") >= 1, WAIT_S)
            assert not (await client.status()).clock_is_off
        assert "meta.clock_skew" in slow.log
        await eventually(lambda: "expiry.clock" in slow.log, WAIT_S)  # said by its next sweep
        assert "save.clock_skew" in meta.log
        assert "meta.clock_skew" not in right.log
        local = {OffsetKey("default", "live", "s"): (1, 5)}
        assert await remote_positions(meta, local) == local
        assert "'live'" not in right.log
        assert "group=live" not in right.log
        assert slow.stop() == 0


def commits_of(group: str, at: float) -> offsets_pb.CommitOffsetsRequest:
    """A commit by a consumer that says when it was (Unix seconds)."""
    shard = offsets_pb.ShardCommit(shard="s", offset=1, committed_at_ms=int(at * 1000))
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=[shard])])
