"""The Meta Service killed, paused, slow, and cut off, under load: commits go on, nothing is lost, nothing goes back (2, 3, 4)."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import grpc

from adapter.rpc import offsets_pb
from adapter.testing.history import ADAPTER, META, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.load import (
    LIMIT_S,
    Load,
    Watcher,
    local_positions,
    random_instants,
    running_load,
    status_when,
    watching,
)
from tests.durability.proxy import Proxy

TIMEOUT_S = 1.0  # of a call to the Meta Service
SLOW_S = 0.25  # an answer that is in time, but takes longer than a flush interval
LATE_S = 1.5  # an answer that comes after the adapter has given up
FAULTS = 3  # kills, pauses
# Short, so that a fault meets many attempts.
SETTINGS = f"timeout_ms = {int(TIMEOUT_S * 1000)}\n[flush]\nbackoff_max_ms = 200\n"


async def test_commits_go_on_while_the_meta_service_is_killed_and_restarted(tmp_path: Path) -> None:
    """Each kill -9 of the Meta Service leaves what it did not acknowledge dirty, and it gets it later (2, 4)."""
    rng = random_instants()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=SETTINGS)
    with ended(meta, adapter):
        async with under_load(meta, adapter) as (load, watcher):
            for _ in range(FAULTS):
                await random_pause(load, rng)
                meta.kill()
                await commits_go_on(load, adapter, "UNAVAILABLE")
                await load.pause()
                await start(meta)
                await everything_arrives(load, adapter, watcher)
                load.resume()


async def test_commits_go_on_while_the_meta_service_is_paused(tmp_path: Path) -> None:
    """SIGSTOP for longer than a call may take. The saves that wait in its sockets come late and change nothing (2, 4)."""
    rng = random_instants()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=SETTINGS)
    with ended(meta, adapter):
        async with under_load(meta, adapter) as (load, watcher):
            for _ in range(FAULTS):
                await random_pause(load, rng)
                meta.freeze()
                await commits_go_on(load, adapter, "no answer within")
                await load.pause()
                meta.thaw()
                await everything_arrives(load, adapter, watcher)
                load.resume()


async def test_commits_go_on_while_the_meta_service_is_slow(tmp_path: Path) -> None:
    """A save that takes longer than a flush interval delays the next save, and no commit (4, 5)."""
    meta = meta_process(tmp_path)
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra=SETTINGS)
    with ended(meta, adapter):
        async with proxy.listening(), under_load(meta, adapter) as (load, watcher):
            proxy.delay_s = SLOW_S
            for _ in range(FAULTS):
                await load.progress()
                await saves_go_on(watcher)
                await bounded_status(load, adapter)
            assert not load.failures
            await load.pause()
            await everything_arrives(load, adapter, watcher)


async def test_saves_that_are_applied_but_answered_too_late_lose_nothing(tmp_path: Path) -> None:
    """What the Meta Service has, though nobody heard it say so, stays dirty until it does (2, 3, 4)."""
    meta = meta_process(tmp_path)
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra=SETTINGS)
    with ended(meta, adapter):
        async with proxy.listening(), under_load(meta, adapter) as (load, watcher):
            proxy.delay_s = LATE_S
            for _ in range(FAULTS):
                await commits_go_on(load, adapter, "no answer within")
                await saves_go_on(watcher)
            await load.pause()
            await stay_dirty(load, adapter, proxy)
            proxy.delay_s = 0.0
            await everything_arrives(load, adapter, watcher)


async def test_saves_whose_connection_is_cut_in_the_middle_of_the_answer_lose_nothing(tmp_path: Path) -> None:
    """Each save is applied, and each answer ends halfway: all of it stays dirty, and nothing goes back (2, 3, 4)."""
    meta = meta_process(tmp_path)
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra=SETTINGS)
    with ended(meta, adapter):
        async with proxy.listening(), under_load(meta, adapter) as (load, watcher):
            proxy.cutting = True
            for _ in range(FAULTS):
                await commits_go_on(load, adapter, "UNAVAILABLE")
                await saves_go_on(watcher)
            await load.pause()
            await stay_dirty(load, adapter, proxy)
            proxy.cutting = False
            await everything_arrives(load, adapter, watcher)


async def test_write_through_acknowledges_only_what_the_meta_service_keeps(tmp_path: Path) -> None:
    """After each kill -9 of the Meta Service it still has all that was acknowledged; what failed got UNAVAILABLE (1, 2)."""
    rng = random_instants()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, top="mode = 'write_through'", extra=SETTINGS)
    with ended(meta, adapter):
        async with under_load(meta, adapter, (ADAPTER, META)) as (load, watcher):
            for _ in range(2 * FAULTS):
                await random_pause(load, rng)
                meta.kill()
                await refusals(load)
                await load.pause()
                await start(meta)
                await watcher.fresh()
                assert load.history.check() == []
                load.resume()
            await load.progress()
            assert set(load.failures) == {grpc.StatusCode.UNAVAILABLE}


async def test_write_through_does_not_acknowledge_a_save_whose_answer_was_lost(tmp_path: Path) -> None:
    """Applied or not, the caller gets UNAVAILABLE and goes on from there (1, 2)."""
    meta = meta_process(tmp_path)
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, top="mode = 'write_through'", extra=SETTINGS)
    with ended(meta, adapter):
        async with proxy.listening(), under_load(meta, adapter, (ADAPTER, META)) as (load, watcher):
            for _ in range(FAULTS):
                await load.progress()
                proxy.cutting = True
                await refusals(load)
                await load.pause()
                commits = load.commits
                load.resume()
                await saves_go_on(watcher)
                assert load.commits == commits
                proxy.cutting = False
            await load.progress()
            await load.pause()
            await local_positions(adapter.address, load.history)
            # What was applied without an acknowledgement, and not committed again since, is only there.
            load.history.carrying().done()
            await watcher.fresh()
            assert load.history.check() == []
            assert set(load.failures) == {grpc.StatusCode.UNAVAILABLE}


@asynccontextmanager
async def under_load(
    meta: ServiceProcess, adapter: ServiceProcess, places: Sequence[str] = (ADAPTER,)
) -> AsyncIterator[tuple[Load, Watcher]]:
    """Both processes up, commits going on, and every key known to both."""
    history = History()
    await start(meta, adapter)
    async with running_load(adapter.address, history, places=places) as load, watching(meta.address, history) as watcher:
        await load.progress()
        await eventually(lambda: load.keys <= watcher.seen.keys(), LIMIT_S)
        yield load, watcher


async def start(*services: ServiceProcess) -> None:
    """Start services one after the other and wait for each, while load and watcher go on."""
    for service in services:
        await anyio.to_thread.run_sync(service.start)


async def random_pause(load: Load, rng: random.Random) -> None:
    """Let the load go on for a random time, so that the fault meets any moment of a flush."""
    await load.progress()
    await anyio.sleep(rng.uniform(0.0, 0.3))


async def commits_go_on(load: Load, adapter: ServiceProcess, why: str) -> None:
    """Commits are acknowledged before and after a save has failed for this reason; none of them fails."""
    failures = load.failures.total()
    await load.progress()
    await status_when(adapter.address, lambda status: why in status.last_flush_error)
    await load.progress()
    assert (await bounded_status(load, adapter)).dirty_keys > 0
    assert load.failures.total() == failures


async def bounded_status(load: Load, adapter: ServiceProcess) -> offsets_pb.StatusReply:
    """The status; what is dirty is bounded by the distinct keys, however many commits there were (4)."""
    status = await status_when(adapter.address)
    assert status.dirty_keys <= len(load.keys) < load.commits
    return status


async def stay_dirty(load: Load, adapter: ServiceProcess, proxy: Proxy) -> None:
    """Without new commits the saves are tried again all the same, and what they brought is still dirty."""
    goal = proxy.disturbed + 3
    await eventually(lambda: proxy.disturbed >= goal, LIMIT_S)
    assert (await bounded_status(load, adapter)).dirty_keys > 0


async def saves_go_on(watcher: Watcher) -> None:
    """New values arrive in the Meta Service."""
    before = await watcher.fresh()
    await eventually(lambda: any(watcher.seen[key] > at for key, at in before.items()), LIMIT_S)


async def refusals(load: Load) -> None:
    """Wait until commits fail."""
    failures = load.failures.total()
    await eventually(lambda: load.failures.total() > failures, LIMIT_S)


async def everything_arrives(load: Load, adapter: ServiceProcess, watcher: Watcher) -> None:
    """While the commits rest, both sides come to hold the same, which is at least what was acknowledged (3)."""
    flush = load.history.carrying()
    await status_when(adapter.address, lambda status: status.dirty_keys == 0)
    flush.done()
    local = await local_positions(adapter.address, load.history)
    assert await watcher.fresh() == local
