"""What both checkers say of histories: which keys contradict themselves."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapter.model.records import OffsetKey
from tests.linearizability.recorded import Operation, history, line

SOURCE = Path(__file__).parent / "go"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
TIMEOUT_S = 60  # of Porcupine's search for one key


class PorcupineError(Exception):
    """Porcupine could not be built, or did not understand what it got."""


@dataclass(frozen=True)
class Verdict:
    """By Porcupine. `illegal`: keys that no order of the operations explains. `unknown`: its time was over."""

    operations: int
    illegal: frozenset[OffsetKey]
    unknown: frozenset[OffsetKey]


def go() -> str | None:
    """Go's command, if it is installed."""
    return shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")


def build() -> Path:
    """The program, built from what go.sum pins. Raises PorcupineError."""
    command = go()
    if not command:
        raise PorcupineError("Go (1.26 or newer) is not installed")
    program = CACHE / "linearizability"
    arguments = [command, "build", "-mod=readonly", "-buildvcs=false", "-o", str(program), "."]
    done = subprocess.run(arguments, cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PorcupineError(f"{SOURCE} could not be built:\n{done.stderr}")
    return program


def porcupine(program: Path, histories: Iterable[Sequence[Operation]], *, plain: bool = False) -> Iterator[Verdict]:
    """Of each history, in their order. `plain`: by the plain model. Raises PorcupineError."""
    arguments = [str(program), f"-timeout={TIMEOUT_S}s", *(["-plain"] if plain else [])]
    text = "\n".join("".join(map(line, each)) for each in histories)
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PorcupineError(done.stderr)
    for answer in map(json.loads, done.stdout.splitlines()):
        illegal, unknown = (frozenset(OffsetKey(*key) for key in answer[name]) for name in ("illegal", "unknown"))
        yield Verdict(answer["operations"], illegal, unknown)


def ours(recorded: Sequence[Operation]) -> frozenset[OffsetKey]:
    """The keys of the violations that our own checker finds."""
    return frozenset(violation.key for violation in history(recorded).check())
