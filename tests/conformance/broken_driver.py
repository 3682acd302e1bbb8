"""The Python driver with a fault, which the suite has to find: the command of that one, with the name of the fault before all."""

import asyncio
import sys

import grpc.aio

from adapter.client import OffsetClient
from tests.conformance import python_driver
from tests.conformance.python_driver import Json

PAUSE_S = 0.05
RECONNECT_S = 0.5  # a channel whose connection broke refuses calls for a moment

_call, _answer = python_driver.call, python_driver.answer
_later: set["asyncio.Task[Json]"] = set()


async def answers_first(client: OffsetClient, command: Json, timeout_s: float) -> Json:
    """A commit is acknowledged, and made a moment later."""

    async def later() -> Json:
        await asyncio.sleep(PAUSE_S)
        return await _call(client, command, timeout_s)

    if command["call"] != "commit":
        return await _call(client, command, timeout_s)
    _later.add(asyncio.create_task(later()))
    return {"behind": [], "raised": {}}


async def counts_ahead(client: OffsetClient, command: Json, timeout_s: float) -> Json:
    """A commit is of one message more."""
    rows = [row | {"offset": row["offset"] + 1} for row in command.get("offsets", ())]
    return await _call(client, command | {"offsets": rows}, timeout_s)


async def repeats_overwrites(client: OffsetClient, command: Json, timeout_s: float) -> Json:
    """An overwrite is sent again when its answer was lost."""
    try:
        return await _call(client, command, timeout_s)
    except grpc.aio.AioRpcError:
        await asyncio.sleep(RECONNECT_S)
        return await _call(client, command, timeout_s)


async def takes_up(client: OffsetClient, command: Json, timeout_s: float) -> Json:
    """Who only looks takes up a reset."""
    return await _call(client, command | ({"call": "read"} if command["call"] == "peek" else {}), timeout_s)


def hides_resync(line: Json) -> None:
    """Only the first one is told."""
    if line.get("change") != "resync" or not _resyncs:
        _answer(line)
        _resyncs.extend([line] if line.get("change") == "resync" else [])


_resyncs: list[Json] = []

if __name__ == "__main__":
    fault = sys.argv[1]
    if fault == "hides_resync":
        python_driver.answer = hides_resync
    else:
        python_driver.call = globals()[fault]
    asyncio.run(python_driver.main(sys.argv[2], float(sys.argv[3])))
