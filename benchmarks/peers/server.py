"""A server's process with its log and user. It ends when the benchmark ends, even if that is killed."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0


def command_as(command: Sequence[str], *, user: str = "", end: signal.Signals = signal.SIGTERM) -> list[str]:
    """A command that gets `end` when the thread that started it is gone, and runs as `user` when we are root."""
    prefix = ["setpriv", f"--pdeathsig={end.name}"]
    if user and os.geteuid() == 0:
        prefix += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return [*prefix, "--", *command]


class Server:
    """One process, with its data and log in a directory. `end` is the signal that lets it stop."""

    def __init__(
        self,
        directory: Path,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        user: str = "",
        end: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._end = end
        self._log = directory / f"{Path(command[0]).name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command_as(command, user=user, end=end),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for us: we end it
            )

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    @property
    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:]

    def wait_listening(self, port: int) -> None:
        """Wait until a port of it takes connections. Raises RuntimeError with the log when it ends, or takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not _listening(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._log.stem} does not listen on port {port}:\n{self.log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Signal it, wait, and kill what is left of it and its children."""
        if self._process.poll() is None:
            children = psutil.Process(self.pid).children(recursive=True)
            self._process.send_signal(self._end)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            for child in children:
                _kill(child)
        self._process.wait()


class Hosted:
    """The part of a peer that has processes: they are counted and ended together."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [server.pid for server in self.servers]

    @property
    def log(self) -> str:
        """The end of the logs."""
        return "".join(server.log for server in self.servers)

    def stop(self) -> None:
        """Stop the server."""
        while self.servers:
            self.servers.pop().stop()


def run(directory: Path, command: Sequence[str], *, user: str = "", environment: Mapping[str, str] | None = None) -> None:
    """Run a command to its end. Raises RuntimeError with what it said when it fails, or takes too long."""
    try:
        done = _run(directory, command, user, environment or {})
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{command[0]} is not done after {error.timeout:g} s") from error
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def _run(
    directory: Path, command: Sequence[str], user: str, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command_as(command, user=user),
        cwd=directory,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=READY_TIMEOUT_S,
        check=False,
    )


def own(directory: Path, user: str) -> None:
    """Make a directory that belongs to `user` when we are root."""
    directory.mkdir(parents=True)
    if os.geteuid() == 0:
        shutil.chown(directory, user, user)


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
