"""Runs of the command `offset-adapter`, each a process of its own: a fork of one that has imported it already.

Importing takes most of the time of a short command. All else is as by `python -m adapter`: arguments, environment, directory,
files, exit code. `run` is for the tests; as a program this is the process that forks.
"""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO

from adapter import __main__ as command
from adapter.cli.main import COMMANDS, META_COMMANDS, main

LONGEST = 2**20  # bytes of a request: arguments and environment
FILES = 4  # standard input, output, errors, and where the answer goes


class _Forks:
    """Starts the process that forks. That one ends with our end of the socket: with this process."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )

    def run(
        self, arguments: Sequence[str], directory: Path, environment: Mapping[str, str], timeout_s: float, given: str
    ) -> subprocess.CompletedProcess[str]:
        with ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(FILES - 1)]
            files[0].write(given.encode())
            files[0].seek(0)
            read, write = os.pipe()
            answer = opened.enter_context(os.fdopen(read))
            request = json.dumps([arguments, str(directory), dict(environment)]).encode()
            try:
                socket.send_fds(self._ours, [request], [*(file.fileno() for file in files), write])
            finally:
                os.close(write)
            pid = int(answer.readline())
            waiting = select.poll()
            waiting.register(answer)
            if not waiting.poll(timeout_s * 1_000):
                os.kill(pid, signal.SIGKILL)
                answer.read()
                raise subprocess.TimeoutExpired(arguments, timeout_s)
            code = int(answer.read())
            out, err = (_content(file) for file in files[1:])
            return subprocess.CompletedProcess(arguments, code, out, err)


def run(
    arguments: Sequence[str | Path], directory: Path, environment: Mapping[str, str], timeout_s: float, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m adapter` with these arguments. Raises TimeoutExpired as subprocess.run does, after the end of the process."""
    return _forks().run([str(argument) for argument in arguments], directory, environment, timeout_s, given)


@cache
def _forks() -> _Forks:
    return _Forks()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def serve(requests: socket.socket) -> None:
    """One child for each request, which waits for its own child: that one is the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for lazy in [*COMMANDS.values(), *META_COMMANDS.values()]:
        lazy.load()
    gc.freeze()
    while True:
        request, files, *_ = socket.recv_fds(requests, LONGEST, FILES)
        if not request:
            return
        if not os.fork():
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if not pid:
                become(files, *json.loads(request))
                return
            os.write(files[-1], f"{pid}\n".encode())
            os.write(files[-1], str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            os._exit(0)
        for file in files:
            os.close(file)


def become(files: list[int], arguments: list[str], directory: str, environment: dict[str, str]) -> None:
    """Be `python -m adapter` with these arguments."""
    for at, file in enumerate(files):
        if at < FILES - 1:
            os.dup2(file, at)
        os.close(file)
    os.chdir(directory)
    verbosity = os.environ["GRPC_VERBOSITY"]  # which the command sets itself when it is imported
    os.environ.clear()
    os.environ.update({"GRPC_VERBOSITY": verbosity, **environment})
    sys.argv = [str(command.__file__), *arguments]
    sys.modules["__main__"] = command  # usage errors name the program after it
    main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
