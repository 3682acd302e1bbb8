"""The external scaler's five calls over a real socket, by a source that the test sets."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from adapter.fleet.scaler import SERVICE, ExternalScaler
from adapter.fleet.scaling import LAG_METRIC, SECONDS_METRIC, GroupState, ShardState
from adapter.rpc import scaler_grpc, scaler_pb
from adapter.runtime.serving.listener import listening
from adapter.runtime.settings.config import ServerSection
from adapter.testing.lag_adapters import shard_lag
from adapter.testing.waiting import PATIENCE_S, eventually

OBJECT = scaler_pb.ScaledObjectRef(name="consumers", namespace="k", scalerMetadata={"group": "g", "lagThreshold": "10"})
UNKNOWN = GroupState((), "adapter b does not answer")


def known(lag: int) -> GroupState:
    """A group with one shard of this lag."""
    return GroupState([ShardState(shard_lag("s", 0, lag), 0.0)])


class Source:
    """Implements `LagSource` by what the test sets."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._changed: set[asyncio.Event] = set()
        self.asked: list[tuple[str, str]] = []

    async def state(self, namespace: str, group: str) -> GroupState:
        self.asked.append((namespace, group))
        return self._state

    async def changes(self, namespace: str, group: str) -> AsyncGenerator[None, None]:
        assert (namespace, group) == ("default", "g")
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            while True:
                yield
                await changed.wait()
                changed.clear()
        finally:
            self._changed.discard(changed)

    def set(self, state: GroupState) -> None:
        self._state = state
        for changed in self._changed:
            changed.set()


@asynccontextmanager
async def scaling(
    source: Source, *, streams_max: int = 10, repeat_s: float = 1_000
) -> AsyncIterator[tuple[ExternalScaler, "scaler_grpc.ExternalScalerAsyncStub"]]:
    """A server with a scaler, and a client."""
    scaler = ExternalScaler(source, streams_max=streams_max, repeat_s=repeat_s)
    section = ServerSection(listen="127.0.0.1:0")
    async with listening(section, [SERVICE], scaler.add_to) as server:
        await server.accept_waiting()
        async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
            yield scaler, scaler_grpc.ExternalScalerStub(channel)
        scaler.end_streams()


async def told(call: Any) -> Any:
    """The next message of a stream."""
    return await call.read()


async def test_the_metric_and_its_spec() -> None:
    """As KEDA asks: the spec, then the metric by its name, then whether it is active."""
    source = Source(known(7))
    async with scaling(source) as (_, client):
        (spec,) = (await client.GetMetricSpec(OBJECT)).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (LAG_METRIC, 10, 10.0)
        request = scaler_pb.GetMetricsRequest(scaledObjectRef=OBJECT, metricName=spec.metricName)
        (metric,) = (await client.GetMetrics(request)).metricValues
        assert (metric.metricName, metric.metricValue, metric.metricValueFloat) == (LAG_METRIC, 7, 7.0)
        assert (await client.IsActive(OBJECT)).result
        source.set(known(0))
        (metric,) = (await client.GetMetrics(request)).metricValues
        assert (metric.metricValue, metric.metricValueFloat) == (0, 0.0)
        assert not (await client.IsActive(OBJECT)).result


async def test_two_thresholds_are_two_metrics() -> None:
    """KEDA takes the larger number of replicas of both."""
    both = scaler_pb.ScaledObjectRef(scalerMetadata={**OBJECT.scalerMetadata, "lagSecondsThreshold": "2.5"})
    async with scaling(Source(known(7))) as (_, client):
        specs = (await client.GetMetricSpec(both)).metricSpecs
        assert [(spec.metricName, spec.targetSizeFloat) for spec in specs] == [(LAG_METRIC, 10.0), (SECONDS_METRIC, 2.5)]
        request = scaler_pb.GetMetricsRequest(scaledObjectRef=both, metricName=SECONDS_METRIC)
        (metric,) = (await client.GetMetrics(request)).metricValues
        assert (metric.metricName, metric.metricValueFloat) == (SECONDS_METRIC, 2.5)
        every = scaler_pb.GetMetricsRequest(scaledObjectRef=both)
        assert len((await client.GetMetrics(every)).metricValues) == 2


