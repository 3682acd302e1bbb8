"""A stand-in for systemd in tests and benchmarks: it holds a process's listening sockets, and hears what it notifies."""

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from adapter.testing.processes import ServiceProcess
from adapter.testing.waiting import PATIENCE_S

# Runs as the process that becomes the service, as systemd's own child does: descriptors from 3 on, and LISTEN_PID is its own.
EXEC = """
import os, sys
handed, command = [int(each) for each in sys.argv[1].split(",") if each], sys.argv[2:]
high = [os.dup2(each, 500 + at) for at, each in enumerate(handed)]
for each in handed:
    os.close(each)
for at, each in enumerate(high):
    os.dup2(each, 3 + at, inheritable=True)
    os.close(each)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(handed)))
os.execv(command[0], command)
"""
BACKLOG = 4_096


@dataclass
class ServiceManager:
    """Starts a service with sockets that stay open when it ends, and collects its notifications."""

    service: ServiceProcess
    sockets: list[socket.socket] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)  # assignments, such as READY=1, of all its processes
    watchdog_s: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _hears: socket.socket | None = None

    def hold_tcp(self) -> None:
        """Open the TCP address of the service."""
        self.sockets.append(socket.create_server(("127.0.0.1", self.service.port), backlog=BACKLOG))

    def hold_unix(self, mode: int = 0o600) -> None:
        """Open the Unix socket of an adapter."""
        assert self.service.socket
        self.service.socket.parent.mkdir(parents=True, exist_ok=True)
        held = socket.socket(socket.AF_UNIX)
        held.bind(str(self.service.socket))
        self.service.socket.chmod(mode)
        held.listen(BACKLOG)
        self.sockets.append(held)

    def start(self) -> None:
        """Start the service, and return when it has said that it is ready. Raises RuntimeError if it ends before."""
        seen = self.launch()
        self.wait_for("READY=1", seen)

    def launch(self) -> int:
        """Start the service without waiting; returns how many assignments were heard before."""
        seen = len(self.heard)
        service = self.service
        numbers = [each.fileno() for each in self.sockets]
        service.prefix = (sys.executable, "-S", "-c", EXEC, ",".join(map(str, numbers))) if numbers else ()
        service.environment = {
            **service.environment,
            "NOTIFY_SOCKET": str(self._path),
            **({"WATCHDOG_USEC": f"{self.watchdog_s * 1e6:.0f}"} if self.watchdog_s else {}),
        }
        service.descriptors = numbers
        service.launch()
        return seen

    def restart(self) -> int:
        """Stop the service and start it again, as `systemctl restart` does; returns the exit code of the stop."""
        code = self.service.stop()
        self.start()
        return code

    def wait_for(self, assignment: str, seen: int = 0) -> None:
        """Wait until this is heard, after the first `seen` assignments. Raises RuntimeError if the process ends before."""
        with self._changed:
            for _ in range(int(PATIENCE_S * 10)):
                if assignment in self.heard[seen:]:
                    return
                process = self.service.process
                if process is None or process.poll() is not None:
                    raise RuntimeError(f"{self.service.command} ended:\n{self.service.log}")
                self._changed.wait(0.1)
        raise RuntimeError(f"{assignment} was not heard; {self.heard[seen:]}:\n{self.service.log}")

    @property
    def _path(self) -> Path:
        return self.service.directory / "notify"

    def _hear(self, hears: socket.socket) -> None:
        while data := hears.recv(65_536):
            with self._changed:
                self.heard += data.decode().splitlines()
                self._changed.notify_all()


@contextlib.contextmanager
def service_manager(service: ServiceProcess, *, watchdog_s: float = 0.0) -> Iterator[ServiceManager]:
    """A service manager for a service that is not started; at the end the service is killed and its sockets are closed."""
    service.directory.mkdir(parents=True, exist_ok=True)
    found = ServiceManager(service, watchdog_s=watchdog_s)
    path = service.directory / "notify"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(str(path))
        listener = threading.Thread(target=found._hear, args=(hears,), name="notify", daemon=True)  # noqa: SLF001
        listener.start()
        try:
            yield found
        finally:
            service.kill()
            for each in found.sockets:
                each.close()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", str(path))  # ends the listener
            listener.join()
