"""What the flush tests are written in: a sidecar in this process, exact faults of its saves, and images of its store.

All offsets are of one group, so that a shard's name says which is meant.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.meta.client import GrpcMetaClient, MetaClient
from adapter.meta.config import MetaSection
from adapter.meta.wire import reply_offset
from adapter.metaservice.engine import count_results, differing
from adapter.model.names import METADATA_MAX_BYTES
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey, ReadMode, SaveEntry, SaveOutcome, Status
from adapter.rpc import meta_pb, offsets_pb
from adapter.runtime.serving.statuses import Context
from adapter.sidecar.config import AdapterConfig
from adapter.testing.fake_meta import FakeMeta, entries_of
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import PATIENCE_S

GROUP = "g"
NEVER_MS = 60_000
TICK_MS = 20
TIMEOUT_MS = 1_000
LIMIT_S = PATIENCE_S
UNREACHABLE = MetaUnavailableError("no route")

Reply = meta_pb.MergeOffsetDataReply
Distortion = Callable[[Reply], Awaitable[None]]
Fault = Callable[[Sequence[SaveEntry]], Awaitable[list[SaveOutcome]]]


def key(shard: str) -> OffsetKey:
    """The key of a shard."""
    return OffsetKey(DEFAULT_NAMESPACE, GROUP, shard)


def sent(meta: FakeMeta) -> list[dict[str, int]]:
    """The saves that reached the Meta Service: shard -> offset."""
    return [{entry.key.shard: entry.record.offset for entry in save} for save in meta.saves]


def merged(saves: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """All of these saves together; nothing may be in two of them."""
    together: dict[str, int] = {}
    for save in saves:
        assert not together.keys() & save.keys(), f"sent twice: {saves}"
        together |= save
    return together


def applying(meta: FakeMeta) -> Fault:
    """No fault: the save is applied. For a place in the queue of faults."""

    async def apply(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        return meta.apply(entries)

    return apply


def refusing(meta: FakeMeta, shards: Mapping[str, int], status: Status = Status.INVALID) -> Fault:
    """Apply a save except for these shards."""

    async def refuse(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        good = iter(meta.apply([entry for entry in entries if entry.key.shard not in shards]))
        return [SaveOutcome(status, None, "not today") if entry.key.shard in shards else next(good) for entry in entries]

    return refuse


def large_commit(shards: Sequence[str]) -> offsets_pb.CommitOffsetsRequest:
    """Offset 1 for each shard, with as much metadata as there may be."""
    entries = [offsets_pb.ShardCommit(shard=shard, offset=1, metadata="m" * METADATA_MAX_BYTES) for shard in shards]
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=GROUP, shards=entries)])


@asynccontextmanager
async def over_grpc(meta: FakeMeta, distort: Distortion) -> AsyncIterator[GrpcMetaClient]:
    """A real client of a real gRPC server, which distorts its answer to the first save after that was applied."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_handler(meta, [distort]),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with GrpcMetaClient.open(
            MetaSection(endpoints=(address,), timeout_ms=TIMEOUT_MS, load_timeout_ms=TIMEOUT_MS)
        ) as client:
            yield client
    finally:
        await server.stop(None)


def _handler(meta: FakeMeta, distortions: list[Distortion]) -> grpc.GenericRpcHandler:
    async def merge(request: meta_pb.MergeOffsetDataRequest, _: Context) -> Reply:
        entries = entries_of(request)
        found = differing(entries, await meta.save(entries))
        counts = count_results(len(entries), found)
        rows = [
            Reply.Standing(index=at, status=meta_pb.SaveOffsetResult.Status.ValueType(status.value), record=record)
            for at, status, record, _ in found
        ]
        reply = Reply(applied=counts.applied, superseded=counts.superseded, standing=rows)
        if distortions:
            await distortions.pop()(reply)
        return reply

    async def get(request: meta_pb.BatchGetOffsetDataRequest, _: Context) -> meta_pb.BatchGetOffsetDataReply:
        group = meta_pb.BatchGetOffsetDataReply.Group(offsets=[reply_offset(at, record) for at, record in meta.records.items()])
        return meta_pb.BatchGetOffsetDataReply(groups=[group for _ in request.groups])

    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "MergeOffsetData": grpc.unary_unary_rpc_method_handler(
            merge, meta_pb.MergeOffsetDataRequest.FromString, Reply.SerializeToString
        ),
        "BatchGetOffsetData": grpc.unary_unary_rpc_method_handler(
            get, meta_pb.BatchGetOffsetDataRequest.FromString, meta_pb.BatchGetOffsetDataReply.SerializeToString
        ),
    }
    return grpc.method_handlers_generic_handler("meta.service.common.MetaServiceService", methods)


