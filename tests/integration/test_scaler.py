"""KEDA's external scaler of a real adapter, and of a Meta Service over several: commits, and what is answered."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog
from adapter.client.client import OffsetClient
from adapter.fleet.scaling import LAG_METRIC
from adapter.model.bounds import ShardKey
from adapter.rpc import offsets_pb, scaler_grpc, scaler_pb
from adapter.testing.broker_log import MemoryLog
from adapter.testing.broker_log import serving as serving_log
from adapter.testing.lag_adapters import FakeLagAdapter, shard_lag
from adapter.testing.lag_adapters import serving as serving_fake
from adapter.testing.processes import meta_process
from tests.integration.helpers import PATIENCE_S, serving

FAST = {"interval_ms": 100, "bounds_interval_ms": 100}


def scaled(**metadata: str) -> scaler_pb.ScaledObjectRef:
    """The object of group g, with 10 messages for a replica."""
    return scaler_pb.ScaledObjectRef(scalerMetadata={"group": "g", "lagThreshold": "10", "limitToShards": "none", **metadata})


class Scaler:
    """A client of a scaler."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: scaler_grpc.ExternalScalerAsyncStub = scaler_grpc.ExternalScalerStub(channel)

    async def metric(self, of: scaler_pb.ScaledObjectRef) -> float | str:
        """The metric, or why there is none."""
        try:
            (found,) = (await self.stub.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=of))).metricValues
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            return error.details() or ""
        assert found.metricName == LAG_METRIC
        return found.metricValueFloat

    async def active(self, of: scaler_pb.ScaledObjectRef) -> bool:
        """Whether the object is active."""
        return (await self.stub.IsActive(of)).result

    async def until(self, condition: Callable[[float | str], bool], of: scaler_pb.ScaledObjectRef) -> float | str:
        """The metric, as soon as this holds of it."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                if condition(found := await self.metric(of)):
                    return found
                await anyio.sleep(0.02)


@asynccontextmanager
async def scaler_at(address: str) -> AsyncIterator[Scaler]:
    """A client of the scaler at an address."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Scaler(channel)


async def commit(client: OffsetClient, offsets: Mapping[str, int]) -> None:
    """Commit shards of topic orders, without bounds."""
    shards = [offsets_pb.ShardCommit(shard=shard, offset=offset, topic="orders") for shard, offset in offsets.items()]
    request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])
    await client.store.CommitOffsets(request, timeout=PATIENCE_S)


@asynccontextmanager
async def broker(log: MemoryLog) -> AsyncIterator[GrpcBrokerLog]:
    """A client of a broker with this log."""
    async with serving_log(log) as address, GrpcBrokerLog.open(BrokerLogSection(address=address)) as client:
        yield client


async def test_an_adapter_answers_by_its_own_lag(tmp_path: Path) -> None:
    """From a group that was never seen, over one that lags, to one that has caught up."""
    log = MemoryLog()
    for shard in ("a", "b"):
        log.append(ShardKey("default", shard), *[int(time.time() * 1000)] * 100)
    async with (
        broker(log) as broker_log,
        serving(tmp_path, broker_log=broker_log, lag=FAST) as (sidecar, client),
        scaler_at(sidecar.addresses[0]) as scaler,
    ):
        never = await scaler.until(lambda found: "nobody has committed" in str(found), scaled())
        assert never == "nobody has committed to default/g at this adapter"
        assert await scaler.active(scaled()), "never seen is not the same as no lag"
        await commit(client, {"a": 93, "b": 95})
        assert await scaler.until(lambda found: found == 12, scaled(topics="orders")) == 12
        assert await scaler.active(scaled())
        assert "'other'" in str(await scaler.metric(scaled(topics="other")))
        await commit(client, {"a": 100, "b": 100})
        await scaler.until(lambda found: found == 0, scaled())
        assert not await scaler.active(scaled())
        log.append(ShardKey("default", "a"), int(time.time() * 1000))
        await scaler.until(lambda found: found == 1, scaled())
        assert await scaler.active(scaled()), "nobody commits, and the broker's log grew"


async def test_the_stream_of_an_adapter_tells_that_a_group_has_work(tmp_path: Path) -> None:
    """Without a poll."""
    log = MemoryLog()
    log.append(ShardKey("default", "a"), int(time.time() * 1000))
    async with (
        broker(log) as broker_log,
        serving(tmp_path, broker_log=broker_log, lag=FAST) as (sidecar, client),
        scaler_at(sidecar.addresses[0]) as scaler,
    ):
        await commit(client, {"a": 1})
        await scaler.until(lambda found: found == 0, scaled())
        call = scaler.stub.StreamIsActive(scaled())
        replies = aiter(call)
        with anyio.fail_after(PATIENCE_S):
            assert not (await anext(replies)).result
            log.append(ShardKey("default", "a"), int(time.time() * 1000))
            assert (await anext(replies)).result


