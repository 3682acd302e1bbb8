"""Spends time on the machines, a slice at a time, each appended to the file: always on the one that had the least in this run.

Those that had the least in all runs before come first, so that short runs reach every machine in turn. A machine that is new
does not take a long run for itself.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from tests.evidence.machines import Command, Machine
from tests.evidence.records import OUTPUT_MAX, Slice, Violation, append, read

LIMIT_S = 1_200.0  # of a slice: none takes a tenth of it on an idle machine
END_S = 30.0  # for a slice to end after SIGINT, with its processes
SEED_MAX = 2**32
OWN_FILES = (":!evidence", ":!docs/evidence*")  # what a run itself writes makes no commit dirty

_TICK_S = 0.1  # to which times are rounded: a slice that takes none would come again and again


class StoppedError(Exception):
    """SIGINT or SIGTERM came. `record`: what the slice that it ended had counted."""

    record: Slice | None = None


def spend(
    machines: Sequence[Machine], seconds: float, rng: random.Random, path: Path, told: Callable[[Machine, Slice | None], None]
) -> list[Slice]:
    """Run slices until the time is over or a signal comes. `told` hears of each at its begin (None) and its end.

    The slice that a signal ends counts for what its command had counted until then.
    """
    done: list[Slice] = []
    before: defaultdict[str, float] = defaultdict(float)
    for each in read(path).slices:
        before[each.machine] += max(each.seconds, _TICK_S)
    spent = dict.fromkeys((machine.name for machine in machines), 0.0)
    end = time.monotonic() + seconds
    try:
        with _signals():
            while time.monotonic() < end:
                machine = min(machines, key=lambda each: (spent[each.name], before[each.name]))
                told(machine, None)
                record = run(machine, rng.randrange(SEED_MAX))
                append(path, record)
                done.append(record)
                spent[machine.name] += max(record.seconds, _TICK_S)
                told(machine, record)
    except StoppedError as stopped:
        if stopped.record:
            append(path, stopped.record)
            done.append(stopped.record)
    return done


def run(machine: Machine, seed: int) -> Slice:
    """One slice, with the code as it is now. Raises StoppedError, with what was counted, when a signal came."""
    command = machine.next(seed)
    commit, dirty = _commit()
    code = machine.code
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    began, cpu = time.monotonic(), _cpu_seconds()
    with tempfile.TemporaryDirectory(prefix="evidence-") as directory:
        counts = Path(directory, "counts")
        stopped, problem = None, None
        try:
            problem = _run(command, (f"{machine.option}={counts}",), Path(directory, "output"))
        except StoppedError as error:
            stopped = error
        counted = machine.counts(counts)
    violations = () if problem is None else (Violation(str(command), problem),)
    record = Slice(
        at,
        commit,
        dirty,
        machine.name,
        command.seeds,
        round(time.monotonic() - began, 1),
        round(_cpu_seconds() - cpu, 1),
        str(command),
        counted,
        violations,
        code if machine.code == code else "",
    )
    if stopped:
        stopped.record = record if counted else None
        raise stopped
    return record


def _run(command: Command, more: Sequence[str], output: Path) -> str | None:
    """What the command wrote last if it failed, None if it passed."""
    arguments = [sys.executable, "-m", *command.arguments, *more]
    with output.open("wb") as file:
        process = subprocess.Popen(
            arguments,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.variables},
            start_new_session=True,  # Ctrl-C is for this process, which then ends the slice
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"was still running after {LIMIT_S:g} s\n{_tail(output)}"
        except StoppedError:
            _end(process)
            raise
    return None if code == 0 else f"exit code {code}\n{_tail(output)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGINT, so that it ends what it has started; SIGKILL to its session if that takes too long."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(output: Path) -> str:
    return output.read_bytes().decode(errors="replace")[-OUTPUT_MAX:].strip()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _commit() -> tuple[str, bool]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    status = ["git", "status", "--porcelain", "--", ".", *OWN_FILES]
    return commit, bool(subprocess.run(status, check=True, capture_output=True).stdout)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise StoppedError, once."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedError(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
