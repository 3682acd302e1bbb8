"""docs/evidence.md and its plot, drawn from the file of runs: the same file gives the same bytes."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.evidence.machines import MACHINES
from tests.evidence.plot import Series, drawn
from tests.evidence.records import FILE, Runs, Slice

PAGE, PLOT = Path("docs/evidence.md"), Path("docs/evidence.svg")
FUZZERS = ("fuzz", "properties")
HOUR_S, DAY_S = 3_600, 86_400
COMMIT_SHOWN = 10  # characters
CODE_RUNS = 20_000  # of the model: with fewer, that none was found says little of the code

HEAD = """# The evidence

What the checks with random seeds have done so far, over all commits, and apart from that what they did with the newest code that
they ran. `make evidence MINUTES=n` spends n minutes on them, and appends a line to `evidence/runs.jsonl` after each slice of some
seconds: the commit, the code, the seeds, the command, what was counted, what was violated. The next slice is of the machine that
had the least time in this run, and among those that had none yet, of the one that had the least in all runs before: so short runs
reach all of them, and in a long one each has its share. A run may be interrupted at any time and counts for the slices that
ended. This page is drawn from that file (`make evidence-page`); a test holds it to it.

    make evidence MINUTES=60
    python -m tests.evidence --minutes 5 --only model --only soak

Exit code 1: something was violated. The command that finds it again is printed and in the file.

## Which code

Runs before a change do not show what it broke. So each line has a digest of the code that its machine ran: of the modules below
`adapter/` and `tests/` that its commands import, directly or through others. Comments, docstrings and layout do not change it;
neither do versions of libraries. For the model, this is `tests.model` and what it imports. `tests.model` itself is part of it: a
check that was added or corrected, or a new world, has not seen the runs before. Lines that are older than the digest, and those
during which the code changed, count in all only.

The newest code of a machine is that of its last line with a digest. A later commit that has this page may have other code. This
command tells what was run of the code in a checkout; its exit code is 1 unless there are 0 open violations:

    python -m tests.evidence --status

