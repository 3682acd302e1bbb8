"""The console of the fleet: its process, its settings, and the tokens of those who may look and of those who may change."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio.to_thread
import httpx

from adapter.testing.processes import ServiceProcess, ended, free_port
from adapter.testing.waiting import PATIENCE_S
from demo.fleet.processes import Fleet, new_token


@dataclass(frozen=True)
class Console:
    """The console, not started."""

    process: ServiceProcess
    view_token: str
    admin_token: str

    @property
    def address(self) -> str:
        """Where its pages are."""
        return f"http://{self.process.tcp_address}"

    async def start(self) -> None:
        """Start it, and wait until it serves. Raises RuntimeError."""
        await anyio.to_thread.run_sync(self._start)

    def last_words(self, lines: int = 8) -> str:
        """The end of its log, for finding the cause of a failure."""
        return "console:\n" + "\n".join(self.process.log.splitlines()[-lines:]) if self.process.process else ""

    def _start(self) -> None:
        self.process.launch()
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            if self.process.process is None or self.process.process.poll() is not None:
                raise RuntimeError(f"the console ended:\n{self.process.log}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the console does not answer after {PATIENCE_S:g} s:\n{self.process.log}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/healthz", timeout=1.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False


@contextmanager
def console_of(fleet: Fleet, listen: str = "") -> Iterator[Console]:
    """The console of a fleet, not started; killed at the end. `listen`: host:port; empty: a free port of loopback."""
    directory = fleet.directory / "console"
    directory.mkdir(parents=True)
    listen = listen or f"127.0.0.1:{free_port()}"
    view, admin = directory / "view.token", directory / "change.token"
    tokens = new_token(view, "visitor"), new_token(admin, "operator")
    settings = f"""[server]
listen = '{listen}'
[fleet]
adapters = {fleet.addresses}
token_file = '{fleet.token_file}'
[meta]
endpoints = ['{fleet.meta.address}']
timeout_ms = 500
interval_ms = 500
[access]
changes = true
adapter_token_file = '{fleet.token_file}'
view_token_file = '{view}'
admin_token_file = '{admin}'
"""
    process = ServiceProcess("console", directory, settings, int(listen.rpartition(":")[2]))
    with ended(process):
        try:
            yield Console(process, *tokens)
        finally:
            if process.process and process.process.poll() is None:
                process.process.terminate()
                try:
                    process.process.wait(PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
