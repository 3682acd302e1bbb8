"""Real processes under load, killed with SIGKILL at random instants (invariants 1, 2 and 8)."""

import random
import signal
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from adapter.rpc import offsets_pb
from adapter.testing.history import History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.load import (
    LIMIT_S,
    Load,
    Positions,
    Watcher,
    local_positions,
    random_instants,
    running_load,
    status_when,
    watching,
)
from tests.durability.proxy import Proxy

# With each gRPC server:
KILLS = 6  # of each wal_sync
PAIR_KILLS = 2
RECOVERY_KILLS = 2
DRAIN_KILLS = 2
RECOVERY_ANSWER_S = 0.02  # delay of each answer, so that a recovery of one key at a time can be met halfway
DRAIN_ANSWER_S = 2.0  # delay of each answer, so that no drain ends before its kill
# No tick of the flush loop, so that only a drain brings anything; and a stop must not use up its grace, whoever calls meanwhile.
DRAIN_ONLY = "[flush]\ninterval_ms = 60000\n[stop]\ngrace_ms = 120000"


@pytest.mark.parametrize("wal_sync", ["always", "interval", "never"])
async def test_acknowledged_commits_survive_kills(tmp_path: Path, wal_sync: str) -> None:
    """After each kill -9 everything acknowledged is there and nothing went back; a stop brings all to the Meta Service (1, 2)."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, wal_sync=wal_sync)
    with ended(meta, adapter):
        await start(meta, adapter)
        async with running_load(adapter.address, history) as load, watching(meta.address, history) as watcher:
            for _ in range(KILLS):
                await some_load(load, rng)
                adapter.kill()
                await restart_and_verify(load, adapter)
                load.resume()
            await load.progress()
            adapter.kill()
            found = await restart_and_verify(load, adapter)
            await expect_recovered(load, adapter, watcher, found)
            load.resume()
            await stop_and_compare(load, adapter, watcher)


async def test_acknowledged_commits_survive_a_kill_of_both_processes(tmp_path: Path) -> None:
    """Whichever of the two comes back first, nothing acknowledged is missing and nothing went back (1, 2, 9)."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra="[recovery]\ntimeout_ms = 200")
    with ended(meta, adapter):
        await start(meta, adapter)
        async with running_load(adapter.address, history) as load, watching(meta.address, history) as watcher:
            for turn in range(PAIR_KILLS):
                await some_load(load, rng)
                for service in rng.sample([meta, adapter], 2):
                    service.signal(signal.SIGKILL)
                meta.kill()
                adapter.kill()
                if turn % 2:
                    await start(meta)
                found = await restart_and_verify(load, adapter)
                if not turn % 2:
                    await start(meta)
                await expect_recovered(load, adapter, watcher, found)
                load.resume()
            await stop_and_compare(load, adapter, watcher)