There are 0 open violations only if none is known and the model has had {runs:,} runs of the code.
""".replace("{runs:,}", f"{CODE_RUNS:,}")


class Budget(NamedTuple):
    """What shall be reached. `of`: what one slice adds to it."""

    text: str
    unit: str
    goal: int
    of: Callable[[Slice], float]


def _counted(machine: str, name: str) -> Callable[[Slice], float]:
    return lambda each: each.counts.get(name, 0) if each.machine == machine else 0


MODEL_RUNS = _counted("model", "runs")
BUDGETS = (
    Budget("runs of the model", "runs", 1_000_000, MODEL_RUNS),
    Budget("crash cycles of real processes", "cycles", 10_000, _counted("soak", "crash cycles")),
    Budget("kills of etcd's leader", "kills", 200, _counted("leader-kills", "leader kills")),
    Budget("power cuts", "cuts", 500, _counted("power-cuts", "power cuts")),
    Budget("fuzzing", "CPU-hours", 24, lambda each: each.cpu_seconds / HOUR_S if each.machine in FUZZERS else 0),
)


def page(runs: Runs) -> str:
    """The text of the page."""
    return "\n".join([HEAD, *_budgets(runs), *_machines(runs), *_violations(runs), *_torn(runs)])


def open_violations(runs: Runs, of_code: Iterable[Slice]) -> str:
    """How many, or that it takes more runs of the code to say 0."""
    if runs.open:
        return f"{len(runs.open):,}"
    reached = sum(map(MODEL_RUNS, of_code))
    return "0" if reached >= CODE_RUNS else f"none known; {reached:,.0f} of {CODE_RUNS:,} runs of the model"


def counted(slices: Iterable[Slice]) -> str:
    """How many of what."""
    total: Counter[str] = Counter()
    for each in slices:
        total.update({what: round(count) for what, count in each.counts.items()})
    return ", ".join(f"{count:,} {what}" for what, count in sorted(total.items()))


def plot(runs: Runs) -> str:
    """The picture beside it: what was reached after each commit."""
    commits = list(dict.fromkeys(each.commit for each in runs.slices))
    return drawn([_series(budget, commits, runs.slices) for budget in BUDGETS])


def write(runs: Runs) -> None:
    """Both files, each replaced at once."""
    for path, text in ((PAGE, page(runs)), (PLOT, plot(runs))):
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.replace(path)


def _series(budget: Budget, commits: Sequence[str], slices: Iterable[Slice]) -> Series:
    added = dict.fromkeys(commits, 0.0)
    for each in slices:
        added[each.commit] += budget.of(each)
    reached, total = [], 0.0
    for commit in commits:
        total += added[commit]
        reached.append(total)
    return Series(budget.text, budget.unit, budget.goal, reached)


def _budgets(runs: Runs) -> list[str]:
    newest = [each for name in MACHINES for each in runs.of_newest_code(name)]
    lines = ["## Budgets", "", "| | in all | of | | of the newest code |", "| --- | ---: | ---: | ---: | ---: |"]
    for text, unit, goal, of in BUDGETS:
        reached = sum(map(of, runs.slices))
        part = _number(sum(map(of, newest)))
        lines.append(f"| {text} | {_number(reached)} | {goal:,} {unit} | {reached / goal:.1%} | {part} |")
    lines.append(f"| open violations | {len(runs.open) or 'none known'} | 0 | | {open_violations(runs, newest)} |")
    simulated = sum(each.counts.get("simulated seconds", 0) for each in runs.slices)
    passed = sum(each.seconds for each in runs.slices if each.machine == "model")
    rate = f", {simulated / passed:,.1f} times as fast as the clock" if passed else ""
    commits = len({each.commit for each in runs.slices})
    return [
        *lines,
        "",
        f"Simulated time of the model: {simulated / DAY_S:,.2f} days{rate}. Commits: {commits:,}.",
        "",
        "![What was reached, over commits](evidence.svg)",
        "",
    ]


def _machines(runs: Runs) -> list[str]:
    lines = ["## By machine", ""]
    lines.append("| machine | what it does | counted in all | hours | CPU-hours | violations | of the newest code |")
    lines.append("| --- | --- | --- | ---: | ---: | ---: | --- |")
    of: dict[str, list[Slice]] = {name: [] for name in MACHINES}
    for each in runs.slices:
        of.setdefault(each.machine, []).append(each)
    for name, some in of.items():
        text = MACHINES[name].text if name in MACHINES else ""
        hours, cpu = sum(each.seconds for each in some) / HOUR_S, sum(each.cpu_seconds for each in some) / HOUR_S
        violations = sum(bool(each.violations) for each in some)
        lines.append(f"| {name} | {text} | {counted(some)} | {hours:,.2f} | {cpu:,.2f} | {violations} | {_newest(runs, name)} |")
    return [*lines, ""]


def _newest(runs: Runs, machine: str) -> str:
    """Which code, since when, and what it did."""
    slices = runs.of_newest_code(machine)
    if not slices:
        return ""
    first = min(slices, key=lambda each: each.at)
    day, _, _ = first.at.partition("T")
    return f"`{first.code}` since {day}, {_commit(first)}: {counted(slices)}"


def _commit(record: Slice) -> str:
    return record.commit[:COMMIT_SHOWN] + (" and changes" if record.dirty else "")


def _violations(runs: Runs) -> list[str]:
    """All of them: a closed one stays, with its reason."""
    reasons = {closing.closes: closing.why for closing in runs.closings}
    lines = [
        "## Violations",
        "",
        "A slice whose command failed, for whatever reason, is open until somebody says what it was:",
        "",
    ]
    lines += ['    python -m tests.evidence --close NAME --because "fixed in COMMIT"', ""]
    found = [each for each in runs.slices if each.violations]
    if not found:
        return [*lines, "None so far.", ""]
    lines += ["| name | commit | command | closed because |", "| --- | --- | --- | --- |"]
    for each in found:
        commands = "<br>".join(f"`{violation.command}`" for violation in each.violations)
        lines.append(f"| {each.name} | {_commit(each)} | {commands} | {reasons.get(each.name, '**open**')} |")
    return [*lines, ""]


def _torn(runs: Runs) -> list[str]:
    if not runs.torn:
        return []
    numbers = ", ".join(map(str, runs.torn))
    return [f"Lines of `{FILE}` that are no records, and are not counted (torn by a crash): {numbers}.", ""]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