async def test_bounds_that_are_told_again_stay_young(tmp_path: Path) -> None:
    """Also while nothing is written, so that an idle group can be scaled to zero."""
    log = MemoryLog()
    log.append(ShardKey("default", "a"), int(time.time() * 1000))
    async with broker(log) as broker_log, serving(tmp_path, broker_log=broker_log, lag=FAST) as (_, client):
        await commit(client, {"a": 1})
        told: set[int] = set()
        with anyio.fail_after(PATIENCE_S):
            while len(told) < 3:
                with suppress(grpc.aio.AioRpcError):  # not looked at yet
                    told |= {shard.bounds_at_ms for shard in (await client.group_lag("g")).shards if shard.bounds_at_ms}
                await anyio.sleep(0.02)


async def test_a_group_without_bounds_is_unknown(tmp_path: Path) -> None:
    """A lag cannot be told without the end of the log: such a group is never scaled to zero."""
    async with serving(tmp_path, lag=FAST) as (sidecar, client), scaler_at(sidecar.addresses[0]) as scaler:
        await commit(client, {"a": 93})
        assert "nobody told the end of its log" in str(await scaler.until(lambda found: "its log" in str(found), scaled()))
        assert await scaler.active(scaled())


async def test_bounds_of_a_broker_that_answers_no_more_grow_old(tmp_path: Path) -> None:
    """Nobody knows then whether there is something to read."""
    log = MemoryLog()
    log.append(ShardKey("default", "a"), int(time.time() * 1000))
    young = scaled(boundsMaxAgeSeconds="5")
    async with AsyncExitStack() as stack:
        away = await stack.enter_async_context(AsyncExitStack())
        broker_log = await away.enter_async_context(broker(log))
        sidecar, client = await stack.enter_async_context(serving(tmp_path, broker_log=broker_log, lag=FAST))
        scaler = await stack.enter_async_context(scaler_at(sidecar.addresses[0]))
        await commit(client, {"a": 1})
        await scaler.until(lambda found: found == 0, young)
        log._shards.clear()  # the broker does not know the shard any more
        await scaler.until(lambda found: "seconds ago" in str(found), young)
        assert await scaler.active(young)


async def test_an_adapter_that_stops_ends_its_streams(tmp_path: Path) -> None:
    """And its stop does not wait for KEDA."""
    async with AsyncExitStack() as stack:
        sidecar, _ = await stack.enter_async_context(serving(tmp_path, lag=FAST, stop={"grace_ms": 600_000}))
        scaler = await stack.enter_async_context(scaler_at(sidecar.addresses[0]))
        calls: list[Any] = [scaler.stub.StreamIsActive(scaled()), scaler.stub.StreamMetricSpec(scaled())]
        for call in calls:
            await anext(aiter(call))
        sidecar.stop()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError), anyio.fail_after(PATIENCE_S):
                async for _ in call:
                    pass


async def test_an_adapter_that_keeps_no_lag_has_no_scaler(tmp_path: Path) -> None:
    """With `lag.shards` = 0."""
    async with serving(tmp_path, lag={"shards": 0}) as (sidecar, _), scaler_at(sidecar.addresses[0]) as scaler:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await scaler.active(scaled())
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_meta_service_answers_by_the_lag_of_all_adapters(tmp_path: Path) -> None:
    """A group over two brokers; then one of them is away; then it is back."""
    now_ms = int(time.time() * 1000)
    one, other = FakeLagAdapter("one"), FakeLagAdapter("other")
    for adapter, shard in ((one, "a"), (other, "b")):
        adapter.evaluated_at_ms = now_ms
        adapter.set_group("g", [shard_lag(shard, 100, 107, bounds_at_ms=now_ms)])
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving_fake(one))
        leaving = await stack.enter_async_context(AsyncExitStack())
        second = await leaving.enter_async_context(serving_fake(other))
        settings = f"[fleet]\nadapters = ['{first}', '{second}']\ninterval_ms = 100\ntimeout_ms = 10000\n"
        meta = meta_process(tmp_path, extra=settings)
        stack.callback(meta.kill)
        await anyio.to_thread.run_sync(meta.start)
        scaler = await stack.enter_async_context(scaler_at(meta.address))
        assert await scaler.until(lambda found: found == 14, scaled()) == 14
        for adapter, shard in ((one, "a"), (other, "b")):
            adapter.set_group("g", [shard_lag(shard, 107, 107, bounds_at_ms=now_ms)])
        await scaler.until(lambda found: found == 0, scaled())
        assert not await scaler.active(scaled())
        replies = aiter(scaler.stub.StreamIsActive(scaled()))
        assert not (await anext(replies)).result
        await leaving.aclose()
        with anyio.fail_after(PATIENCE_S):
            assert (await anext(replies)).result, "what an adapter that is away has is not known"
        assert "adapter other" in str(await scaler.until(lambda found: "adapter other" in str(found), scaled()))
        assert await scaler.active(scaled())
        await stack.enter_async_context(serving_fake(other, second))
        await scaler.until(lambda found: found == 0, scaled())
        with anyio.fail_after(PATIENCE_S):
            assert not (await anext(replies)).result
        assert await anyio.to_thread.run_sync(meta.stop) == 0
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in replies:
                pass


async def test_a_meta_service_without_adapters_has_no_scaler(tmp_path: Path) -> None:
    """It is off unless configured."""
    meta = meta_process(tmp_path)
    try:
        await anyio.to_thread.run_sync(meta.start)
        async with scaler_at(meta.address) as scaler:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await scaler.active(scaled())
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
    finally:
        meta.kill()
