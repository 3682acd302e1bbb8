"""The soak, as short as it gets: every kind of crash once. `make soak` goes on for 200."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from adapter.model.records import OffsetKey
from adapter.testing.history import History
from tests.durability.load import random_instants
from tests.soak.__main__ import tell
from tests.soak.faults import CRASHES
from tests.soak.run import Report, soak


async def test_nothing_contradicts_anything_through_every_kind_of_crash(tmp_path: Path) -> None:
    """What two adapters acknowledged is read again, nothing goes back, and all three come to hold the same (1, 2, 3, 7, 8)."""
    steps: list[str] = []

    def told(_: Report, step: str) -> None:
        steps.append(step)

    report = await soak(len(CRASHES), random_instants().getrandbits(32), tmp_path, told)
    assert (report.violations, report.failure) == ([], "")
    assert report.crashes == len(CRASHES)
    assert {*CRASHES, "everything arrives", "stop under load"} <= set(steps)
    assert report.acknowledged > 1_000
    assert report.reads > 1_000


def test_a_soak_that_failed_says_what_contradicts_what_and_where_it_is_kept(tmp_path: Path) -> None:
    """A violation and any other failure are failures; the output has the key, the directory and the seed."""
    history, key = History(), OffsetKey("default", "g", "s")
    history.begin(key, (1, 5)).acknowledged()
    history.reading().found({})
    console = Console(file=StringIO(), width=200)
    for report in (Report(7, violations=history.check()), Report(7, failure="adapter a ended with 1")):
        assert not report.passed
        with console.capture() as captured:
            tell(report, tmp_path, console)
        told = captured.get()
        assert str(tmp_path) in told
        assert "--seed 7" in told
        assert report.failure in told
        assert all(str(violation) in told.replace("\n", " ") for violation in report.violations)
    assert Report(7).passed
