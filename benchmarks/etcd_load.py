"""`python -m benchmarks.etcd_load ENDPOINT RATE`: merges offsets into etcd until it reads a line; prints offsets per second.

RATE 0 means as fast as possible, with 8 transactions of 128 in flight.
"""

import asyncio
import sys
import time

import grpc.aio

from adapter.rpc import etcd_grpc
from benchmarks.etcd_machine import entries, merging_txn

SIZE, IN_FLIGHT = 128, 8


async def main(endpoint: str, per_second: int) -> None:
    """Send until a line arrives on standard input."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stopped.set)
    sent = 0
    started = time.perf_counter()

    async def work(number: int) -> None:
        nonlocal sent
        turn = 0
        while not stopped.is_set():
            if per_second:
                # Each worker sends its share of the rate, at its own offset in time.
                due = started + (turn * IN_FLIGHT + number) * SIZE / per_second
                await asyncio.sleep(max(due - time.perf_counter(), 0))
            turn += 1
            await stub.Txn(merging_txn(entries(number * SIZE, SIZE, turn)), timeout=30)
            sent += SIZE

    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = etcd_grpc.KVStub(channel)
        await asyncio.gather(*(work(number) for number in range(IN_FLIGHT)))
    print(sent / (time.perf_counter() - started))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
