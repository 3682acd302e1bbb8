"""Commands before RobustMQ's Meta Service, which has three calls: what they cannot do, they say, and what to do instead."""

from collections.abc import Iterator

import pytest

from adapter.testing.processes import free_port
from tests.acceptance.conftest import run
from tests.dialect import RobustMeta, robust_meta
from tests.integration.helpers import key

OK, ERROR = 0, 2


@pytest.fixture
def robust() -> Iterator[RobustMeta]:
    """A running server without epochs."""
    with robust_meta() as service:
        yield service


def test_list_meta_shows_a_group_and_asks_for_one(robust: RobustMeta) -> None:
    """It has no list of everything."""
    robust.offsets = {key("a"): 5, key("b"): 6, key("a", "other"): 7}
    ran = run("list", "--meta", robust.address, "--namespace", "default", "--group", "g", "--json")
    assert ran.code == OK
    assert {row["shard"]: row["offset"] for row in ran.json} == {"a": 5, "b": 6}
    ran = run("list", "--meta", robust.address)
    assert ran.code == ERROR
    assert "a group is needed (`list --group`, `export GROUP`)" in ran.err


def test_copy_says_how_offsets_are_moved_in_place_of_it(robust: RobustMeta) -> None:
    """From it and to it."""
    ran = run("meta", "copy", robust.address, "--address", f"127.0.0.1:{free_port()}")
    assert ran.code == ERROR
    assert "cannot be copied from or to" in ran.err
    assert "`import` the file at an adapter" in ran.err
