"""Which names are allowed."""

from adapter.model import names
from adapter.model.names import name_problem


def test_nothing_is_kept_of_names_that_are_too_long() -> None:
    """Thousands of them, each of megabytes, would fill the memory."""
    before = set(names._good)
    assert name_problem("ä" * 1_000_000) == "is 2000000 bytes long; at most 255 are allowed"
    assert name_problem("ä" * 128) == "is 256 bytes long; at most 255 are allowed"
    assert names._good == before
