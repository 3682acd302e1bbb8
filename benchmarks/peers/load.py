r"""The load of one measurement, in a process of its own.

    python -m benchmarks.peers.load \
      '{"peer": "etcd", "address": "127.0.0.1:2379", "group": "g", "shape": "64", "seconds": 2, "warm_up_s": 1}'

Prints `begin` and `end` at the edges of its window, waits for a line, so that the server can be looked at while it still has its
clients, and prints one line of JSON.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass

import uvloop

from benchmarks.load import GROUPS, Window
from benchmarks.peers.catalog import PEERS, SHAPES
from benchmarks.peers.coalesce import Coalescing
from benchmarks.peers.peer import Connection


@dataclass(frozen=True)
class Offer:
    """What to offer to whom, in groups that no other load names: offsets only rise. Times in seconds."""

    peer: str
    address: str
    group: str
    shape: str
    seconds: float
    warm_up_s: float


async def offer(asked: Offer) -> dict[str, float]:
    """Offer it; returns what came of it."""
    peer = PEERS[asked.peer]()
    shape = next(shape for shape in SHAPES if shape.name == asked.shape)
    groups = [f"{asked.group}-{number}" for number in range(GROUPS)]
    connection = await peer.connect(asked.address, groups, shape.consumers)
    try:
        begin = time.perf_counter() + asked.warm_up_s
        window = Window(begin, begin + asked.seconds, shape.batch)
        lone = Coalescing(connection) if shape.coalesced and not peer.facts.coalesces else connection
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_mark(window))
            for number in range(shape.consumers):
                group = groups[number % GROUPS]
                consumer = _lone(lone, group, number, window) if shape.batch == 1 else _batches(connection, group, number, window)
                tasks.create_task(consumer)
        await asyncio.to_thread(sys.stdin.readline)
    finally:
        await connection.close()
    return window.summary()


async def _lone(connection: "Connection | Coalescing", group: str, number: int, window: Window) -> None:
    shard, offset = f"queue-{number}-0", 0
    while not window.over:
        offset += 1
        sent = time.perf_counter()
        await connection.commit(group, shard, offset)
        window.answered(sent)


async def _batches(connection: Connection, group: str, number: int, window: Window) -> None:
    shards, offset = [f"queue-{number}-{at}" for at in range(window.batch)], 0
    while not window.over:
        offset += 1
        sent = time.perf_counter()
        await connection.commit_many({group: dict.fromkeys(shards, offset)})
        window.answered(sent)


async def _mark(window: Window) -> None:
    for at, name in ((window.begin, "begin"), (window.end, "end")):
        await asyncio.sleep(at - time.perf_counter())
        print(name, flush=True)


def main() -> None:
    """Offer what the argument says, on uvloop for all peers alike: most of their libraries advise it."""
    asked = Offer(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(offer(asked))))


if __name__ == "__main__":
    main()
