"""docs/track-record.md, drawn from the table of bugs and from what was replayed."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.evidence.bugs import BUGS, Bug, Severity
from tests.evidence.replay import PASSED, Replay, replays

PAGE = Path("docs/track-record.md")

HEAD = """# The track record

Bugs that the checks of this project found before a release, the most severe first, each with the commit that fixed it and the
check that finds it. Sources: the messages of commits, an older changelog that
has each of them (`git show 724f74e8:CHANGELOG.md`), and docs/design.

    python -m tests.evidence.replay 7     # the bug with this number
    make track-record                     # all of them

A replay checks out the commit before the fix in a temporary worktree, brings over the tests of the commit that has the check, and
expects the check to fail; then it expects it to pass with the fix. Where the check uses names that came with the fix or later, it
cannot run there. For those, marked *planted*, the decisive lines of the fix are taken back in the commit of the check, where it
has to fail. The last column has the last replay: its day if the check told both apart, else what happened. Empty: not replayed so
far. A replay can run 10 minutes; some need root, etcd, Spark or loop devices.
"""


def page(done: Mapping[tuple[str, str], Replay]) -> str:
    """The text of the page."""
    lines = [HEAD, *_totals(done)]
    last: Severity | None = None
    for number, (severity, bug) in enumerate(BUGS, 1):
        if severity is not last:
            lines += ["", f"## {severity.value[0].upper()}{severity.value[1:]}", ""]
            lines += ["| | bug | fixed by | check that finds it | replayed |", "| ---: | --- | --- | --- | --- |"]
            last = severity
        lines.append(_row(number, bug, done.get((bug.fix, bug.test))))
    return "\n".join([*lines, ""])


def write() -> None:
    """Draw it again."""
    PAGE.write_text(page(replays()), encoding="utf-8")


def _totals(done: Mapping[tuple[str, str], Replay]) -> list[str]:
    count = Counter(severity for severity, _ in BUGS)
    found = sum(1 for _, bug in BUGS if (each := done.get((bug.fix, bug.test))) and each.found)
    kinds = ", ".join(f"{number} {severity.value}" for severity, number in count.items())
    replayable = sum(bool(bug.test) for _, bug in BUGS)
    planted = sum(1 for _, bug in BUGS if bug.planted and (each := done.get((bug.fix, bug.test))) and each.found)
    again = f"{found} were replayed and found again, {found - planted} on the commit before the fix and {planted} planted."
    return [f"{len(BUGS)} bugs ({kinds}). {replayable} have a test to replay; {again}"]


def _row(number: int, bug: Bug, done: Replay | None) -> str:
    by = f" (found by {bug.found_by})" if bug.found_by else ""
    where = f"`{bug.test or bug.command}`" + (f" of {bug.after}" if bug.after else "")
    planted = f", planted in `{bug.planted.file}`" if bug.planted else ""
    return f"| {number} | {bug.text}{by} | {bug.fix} | {where}{planted} | {_result(done)} |"


def _result(done: Replay | None) -> str:
    if done is None:
        return ""
    if done.found:
        return done.at
    if not done.ran:
        return f"does not run on that commit, {done.at}"
    if done.before == PASSED:
        return f"**not found**, {done.at}"
    return f"fails after the fix as well, {done.at}"