async def test_a_kill_during_the_recovery_loses_nothing(tmp_path: Path) -> None:
    """A recovery that ends halfway leaves the rest to the next one (1, 2)."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra="[recovery]\nbatch_keys = 1")
    with ended(meta, adapter):
        await start(meta)
        async with proxy.listening():
            await start(adapter)
            async with running_load(adapter.address, history) as load, watching(meta.address, history) as watcher:
                for _ in range(RECOVERY_KILLS):
                    await leave_unflushed(load, meta, adapter)
                    proxy.delay_s = RECOVERY_ANSWER_S
                    await kill_while_recovering(adapter, rng.randrange(1, len(load.keys) // 2))
                    proxy.delay_s = 0.0
                    found = await restart_and_verify(load, adapter)
                    await expect_recovered(load, adapter, watcher, found)
                    load.resume()
                await stop_and_compare(load, adapter, watcher)


async def test_a_stop_under_load_brings_everything_to_the_meta_service(tmp_path: Path) -> None:
    """The drain alone brings it, also while every client commits, and opens a stream, again and again (8)."""
    history = History()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=DRAIN_ONLY)
    with ended(meta, adapter):
        await start(meta, adapter)
        async with running_load(adapter.address, history) as load, watching(meta.address, history) as watcher:
            await stop_and_compare(load, adapter, watcher)


async def test_a_kill_during_the_drain_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged up to SIGTERM, and by the commits still in flight then, is on disk for the next start (1, 8)."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra=DRAIN_ONLY)
    with ended(meta, adapter):
        await start(meta)
        async with proxy.listening():
            await start(adapter)
            async with running_load(adapter.address, history) as load, watching(meta.address, history) as watcher:
                for turn in range(1, DRAIN_KILLS + 1):
                    await some_load(load, rng)
                    if turn % 2:
                        proxy.delay_s = DRAIN_ANSWER_S  # the drain's save is applied, but not answered
                    else:
                        meta.kill()  # it is not even applied
                    adapter.signal(signal.SIGTERM)
                    await stopping(adapter, turn)
                    await anyio.sleep(rng.uniform(0.0, 0.3))
                    kill_before_its_end(adapter)
                    proxy.delay_s = 0.0
                    if not turn % 2:
                        await start(meta)
                    found = await restart_and_verify(load, adapter)
                    await expect_recovered(load, adapter, watcher, found)
                    load.resume()
                await stop_and_compare(load, adapter, watcher)


async def start(*services: ServiceProcess) -> None:
    """Start services one after the other and wait for each, while the load and the watcher go on."""
    for service in services:
        await anyio.to_thread.run_sync(service.start)


async def some_load(load: Load, rng: random.Random) -> None:
    """Commits for a random time, 0.1 to 0.8 seconds or so after the start."""
    await load.progress()
    await anyio.sleep(rng.uniform(0.0, 0.6))


async def restart_and_verify(load: Load, adapter: ServiceProcess) -> Positions:
    """Start a killed adapter again, and compare what it has with all that was acknowledged and read (1, 2).

    The load rests from then on: the next commit of a key would hide a loss.
    """
    await load.pause()
    await start(adapter)
    found = await local_positions(adapter.address, load.history)
    # A killed process loses nothing, so it must not raise the alarm for a loss either.
    assert not (await status_when(adapter.address)).HasField("loss")
    return found


async def expect_recovered(load: Load, adapter: ServiceProcess, watcher: Watcher, local: Positions) -> None:
    """Without a new commit the Meta Service gets what it is missing (3)."""
    recovery = load.history.carrying()
    await status_when(adapter.address, lambda status: status.recovery.done and status.dirty_keys == 0)
    recovery.done()
    assert await watcher.fresh() == local


async def stop_and_compare(load: Load, adapter: ServiceProcess, watcher: Watcher) -> None:
    """SIGTERM under load: it exits with 0, and the Meta Service holds everything that was acknowledged (8)."""
    await load.progress()
    assert await anyio.to_thread.run_sync(adapter.stop) == 0
    await load.pause()
    load.history.carrying().done()
    await watcher.fresh()
    assert load.history.check() == []


async def stopping(adapter: ServiceProcess, times: int) -> None:
    """Wait until the adapter, started as many times, has begun to stop as many times."""
    await eventually(lambda: adapter.log.count("sidecar.stopping") == times, LIMIT_S)


async def leave_unflushed(load: Load, meta: ServiceProcess, adapter: ServiceProcess) -> None:
    """A dead adapter with commits that the Meta Service, which is there again, has not seen."""
    await load.progress()
    meta.kill()
    await load.progress()
    adapter.kill()
    await load.pause()
    await start(meta)


async def kill_while_recovering(adapter: ServiceProcess, compared: int) -> None:
    """Kill a starting adapter when it has compared so many keys, which are not all."""
    adapter.launch()
    status = await status_when(adapter.address, lambda status: status.recovery.compared >= compared)
    kill_before_its_end(adapter)
    assert (status.state, status.recovery.done) == (offsets_pb.StatusReply.SERVING, False)


def kill_before_its_end(adapter: ServiceProcess) -> None:
    """SIGKILL; it must not have come to its own end before."""
    adapter.kill()
    assert adapter.process is not None
    assert adapter.process.returncode == -signal.SIGKILL
