"""The load of the crash tests pauses when it says so: what is compared during a pause must not move."""

import asyncio

import grpc.aio

from adapter.client.client import OffsetClient
from adapter.testing.history import History
from adapter.testing.waiting import eventually
from tests.durability.load import Load


async def test_a_pause_right_after_a_resume_lets_no_turn_begin() -> None:
    """The consumers that were woken by the resume wait for the next one."""
    turns: list[int] = []

    async def turn(number: int) -> None:
        turns.append(number)

    async with grpc.aio.insecure_channel("unix:nowhere") as channel:
        load = Load(OffsetClient(channel, 1.0), History(), pause_s=0.001)
        await load.pause()
        task = asyncio.create_task(load.take_turns(turn))
        await asyncio.sleep(0)
        load.resume()
        await load.pause()
        for _ in range(10):  # turns of the event loop
            await asyncio.sleep(0)
        assert not turns
        load.resume()
        await eventually(lambda: bool(turns))
        task.cancel()
