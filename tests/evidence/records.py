"""The file of what was run: one JSON object a line, only ever appended to, so that a run that is killed counts for what it did.

A line is a slice (`Slice`) or the closing of a violation (`Closing`). A line that a crash has torn is skipped and reported.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE = Path("evidence/runs.jsonl")
OUTPUT_MAX = 1_500  # characters that are kept of what a failed command wrote


@dataclass(frozen=True)
class Violation:
    """A command that failed, and the end of what it wrote. `command` finds it again."""

    command: str
    output: str


@dataclass(frozen=True)
class Slice:
    """What one command did. `at`: UTC, when it began. `counts`: how many of what. `seeds`: the first and the last one.

    `code`: the digest of what it ran (code.py). Empty: unknown, as of slices before 2026-11-28, or changed while it ran.
    """

    at: str
    commit: str
    dirty: bool
    machine: str
    seeds: tuple[int, int]
    seconds: float
    cpu_seconds: float
    command: str
    counts: Mapping[str, float] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    code: str = ""

    @property
    def name(self) -> str:
        """By which a violation of it is closed."""
        return f"{self.at}/{self.machine}"


@dataclass(frozen=True)
class Closing:
    """A violation that is closed: the slice's name, and why (the commit that fixed it, or what was wrong with the check)."""

    closes: str
    why: str


@dataclass(frozen=True)
class Runs:
    """What the file holds. `torn`: numbers of lines that are no records."""

    slices: tuple[Slice, ...]
    closings: tuple[Closing, ...] = ()
    torn: tuple[int, ...] = ()

    @property
    def open(self) -> list[Slice]:
        """The slices with violations that nobody closed."""
        closed = {closing.closes for closing in self.closings}
        return [each for each in self.slices if each.violations and each.name not in closed]

    def of_code(self, machine: str, code: str) -> list[Slice]:
        """The slices of a machine that ran this code; none for code that is unknown."""
        return [each for each in self.slices if code and (each.machine, each.code) == (machine, code)]

    def of_newest_code(self, machine: str) -> list[Slice]:
        """Those that ran the same code as the last slice of the machine whose code is known."""
        known = [each for each in self.slices if each.machine == machine and each.code]
        return self.of_code(machine, max(known, key=lambda each: each.at).code) if known else []


def append(path: Path, record: Slice | Closing) -> None:
    """Add a record. Raises OSError."""
    append_line(path, asdict(record))


def append_line(path: Path, values: Mapping[str, Any]) -> None:
    """Add a line and sync it. A torn line before it stays alone. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(values, ensure_ascii=False).encode() + b"\n"
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> Runs:
    """What the file holds; nothing if there is no file."""
    slices: list[Slice] = []
    closings: list[Closing] = []
    torn: list[int] = []
    for number, line in read_lines(path):
        try:
            record = _record(json.loads(line))
        except (ValueError, TypeError, KeyError):
            torn.append(number)
            continue
        if isinstance(record, Slice):
            slices.append(record)
        else:
            closings.append(record)
    return Runs(tuple(slices), tuple(closings), tuple(torn))


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not empty, with their numbers; none without a file."""
    if path.exists():
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if line:
                yield number, line


def _record(values: dict[str, Any]) -> Slice | Closing:
    """Raises TypeError, KeyError or ValueError for what is neither."""
    if "closes" in values:
        return Closing(**values)
    first, last = values["seeds"]
    violations = tuple(Violation(**each) for each in values["violations"])
    return Slice(**{**values, "seeds": (first, last), "violations": violations})
