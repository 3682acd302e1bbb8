"""The built-in server under as many calls as it is for, killed with SIGKILL at random instants (invariants 1, 2 and 8).

In every turn of its event loop commits of many callers are one write: a kill finds some written, some answered, some neither.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.testing.history import History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.load import (
    CALL_S,
    CHANNEL_OPTIONS,
    LIMIT_S,
    Load,
    local_positions,
    random_instants,
    status_when,
    watching,
)

IN_FLIGHT = 64
STREAMS = 4
KILLS = 2
TURNS = 5  # of every caller on average, before a kill
# Else channels to the same address share a connection.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@asynccontextmanager
async def wide_load(adapter: ServiceProcess, history: History, connections: int) -> AsyncIterator[list[Load]]:
    """Consumers with one commit in flight each, and streams, over so many connections. A load for each."""
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        loads = []
        for _ in range(connections):
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(adapter.address, (*CHANNEL_OPTIONS, *OWN_CONNECTION))
            )
            loads.append(Load(OffsetClient(channel, CALL_S, resend=False), history))
        for number in range(IN_FLIGHT + STREAMS):
            load = loads[number % connections]
            turn = load.consumer(f"consumer-{number}") if number < IN_FLIGHT else load.stream(f"stream-{number}")
            tasks.start_soon(load.take_turns, turn, name=f"load-{number}")
        yield loads
        tasks.cancel_scope.cancel()


async def rest(loads: Sequence[Load]) -> None:
    """Nobody commits any more."""
    for load in loads:
        await load.pause()


async def progress(loads: Sequence[Load]) -> None:
    """Return when some turns of everybody are acknowledged, each connection having gone on."""
    goals = [load.commits + 1 for load in loads]
    total = sum(goals) + TURNS * IN_FLIGHT
    await eventually(lambda: all(load.commits >= goal for load, goal in zip(loads, goals, strict=True)), LIMIT_S)
    await eventually(lambda: sum(load.commits for load in loads) >= total, LIMIT_S)


@pytest.mark.parametrize("connections", [1, IN_FLIGHT])
async def test_what_many_callers_at_once_were_told_is_there_after_every_kill(tmp_path: Path, connections: int) -> None:
    """Everything acknowledged, by whatever connection or stream, and nothing went back; a stop brings it to the Meta Service."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address)
    with ended(meta, adapter):
        for process in (meta, adapter):
            await anyio.to_thread.run_sync(process.start)
        async with wide_load(adapter, history, connections) as loads, watching(meta.address, history) as watcher:
            for _ in range(KILLS):
                await progress(loads)
                await anyio.sleep(rng.uniform(0.0, 0.2))
                adapter.kill()
                await rest(loads)
                await anyio.to_thread.run_sync(adapter.start)
                await local_positions(adapter.address, history)
                assert not (await status_when(adapter.address)).HasField("loss")
                for load in loads:
                    load.resume()
            await progress(loads)
            assert await anyio.to_thread.run_sync(adapter.stop) == 0
            await rest(loads)
            history.carrying().done()
            await watcher.fresh()
            assert history.check() == []
