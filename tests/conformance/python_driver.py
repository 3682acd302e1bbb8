"""The driver of the Python client, `adapter.client.OffsetClient`: `python -m tests.conformance.python_driver ADDRESS SECONDS`."""

import asyncio
import json
import os
import sys
from functools import partial
from typing import Any

import grpc
import grpc.aio

from adapter.client import CommitMode, Member, OffsetClient, Progress, ReadMode, SupersededError
from adapter.errors import InvalidInputError
from adapter.rpc import offsets_pb

Json = dict[str, Any]

KINDS = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "exhausted",
    grpc.StatusCode.DATA_LOSS: "damaged",
    **dict.fromkeys(
        [
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.ABORTED,
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.INTERNAL,
        ],
        "lost",
    ),
}
RETRY_S = 0.05  # between two watches


def answer(line: Json) -> None:
    """Print a line."""
    os.write(1, json.dumps(line).encode() + b"\n")


def failed(error: grpc.aio.AioRpcError) -> Json:
    """The answer to a call that failed."""
    code, text = error.code(), error.details() or ""
    kind = "fenced" if "ILLEGAL_GENERATION" in text else KINDS.get(code, "refused")
    return invalid(text) if kind == "invalid" else {"error": kind, "message": text}


def invalid(text: str) -> Json:
    """The answer to a call that breaks a rule; its text begins with the field."""
    return {"error": "invalid", "message": text, "field": text.removeprefix("groups[0].").split(":")[0].split(" ")[0]}


def moved(error: SupersededError) -> Json:
    """The answer to a commit of shards that somebody moved."""
    rows = [
        {"shard": row.shard, "offset": None if row.deleted else row.offset, "epoch": row.epoch, "held": row.held}
        for row in error.moved
    ]
    return {"error": "moved", "message": str(error), "moved": rows}


async def call(client: OffsetClient, command: Json, timeout_s: float) -> Json:
    """Make one call."""
    group, namespace = command.get("group", ""), command.get("namespace") or "default"
    shards = tuple(command.get("shards") or ())
    match command["call"]:
        case "commit":
            rows = {row["shard"]: row for row in command["offsets"]}
            generation = command.get("generation")
            done = await client.commit(
                group,
                {name: Progress(row["offset"], metadata=row.get("metadata", "")) for name, row in rows.items()},
                namespace=namespace,
                mode=CommitMode.OVERWRITE if command.get("overwrite") else CommitMode.INCREASE_ONLY,
                epochs={name: row.get("epoch", 0) for name, row in rows.items()},
                member=None if generation is None else Member(generation, command.get("member", "")),
            )
            behind = [{"shard": row.shard, "offset": row.offset, "epoch": row.epoch} for row in done]
            return {"behind": behind, "raised": dict(done.raised)}
        case "persist":
            await client.persist(group, shards, namespace=namespace)
            return {}
        case "remove":
            return {"removed": await client.remove(group, shards, namespace=namespace)}
        case "delete":
            wanted = offsets_pb.DeleteOffsetsRequest(namespace=namespace, group=group, shards=shards, execute=True)
            reply = await client.admin.DeleteOffsets(wanted, timeout=timeout_s)
            return {"deleted": sum(row.changed for row in reply.rows)}
        case name:
            found = await client.read(group, shards, namespace=namespace, mode=ReadMode.STORE, keep_hold=name == "peek")
            return {
                "offsets": {
                    row.shard: {"offset": row.offset, "epoch": row.epoch, "held": row.held, "metadata": row.metadata}
                    for row in found.values()
                }
            }


async def watch(client: OffsetClient, number: int) -> None:
    """Tell all changes. The client's watch is one call: it is begun anew here, as its users have to."""
    while True:
        try:
            async for reply in client.watch():
                if reply.resync:
                    answer({"id": number, "change": "resync"})
                for row in reply.changed:
                    offset = None if row.deleted else row.offset
                    told = {"group": row.group, "shard": row.shard, "offset": offset, "epoch": row.epoch, "held": row.held}
                    answer({"id": number, "change": "changed", **told})
                for gone in reply.removed:
                    answer({"id": number, "change": "removed", "group": gone.group, "shards": list(gone.shards)})
        except grpc.aio.AioRpcError as error:
            if failed(error)["error"] not in {"lost", "exhausted"}:
                answer({"id": number, **failed(error)})
                return
        answer({"id": number, "change": "disconnected"})
        await asyncio.sleep(RETRY_S)


async def serve(client: OffsetClient, command: Json, timeout_s: float) -> None:
    """Answer one command."""
    number = command["id"]
    if command["call"] == "watch":
        await watch(client, number)
        return
    try:
        line = await call(client, command, timeout_s)
    except grpc.aio.AioRpcError as error:
        line = failed(error)
    except SupersededError as error:
        line = moved(error)
    except InvalidInputError as error:  # of a Progress, before any call
        line = invalid(str(error))
    answer({"id": number, **line})


def _forget(calls: dict[int, "asyncio.Task[None]"], number: int, _: "asyncio.Task[None]") -> None:
    del calls[number]


async def main(address: str, timeout_s: float) -> None:
    """Until the end of stdin."""
    lines = asyncio.StreamReader(limit=2**22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    calls: dict[int, asyncio.Task[None]] = {}
    async with OffsetClient.connect(address, timeout_s) as client:
        answer({"ready": True})
        while line := await lines.readline():
            command = json.loads(line)
            if command["call"] == "drop":
                if dropped := calls.get(command["of"]):
                    dropped.cancel()
                answer({"id": command["id"]})
                continue
            task = calls[command["id"]] = asyncio.create_task(serve(client, command, timeout_s), name="call")
            task.add_done_callback(partial(_forget, calls, command["id"]))
        for task in calls.values():
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
