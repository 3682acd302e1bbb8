"""Commands of ours that are killed at a step, each a fork of one process: as a program, this is that process.

A step is a file below a directory that Python opens, links, makes, renames or removes. So a kill comes at the same place however
fast the machine is. Instead of itself a command may kill another process there, and go on.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from adapter.testing.processes import ServiceProcess

STEPS = {"open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir"}  # audit events
NEVER = -1


class Ended(NamedTuple):
    """How a command ended: its exit code, or minus the signal; what it printed; how many steps it had come."""

    code: int
    said: str
    steps: int


class Commands:
    """Starts commands."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @classmethod
    @contextmanager
    def started(cls) -> "Iterator[Commands]":
        """The process that forks, until the end of the context."""
        with subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield cls(process)
            finally:
                assert process.stdin
                process.stdin.close()

    def run(self, *words: str | Path, below: Path, at: int = NEVER, victim: ServiceProcess | None = None) -> Ended:
        """Run a command to its end. At step `at` below a directory it, or the process `victim`, gets SIGKILL."""
        assert self._process.stdin
        assert self._process.stdout
        request = {
            "words": [str(word) for word in words],
            "below": str(below),
            "at": at,
            "pid": victim.pid if victim else 0,
        }
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))


def places(steps: int, some: int = 4, last: int = 4) -> Sequence[int]:
    """Some steps of so many, evenly, and the last ones: what counts is decided there."""
    return sorted({*range(0, steps, max(steps // some, 1)), *range(max(steps - last, 0), steps)})


def _serve() -> None:
    from tests import forking  # noqa: PLC0415 - imports what commands need

    forking.load()
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as steps:
            pid = os.fork()
            if not pid:
                _be(output, steps, **json.loads(line))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said, count = ((file.seek(0), file.read().decode())[1] for file in (output, steps))
        sys.stdout.write(f"{json.dumps([code, said, len(count)])}\n")
        sys.stdout.flush()


def _be(output: IO[bytes], steps: IO[bytes], words: list[str], below: str, at: int, pid: int) -> None:
    """Be the command; writes a byte for each step."""
    from tests import forking  # noqa: PLC0415 - as above

    count, counted = 0, steps.fileno()

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in STEPS or not any(isinstance(name, str | Path) and str(name).startswith(below) for name in arguments):
            return
        if count == at:
            os.kill(pid or os.getpid(), signal.SIGKILL)
        count += 1
        os.write(counted, b".")

    sys.addaudithook(step)
    files = [os.dup(number) for number in (os.open(os.devnull, os.O_RDONLY), output.fileno(), output.fileno())]
    forking.become(files, words, str(Path.cwd()), dict(os.environ))


if __name__ == "__main__":
    _serve()
