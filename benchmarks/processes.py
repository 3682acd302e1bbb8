"""An adapter and its Meta Service as processes, what they count, and a load against them."""

import asyncio
import contextlib
import http.client
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from adapter.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing import ServiceProcess, adapter_process, ended, free_port, meta_process
from benchmarks.load import Load

ROOT = Path(__file__).parent.parent  # from where `python -m benchmarks` works
METRICS_OFF = "[metrics]\nlisten = ''"
SAVE_CALLS = 'offset_meta_calls_total{rpc="SaveOffsetData"}'


def with_metrics(service: ServiceProcess) -> int:
    """Let a process that is not started yet serve metrics; returns the port."""
    assert METRICS_OFF in service.settings
    port = free_port()
    service.settings = service.settings.replace(METRICS_OFF, f"[metrics]\nlisten = '127.0.0.1:{port}'")
    return port


def scrape(port: int) -> dict[str, float]:
    """What a process counts: name with labels -> value."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@dataclass(frozen=True)
class Counters:
    """What was counted up to an instant, or between two."""

    at: float
    saves_seen: float  # by the Meta Service
    saves_sent: int  # by the adapter
    adapter_cpu_s: float
    meta_cpu_s: float

    def since(self, earlier: "Counters") -> "Counters":
        """What was counted since an earlier instant; `at` is the time between."""
        return Counters(*(now - then for now, then in zip(asdict(self).values(), asdict(earlier).values(), strict=True)))


@dataclass(frozen=True)
class Measured:
    """One window of a load. Rates per second, latencies in ms, CPU in seconds per second."""

    commits: float
    p50_ms: float
    p99_ms: float
    saves_seen: float
    saves_sent: float
    adapter_cpu: float
    meta_cpu: float
    late_p99_ms: float


@dataclass(frozen=True)
class Stack:
    """An adapter and its Meta Service."""

    adapter: ServiceProcess
    meta: ServiceProcess
    meta_metrics: int

    async def counters(self) -> Counters:
        """What both have counted so far."""
        async with OffsetClient.connect(self.adapter.address) as client:
            status = await client.admin.Status(offsets_pb.StatusRequest())
        seen = scrape(self.meta_metrics).get(SAVE_CALLS, 0.0)
        return Counters(time.monotonic(), seen, status.save_calls, _cpu_s(self.adapter), _cpu_s(self.meta))

    async def under(self, load: Load) -> Measured:
        """Run a load and measure its window. Raises RuntimeError when the load saw errors: its numbers would mean nothing."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.load", json.dumps(asdict(load)), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        edges: list[Counters] = []
        while len(edges) < 2 and await process.stdout.readline():
            edges.append(await self.counters())
        found = json.loads(await process.stdout.read() or "{}")
        if await process.wait() or found["errors"]:
            raise RuntimeError(f"the load failed: {found}; the adapter's log:\n{self.adapter.log[-4000:]}")
        passed = edges[1].since(edges[0])
        return Measured(
            commits=found["commits_per_s"],
            p50_ms=found["p50_s"] * 1e3,
            p99_ms=found["p99_s"] * 1e3,
            saves_seen=passed.saves_seen / passed.at,
            saves_sent=passed.saves_sent / passed.at,
            adapter_cpu=passed.adapter_cpu_s / passed.at,
            meta_cpu=passed.meta_cpu_s / passed.at,
            late_p99_ms=found["late_p99_s"] * 1e3,
        )


@contextlib.contextmanager
def running_stack(directory: Path, *, wal_sync: str = "interval", top: str = "") -> Iterator[Stack]:
    """Start both, killed at the end."""
    meta = meta_process(directory)
    port = with_metrics(meta)
    adapter = adapter_process(directory, meta.address, wal_sync=wal_sync, top=top)
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        yield Stack(adapter, meta, port)


def _cpu_s(service: ServiceProcess) -> float:
    times = psutil.Process(service.pid).cpu_times()
    return float(times.user + times.system)
