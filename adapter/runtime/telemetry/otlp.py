"""Sends spans and metrics to an OpenTelemetry collector by OTLP/gRPC, with OpenTelemetry's SDK.

In two threads, one for spans and one for metrics: whatever the collector does, the event loop does not wait. What cannot be sent
is dropped and counted.
"""

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import grpc
import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags
from prometheus_client import CollectorRegistry

from adapter.runtime.channels import NO_REPEATS, credentials
from adapter.runtime.telemetry.otlp_metrics import metrics_data
from adapter.runtime.telemetry.spans import Span, TelemetrySection, TraceContext, read_headers

log = structlog.get_logger(__name__)

SERVICE = "offset-adapter"
QUEUED_MAX = 1_024  # finished spans that wait to be sent; beyond, the oldest goes
AT_ONCE = 512  # spans in an export; so many are sent at once
SPANS_EVERY_MS = 1_000  # between two exports of spans
EXPORT_S = 5.0  # for one export, with its retries
STOP_S = 2.0  # at the end, for what is left
TELL_S = 60.0  # between two log lines about a collector that does not take what is sent


class _LastReason(logging.Handler):
    """Keeps what OpenTelemetry logs, for one line of our own."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.text = record.getMessage()


class _Counted:
    """Counts what an exporter sends and fails to send, and logs when the collector goes away and comes back.

    It is what OpenTelemetry calls an exporter. `size` counts the items of an export.
    """

    def __init__(self, exporter: Any, kind: str, success: Any, size: Callable[[Any], int], reason: _LastReason) -> None:  # noqa: ANN401
        self._exporter = exporter
        self._kind = kind
        self._success = success
        self._size = size
        self._reason = reason
        self._told_at = 0.0
        self.taken = 0
        self.sent = 0
        self.failed = 0

    def export(self, data: Any) -> Any:  # noqa: ANN401 - OpenTelemetry's data and result
        """Export once. Whatever the exporter raises counts as a failure, and is raised."""
        result, size = None, self._size(data)
        self.taken += size
        try:
            result = self._exporter.export(data)
        except Exception as error:
            self._reason.text = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._count(size, sent=result == self._success)
        return result

    def shutdown(self) -> None:
        """End at once; an export under way fails."""
        self._exporter.shutdown()

    def _count(self, size: int, *, sent: bool) -> None:
        if sent:
            self.sent += size
            if self._told_at:
                log.info("telemetry.sent_again", what=self._kind)
            self._told_at = 0.0
            return
        self.failed += size
        now = time.monotonic()
        if not self._told_at or now - self._told_at > TELL_S:
            self._told_at = now
            log.warning("telemetry.not_sent", what=self._kind, dropped=self.failed, reason=self._reason.text)


class OtlpTelemetry:
    """Sends what is recorded, and the metrics of a registry, while it is `running`. Raises ConfigError for bad files."""

    def __init__(self, section: TelemetrySection, instance: str, registry: CollectorRegistry) -> None:
        self._section = section
        self._registry = registry
        self._headers = read_headers(section)
        self._credentials: grpc.ChannelCredentials | None = None
        if section.is_encrypted:
            tls = section.tls
            self._credentials = credentials(tls, "telemetry.tls") if tls else grpc.ssl_channel_credentials()
        # With what OTEL_RESOURCE_ATTRIBUTES says.
        self._resource = Resource.create({"service.name": SERVICE, "service.instance.id": instance})
        self._reason = _LastReason()
        self._tracer: Any = None
        self._spans: _Counted | None = None
        self._metrics: _Counted | None = None
        self._recorded = self._overflown = 0

    def record(self, span: Span) -> None:
        """Queue a finished span; the oldest one is dropped when too many wait."""
        spans = self._spans
        if self._tracer is None or spans is None:
            return
        self._recorded += 1
        if self._recorded - self._overflown - spans.taken > QUEUED_MAX:
            self._overflown += 1
        made = self._tracer.start_span(
            span.name,
            context=Context(),
            attributes=dict(span.attributes),
            links=[_link(context) for context in span.links],
            start_time=span.started_ns,
        )
        if span.failure:
            made.set_status(Status(StatusCode.ERROR, span.failure))
        made.end(span.ended_ns)

    def counters(self) -> dict[str, tuple[str, float]]:
        """What was sent and dropped: name -> (help, value)."""
        spans, metrics = self._spans, self._metrics
        dropped = self._overflown + spans.failed if spans else 0
        return {
            "telemetry_spans_sent": ("Spans that the collector took.", spans.sent if spans else 0),
            "telemetry_spans_dropped": ("Spans that were dropped: the collector did not take them in time.", dropped),
            "telemetry_pushes_sent": ("Pushes of all metrics that the collector took.", metrics.sent if metrics else 0),
            "telemetry_pushes_failed": ("Pushes of all metrics that failed.", metrics.failed if metrics else 0),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send until the end of the context, and there what is left, for a bounded time."""
        _to(self._reason)
        section = self._section
        common: dict[str, Any] = {
            "endpoint": section.endpoint,
            "insecure": not section.is_encrypted,
            "credentials": self._credentials,
            "headers": self._headers,
            "timeout": EXPORT_S,
            "channel_options": (NO_REPEATS,),
        }
        self._spans = spans = _Counted(OTLPSpanExporter(**common), "spans", SpanExportResult.SUCCESS, len, self._reason)
        self._metrics = metrics = _Counted(
            OTLPMetricExporter(**common), "metrics", MetricExportResult.SUCCESS, lambda _: 1, self._reason
        )
        processor = BatchSpanProcessor(
            spans, max_queue_size=QUEUED_MAX, schedule_delay_millis=SPANS_EVERY_MS, max_export_batch_size=AT_ONCE
        )
        provider = TracerProvider(sampler=ALWAYS_ON, resource=self._resource, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(SERVICE)
        pushes = _Pushes(metrics, self._push, section.metrics_interval_ms / 1000)
        log.info("telemetry.sending", endpoint=section.endpoint)
        try:
            yield
        finally:
            self._tracer = None
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_stop, [(processor.shutdown, spans), (pushes.stop, metrics)])

    def _push(self, exporter: _Counted, started_ns: int) -> None:
        exporter.export(metrics_data(self._registry.collect(), self._resource, SERVICE, started_ns, time.time_ns()))


