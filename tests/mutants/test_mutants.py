"""Every mutant can still be applied to the present code. Running them is `make mutants`."""

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).parents[2]


def test_there_are_many_and_their_names_differ() -> None:
    """At least twenty; results and reports use the names."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_one_place_that_still_exists_and_code_that_compiles(mutant: Mutant) -> None:
    """Otherwise it would not be applied, or every test would fail for a syntax error."""
    source = (ROOT / "adapter" / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_that_a_mutant_names_exist(mutant: Mutant) -> None:
    """A test that is not found would count as one that catches the mutant."""
    assert mutant.tests
    for named in mutant.tests:
        path, _, function = named.partition("[")[0].partition("::")
        place = ROOT / "tests" / path
        assert place.exists()
        assert not function or f"def {function}(" in place.read_text()
