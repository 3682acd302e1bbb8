"""Two real adapters: what one of them, or a tool at the Meta Service, changes of a group is known at the other one."""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.rpc import meta_pb, offsets_pb, scaler_grpc, scaler_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port
from tests.durability.both_engines import ENGINES, meta_on
from tests.durability.proxy import Proxy
from tests.integration.helpers import PATIENCE_S, key, meta_rpc, status_of, stored_in, until_clean

HIGH = 100  # the end of each log
HOUR_MS = 3_600_000
LAG = "[lag]\ninterval_ms = 100"
GROUP, OTHER = "g", "other"


class Fleet(NamedTuple):
    """The adapters A and B, as processes and as clients, and their Meta Service. Only B has metrics."""

    meta: ServiceProcess
    processes: tuple[ServiceProcess, ServiceProcess]
    a: OffsetClient
    b: OffsetClient
    metrics: str


@asynccontextmanager
async def fleet(
    engine: str, directory: Path, meta_of_b: Callable[[str], Awaitable[str]] | None = None, extra: str = ""
) -> AsyncIterator[Fleet]:
    """Both adapters have committed for both groups, and everything is clean."""
    metrics = f"127.0.0.1:{free_port()}"
    with meta_on(engine, directory / "meta-service") as meta:
        first = adapter_process(directory / "a", meta.address, top="broker = 'a'", extra=f"{LAG}\n{extra}")
        of_b = await meta_of_b(meta.address) if meta_of_b else meta.address
        second = adapter_process(directory / "b", of_b, top="broker = 'b'", extra=f"{LAG}\n{extra}")
        second.settings = second.settings.replace("[metrics]\nlisten = ''", f"[metrics]\nlisten = '{metrics}'")
        with ended(first, second):
            for one in (first, second):
                await anyio.to_thread.run_sync(one.start)
            async with (
                OffsetClient.connect(first.address, PATIENCE_S) as a,
                OffsetClient.connect(second.address, PATIENCE_S) as b,
            ):
                yield Fleet(meta, (first, second), a, b, metrics)


async def commit(client: OffsetClient, offset: int, *groups: str, hours_ago: int = 0) -> None:
    """Commit with the bounds of the log, and wait until the Meta Service has it."""
    at_ms = time.time_ns() // 1_000_000 - hours_ago * HOUR_MS
    item = offsets_pb.ShardCommit(
        shard="s", offset=offset, low_watermark=1, high_watermark=HIGH, topic="orders", committed_at_ms=at_ms
    )
    request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=[item]) for group in groups])
    await client.store.CommitOffsets(request, timeout=PATIENCE_S)
    await until_clean(client)


# What B shows of the group in each place; None: nothing.


async def of_list(fleet: Fleet) -> int | None:
    """ListOffsets, and a read from memory; -1 while they differ, since it came in between."""
    rows = {row.group: row.offset async for row in fleet.b.list()}
    read = await fleet.b.read(GROUP, mode=ReadMode.MEMORY)
    return rows.get(GROUP) if [row.offset for row in read.values()] in ([], [rows.get(GROUP)]) else -1


async def of_groups(fleet: Fleet) -> bool | None:
    """ListGroups: the console's and the command's list."""
    reply = await fleet.b.admin.ListGroups(offsets_pb.ListGroupsRequest(), timeout=PATIENCE_S)
    return True if GROUP in [row.group for row in reply.groups] else None


async def of_lag(fleet: Fleet) -> int | None:
    """ListGroupLag, which `top`, the fleet and the console read."""
    lags = {row.group: row.lag async for row in fleet.b.list_group_lag()}
    return lags.get(GROUP)


async def of_metrics(fleet: Fleet) -> float | None:
    """The lag in B's metrics."""
    text = await anyio.to_thread.run_sync(lambda: urllib.request.urlopen(f"http://{fleet.metrics}/metrics").read().decode())
    lines = (
        line for line in text.splitlines() if line.startswith("offset_adapter_group_lag_messages{") and f'group="{GROUP}"' in line
    )
    return next((float(line.rpartition(" ")[2]) for line in lines), None)


async def of_scaler(fleet: Fleet) -> float | None:
    """What B's external scaler tells KEDA."""
    of = scaler_pb.ScaledObjectRef(scalerMetadata={"group": GROUP, "lagThreshold": "10", "limitToShards": "none"})
    async with grpc.aio.insecure_channel(fleet.processes[1].tcp_address) as channel:
        stub: scaler_grpc.ExternalScalerAsyncStub = scaler_grpc.ExternalScalerStub(channel)
        try:
            (found,) = (await stub.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=of))).metricValues
        except grpc.aio.AioRpcError as error:
            return None if "nobody has committed" in (error.details() or "") else float("nan")
    return found.metricValueFloat


Place = Callable[[Fleet], Awaitable[float | None]]
PLACES: dict[str, Place] = {
    "list and memory": of_list,
    "groups": of_groups,
    "lag": of_lag,
    "metrics": of_metrics,
    "scaler": of_scaler,
}


async def shown(fleet: Fleet, offset: int | None) -> None:
    """Wait until B shows exactly this offset everywhere (None: nothing)."""
    lag = None if offset is None else HIGH - offset
    wanted = {"list and memory": offset, "groups": None if offset is None else True, "lag": lag, "metrics": lag, "scaler": lag}
    found: dict[str, float | None] = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while found != wanted:
                await asyncio.sleep(0.05)
                found = {name: await place(fleet) for name, place in PLACES.items()}
    except TimeoutError:
        pytest.fail(f"B shows {found}, and {wanted} is there")


