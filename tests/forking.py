"""Runs of the command `offset-adapter`, each a process of its own: a fork of one that has imported it already.

Importing takes most of the time of a short command, and of a server's start. All else is as by `python -m adapter`: arguments,
environment, directory, files, signals, exit code. `run` and `start` are for the tests; as a program this process forks.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from adapter import __main__ as command
from adapter.cli.main import COMMANDS, main
from adapter.cli.process.meta import COMMANDS as META_COMMANDS

if TYPE_CHECKING:  # the process that forks imports what commands do, and no more
    from adapter.testing.processes import Launch

LONGEST = 2**20  # bytes of a request: arguments and environment
LAST_S = 1.0  # for the children to end when nothing more is asked for; what runs on is left alone
# What every server imports when it runs, or as its settings say.
IMPORTED_LATER = (
    *("anyio._backends._asyncio", "concurrent.futures.thread", "encodings.idna", "grpc._channel", "uvloop"),
    *("adapter.sidecar.lag.live", "adapter.sidecar.lag.service", "adapter.sidecar.lag.watching"),
    *("adapter.cli.backup.receiving", "adapter.sidecar.ledger.restore", "adapter.metaservice.rocksdb.restore"),
)
FILES = 4  # standard input, output, errors, and where the answer goes


class _Forks:
    """Starts the process that forks. That one ends with our end of the socket: with this process, which waits for it at its end.

    So the processor time of all of them counts as that of children of this one.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._close)

    def start(self, arguments: Sequence[str], directory: Path, environment: Mapping[str, str], files: Sequence[int]) -> "Forked":
        read, write = os.pipe()
        request = json.dumps([arguments, str(directory), dict(environment)]).encode()
        try:
            socket.send_fds(self._ours, [request], [*files, write])
        finally:
            os.close(write)
        return Forked(arguments, os.fdopen(read))

    def _close(self) -> None:
        self._ours.close()
        self._process.wait()


class Forked:
    """A started process, with what subprocess.Popen has for it."""

    def __init__(self, arguments: Sequence[str], answer: TextIO) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._answer = answer
        self.pid = int(answer.readline())

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended. Raises TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing when it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._answer)
            if waiting.poll(None if timeout is None else timeout * 1_000):
                self.returncode = int(self._answer.read())
                self._answer.close()
        return self.returncode


def run(
    arguments: Sequence[str | Path], directory: Path, environment: Mapping[str, str], timeout_s: float, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m adapter` with these arguments. Raises TimeoutExpired as subprocess.run does, after the end of the process."""
    with ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(FILES - 1)]
        files[0].write(given.encode())
        files[0].seek(0)
        command = [str(argument) for argument in arguments]
        forked = _forks().start(command, directory, environment, [file.fileno() for file in files])
        try:
            code = forked.wait(timeout_s)
        except subprocess.TimeoutExpired:
            forked.kill()
            forked.wait()
            raise
        out, err = (_content(file) for file in files[1:])
        return subprocess.CompletedProcess(command, code, out, err)


def start(arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Forked:
    """`python -m adapter` with these arguments, here, with its output in a file; without waiting for its end."""
    with Path(os.devnull).open("rb") as nothing:
        return _forks().start(arguments, Path.cwd(), environment, [nothing.fileno(), output.fileno(), output.fileno()])


def start_at(terminal: int, errors: int, arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
    """`python -m adapter` with these arguments at a terminal, by its descriptor, with its errors there or elsewhere."""
    return _forks().start(arguments, Path.cwd(), environment, [terminal, terminal, errors])


def beginning_with(at_the_beginning: Mapping[str, str]) -> "Launch":
    """The same as `start`, for an environment that counts where a program begins: the loader puts in libraries only there."""

    def launch(arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]) -> Forked:
        with Path(os.devnull).open("rb") as nothing:
            files = [nothing.fileno(), output.fileno(), output.fileno()]
            return _forks(*at_the_beginning.items()).start(arguments, Path.cwd(), environment, files)

    return launch


@cache
def _forks(*environment: tuple[str, str]) -> _Forks:
    return _Forks(dict(environment))


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def load() -> None:
    """Import what commands import, for all forks."""
    for lazy in [*COMMANDS.values(), *META_COMMANDS.values()]:
        lazy.load()
    for name in IMPORTED_LATER:
        import_module(name)
    gc.freeze()


def serve(requests: socket.socket) -> None:
    """One child for each request: the command. Who asked is told its process id, and its exit code when it has ended."""
    load()
    running: dict[int, tuple[int, int]] = {}  # a descriptor of the process: its id, and where the answer goes
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    last: float | None = None
    while last is None or (running and time.monotonic() < last):
        for ready, _ in waiting.poll(None if last is None else LAST_S * 1_000):
            if ready in running:
                pid, answer = running.pop(ready)
                waiting.unregister(ready)
                with suppress(BrokenPipeError):  # who asked has gone
                    os.write(answer, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(ready)
                os.close(answer)
                continue
            request, files, *_ = socket.recv_fds(requests, LONGEST, FILES)
            if not request:
                waiting.unregister(requests)
                last = time.monotonic() + LAST_S
                continue
            pid = os.fork()
            if not pid:
                requests.close()
                for process, (_, answer) in running.items():
                    os.close(process)
                    os.close(answer)
                become(files, *json.loads(request))
                return
            *theirs, answer = files
            with suppress(BrokenPipeError):
                os.write(answer, f"{pid}\n".encode())
            for file in theirs:
                os.close(file)
            process = os.pidfd_open(pid)
            running[process] = pid, answer
            waiting.register(process, select.POLLIN)


def become(files: list[int], arguments: list[str], directory: str, environment: dict[str, str]) -> None:
    """Be `python -m adapter` with these arguments."""
    for at, file in enumerate(files):
        if at < FILES - 1:
            os.dup2(file, at)
        os.close(file)
    for at, name in enumerate(("stdin", "stdout", "stderr")):
        if os.isatty(at):  # Python makes other streams for a terminal than for a file, which those of the parent are for
            setattr(sys, name, os.fdopen(at, "w" if at else "r", buffering=1, encoding="utf-8", closefd=False))
    os.chdir(directory)
    verbosity = os.environ["GRPC_VERBOSITY"]  # which the command sets itself when it is imported
    os.environ.clear()
    os.environ.update({"GRPC_VERBOSITY": verbosity, **environment})
    sys.argv = [str(command.__file__), *arguments]
    sys.modules["__main__"] = command  # usage errors name the program after it
    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            command.leave(ended.code or 0)
        raise


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
