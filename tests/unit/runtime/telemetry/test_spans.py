"""Contexts of callers, the settings of telemetry, and its headers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from adapter.errors import ConfigError
from adapter.runtime.settings.config import parse
from adapter.runtime.telemetry.opening import telemetry_of
from adapter.runtime.telemetry.spans import TelemetrySection, TraceContext, read_headers, sampled

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = TraceContext(int(TRACE, 16), int(SPAN, 16))


def section(**values: Any) -> TelemetrySection:
    """Settings, as they are read from a file."""
    return parse(values, TelemetrySection, source="test")


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_a_caller_that_records_its_trace_is_found(flags: str) -> None:
    """Among other metadata, by the lowest bit of its flags."""
    metadata = [("user-agent", "x"), ("traceparent", f"00-{TRACE}-{SPAN}-{flags}"), ("tracestate", "a=b")]
    assert sampled(metadata) == CALLER


def test_a_later_version_may_have_more_behind_the_flags() -> None:
    """As W3C Trace Context says."""
    assert sampled([("traceparent", f"01-{TRACE}-{SPAN}-01-more")]) == CALLER
    assert sampled([("traceparent", f"01-{TRACE}-{SPAN}-01")]) == CALLER


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-02",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        "",
        "\N{REPLACEMENT CHARACTER}" * 55,
        b"\x00",
    ],
)
def test_no_other_caller_is_found(value: str | bytes) -> None:
    """Neither one that does not record its trace, nor a malformed one."""
    assert sampled([("traceparent", value)]) is None


def test_two_callers_are_none() -> None:
    """One of them is wrong; without metadata there is none."""
    assert sampled([("traceparent", f"00-{TRACE}-{SPAN}-01")] * 2) is None
    assert sampled([]) is None


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"endpoint": "collector:4317"}, r"endpoint: 'collector:4317' is not a URL like http://127\.0\.0\.1:4317"),
        ({"endpoint": "http://collector:4317/v1/traces"}, "endpoint: .* is not a URL"),
        ({"endpoint": "http://me:secret@collector:4317"}, "endpoint: .* is not a URL"),
        ({"endpoint": "http://collector"}, "endpoint: 'collector' is not host:port"),
        ({"sample_ratio": 1.5}, "sample_ratio: .*less than or equal to 1"),
        ({"metrics_interval_ms": -1}, "metrics_interval_ms: .*greater than or equal to 0"),
        ({"endpoint": "http://collector:4317", "headers_file": "x"}, "headers_file: .* is on another machine, without TLS"),
        ({"endpoint": "http://localhost:4317", "tls": {"ca": "x"}}, "tls: .* is without TLS; write https://"),
        ({"endpoint": "https://collector:4317", "tls": {"ca": "x", "cert": "y"}}, "tls: cert and key belong together"),
        ({"protocol": "grpc"}, "protocol: is not a setting"),
    ],
)
def test_a_bad_setting_is_named(values: dict[str, Any], problem: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError, match=problem):
        section(**values)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:4317", "http://[::1]:4317/", "https://collector:4317"])
def test_headers_go_to_this_machine_or_with_tls(tmp_path: Path, endpoint: str) -> None:
    """In the form of OTEL_EXPORTER_OTLP_HEADERS."""
    file = tmp_path / "headers"
    file.write_text("api-key=a%20secret=, tenant=7\n")
    file.chmod(0o600)
    found = section(endpoint=endpoint, headers_file=str(file))
    assert read_headers(found) == (("api-key", "a secret="), ("tenant", "7"))


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("Api-Key=x", 0o600, "is not a line like: api-key=secret"),
        ("x", 0o600, "is not a line like: api-key=secret"),
        ("a=1\nb=2", 0o600, "is not one line"),
        ("a=1", 0o644, "chmod 600"),
    ],
)
def test_a_bad_file_of_headers_is_named(tmp_path: Path, text: str, mode: int, problem: str) -> None:
    """Its content is not shown."""
    file = tmp_path / "headers"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"telemetry\.headers_file: .*{problem}"):
        read_headers(section(endpoint="http://127.0.0.1:4317", headers_file=str(file)))


def test_without_the_extra_a_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence."""
    monkeypatch.delitem(sys.modules, "adapter.runtime.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(ConfigError, match=r"telemetry\.endpoint is set, .* not installed: pip install 'opentelemetry-.*'$"):
        telemetry_of(section(endpoint="http://127.0.0.1:4317"), "broker", CollectorRegistry())


def test_without_a_collector_nothing_of_opentelemetry_is_loaded() -> None:
    """Neither by the command, nor by the process."""
    code = (
        "import sys, adapter.cli.main, adapter.sidecar.process as p; from prometheus_client import CollectorRegistry as R; "
        "from adapter.sidecar.config import AdapterConfig as C; assert p.telemetry_of(C().telemetry, 'b', R()) is None; "
        "sys.exit(', '.join(name for name in sys.modules if 'opentelemetry' in name or name.endswith('.otlp')) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
