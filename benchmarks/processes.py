"""An adapter and its Meta Service as processes, their metrics, and load processes for them or other servers."""

import asyncio
import contextlib
import http.client
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from adapter.client.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from benchmarks import machine
from benchmarks.load import Load
from benchmarks.machine import cpu_s

T = TypeVar("T")

ROOT = machine.ROOT
THIS = "this tree"
METRICS_OFF = "[metrics]\nlisten = ''"
SAVE_CALLS = [f'offset_meta_calls_total{{rpc="{rpc}"}}' for rpc in ("SaveOffsetData", "MergeOffsetData")]


def trees() -> dict[str, Path]:
    """What is measured: this tree, and beside it the checkout that BENCH_BEFORE names."""
    before = os.environ.get("BENCH_BEFORE")
    return {THIS: ROOT, "before": Path(before).resolve(strict=True)} if before else {THIS: ROOT}


def of_tree(service: ServiceProcess, tree: Path) -> ServiceProcess:
    """Have a process run the program of `tree`, which is not where it is started: Python would import from there."""
    service.prefix, service.environment = ("env", "-C", str(tree)), {"PYTHONPATH": str(tree)}
    return service


def with_metrics(service: ServiceProcess) -> int:
    """Configure a process, before its start, to serve metrics; returns the port."""
    assert METRICS_OFF in service.settings
    port = free_port()
    service.settings = service.settings.replace(METRICS_OFF, f"[metrics]\nlisten = '127.0.0.1:{port}'")
    return port


def scrape(port: int) -> dict[str, float]:
    """The metrics of a process: name with labels -> value."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@dataclass(frozen=True)
class Counters:
    """The counters at an instant, or their difference between two."""

    at: float
    saves_seen: float  # by the Meta Service
    saves_sent: int  # by the adapter
    adapter_cpu_s: float
    meta_cpu_s: float

    def since(self, earlier: "Counters") -> "Counters":
        """The difference to an earlier instant; `at` is the time between."""
        return Counters(*(now - then for now, then in zip(asdict(self).values(), asdict(earlier).values(), strict=True)))


@dataclass(frozen=True)
class Measured:
    """The results of one window of a load. Rates per second, latencies in ms, CPU in seconds per second."""

    commits: float
    p50_ms: float
    p99_ms: float
    saves_seen: float
    saves_sent: float
    adapter_cpu: float
    meta_cpu: float
    late_p99_ms: float
    load_cpu: float


@dataclass(frozen=True)
class Stack:
    """An adapter and its Meta Service."""

    adapter: ServiceProcess
    meta: ServiceProcess
    meta_metrics: int

    async def counters(self) -> Counters:
        """The counters of both processes now."""
        async with OffsetClient.connect(self.adapter.address) as client:
            status = await client.admin.Status(offsets_pb.StatusRequest())
        counts = scrape(self.meta_metrics)
        seen = sum(counts.get(name, 0.0) for name in SAVE_CALLS)
        return Counters(time.monotonic(), seen, status.save_calls, cpu_s(self.adapter.pid), cpu_s(self.meta.pid))

    async def commits(self) -> int:
        """The number of offsets that the adapter has acknowledged so far."""
        async with OffsetClient.connect(self.adapter.address) as client:
            return (await client.status()).commits

    async def under(self, load: Load) -> Measured:
        """Run a load and measure its window. Raises RuntimeError if calls failed, since the results would be invalid."""
        found, edges = await offered(load, self.counters, lambda: self.adapter.log)
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
            load_cpu=found["cpu_share"],
        )


@contextlib.contextmanager
def running_stack(directory: Path, *, wal_sync: str = "interval", top: str = "", extra: str = "") -> Iterator[Stack]:
    """Start both; they are killed at the end. `top`, `extra`: settings before and after the others."""
    meta = meta_process(directory)
    port = with_metrics(meta)
    adapter = adapter_process(directory, meta.address, wal_sync=wal_sync, top=top, extra=extra)
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        yield Stack(adapter, meta, port)


async def offered(
    load: Load, look: Callable[[], Awaitable[T]], log: Callable[[], str] = str
) -> tuple[dict[str, Any], tuple[T, T]]:
    """Run a load; returns its results, and those of `look` at both edges of its window.

    Raises RuntimeError, with the `log` of the server, if it failed or calls failed.
    """
    async with loading(load) as process:
        assert process.stdout is not None
        edges: list[T] = []
        while len(edges) < 2 and await process.stdout.readline():
            edges.append(await look())
        found = await found_by(process, log)
    return found, (edges[0], edges[1])


@contextlib.asynccontextmanager
async def loading(load: Load) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a load as a process, which is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.load",
        json.dumps(asdict(load)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def found_by(process: asyncio.subprocess.Process, log: Callable[[], str] = str) -> dict[str, Any]:
    """The results that a load prints at its end. Raises RuntimeError if it failed or calls failed."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(await process.stdout.read() or "{}")
    if await process.wait() or found["errors"]:
        raise RuntimeError(f"the load failed: {found}; the server's log:\n{log()[-4000:]}")
    return found