class _Pushes:
    """The thread that exports all metrics once per interval, and once more at the end. An interval of 0: never."""

    def __init__(self, exporter: _Counted, push: Callable[[_Counted, int], None], interval_s: float) -> None:
        self._exporter = exporter
        self._push = push
        self._interval_s = interval_s
        self._started_ns = time.time_ns()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry.metrics", daemon=True)
        if interval_s:
            self._thread.start()

    def stop(self) -> None:
        """Export a last time."""
        self._ending.set()
        if self._interval_s:
            self._thread.join()

    def _run(self) -> None:
        ends = False
        while not ends:
            ends = self._ending.wait(self._interval_s)
            try:
                self._push(self._exporter, self._started_ns)
            except Exception as error:  # noqa: BLE001 - the next push may succeed; the exporter has logged its own errors
                log.debug("telemetry.push_failed", error=repr(error))


def _stop(parts: Sequence[tuple[Callable[[], None], _Counted]]) -> None:
    """Let each part send what is left, all at the same time, for STOP_S seconds; then end the exports under way."""
    until = time.monotonic() + STOP_S
    threads = [threading.Thread(target=stop, name="telemetry.stop", daemon=True) for stop, _ in parts]
    for thread in threads:
        thread.start()
    for thread, (_, exporter) in zip(threads, parts, strict=True):
        thread.join(max(until - time.monotonic(), 0))
        exporter.shutdown()


def _link(context: TraceContext) -> Link:
    return Link(SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))


def _to(handler: logging.Handler) -> None:
    """Take OpenTelemetry's log from standard error: `_Counted` logs what matters, in the form of this process."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [handler]
    logger.propagate = False
