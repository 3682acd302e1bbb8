"""`python -m tests.evidence.replay NUMBER...`: show that a check still finds a bug, on the commit before its fix.

In a worktree of its own, with the tests of the commit that has the check: it has to fail before the fix, and to pass after it.
A failure because the code before the fix lacks a name that the check uses finds nothing: then the bug is planted anew in the
commit that has the check, by taking the decisive lines back. Exit code 1: one was not found.
Each replay is a line in evidence/replays.jsonl; docs/track-record.md shows the last ones.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from tests.evidence.bugs import BUGS, Bug, Planted
from tests.evidence.records import append_line, read_lines

FILE = Path("evidence/replays.jsonl")
TESTS = "tests"  # what is brought to the commit before the fix
PASSED, FAILED = 0, 1  # pytest's exit codes; all others mean that nothing was tested
LIMIT_S = 600.0
SHOWN = 3_000  # characters of what pytest wrote
TOLD = 300  # characters of the failure that a replay keeps
# Python's errors where code lacks what a test uses. None of the bugs shows itself by one of them.
LACKING = ("ImportError", "ModuleNotFoundError", "AttributeError", "NameError", "TypeError", "fixture '")
TOOLS = Path(".venv/tools/usr/bin")  # etcd


@dataclass(frozen=True)
class Replay:
    """`before`, `after`: pytest's exit codes. `fix`: names the bug, whose number may change. `told`: how it failed before."""

    at: str
    fix: str
    test: str
    before: int
    after: int
    told: str = ""

    @property
    def ran(self) -> bool:
        """Whether the check could run on the commit before the fix."""
        return self.before in {PASSED, FAILED} and not any(word in self.told for word in LACKING)

    @property
    def found(self) -> bool:
        """Whether the check tells the commit before the fix from the one after it."""
        return self.ran and (self.before, self.after) == (FAILED, PASSED)


def replay(bug: Bug, repository: Path) -> tuple[Replay, str]:
    """Run its check before and after the fix; also what pytest wrote. Raises CalledProcessError without the commits."""
    after = bug.after or bug.fix
    with _worktree(repository, after if bug.planted else f"{bug.fix}^") as tree:
        if bug.planted:
            _plant(tree, bug.planted)
        else:
            _git(tree, "checkout", "--quiet", after, "--", TESTS)
        before_code, before_text = _checked(tree, bug.test)
        _git(tree, "checkout", "--quiet", "--force", "--detach", after)
        after_code, after_text = _checked(tree, bug.test)
    at = datetime.now(UTC).date().isoformat()
    found = Replay(at, bug.fix, bug.test, before_code, after_code, _failure(before_text))
    return found, f"before the fix:\n{before_text[-SHOWN:]}\nafter it:\n{after_text[-SHOWN:]}"


def replays(path: Path = FILE) -> Mapping[tuple[str, str], Replay]:
    """The last replay of each bug, by its fix and its test. A torn line counts for nothing."""
    found: dict[tuple[str, str], Replay] = {}
    for _, line in read_lines(path):
        try:
            record = Replay(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[record.fix, record.test] = record
    return found


def _plant(tree: Path, planted: Planted) -> None:
    file = tree / planted.file
    text = file.read_text(encoding="utf-8")
    if text.count(planted.text) != 1:
        raise click.ClickException(f"{planted.file}: {planted.text!r} is there {text.count(planted.text)} times, not once")
    file.write_text(text.replace(planted.text, planted.wrong), encoding="utf-8")


def _failure(text: str) -> str:
    """The error of the first test that failed, by pytest's own summary or by its lines; in one line."""
    summary = re.search(r"^(?:FAILED|ERROR) .*? - (.+)$", text, re.MULTILINE)
    error = summary or re.search(r"^(?:E|[ |]*\|) +((?!Exception Group)\S+.*)$", text, re.MULTILINE)
    return error[1].strip()[:TOLD] if error else ""


def _checked(tree: Path, test: str) -> tuple[int, str]:
    """Pytest's exit code and output, by the code of the worktree."""
    # Without the options of then, of which some need plugins that are no longer installed.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        f"--timeout={LIMIT_S:g}",
        test,
    ]
    paths = os.pathsep.join([os.environ["PATH"], str(TOOLS.absolute())])
    # Bytecode is told apart by a file's length and second of change: both codes of one line may have the same.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@contextmanager
def _worktree(repository: Path, commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="replay-") as directory:
        tree = Path(directory, "tree")
        _git(repository, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def _git(directory: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=directory, check=True)


@click.command(help=__doc__)
@click.argument("numbers", nargs=-1, type=click.IntRange(1, len(BUGS)))
@click.option("--all", "everything", is_flag=True, help="All that have a test.")
@click.option("--page", is_flag=True, help="Draw docs/track-record.md, and run nothing.")
def main(numbers: tuple[int, ...], *, everything: bool, page: bool) -> None:
    """Replay, and tell each."""
    from tests.evidence.track_record import write  # noqa: PLC0415 - it needs this module

    chosen = [number for number, (_, bug) in enumerate(BUGS, 1) if bug.test] if everything else numbers
    missed = 0
    for number in () if page else chosen:
        bug = BUGS[number - 1][1]
        if not bug.test:
            raise click.UsageError(f"bug {number} has no test to replay; find it with: {bug.command}")
        done, text = replay(bug, Path.cwd())
        append_line(FILE, asdict(done))
        missed += not done.found
        click.echo(f"{number}: {'found' if done.found else 'NOT FOUND'}: {bug.text}")
        if not done.found:
            click.echo(text)
    write()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    main()
