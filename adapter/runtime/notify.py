"""Tells the service manager how this process is (sd_notify(3)): that it is ready, reloads or stops, and that it is alive.

Without NOTIFY_SOCKET in the environment nothing is sent. What cannot be sent is logged once and otherwise ignored: the work of
the process does not depend on it.
"""

import asyncio
import os
import socket
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)

EXTEND_EVERY_S, EXTEND_BY_S = 10.0, 60.0


class Notifier:
    """The service manager of this process, as far as there is one."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environment)
        self._passing = True  # starting or stopping: the service manager has a time limit for it
        self._timer: asyncio.TimerHandle | None = None
        self._failed = False

    def ready(self) -> None:
        """Say that the process serves."""
        self._passing = False
        self.send("READY=1")
        self._beat()

    def stopping(self) -> None:
        """Say that the process is about to end."""
        self._passing = True
        self.send("STOPPING=1")
        self._beat()

    def status(self, text: str) -> None:
        """Give one line that `systemctl status` shows."""
        self.send("STATUS=" + " ".join(text.split()))

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Say that settings are read again inside. The clock is the one of Type=notify-reload.

        Not during a start or a stop: the READY=1 at the end would say that the process serves.
        """
        if self._passing:
            yield
            return
        self.send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
        try:
            yield
        finally:
            self.send("READY=1")

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Send a sign of life inside, for as long as the event loop runs: for the watchdog, and for a long start or stop.

        A start recovers and a stop flushes, each with a limit of its own in the settings. The service manager's shorter one would
        kill a process that is at work; a process whose event loop stands still is not extended.
        """
        if self._address:
            self._beat()
        try:
            yield
        finally:
            if self._timer:
                self._timer.cancel()

    def send(self, text: str) -> None:
        """Send assignments, one in each line."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode(), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("notify.failed", error=str(error), help="the service manager does not learn how this process is")
            self._failed = True

    def _beat(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        pauses = []
        if self._watchdog_s:
            self.send("WATCHDOG=1")
            pauses.append(self._watchdog_s / 2)
        if self._passing:
            self.send(f"EXTEND_TIMEOUT_USEC={EXTEND_BY_S * 1e6:.0f}")
            pauses.append(EXTEND_EVERY_S)
        if self._address and pauses:
            self._timer = asyncio.get_running_loop().call_later(min(pauses), self._beat)


def _address(value: str) -> str:
    """The address to send to; of an abstract socket in the form of the kernel."""
    return "\0" + value[1:] if value.startswith("@") else value


def _watchdog_s(environment: MutableMapping[str, str]) -> float:
    """Seconds within which a sign of life has to come; 0 if nobody waits for one."""
    interval, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    return int(interval) / 1e6 if interval.isdecimal() and pid in {"", str(os.getpid())} else 0.0


_notifier = Notifier({})


def connect(environment: MutableMapping[str, str] = os.environ) -> Notifier:
    """Use the service manager that the environment names; called once, at the start of a process. Children do not inherit it."""
    global _notifier  # noqa: PLW0603 - there is one service manager for a process
    _notifier = Notifier(environment)
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        environment.pop(name, None)
    return _notifier


def manager() -> Notifier:
    """Return the service manager of this process."""
    return _notifier
