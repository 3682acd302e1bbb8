"""An OpenTelemetry collector gets spans and metrics by OTLP; one that is away, hangs or answers nonsense harms nothing."""

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from adapter.errors import ConfigError
from adapter.rpc import offsets_pb
from adapter.runtime.telemetry import otlp
from adapter.runtime.telemetry.opening import telemetry_of
from adapter.runtime.telemetry.otlp import AT_ONCE, QUEUED_MAX, OtlpTelemetry
from adapter.runtime.telemetry.spans import Span, TelemetrySection, TraceContext
from adapter.sidecar.process import Sidecar
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port
from adapter.testing.sidecars import adapter_config
from adapter.testing.waiting import eventually
from tests.integration.certificates import Authority
from tests.integration.helpers import PATIENCE_S, commits, rpc, serving, stored_in, until_clean, wait_until
from tests.integration.otlp_collector import Collector, collecting, not_a_collector

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
OFTEN = 50  # milliseconds between pushes of metrics
SPAN = Span("s", 1, 2, {}, [TraceContext(1, 2)])
HTTP_1 = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that works."""
    with collecting() as found:
        yield found


def to(address: str, **values: Any) -> dict[str, Any]:
    """Settings for this collector."""
    return {"endpoint": f"http://{address}", "metrics_interval_ms": OFTEN, **values}


def sums(collector: Collector, name: str) -> float:
    """The value of a counter or gauge without labels; -1 if there is none."""
    metric = collector.metrics.get(name)
    if metric is None:
        return -1
    points = metric.sum.data_points or metric.gauge.data_points
    return float(points[0].as_double or points[0].as_int)


async def test_a_flush_arrives_as_a_span_with_links_to_its_commits(directory: Path, collector: Collector) -> None:
    """The collector decodes it: its times, its numbers, its links, and what sent it."""
    telemetry = to(collector.address)
    async with serving(directory, telemetry=telemetry, broker="b7") as (sidecar, client):
        with rpc(sidecar.addresses[0]) as stubs:
            call = stubs.store.CommitOffsets.future(commits({"s": 1, "t": 1}), metadata=CALLER, timeout=PATIENCE_S)
            await anyio.to_thread.run_sync(call.result)
        await client.flush()
        await eventually(lambda: bool(collector.spans))
    (span,) = collector.spans
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [(TRACE, PARENT)]
    assert (span.name, span.status.code, span.parent_span_id) == ("offset_adapter.flush", 0, b"")
    numbers = {pair.key: pair.value.int_value for pair in span.attributes}
    assert (numbers["offset_adapter.keys"], numbers["offset_adapter.acknowledged"]) == (2, 2)
    assert 0 < span.start_time_unix_nano < span.end_time_unix_nano
    assert (collector.resource["service.name"], collector.resource["service.instance.id"]) == ("offset-adapter", "b7")


async def test_the_metrics_of_a_push_are_those_of_metrics(directory: Path, collector: Collector) -> None:
    """By name, kind and value; one source of truth. The last push is after the last flush."""
    port = free_port()
    listen = {"listen": f"127.0.0.1:{port}"}
    by_hand = {"interval_ms": 60_000}
    async with serving(directory, metrics=listen, telemetry=to(collector.address), flush=by_hand) as (_, client):
        for offset in range(1, 4):
            await client.commit("g", {"s": offset})
        await eventually(lambda: sums(collector, "offset_adapter_commits_total") == 3)
        url, pushed = f"http://127.0.0.1:{port}/metrics", set(collector.metrics)
        page = (await anyio.to_thread.run_sync(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read())).decode()
        assert "offset_adapter_commits_total 3.0" in page
        scraped = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line[:1] != "#"}
        parts = {name.removesuffix(ending) for name in scraped for ending in ("_bucket", "_count", "_sum")} | scraped
        assert pushed <= parts
        plain = {name for name in scraped if not name.endswith(("_bucket", "_count", "_sum", "_created"))}
        await eventually(lambda: plain <= set(collector.metrics))  # those of the lag may have come since
        assert sums(collector, "offset_adapter_dirty_keys") == 1
    (flushes,) = collector.metrics["offset_adapter_flush_keys"].histogram.data_points
    assert (flushes.count, flushes.sum) == (1, 1)
    commits_sum = collector.metrics["offset_adapter_commits_total"].sum
    assert (commits_sum.is_monotonic, commits_sum.aggregation_temporality) == (True, 2)
    (point,) = collector.metrics["offset_adapter_commit_seconds"].histogram.data_points
    assert (point.count, sum(point.bucket_counts), len(point.bucket_counts)) == (3, 3, len(point.explicit_bounds) + 1)
    assert collector.metrics["offset_adapter_commit_seconds"].unit == "s"


async def test_headers_and_tls_go_to_the_collector(directory: Path) -> None:
    """With the CA of the settings."""
    authority = Authority(directory)
    cert, private = authority.issue("localhost")
    credentials = grpc.ssl_server_credentials([(private.read_bytes(), cert.read_bytes())])
    headers = directory / "headers"
    headers.write_text("api-key=the secret")
    headers.chmod(0o600)
    with collecting(credentials) as collector:
        section = to(collector.address, endpoint=f"https://{collector.address}", headers_file=str(headers))
        async with serving(directory, telemetry={**section, "tls": {"ca": str(authority.cert)}}):
            await eventually(lambda: bool(collector.metrics))
    assert collector.headers["api-key"] == "the secret"


async def test_a_bad_certificate_stops_the_start_by_its_name(directory: Path) -> None:
    """As every bad setting."""
    bad = directory / "ca.pem"
    bad.write_text("no certificate")
    config = adapter_config(directory, telemetry={"endpoint": "https://localhost:1", "tls": {"ca": str(bad)}})
    with pytest.raises(ConfigError, match=r"telemetry\.tls: .*ca\.pem"):
        Sidecar(config, FakeMeta(), None)  # type: ignore[arg-type]  # it is not reached


async def _commit_with(directory: Path, address: str, told: Callable[[], bool] = lambda: True) -> dict[str, tuple[str, float]]:
    """Commit and flush beside a collector that takes nothing; returns what was counted. The stop, behind `told`, ends, too."""
    telemetry: Any = None
    async with serving(directory, telemetry=to(address)) as (sidecar, client):
        telemetry = sidecar._telemetry
        with rpc(sidecar.addresses[0]) as stubs:
            for offset in range(1, 4):
                call = stubs.store.CommitOffsets.future(commits({"s": offset}), metadata=CALLER, timeout=PATIENCE_S)
                await anyio.to_thread.run_sync(call.result)
                await client.flush()
        status = await until_clean(client)
        assert status.state == offsets_pb.StatusReply.SERVING
        await eventually(told, PATIENCE_S)
    counted: dict[str, tuple[str, float]] = telemetry.counters()
    return counted


@pytest.mark.parametrize("answer", [b"", HTTP_1, b"\xff" * 10_000], ids=["hangs", "http/1", "nonsense"])
async def test_what_is_no_collector_harms_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """Commits, flushes and the stop go on; what could not be sent is counted, or still waited at the end."""
    monkeypatch.setattr(otlp, "EXPORT_S", 0.3)
    with not_a_collector(answer) as address:
        counted = await _commit_with(directory, address)
    assert counted["telemetry_spans_sent"][1] == counted["telemetry_pushes_sent"][1] == 0


async def test_a_collector_that_is_away_harms_nothing(directory: Path) -> None:
    """It is said once, with the reason, and what is dropped is counted."""
    with capture_logs() as logs:
        away = f"127.0.0.1:{free_port()}"
        counted = await _commit_with(directory, away, lambda: any(line["event"] == "telemetry.not_sent" for line in logs))
    assert counted["telemetry_spans_sent"][1] == 0
    told = [line for line in logs if line["event"] == "telemetry.not_sent"]
    assert len(told) == len({line["what"] for line in told}) > 0
    assert all("UNAVAILABLE" in line["reason"] or "losed" in line["reason"] or "hutdown" in line["reason"] for line in told)


async def test_a_collector_that_comes_back_gets_what_is_new(collector: Collector) -> None:
    """What it refused is counted as dropped, and not sent again."""
    section = TelemetrySection.model_validate(to(collector.address))
    telemetry = telemetry_of(section, "b", CollectorRegistry())
    assert telemetry is not None
    collector.code = grpc.StatusCode.PERMISSION_DENIED
    with capture_logs() as logs:
        async with telemetry.running():
            telemetry.record(SPAN)
            await eventually(lambda: telemetry.counters()["telemetry_spans_dropped"][1] == 1)
            collector.code = None
            telemetry.record(SPAN._replace(name="later"))
            await eventually(lambda: telemetry.counters()["telemetry_spans_sent"][1] == 1)
    assert [span.name for span in collector.spans] == ["later"]
    events = [(line["event"], line["what"]) for line in logs if line["event"] != "telemetry.sending"]
    assert {("telemetry.not_sent", "spans"), ("telemetry.sent_again", "spans")} <= set(events)


async def test_spans_that_wait_are_bounded_and_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector hangs: one export is under way, the queue is full, the rest is counted. The end does not wait for it."""
    monkeypatch.setattr(otlp, "EXPORT_S", 3_600.0)
    monkeypatch.setattr(otlp, "SPANS_EVERY_MS", 3_600_000)  # else an export may begin with fewer than AT_ONCE
    with not_a_collector(b"") as address:
        telemetry = OtlpTelemetry(TelemetrySection.model_validate(to(address)), "b", CollectorRegistry())
        async with telemetry.running():
            assert telemetry._spans is not None
            for _ in range(AT_ONCE):
                telemetry.record(SPAN)
            await eventually(lambda: telemetry._spans is not None and telemetry._spans.taken == AT_ONCE)
            for _ in range(QUEUED_MAX + 5):
                telemetry.record(SPAN)
            assert telemetry.counters()["telemetry_spans_dropped"][1] == 5
        telemetry.record(SPAN)


def test_a_kill_loses_no_commit_and_a_collector_away_stops_no_start(directory: Path, meta: ServiceProcess) -> None:
    """With telemetry on: kill -9 under it, then a start without the collector; the Meta Service gets what was acknowledged."""
    with collecting() as collector:
        settings = f"[telemetry]\nendpoint = 'http://{collector.address}'\nmetrics_interval_ms = {OFTEN}\n"
        adapter = adapter_process(directory, meta.address, extra=settings)
        with ended(adapter):
            adapter.start()
            with rpc(adapter.address) as stubs:
                stubs.store.CommitOffsets(commits({"s": 1}), metadata=CALLER, timeout=PATIENCE_S)
                wait_until(lambda: bool(collector.spans and collector.metrics), "a span and metrics arrived")
                stubs.store.CommitOffsets(commits({"s": 2}), metadata=CALLER, timeout=PATIENCE_S)
            adapter.kill()
    with ended(adapter):
        adapter.start()
        wait_until(lambda: stored_in(meta) == {("default", "g", "s"): (1, 2)}, "the Meta Service has the commit")
        assert adapter.stop() == 0
