"""docs/evidence.md is what the file of runs gives, and its machines are what the tests have."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.evidence.code import modules
from tests.evidence.machines import CUTS, MACHINES, PROCESSES
from tests.evidence.page import PAGE, PLOT, page, plot
from tests.evidence.records import FILE, Closing, Runs, append, read
from tests.evidence.test_records import BROKEN, SLICE

IN_PROCESS = {"model", "walks", "hostile-peers", "fuzz", "properties"}
WITHOUT_ENGINE = {"walks"}  # they are of the Meta Service
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
    assert "| runs of the model | 500,000 | 1,000,000 runs | 50.0% | 0 |" in text
    assert "| power cuts | 25 | 500 cuts | 5.0% |" in text
    assert "| fuzzing | 2 | 24 CPU-hours | 8.3% |" in text
    assert "4.00 days, 48.0 times as fast as the clock" in text


def test_what_the_newest_code_did_stands_apart() -> None:
    """Whatever the order of the lines, which a merge may change; each machine has its own newest code. Unknown code is none."""
    before = replace(SLICE, at="2026-11-28T01:00", counts={"runs": 1_000}, code="a")
    first = replace(SLICE, at="2026-11-28T02:00", counts={"runs": 20}, code="b", commit="d" * 40)
    last = replace(SLICE, at="2026-11-29T02:00", counts={"runs": 3}, code="b", commit="e" * 40)
    unknown = replace(SLICE, at="2026-11-29T03:00", counts={"runs": 500})
    other = replace(SLICE, at="2026-11-27T00:00", machine="soak", counts={"crash cycles": 7}, code="a", dirty=True)
    text = page(Runs((last, unknown, first, before, other)))
    assert "| runs of the model | 1,523 | 1,000,000 runs | 0.2% | 23 |" in text
    assert "| crash cycles of real processes | 7 | 10,000 cycles | 0.1% | 7 |" in text
    assert "| `b` since 2026-11-28, dddddddddd: 23 runs |" in text
    assert "| `a` since 2026-11-27, cccccccccc and changes: 7 crash cycles |" in text


@pytest.mark.parametrize(
    ("runs", "text"),
    [(0, "none known; 0 of 20,000 runs"), (19_999, "none known; 19,999 of 20,000 runs"), (20_000, "0"), (20_001, "0")],
)
def test_there_are_0_open_violations_only_of_code_with_enough_runs(runs: int, text: str) -> None:
    """However many there were of other code, or by other machines."""
    others = [replace(SLICE, counts={"runs": 50_000}, code=code) for code in ("", "a")]
    soak = replace(SLICE, machine="soak", counts={"runs": 50_000}, code="b")
    newest = replace(SLICE, at="2027", counts={"runs": runs}, code="b")
    assert f"| open violations | none known | 0 | | {text}" in page(Runs((*others, soak, newest)))


def test_a_violation_is_open_until_it_is_closed_and_is_never_removed() -> None:
    """With the command that finds it again."""
    enough = replace(SLICE, counts={"runs": 20_000}, code="a")
    text = page(Runs((enough, BROKEN)))
    assert "| open violations | 1 | 0 | | 1 |" in text
    assert "| `python -m x` | **open** |" in text
    text = page(Runs((enough, BROKEN), (Closing(BROKEN.name, "fixed in abc"),)))
    assert "| open violations | none known | 0 | | 0 |" in text
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


@pytest.mark.parametrize("name", MACHINES)
def test_the_code_of_a_machine_is_that_of_its_commands(name: str) -> None:
    """Whatever the seed chooses."""
    machine = MACHINES[name]
    started = {word for seed in range(50) for word in machine.next(seed).arguments if word.startswith("tests")}
    named = {word.partition("::")[0].removesuffix(".py").replace("/", ".") for word in started}
    named = {f"{word}.__main__" if Path(*word.split(".")).is_dir() else word for word in named}
    assert named == set(machine.roots) - {PROCESSES}
    found = modules(machine.roots)
    assert named <= set(found)
    assert (PROCESSES in found) == (name not in IN_PROCESS)
    assert any(each.startswith("adapter.sidecar.engine.") for each in found) == (name not in WITHOUT_ENGINE)
