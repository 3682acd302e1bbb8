"""Run by the program of a release, in its own interpreter, for `fixtures`: has it write one of everything, says what stands.

fill.py commit ADDRESS TURN | flushed ADDRESS | rows ADDRESS | file DIRECTORY
"""

import asyncio
import json
import sys
from pathlib import Path

from adapter.client.client import OffsetClient
from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.model.queues import MessageQueue
from adapter.model.records import CommitMode, Member
from adapter.rpc import offsets_pb

TIMEOUT_S = 60.0
CLIENT_ID, GROUP = "192.168.1.5@DEFAULT", "broadcast-group"
LONGEST = "n" * 255


async def commit(address: str, turn: int) -> None:
    """Commits of all kinds: plain and repeated ones, names at their limits, labels, a rewind, members, a delete, a reset."""
    async with OffsetClient.connect(address, TIMEOUT_S) as client:
        for number in range(50):
            await client.commit(f"group-{number:02}", {str(shard): turn * 1000 + number for shard in range(3)})
        await client.commit(LONGEST, {LONGEST: turn}, namespace=LONGEST)
        await client.commit("größe-消费者", {"队列": turn}, namespace="日本")
        await client.commit("numbers", {"largest": 2**64 - 1, "zero": 0})
        await client.commit("fenced", {"0": turn}, member=Member(turn, f"member-{turn}"))
        labelled = offsets_pb.ShardCommit(
            shard="q", offset=turn, metadata='{"position": "é\u0000"}', committed_at_ms=1_700_000_000_000 + turn, topic="orders",
            partition=7,
        )  # fmt: skip
        group = offsets_pb.GroupCommits(namespace="other", group="labelled", shards=[labelled])
        await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[group]), timeout=TIMEOUT_S)
        await client.commit("rewound", {"0": 100 * turn})
        await client.commit("rewound", {"0": 50}, mode=CommitMode.OVERWRITE)
        await client.commit("deleted", {"gone": turn, "stays": turn})
        await client.flush()
        deletion = offsets_pb.DeleteOffsetsRequest(namespace="default", group="deleted", shards=["gone"], execute=True)
        await client.admin.DeleteOffsets(deletion, timeout=TIMEOUT_S)
        await client.commit_broadcast("to-all", "client-1", {"0": turn})


async def flushed(address: str) -> None:
    """Return when the Meta Service has everything."""
    async with OffsetClient.connect(address, TIMEOUT_S) as client:
        while (await client.status()).dirty_keys:
            await client.flush()
            await asyncio.sleep(0.05)


async def rows(address: str) -> None:
    """Print what stands in an adapter, as a list of `fixtures.Row`."""
    async with OffsetClient.connect(address, TIMEOUT_S) as client:
        found = [_row(row) async for row in client.list(deleted=True)]
    print(json.dumps(found))  # noqa: T201 - the answer


def _row(row: offsets_pb.ShardOffset) -> list[object]:
    position = [row.namespace, row.group, row.shard, row.epoch, row.offset, not row.deleted]
    return [*position, row.committed_at_ms, row.metadata, row.topic, row.partition]


async def file(directory: Path) -> None:
    """Write an offset file, twice, so that there is a .bak."""
    store = LocalFileOffsetStore(directory, CLIENT_ID, GROUP)
    for turn in (1, 2):
        for number in range(4):
            queue = MessageQueue("TopicTest", number, "broker-a")
            store.update_offset(queue, turn * 100 + number)
            await store.persist(queue)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["commit", address, turn]:
            asyncio.run(commit(address, int(turn)))
        case ["flushed", address]:
            asyncio.run(flushed(address))
        case ["rows", address]:
            asyncio.run(rows(address))
        case ["file", directory]:
            asyncio.run(file(Path(directory)))
