"""Sends batches of offsets that were serialized before the clock starts, so that the sender is not the limit.

    python -m benchmarks.fast_path_load '{"address": "127.0.0.1:9520", "keys": 1024, "size": 128, "messages": 100, "first": 1}'

Runs as a separate process, sends unary calls, and prints `begin`, `end` and one line of JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from adapter.rpc import offsets_pb
from benchmarks.h2load import frame
from benchmarks.load import percentile

UNARY = "/offsets.v1.OffsetStore/CommitOffsets"
GROUP_SHARDS = 1_024  # a multiple of each size
IN_FLIGHT = 16
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Batches:
    """Messages of `size` offsets of one group each, cycling through `keys` keys. Offsets rise from `first` on.

    In `columns`, otherwise as rows.
    """

    address: str
    keys: int
    size: int
    messages: int
    first: int
    columns: bool = True


def names_of(keys: int, size: int) -> list[tuple[str, list[str]]]:
    """The group and shards of each message, for one cycle through the keys."""
    starts = range(0, keys, size)
    return [
        (f"keys-{keys}-{start // GROUP_SHARDS}", [f"queue-{at % GROUP_SHARDS}" for at in range(start, start + size)])
        for start in starts
    ]


def commit_request(group: str, shards: Sequence[str], offset: int, *, columns: bool = True) -> offsets_pb.CommitOffsetsRequest:
    """A commit of the same offset for some shards of a group."""
    if columns:
        commits = offsets_pb.GroupCommits(group=group, shard_names=shards, offsets=[offset] * len(shards))
    else:
        rows = [offsets_pb.ShardCommit(shard=shard, offset=offset) for shard in shards]
        commits = offsets_pb.GroupCommits(group=group, shards=rows)
    return offsets_pb.CommitOffsetsRequest(groups=[commits])


def requests(batches: Batches) -> Iterator[offsets_pb.CommitOffsetsRequest]:
    """The messages, in order."""
    names = names_of(batches.keys, batches.size)
    for number in range(batches.messages):
        group, shards = names[number % len(names)]
        yield commit_request(group, shards, batches.first + number, columns=batches.columns)


def stream_body(batches: Batches) -> bytes:
    """All messages as the body of one StreamCommits call."""
    return b"".join(
        frame(offsets_pb.StreamCommitsRequest(id=number, commit=request).SerializeToString())
        for number, request in enumerate(requests(batches))
    )


def last_of(batches: Batches) -> tuple[str, str, int]:
    """Group, shard and offset of the last entry."""
    number = batches.messages - 1
    group, shards = names_of(batches.keys, batches.size)[number % (batches.keys // batches.size)]
    return group, shards[-1], batches.first + number


async def send(batches: Batches) -> dict[str, float]:
    """Send all messages, several at a time; returns offsets per second and call latencies in seconds. Raises AioRpcError."""
    ready = [request.SerializeToString() for request in requests(batches)]
    seconds: list[float] = []
    async with grpc.aio.insecure_channel(batches.address) as channel:
        await channel.channel_ready()
        call: Any = channel.unary_unary(UNARY)  # without a serializer: bytes
        waiting = iter(ready)

        async def work() -> None:
            for message in waiting:
                sent = time.perf_counter()
                await call(message, timeout=TIMEOUT_S)
                seconds.append(time.perf_counter() - sent)

        print("begin", flush=True)
        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        took = time.perf_counter() - started
        print("end", flush=True)
    offsets = batches.messages * batches.size
    return {"per_s": offsets / took, "p50_s": percentile(seconds, 0.5), "p99_s": percentile(seconds, 0.99)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(send(Batches(**json.loads(sys.argv[1]))))))
