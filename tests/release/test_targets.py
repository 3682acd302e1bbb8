"""What `make test` leaves out is run before a release."""

from pathlib import Path

RECIPES = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")


def recipe(target: str) -> str:
    """The commands of a target."""
    lines = RECIPES.partition(f"\n{target}: ")[2].splitlines()[1:]
    return "\n".join(lines[: next(at for at, line in enumerate(lines) if not line.startswith(("\t", "  ")))])


def test_what_make_test_leaves_out_is_part_of_a_release() -> None:
    """Each test is run by one of them."""
    assert '-m "not release"' in recipe("test")
    assert "-m release" in recipe("release-tests")
    assert "release-tests" in recipe("release-check")
