"""A page of the console over 1,000 and 100,000 groups: HTML with sparklines, the same without them, and the same rows as JSON.

One process serves the pages over a fleet that follows an adapter, and a thread of it asks, one request at a time. Between two
requests some groups change, so that the fleet merges and sorts anew, as it does in use.
"""

import http.client
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import anyio
import anyio.to_thread
from rich.progress import Progress

from adapter.console import process
from adapter.console.config import ConsoleConfig
from adapter.rpc import lag_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.config import parse
from adapter.testing.lag_adapters import FakeLagAdapter, serving
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "a page of the console"
MOST_MS = 300.0  # of a page over 1,000 groups
REQUESTS, REQUESTS_SHORT = 40, 3
CHANGED = 100  # groups, between two requests
HISTORY_MS = 100
SAMPLES_S = 7.0  # 60 samples
PATHS = ("/groups?size=1000", "/groups?size=1000&format=json", "/groups?size=50", "/", "/group?group=group-000007")
COLUMNS = ("groups", "page", "KiB", "CPU ms", "p50 ms", "p99 ms", "time, of the JSON of the same rows")


@dataclass
class Measured:
    """The requests of one path: milliseconds, milliseconds of CPU, and the bytes of an answer."""

    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    size: int = 0


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:  # noqa: ARG001 - nothing is stored
    """Measure each number of groups with and without sparklines."""
    result = Result("console", TITLE)
    rows: list[list[Cell]] = []
    counts = (100,) if scale.short else (1_000, 100_000)
    requests = REQUESTS_SHORT if scale.short else REQUESTS
    task = progress.add_task("console", total=2 * len(counts))
    for count in counts:
        times: dict[tuple[str, bool], Measured] = {}
        for sparks in (True, False):
            paths = PATHS if sparks else PATHS[:1]
            for path, found in (await _measured(count, paths, requests, sparks=sparks)).items():
                times[path, sparks] = found
            progress.advance(task)
        json = times[PATHS[1], True]
        for (path, sparks), measured in times.items():
            name = path if sparks else f"{path}, no sparklines"
            ratio = median(measured.ms) / median(json.ms) if "size=1000" in path else 0.0
            figures: list[Cell] = [measured.size / 1024, median(measured.cpu_ms), median(measured.ms), _p99(measured.ms)]
            rows.append([f"{count:,}", name, *figures, ratio or "-"])
        page, plain = times[PATHS[0], True], times[PATHS[0], False]
        result.bars.append(Bar(f"ms of a page of 1,000 rows over {count:,} groups, p99", _p99(page.ms), MOST_MS))
        result.notes.append(
            f"{count:,} groups: sparklines make the CPU of a page {median(page.cpu_ms) / median(plain.cpu_ms):.2f} times as much."
        )
    result.tables.append(Table("Pages of the console", COLUMNS, rows))
    result.notes.append(
        f"One request at a time by a thread of the process; {CHANGED} groups change before each. CPU is that of this process, "
        f"the client included. Load average meanwhile: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )
    return result


def _p99(times: Sequence[float]) -> float:
    return quantiles(times, n=100)[98]


async def _measured(count: int, paths: Sequence[str], requests: int, *, sparks: bool) -> dict[str, Measured]:
    """What each path costs."""
    adapter = FakeLagAdapter("broker-1")
    adapter.tell_all(list(groups_of(count, 0)))
    found = {path: Measured() for path in paths}
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(adapter))
        fleet = {"adapters": [address], "history_ms": HISTORY_MS, "history_groups": 100_000 if sparks else 0}
        settings = parse({"server": {"listen": "127.0.0.1:0"}, "fleet": fleet}, ConsoleConfig, source="benchmark")
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stopped, serves, ended = anyio.Event(), anyio.Event(), anyio.Event()
        told: list[str] = []

        async def until(stop: Callable[[], None]) -> None:
            await stopped.wait()
            stop()

        async def serve() -> None:
            def ready(at: str) -> None:
                told.append(at)
                serves.set()

            await process.run(settings, until, ready=ready)
            ended.set()

        tasks.start_soon(serve)
        await serves.wait()
        host, port = split_address(told[0].removeprefix("http://").rstrip("/"))
        await _known(host, port, count)
        until_s = time.monotonic() + SAMPLES_S * (requests / REQUESTS)
        number = 0
        while time.monotonic() < until_s:  # every group moves, so that each has a sparkline
            number += 1
            adapter.tell_all(list(groups_of(count, number)))
            await anyio.sleep(1.0)
        for turn in range(requests):
            for path, measured in found.items():
                number += 1
                adapter.tell_all(list(groups_of(CHANGED, number)))
                await anyio.sleep(0.05)
                ms, cpu_ms, measured.size = await anyio.to_thread.run_sync(_asked, host, port, path)
                if turn:  # the first one compiles templates
                    measured.ms.append(ms)
                    measured.cpu_ms.append(cpu_ms)
        stopped.set()
        await ended.wait()
    return found


async def _known(host: str, port: int, count: int) -> None:
    """Wait until the console knows all groups."""
    text = f'"matching":{count},'.encode()
    while text not in await anyio.to_thread.run_sync(_body, host, port, "/groups?size=1&format=json"):  # noqa: ASYNC110 - by HTTP
        await anyio.sleep(0.2)


def _asked(host: str, port: int, path: str) -> tuple[float, float, int]:
    """Milliseconds, milliseconds of CPU, and bytes."""
    began, cpu = time.perf_counter(), time.process_time()
    body = _body(host, port, path)
    return (time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3, len(body)


def _body(host: str, port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(host, port, timeout=120)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise RuntimeError(f"{path}: {answer.status}: {body[:200]!r}")
    return body


def groups_of(count: int, number: int) -> Iterator[lag_pb.GroupLag]:
    """So many groups, of which each lag depends on the number."""
    now = wall_ms()
    for at in range(count):
        lag = (at * 7919 + number * 31) % 10_000
        yield lag_pb.GroupLag(
            namespace="default",
            group=f"group-{at:06}",
            shards=4,
            known=4,
            lag=lag,
            lag_seconds=lag / 100,
            commit_rate=100.0,
            produce_rate=101.0,
            trend=1.0 - at % 3,
            last_commit_at_ms=now,
            status=lag_pb.WARN if at % 50 == 0 else lag_pb.OK,
            burrow=lag_pb.OK,
            status_since_ms=now,
            moving_lag=lag,
        )
