"""Real processes for tests, demos and benchmarks, with their ports, logs, signals and health."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.testing.waiting import PATIENCE_S

PROGRAM = (sys.executable, "-m", "adapter")
LISTENING, PORT_IN_USE = b"server.listening", b"cannot be listened on"  # in the log of our processes
_POLL_S = 0.005
HEALTH_S = 10.0  # a process that is frozen does not answer; a busy one does, however late


def free_port() -> int:
    """A TCP port on loopback that no other process is given for a minute, so that the one that it is for finds it free.

    The kernel keeps the end of a connection that was closed first in TIME_WAIT. It gives that port to nobody who asks for any
    port, and lets a server with SO_REUSEADDR, which all servers set, listen on it.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        accepted.close()
        client.recv(1)
        port: int = server.getsockname()[1]
    return port


class Started(Protocol):
    """What is used of a process that runs: subprocess.Popen has it."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int | None:
        """What `poll` or `wait` returned last."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


class Launch(Protocol):
    """How a process is started: `arguments` are those of `python -m adapter`, the output goes to a file."""

    def __call__(self, arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Started:
        """Start it without waiting."""


def executed(arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Started:
    """A Launch by `python -m adapter`, whatever is the default."""
    return subprocess.Popen([*PROGRAM, *arguments], stdout=output, stderr=output, env=environment)


@dataclass
class ServiceProcess:
    """A real `offset-adapter` process with its configuration file, its log, and its signals.

    `launched_by` is used instead of `prefix` and `program`; `by_default` for all services that differ in nothing from a plain
    `python -m adapter`.
    """

    by_default: ClassVar[Launch | None] = None

    command: str
    directory: Path
    settings: str
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    descriptors: Sequence[int] = ()  # file descriptors that it gets besides its log
    program: Sequence[str] = PROGRAM
    socket: Path | None = None
    launched_by: Launch | None = None
    process: Started | None = None
    _seen: int = 0  # bytes of the log when the process was launched

    @property
    def address(self) -> str:
        """The address that serves all of its gRPC services: an adapter's Unix socket, a Meta Service's port."""
        return f"unix:{self.socket}" if self.socket else self.tcp_address

    @property
    def tcp_address(self) -> str:
        """Its TCP port, for commits. OffsetAdmin is not open there."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Everything that it has logged."""
        return self._log_file.read_text(errors="replace")

    @property
    def _log_file(self) -> Path:
        return self.directory / f"{self.command}.log"

    @property
    def _log_since_launch(self) -> bytes:
        with self._log_file.open("rb") as log:
            log.seek(self._seen)
            return log.read()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def _is_special(self) -> bool:
        return bool(self.prefix or self.environment or self.descriptors) or self.program != PROGRAM

    def launch(self) -> None:
        """Start it without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / f"{self.command}.toml"
        config.write_text(self.settings)
        arguments, environment = [self.command, "--config", str(config)], {**os.environ, **self.environment}
        with self._log_file.open("ab") as log:
            self._seen = log.tell()
            if launched_by := self.launched_by or (None if self._is_special else type(self).by_default):
                self.process = launched_by(arguments, environment, log)
                return
            self.process = subprocess.Popen(
                [*self.prefix, *self.program, *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=self.descriptors,
            )

    def start(self, timeout_s: float = PATIENCE_S) -> None:
        """Start it and wait until its health is SERVING, and an adapter's recovery is done, unless it is degraded.

        Raises RuntimeError with the log if it ends before.
        """
        deadline = time.monotonic() + timeout_s
        self.launch()
        self.wait_ready(timeout_s)
        while self._is_comparing() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _is_comparing(self) -> bool:
        log = self._log_since_launch
        return b"sidecar.serving" in log and not any(end in log for end in (b"recovery.done", b"sidecar.degraded"))

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until its health is SERVING. While another process has its port, it is launched again and again."""
        deadline = time.monotonic() + timeout_s
        while not (self._listens() and self.healthy()):
            if self.process is None or self.process.poll() is not None:
                if PORT_IN_USE not in self._log_since_launch or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.command} ended:\n{self.log}")
                time.sleep(HEALTH_S / 10)
                self.launch()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.command} is not ready after {timeout_s:g} s:\n{self.log}")
            time.sleep(0.02)

    def _listens(self) -> bool:
        """False until it has logged that it listens: before, another process may answer at its port."""
        ours = self.command in {"serve", "meta"} and "level =" not in self.settings
        return not ours or LISTENING in self._log_since_launch

    def healthy(self, service: str = "") -> bool:
        """True if its health service answers SERVING now."""
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=HEALTH_S)
            except grpc.RpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Send SIGSTOP, and wait until no thread runs: it keeps its connections and does not answer. Raises TimeoutError."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE_S
        # The kernel stops all threads when one of them takes the signal, which may have to wait for a free core.
        while not is_stopped(self.pid):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.command} does not stop")
            time.sleep(_POLL_S)

    def thaw(self) -> None:
        """Send SIGCONT: the process continues."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL, and wait for its end."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """Send SIGTERM, and wait for its end; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)


def is_stopped(pid: int) -> bool:
    """True when every thread of the process is stopped by a signal."""
    try:
        threads = Path(f"/proc/{pid}/task").iterdir()
        return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
    except (FileNotFoundError, ProcessLookupError):  # one ended meanwhile
        return False


def meta_process(directory: Path, port: int | None = None, extra: str = "") -> ServiceProcess:
    """A Meta Service with the embedded engine and a store in `directory`."""
    port = port or free_port()
    settings = f"[server]\nlisten = '127.0.0.1:{port}'\n[metrics]\nlisten = ''\n[store]\npath = '{directory / 'meta'}'\n{extra}"
    return ServiceProcess("meta", directory, settings, port)


def adapter_process(
    directory: Path,
    meta: str,
    *,
    wal_sync: str = "interval",
    top: str = "",
    extra: str = "",
    store: Path | None = None,
) -> ServiceProcess:
    """An adapter with a store in `directory`. `top` goes before all sections, `extra` after them."""
    port, socket_path = free_port(), directory / "a.sock"
    settings = f"""{top}
[server]
listen = '127.0.0.1:{port}'
unix_socket = '{socket_path}'
[metrics]
listen = ''
[store]
path = '{store or directory / "adapter"}'
wal_sync = '{wal_sync}'
[meta]
endpoints = ['{meta}']
{extra}"""
    return ServiceProcess("serve", directory, settings, port, socket=socket_path)


@contextlib.contextmanager
def ended(*services: ServiceProcess) -> Any:  # noqa: ANN401 - a context manager
    """Kill these services at the end, also paused ones."""
    try:
        yield
    finally:
        for service in services:
            service.kill()
