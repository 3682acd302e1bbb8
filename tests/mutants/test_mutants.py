"""Every mutant can still be applied to the present code. Running them is `make mutants`."""

from pathlib import Path

from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).parents[2]


def test_there_are_many_and_their_names_differ() -> None:
    """At least twenty; results and reports use the names."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_each_mutant_is_one_place_that_still_exists_and_code_that_compiles() -> None:
    """Otherwise it would not be applied, or every test would fail for a syntax error."""
    gone = []
    for mutant in MUTANTS:
        file = ROOT / "adapter" / mutant.file
        source = file.read_text() if file.exists() else ""
        if source.count(mutant.old) == 1:
            compile(source.replace(mutant.old, mutant.new), f"{mutant.file} with {mutant.name}", "exec")
        else:
            gone.append(
                f"{mutant.name}: its text is {source.count(mutant.old)} times in {mutant.file}; now in {_places(mutant.old)}"
            )
    assert gone == []


def test_the_tests_that_a_mutant_names_exist() -> None:
    """A test that is not found would count as one that catches the mutant."""
    missing = []
    for mutant in MUTANTS:
        assert mutant.tests, mutant.name
        for named in mutant.tests:
            path, _, function = named.partition("[")[0].partition("::")
            place = ROOT / "tests" / path
            if not place.exists() or (function and f"def {function}(" not in place.read_text()):
                missing.append(f"{mutant.name}: {named}")
    assert missing == []


def _places(text: str) -> list[str]:
    """The files in which a text is once, for whoever moved it."""
    files = (ROOT / "adapter").rglob("*.py")
    return [str(file.relative_to(ROOT / "adapter")) for file in files if file.read_text(encoding="utf-8").count(text) == 1]