def settings(directory: Path, interval_ms: int = NEVER_MS, **flush: int) -> AdapterConfig:
    """A sidecar's configuration; refused offsets are retried only on demand."""
    return adapter_config(
        directory,
        flush={"interval_ms": interval_ms, "refused_retry_ms": 3_600_000, "backoff_max_ms": interval_ms, **flush},
        stop={"drain_timeout_ms": 100},
    )


@asynccontextmanager
async def serving(config: AdapterConfig, meta: MetaClient) -> AsyncIterator[OffsetClient]:
    """A sidecar, and a client on its Unix socket."""
    async with running_sidecar(config, meta) as sidecar, OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client:
        yield client


def crash_image(config: AdapterConfig, directory: Path) -> AdapterConfig:
    """The store as kill -9 would leave it now, as the configuration of another sidecar."""
    number = len(list(directory.glob("image-*")))
    path = directory / f"image-{number}"
    shutil.copytree(config.store.path, path)
    store = config.store.model_copy(update={"path": path})
    server = config.server.model_copy(update={"unix_socket": str(directory / f"{number}.sock")})
    return config.model_copy(update={"store": store, "server": server})


async def recovery(image: AdapterConfig, meta: MetaClient) -> offsets_pb.RecoveryStatus:
    """What the recovery of a crash image does."""
    async with serving(image, meta) as client:
        status = await client.status()
        assert (status.recovery.done, status.dirty_keys, status.HasField("loss")) == (True, 0, False)
        return status.recovery


async def dirty_without_meta(image: AdapterConfig, directory: Path) -> set[str]:
    """What a start from this image takes for dirty when it cannot ask the Meta Service."""
    meta = FakeMeta()
    meta.down = UNREACHABLE
    at_once = image.recovery.model_copy(update={"timeout_ms": 0})
    async with serving(crash_image(image, directory).model_copy(update={"recovery": at_once}), meta) as client:
        return set(await dirty(client))


async def dirty(client: OffsetClient) -> dict[str, int]:
    """The dirty shards of the group, and their offsets."""
    return {shard: row.offset for shard, row in (await client.read(GROUP, mode=ReadMode.MEMORY)).items() if row.dirty}


async def settled(client: OffsetClient, expected: Mapping[str, int]) -> None:
    """Wait until exactly these are dirty."""

    async def holds() -> bool:
        return await dirty(client) == expected

    await until(holds)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """`eventually` for a condition that takes a call."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - it can only be asked for
            await asyncio.sleep(0.005)


async def expect_nothing_to_send(client: OffsetClient, meta: FakeMeta) -> None:
    """Everything is clean, so that a flush makes no call."""
    saves = len(meta.saves)
    status = await client.status()
    assert (status.dirty_keys, status.refused_keys, await dirty(client)) == (0, 0, {})
    assert await client.flush() == 0
    assert len(meta.saves) == saves


async def expect(call: Awaitable[Any], code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    """The call fails with this status."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    assert failure.value.code() is code
    return failure.value


def positions_of(meta: FakeMeta) -> dict[str, tuple[int, int]]:
    """What the Meta Service holds: shard -> (epoch, offset)."""
    return {found.shard: record.position for found, record in meta.records.items()}
