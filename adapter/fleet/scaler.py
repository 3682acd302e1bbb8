"""The gRPC service `externalscaler.ExternalScaler`: KEDA asks it how many replicas the consumers of a group need.

Decides nothing about lag: `scaling` has the rules. What is answered, and what KEDA (v2.21.0) does with that:

- GetMetricSpec depends on the metadata alone. If it fails, KEDA takes no metric at all (external_scaler.go:187-191), and then an
  error (scaling/cache/scalers_cache.go:230-241).
- GetMetrics fails with UNAVAILABLE while the lag is unknown. KEDA does not ask IsActive then (external_scaler.go:239-243), takes
  the group for inactive with an error (scale_handler.go:1191-1200), and scales to zero for no such error
  (executor/scale_scaledobjects.go, `case isError`) unless `fallback.replicas` is 0. The HPA keeps the number of replicas on an
  error, or takes `fallback` after `failureThreshold` of them (fallback/fallback.go).
- IsActive and StreamIsActive are true while the lag is unknown. With a trigger of type `external-push`, that starts a consumer at
  0 replicas at once (scale_handler.go:341-371); a message that says false is ignored there (scale_handler.go:346-350).
- StreamMetricSpec tells what GetMetricSpec does, once; KEDA opens a stream that ends again after 2 seconds, so it stays open.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Protocol

import anyio
import grpc.aio
import structlog

from adapter.errors import AdapterError, InvalidInputError, NotReadyError, OverloadedError
from adapter.fleet.scaling import GroupState, Trigger, is_active, parse_trigger, target_of, values
from adapter.rpc import scaler_grpc, scaler_pb
from adapter.runtime.serving.statuses import Context, answering, status_of, trailing_of

log = structlog.get_logger(__name__)

SERVICE = "externalscaler.ExternalScaler"
STREAMS_MAX = 1_000
REPEAT_S = 30.0  # the answer of StreamIsActive is repeated: KEDA may have dropped it, for example while it was paused
RETRY_AFTER_S = 5.0
KEYS_MAX = 50  # of scalerMetadata

ENDED = "the scaler is stopping; open the stream again"


class LagSource(Protocol):
    """What is known of the lag of groups: of those of one adapter, or of a fleet."""

    async def state(self, namespace: str, group: str) -> GroupState:
        """A group now. Raises no AdapterError: what cannot be known is told in the state."""
        ...

    def changes(self, namespace: str, group: str) -> AsyncGenerator[None, None]:
        """Yield, first at once, when the state of a group may be another one; about once a second at most."""
        ...


class ExternalScaler(scaler_grpc.ExternalScalerServicer):
    """`externalscaler.ExternalScaler` over a source of lag. Keeps nothing but the number of streams."""

    def __init__(self, source: LagSource, *, streams_max: int = STREAMS_MAX, repeat_s: float = REPEAT_S) -> None:
        self._source = source
        self._streams_max = streams_max
        self._repeat_s = repeat_s
        self._streams = 0
        self._ended = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Have a server answer these calls, which has not begun yet."""
        scaler_grpc.add_ExternalScalerServicer_to_server(self, server)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams

    def end_streams(self) -> None:
        """End all streams, and those that come: the process stops."""
        self._ended.set()

    @answering
    async def IsActive(self, request: scaler_pb.ScaledObjectRef, context: Context) -> scaler_pb.IsActiveResponse:  # noqa: ARG002, D102
        return scaler_pb.IsActiveResponse(result=await self._active(_trigger(request)))

    @answering
    async def GetMetricSpec(  # noqa: D102
        self,
        request: scaler_pb.ScaledObjectRef,
        context: Context,  # noqa: ARG002
    ) -> scaler_pb.GetMetricSpecResponse:
        return _spec(_trigger(request))

    @answering
    async def GetMetrics(self, request: scaler_pb.GetMetricsRequest, context: Context) -> scaler_pb.GetMetricsResponse:  # noqa: ARG002, D102
        trigger = _trigger(request.scaledObjectRef)
        if request.metricName and request.metricName not in trigger.metrics:
            raise InvalidInputError(f"metricName is {request.metricName!r:.100}: this trigger has {', '.join(trigger.metrics)}")
        found = values(trigger, await self._source.state(trigger.namespace, trigger.group))
        return scaler_pb.GetMetricsResponse(
            metricValues=[
                scaler_pb.MetricValue(metricName=name, metricValue=round(value), metricValueFloat=value)
                for name, value in found.items()
                if name == request.metricName or not request.metricName
            ]
        )

    async def StreamIsActive(  # noqa: D102
        self, request: scaler_pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[scaler_pb.IsActiveResponse]:
        try:
            trigger = _trigger(request)
            with self._stream():
                async with aclosing(self._activity(trigger)) as activity:
                    async for active in activity:
                        yield scaler_pb.IsActiveResponse(result=active)
            raise NotReadyError(ENDED)
        except AdapterError as error:
            await context.abort(status_of(error), str(error), trailing_of(error))

    async def StreamMetricSpec(  # noqa: D102
        self, request: scaler_pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[scaler_pb.GetMetricSpecResponse]:
        try:
            trigger = _trigger(request)
            with self._stream():
                yield _spec(trigger)
                await self._ended.wait()
            raise NotReadyError(ENDED)
        except AdapterError as error:
            await context.abort(status_of(error), str(error), trailing_of(error))

    async def _active(self, trigger: Trigger) -> bool:
        return is_active(trigger, await self._source.state(trigger.namespace, trigger.group))

    async def _activity(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        """Whether the group is active: at once, when that changes, and again every `repeat_s` seconds; until the end."""
        changed = asyncio.Event()
        waker = asyncio.create_task(self._wake(trigger, changed), name="scaler.changes")
        ended = asyncio.create_task(self._ended.wait(), name="scaler.ended")
        told: bool | None = None
        told_at = 0.0
        try:
            while not self._ended.is_set():
                changed.clear()
                active = await self._active(trigger)
                now = anyio.current_time()
                if active != told or now - told_at >= self._repeat_s:
                    told, told_at = active, now
                    yield active
                waiting = asyncio.create_task(changed.wait(), name="scaler.changed")
                try:
                    await asyncio.wait(
                        [waiting, waker, ended],
                        timeout=max(told_at + self._repeat_s - anyio.current_time(), 0),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    waiting.cancel()
                if waker.done():
                    waker.result()
                    return
        finally:
            waker.cancel()
            ended.cancel()

    async def _wake(self, trigger: Trigger, changed: asyncio.Event) -> None:
        async with aclosing(self._source.changes(trigger.namespace, trigger.group)) as changes:
            async for _ in changes:
                changed.set()

    @contextmanager
    def _stream(self) -> Iterator[None]:
        if self._ended.is_set():
            raise NotReadyError(ENDED)
        if self._streams >= self._streams_max:
            raise OverloadedError(f"there are {self._streams_max:,} streams already", retry_after_s=RETRY_AFTER_S)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


def _trigger(request: scaler_pb.ScaledObjectRef) -> Trigger:
    if len(request.scalerMetadata) > KEYS_MAX:
        raise InvalidInputError(f"scalerMetadata: has {len(request.scalerMetadata)} keys; at most {KEYS_MAX} are allowed")
    return parse_trigger(request.scalerMetadata)


def _spec(trigger: Trigger) -> scaler_pb.GetMetricSpecResponse:
    return scaler_pb.GetMetricSpecResponse(
        metricSpecs=[
            scaler_pb.MetricSpec(metricName=name, targetSize=target_of(threshold), targetSizeFloat=threshold)
            for name, threshold in trigger.metrics.items()
        ]
    )