async def test_what_is_unknown_is_an_error_for_the_metric_and_active() -> None:
    """KEDA keeps the number of replicas; the spec does not depend on it."""
    async with scaling(Source(UNKNOWN)) as (_, client):
        assert (await client.GetMetricSpec(OBJECT)).metricSpecs
        assert (await client.IsActive(OBJECT)).result
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=OBJECT, metricName=LAG_METRIC))
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert raised.value.details() == "adapter b does not answer"


async def test_metadata_that_cannot_be_right_are_refused_by_every_call() -> None:
    """By the name of the key."""
    wrong = scaler_pb.ScaledObjectRef(scalerMetadata={"group": "g", "lagThreshold": "many"})
    async with scaling(Source(known(1))) as (_, client):
        calls: list[Awaitable[object]] = [
            client.IsActive(wrong),
            client.GetMetricSpec(wrong),
            client.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=wrong)),
            told(client.StreamIsActive(wrong)),
            told(client.StreamMetricSpec(wrong)),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "lagThreshold is 'many'" in (raised.value.details() or "")


async def test_a_metric_that_the_trigger_does_not_have_is_refused() -> None:
    """With those that it has."""
    async with scaling(Source(known(1))) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=OBJECT, metricName="cpu"))
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "offset-adapter-lag" in (raised.value.details() or "")


async def test_metadata_without_bounds_are_refused() -> None:
    """Nothing is looked at of more keys than a trigger can have."""
    many = scaler_pb.ScaledObjectRef(scalerMetadata={f"key{number}": "x" for number in range(51)})
    async with scaling(Source(known(1))) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.IsActive(many)
        assert "has 51 keys" in (raised.value.details() or "")


async def test_a_stream_tells_at_once_and_when_it_changes() -> None:
    """Not when only the lag does."""
    source = Source(known(0))
    async with scaling(source) as (_, client):
        call = client.StreamIsActive(OBJECT)
        with anyio.fail_after(PATIENCE_S):
            assert not (await told(call)).result
            for state, active in ((known(5), True), (known(6), None), (known(0), False), (UNKNOWN, True)):
                asked = len(source.asked)
                source.set(state)
                await eventually(lambda asked=asked: len(source.asked) > asked)  # type: ignore[misc]
                if active is not None:
                    assert (await told(call)).result is active
        call.cancel()


async def test_a_stream_repeats_its_answer() -> None:
    """KEDA may not have acted on it, for example while the object was paused."""
    async with scaling(Source(UNKNOWN), repeat_s=0.01) as (_, client):
        call = client.StreamIsActive(OBJECT)
        assert [(await told(call)).result for _ in range(3)] == [True] * 3
        call.cancel()


async def test_a_stream_of_specs_tells_once_and_stays_open() -> None:
    """KEDA would open one that ended again and again."""
    async with scaling(Source(UNKNOWN)) as (scaler, client):
        call = client.StreamMetricSpec(OBJECT)
        assert [spec.metricName for spec in (await told(call)).metricSpecs] == [LAG_METRIC]
        assert scaler.streams == 1
        scaler.end_streams()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await told(call)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_streams_are_bounded() -> None:
    """One that is left makes room."""
    async with scaling(Source(known(1)), streams_max=2) as (scaler, client):
        first, second = client.StreamIsActive(OBJECT), client.StreamMetricSpec(OBJECT)
        await told(first)
        await told(second)
        for call in (client.StreamIsActive(OBJECT), client.StreamMetricSpec(OBJECT)):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await told(call)
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        await eventually(lambda: scaler.streams == 1)
        third = client.StreamIsActive(OBJECT)
        assert (await told(third)).result
        for call in (second, third):
            call.cancel()


async def test_a_stop_ends_the_streams() -> None:
    """They would hold up the end of the process."""
    async with scaling(Source(known(1))) as (scaler, client):
        call = client.StreamIsActive(OBJECT)
        await told(call)
        scaler.end_streams()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await told(call)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError):
            await told(client.StreamIsActive(OBJECT))
        assert scaler.streams == 0
