"""h2load, a load generator in C from Debian's nghttp2-client: what a server can take without a Python client in the way.

It sends a ready-made body, and knows nothing of gRPC: an error there is a 200 with a trailer that it does not look at. So whoever
measures with it makes sure of the gRPC side: by a call before, and by the server's own counters after.
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

COMMAND = "h2load"
MISSING = "h2load is not installed: apt-get install nghttp2-client"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Shape:
    """How many calls are in flight, over how many connections."""

    connections: int
    streams: int

    @property
    def text(self) -> str:
        """In words."""
        plural = "s" if self.connections > 1 else ""
        return f"{self.connections} connection{plural} x {self.streams} in flight"


@dataclass(frozen=True)
class Timed:
    """What h2load measured. `per_s` counts calls."""

    per_s: float
    p50_ms: float
    p99_ms: float


def installed() -> bool:
    """True when it can be run."""
    return shutil.which(COMMAND) is not None


def frame(message: bytes) -> bytes:
    """A message as gRPC sends it, uncompressed. A stream's body is one after the other."""
    return b"\0" + len(message).to_bytes(4, "big") + message


async def told(*command: str) -> tuple[int, str]:
    """The exit code and the output of a command, which is killed after TIMEOUT_S. Raises TimeoutError."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output


async def run(address: str, method: str, body: Path, calls: int, shape: Shape) -> Timed:
    """Make calls that all send `body`; `address` may be `unix:` and a path. Raises RuntimeError unless all got a 200."""
    log = body.with_suffix(".log")
    log.unlink(missing_ok=True)
    counts = [f"-n{calls}", f"-c{min(shape.connections, calls)}", f"-m{shape.streams}"]
    headers = ["-Hcontent-type: application/grpc", "-Hte: trailers"]
    where = ["-B", address, f"http://localhost{method}"] if address.startswith("unix:") else [f"http://{address}{method}"]
    _, output = await told(COMMAND, *counts, *headers, f"-d{body}", f"--log-file={log}", *where)
    if f"{calls} succeeded" not in output or f"status codes: {calls} 2xx" not in output:
        raise RuntimeError(f"h2load did not get {calls} answers:\n{output}")
    # Columns: start in microseconds since the epoch, status, microseconds to the end of the answer.
    rows = [tuple(map(int, line.split("\t"))) for line in log.read_text(encoding="ascii").splitlines()]
    starts = [start for start, _, _ in rows]
    took_us = max(start + took for start, _, took in rows) - min(starts)
    latencies = sorted(took for _, _, took in rows)
    return Timed(calls / took_us * 1e6, latencies[len(rows) // 2] / 1e3, latencies[len(rows) * 99 // 100] / 1e3)
