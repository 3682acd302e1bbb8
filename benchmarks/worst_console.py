"""The worst clients of a console, which finish no request or read no page; beside an honest browser."""

import asyncio
import http.client
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from adapter.testing.lag_adapters import FakeLagAdapter, serving
from adapter.testing.processes import free_port
from benchmarks.console_pages import groups_of
from benchmarks.machine import ROOT
from benchmarks.report import Cell, Table
from benchmarks.resident import memory, reset_peak

GROUPS = 1_000
PAGE = "/groups?size=1000"
SLOW, UNREAD = 201, 150  # connections
SECONDS = 10.0  # of an attack
MIB = 2**20
PATIENCE_S = 60.0
COLUMNS = ("connections", "slowest /healthz ms", "slowest page ms", "not answered with 200", "memory MiB more")


class Browser(threading.Thread):
    """The honest one: health and a page of 50 groups in turns, each over a connection of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._going = True
        self.slowest_s = {"/healthz": 0.0, "/groups?size=50": 0.0}
        self.failed = 0

    def run(self) -> None:
        """Ask."""
        while self._going:
            for path in self.slowest_s:
                began = time.perf_counter()
                if status(self._port, path) != http.client.OK:
                    self.failed += 1
                self.slowest_s[path] = max(self.slowest_s[path], time.perf_counter() - began)
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop asking."""
        self._going = False
        self.join()


def status(port: int, path: str) -> int:
    """The status of an answer; 0 if there is none."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        except OSError:
            return 0
        return answer.status


async def table(directory: Path) -> Table:
    """Measure both attacks."""
    rows: list[list[Cell]] = []
    head = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    whole = f"GET {PAGE} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for name, count, sent in (
        ("nothing", 0, ""),
        (f"{SLOW} without the end of a head", SLOW, head),
        (f"{UNREAD} pages of 1,000 rows that nobody reads", UNREAD, whole),
    ):
        async with _console(directory) as (port, pid):
            rows.append([name, *await _attacked(port, pid, count, sent.encode())])
    return Table(f"console: {GROUPS:,} groups", COLUMNS, rows)


async def _attacked(port: int, pid: int, count: int, sent: bytes) -> list[Cell]:
    reset_peak(pid)
    before = memory(pid, "VmRSS")
    opened: list[socket.socket] = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # nothing is read, and the kernel takes little of it
        one.connect(("127.0.0.1", port))
        one.send(sent)
        opened.append(one)
    browser = Browser(port)
    browser.start()
    await asyncio.sleep(SECONDS)
    await asyncio.to_thread(browser.stop)
    for one in opened:
        one.close()
    slowest = [seconds * 1e3 for seconds in browser.slowest_s.values()]
    return [*slowest, browser.failed, (memory(pid, "VmHWM") - before) / MIB]


@asynccontextmanager
async def _console(directory: Path) -> AsyncIterator[tuple[int, int]]:
    """A console process that knows all groups: its port and its pid."""
    adapter = FakeLagAdapter("broker-1")
    adapter.tell_all(list(groups_of(GROUPS, 0)))
    port, path = free_port(), directory / "console.toml"
    async with serving(adapter) as address:
        path.write_text(f"[server]\nlisten = '127.0.0.1:{port}'\n[fleet]\nadapters = ['{address}']\n", encoding="utf-8")
        command = (sys.executable, "-m", "adapter", "console", "--config", str(path))
        process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr, stderr=sys.stderr, cwd=ROOT)
        try:
            until_s = time.monotonic() + PATIENCE_S
            while await asyncio.to_thread(status, port, PAGE) != http.client.OK and time.monotonic() < until_s:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.0)
            yield port, process.pid
        finally:
            process.kill()
            await process.wait()
