"""docs/evidence.md is what the file of runs gives, and its machines are what the tests have."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evidence.machines import CUTS, MACHINES
from tests.evidence.page import PAGE, PLOT, page, plot
from tests.evidence.records import FILE, Closing, Runs, append, read
from tests.evidence.test_records import BROKEN, SLICE

RESULTS = """<testsuites><testsuite>
<testcase name="test_synced_acknowledgements_survive_a_power_cut[grpcio]"/>
<testcase name="test_without_syncs_a_power_cut_is_alarmed[grpcio]"><failure/></testcase>
<testcase name="test_without_syncs_a_power_cut_is_alarmed[builtin]"><skipped/></testcase>
</testsuite></testsuites>"""


def test_the_page_is_what_the_file_gives() -> None:
    """`make evidence-page` draws it again."""
    runs = read(FILE)
    assert PAGE.read_text(encoding="utf-8") == page(runs), "run: make evidence-page"
    assert PLOT.read_text(encoding="utf-8") == plot(runs), "run: make evidence-page"


def test_the_totals_are_those_of_the_slices() -> None:
    """Runs, simulated time, power cuts and CPU-hours against their budgets."""
    model = replace(SLICE, counts={"runs": 250_000, "simulated seconds": 86_400 * 2.0}, seconds=3_600)
    cuts = replace(SLICE, machine="power-cuts", counts={"power cuts": 25, "tests passed": 30})
    fuzz = replace(SLICE, machine="fuzz", counts={"inputs": 9}, cpu_seconds=7_200)
    text = page(Runs((model, model, cuts, fuzz)))
    assert "| runs of the model | 500,000 | 1,000,000 runs | 50.0% |" in text
    assert "| power cuts | 25 | 500 cuts | 5.0% |" in text
    assert "| fuzzing | 2 | 24 CPU-hours | 8.3% |" in text
    assert "4.00 days, 48.0 times as fast as the clock" in text
    assert "| open violations | 0 |" in text


def test_a_violation_is_open_until_it_is_closed_and_is_never_removed() -> None:
    """With the command that finds it again."""
    text = page(Runs((SLICE, BROKEN)))
    assert "| open violations | 1 |" in text
    assert "| `python -m x` | **open** |" in text
    text = page(Runs((SLICE, BROKEN), (Closing(BROKEN.name, "fixed in abc"),)))
    assert "| open violations | 0 |" in text
    assert "| `python -m x` | fixed in abc |" in text


def test_torn_lines_are_told() -> None:
    """By their numbers."""
    assert "torn by a crash): 3, 9." in page(Runs((), (), (3, 9)))


def test_the_plot_has_a_point_for_each_commit() -> None:
    """And a goal only where it is within reach."""
    runs = tuple(replace(SLICE, commit=f"{at}", counts={"runs": 400_000}) for at in range(3))
    picture = plot(Runs(runs))
    assert "3 commits" in picture
    assert "1,200,000 (120.0%)" in picture
    assert picture.count('class="goal"') == 1
    points = re.findall(r'<polyline class="line" points="([^"]*)"', picture)
    assert [len(each.split()) for each in points] == [4] * 5


def test_what_pytest_did_is_counted_by_the_tests_that_passed(tmp_path: Path) -> None:
    """A failed or skipped one has cut nothing."""
    results = tmp_path / "results"
    counts = MACHINES["power-cuts"].counts
    assert counts(results) == {}
    results.write_text(RESULTS)
    counted = {"power cuts": CUTS, "tests passed": 1, "tests skipped": 1}
    assert counts(results) == counted
    append(tmp_path / "runs.jsonl", replace(SLICE, counts=counts(results)))
    assert read(tmp_path / "runs.jsonl").slices[0].counts == counted


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_names_files_and_tests_that_exist(name: str) -> None:
    """Whatever the seed chooses; the same seed always chooses the same."""
    for seed in range(50):
        command = MACHINES[name].next(seed)
        assert str(command) == str(MACHINES[name].next(seed))
        for argument in command.arguments:
            if argument.startswith("tests/"):
                path, _, test = argument.partition("::")
                assert f"def {test.partition('[')[0]}" in Path(path).read_text(encoding="utf-8")