async def both_committed(fleet: Fleet, hours_ago: int = 0) -> None:
    """First at B, then at A, where the consumer is now."""
    await commit(fleet.b, 40, GROUP, OTHER, hours_ago=hours_ago)
    await commit(fleet.a, 40, GROUP, OTHER, hours_ago=hours_ago)
    await shown(fleet, 40)


async def reset(client: OffsetClient, offset: int) -> None:
    """Reset the group at an adapter."""
    await client.admin.ResetOffsets(
        offsets_pb.ResetOffsetsRequest(group=GROUP, to_offset=offset, execute=True), timeout=PATIENCE_S
    )


async def delete(client: OffsetClient) -> None:
    """Delete the group at an adapter."""
    await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(group=GROUP, execute=True), timeout=PATIENCE_S)


async def clone(client: OffsetClient) -> None:
    """Clone another group, which stands at 60, onto the group."""
    await commit(client, 60, OTHER)
    await client.admin.CloneGroup(
        offsets_pb.CloneGroupRequest(from_group=OTHER, to_group=GROUP, execute=True), timeout=PATIENCE_S
    )


async def import_offsets(client: OffsetClient) -> None:
    """Import 70, which goes forward like a commit."""
    groups = [offsets_pb.GroupCommits(group=GROUP, shards=[offsets_pb.ShardCommit(shard="s", offset=70)])]
    await client.admin.ImportOffsets(offsets_pb.ImportOffsetsRequest(groups=groups, execute=True), timeout=PATIENCE_S)


CHANGES: dict[str, tuple[Callable[[OffsetClient], Awaitable[None]], int | None]] = {
    "delete": (delete, None),
    "reset": (lambda client: reset(client, 20), 20),
    "clone": (clone, 60),
    "import": (import_offsets, 70),
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_change_at_one_adapter_is_shown_by_the_other(engine: str, tmp_path: Path) -> None:
    """Each change, in every place; and nothing of it is undone by the other one."""
    async with fleet(engine, tmp_path) as two:
        await both_committed(two)
        for change, offset in (CHANGES[name] for name in ("reset", "import", "clone", "delete")):
            await change(two.a)
            await shown(two, offset)
        assert status_of(two.processes[1]).changes_elsewhere.told_at_ms
        await commit(two.b, 80, OTHER)
        assert key("s", GROUP) not in stored_in(two.meta)


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_a_tool_changes_at_the_meta_service_is_shown(engine: str, tmp_path: Path) -> None:
    """Without any adapter: a delete by its own call."""
    async with fleet(engine, tmp_path) as two:
        await both_committed(two)
        with meta_rpc(two.meta.address) as rpc:
            rpc.DeleteOffsetData(meta_pb.DeleteOffsetDataRequest(namespace="default", group=GROUP), timeout=PATIENCE_S)
        await shown(two, None)


async def test_a_group_that_expired_through_one_adapter_leaves_the_other(tmp_path: Path) -> None:
    """Though B's own sweep is far away."""
    sections = "[expiry]\nretention_hours = 1\ninterval_ms = 86400000"
    async with fleet("rocksdb", tmp_path, extra=sections) as two:
        await both_committed(two, hours_ago=2)
        now_ms = time.time_ns() // 1_000_000
        with meta_rpc(two.meta.address) as rpc:
            asked = meta_pb.ExpireOffsetDataRequest(
                cluster_name="default", namespace="default", group=GROUP, before_ms=now_ms - HOUR_MS, now_ms=now_ms
            )
            assert rpc.ExpireOffsetData(asked, timeout=PATIENCE_S).expired == 1
        await shown(two, None)
        assert key("s", GROUP) not in stored_in(two.meta)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_restart_of_the_meta_service_leaves_no_gap(engine: str, tmp_path: Path) -> None:
    """Changes directly before its kill, and directly behind its start; without a comparison of all keys."""
    async with fleet(engine, tmp_path) as two:
        await both_committed(two)
        two.processes[1].freeze()  # so that it cannot ask in between
        await reset(two.a, 20)
        two.meta.kill()
        await anyio.to_thread.run_sync(two.meta.start)
        two.processes[1].thaw()
        await shown(two, 20)
        await delete(two.a)
        await shown(two, None)
        assert "changed_elsewhere.gap" not in two.processes[1].log


async def test_what_is_changed_while_an_adapter_is_cut_off_or_killed_is_shown_when_it_is_back(tmp_path: Path) -> None:
    """By the place that it had come to, and by the recovery."""
    async with AsyncExitStack() as stack:
        proxies: list[Proxy] = []

        async def through(address: str) -> str:
            proxies.append(await stack.enter_async_context(Proxy(address).listening()))
            return proxies[0].address

        two = await stack.enter_async_context(fleet("rocksdb", tmp_path, through))
        await both_committed(two)
        proxies[0].cutting = True
        await reset(two.a, 20)
        await commit(two.a, 20, OTHER)
        assert await of_lag(two) == HIGH - 40
        proxies[0].cutting = False
        await shown(two, 20)
        two.processes[1].kill()
        await delete(two.a)
        await anyio.to_thread.run_sync(two.processes[1].start)
        await shown(two, None)
        assert key("s", GROUP) not in stored_in(two.meta)
