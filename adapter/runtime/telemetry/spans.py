"""What an OpenTelemetry collector is told: its settings, the contexts of callers, and spans. Imports nothing of OpenTelemetry.

`otlp` sends it; `opening` loads that where a collector is configured.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, NamedTuple, Protocol, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, model_validator

from adapter.errors import ConfigError
from adapter.runtime.settings.addresses import is_loopback, split_address
from adapter.runtime.settings.config import ClientTls, FilePath, Section
from adapter.runtime.settings.secret_files import read_secret

TRACEPARENT = "traceparent"

# W3C Trace Context, 3.2: version, trace, span, and flags, of which the lowest bit says that the caller records its trace. Later
# versions may have more behind that.
_SAMPLED = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f][13579bdf](-.*)?")
_HEADER = re.compile(r"([0-9a-z_.-]+)=([^,]*)")


def _endpoint(value: str) -> str:
    if not value:
        return value
    url = urlsplit(value)
    if url.scheme not in {"http", "https"} or url.path not in {"", "/"} or url.query or url.fragment or "@" in url.netloc:
        raise ValueError(f"{value!r} is not a URL like http://127.0.0.1:4317: the collector's OTLP/gRPC address")
    split_address(url.netloc)
    return value


class TelemetrySection(Section):
    """The OpenTelemetry collector that gets spans and metrics by OTLP/gRPC. Without an endpoint: none."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] = ""
    headers_file: FilePath | None = None
    tls: ClientTls | None = None
    sample_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    metrics_interval_ms: int = Field(default=60_000, ge=0, le=3_600_000)

    @property
    def address(self) -> str:
        """The host and port of the collector."""
        return urlsplit(self.endpoint).netloc

    @property
    def is_encrypted(self) -> bool:
        """True when the collector is reached with TLS."""
        return self.endpoint.startswith("https:")

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if not self.endpoint:
            return self
        if self.tls and not self.is_encrypted:
            raise ValueError(f"tls: endpoint = {self.endpoint!r} is without TLS; write https://")
        if self.headers_file and not (self.is_encrypted or is_loopback(self.address)):
            raise ValueError(
                f"headers_file: endpoint = {self.endpoint!r} is on another machine, without TLS: "
                "anybody on the way can read the headers; write https://"
            )
        return self


class TraceContext(NamedTuple):
    """A span of a caller, by the numbers of its trace and of itself."""

    trace_id: int
    span_id: int


class Span(NamedTuple):
    """A finished span. Times are Unix times in nanoseconds. `failure`: why it failed; empty if it did not."""

    name: str
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, str | int]
    links: Sequence[TraceContext] = ()
    failure: str = ""


class Telemetry(Protocol):
    """Sends spans and metrics, in threads of its own."""

    def record(self, span: Span) -> None:
        """Queue a finished span; the oldest one is dropped when too many wait. Never blocks."""

    def counters(self) -> dict[str, tuple[str, float]]:
        """What was sent and dropped: name -> (help, value). Thread-safe."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Send until the end of the context, and there what is left, for a bounded time."""


def read_headers(section: TelemetrySection) -> tuple[tuple[str, str], ...]:
    """Read the headers that the collector wants, such as an API key. Raises ConfigError."""
    path = section.headers_file
    if path is None:
        return ()
    line = read_secret(path, "telemetry.headers_file")
    found = [_HEADER.fullmatch(part.strip()) for part in line.split(",")]
    if not all(found):
        raise ConfigError(f"telemetry.headers_file: {path}: is not a line like: api-key=secret,tenant=a (lower-case names)")
    return tuple((match[1], unquote(match[2])) for match in found if match)


def sampled(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext | None:
    """The caller's span by a call's metadata, if the caller records its trace; None without a valid one."""
    found = [value for name, value in metadata if name == TRACEPARENT]
    match = _SAMPLED.fullmatch(found[0]) if len(found) == 1 and isinstance(found[0], str) else None
    if match is None or (match[1] == "00" and match[4]):
        return None
    return TraceContext(int(match[2], 16), int(match[3], 16))
