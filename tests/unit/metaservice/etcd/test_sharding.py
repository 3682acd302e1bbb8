"""The layout of the offsets: which groups move when a Raft group is added or removed, and how layouts follow each other."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.metaservice.etcd.sharding import Layout, first_layout
from adapter.model.codec import pack_names

GROUPS = 3_000
PACKED = [pack_names("cluster", "default", f"group-{number}") for number in range(GROUPS)]

names = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=5)
packed = st.builds(pack_names, *[st.text(min_size=1, max_size=8)] * 3)


def steady(*groups: str) -> Layout:
    """A layout of these Raft groups without a move in progress."""
    return Layout(1, tuple(sorted(groups)))


@given(names, st.text(min_size=1, max_size=8), packed)
def test_a_group_moves_to_an_added_raft_group_or_not_at_all(before: set[str], added: str, group: bytes) -> None:
    """All other groups stay where they are."""
    home = steady(*before | {added}).home(group)
    assert home in {added, steady(*before).home(group)}


@given(names, packed)
def test_a_group_moves_from_a_removed_raft_group_or_not_at_all(before: set[str], group: bytes) -> None:
    """Groups in other Raft groups stay where they are."""
    for gone in before if len(before) > 1 else ():
        home = steady(*before).home(group)
        assert home == gone or steady(*before - {gone}).home(group) == home


@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_an_added_raft_group_takes_its_share(count: int) -> None:
    """One of N + 1 gets 1/(N + 1) of all groups, evenly from the others."""
    before = [f"offsets-{number}" for number in range(count)]
    moving = steady(*before).move_to([*before, "new"])
    came = Counter(moving.former(group) for group in PACKED if moving.former(group))
    assert {moving.home(group) for group in PACKED if moving.former(group)} == {"new"}
    assert came.total() == pytest.approx(GROUPS / (count + 1), rel=0.2)
    assert set(came) == set(before)


def test_the_names_decide_and_not_their_order() -> None:
    """Processes that list the Raft groups in different orders agree."""
    assert first_layout(["b", "a"]) == first_layout(["a", "b"])
    assert all(first_layout(["b", "a"]).home(group) == steady("a", "b").home(group) for group in PACKED)


def test_homes_are_those_of_earlier_versions() -> None:
    """With another hash function, offsets would silently be looked for in other Raft groups: it may never change."""
    homes = Counter(steady("offsets-1", "offsets-2", "offsets-3").home(group) for group in PACKED)
    assert homes == {"offsets-1": 984, "offsets-2": 978, "offsets-3": 1038}
    assert steady("offsets-1", "offsets-2").home(pack_names("default", "default", "orders")) == "offsets-2"


@given(names, names, st.integers(1, 2**63), names)
def test_a_layout_is_read_as_it_was_written(groups: set[str], before: set[str], version: int, left: set[str]) -> None:
    """Whatever the names are."""
    layout = Layout(version, tuple(sorted(groups)), tuple(sorted(before)), tuple(sorted(left)))
    assert Layout.decode(layout.encode()) == layout


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version":1,"groups":["a"]}', b'{"version":"x","groups":["a"]}'])
def test_what_is_no_layout_is_refused(data: bytes) -> None:
    """It is not treated as an empty layout."""
    with pytest.raises(StoreDamagedError, match="cannot be read"):
        Layout.decode(data)


def test_an_addition_goes_through_three_layouts() -> None:
    """Moving, with leftovers, settled; with rising versions and the same homes."""
    before = steady("a", "b")
    moving = before.move_to(["a", "b", "c"])
    assert moving == Layout(2, ("a", "b", "c"), moving_from=("a", "b"))
    assert moving.losing == ("a", "b")
    assert moving.moved() == Layout(3, ("a", "b", "c"), leftovers_in=("a", "b"))
    assert moving.moved().cleaned() == Layout(4, ("a", "b", "c"))
    assert [layout.settled for layout in (before, moving, moving.moved(), moving.moved().cleaned())] == [True, False, False, True]


def test_a_removal_moves_only_from_what_goes() -> None:
    """The others lose nothing. All involved Raft groups are fenced, first the one that loses offsets."""
    moving = steady("a", "b", "c").move_to(["b", "c"])
    assert moving.losing == ("a",)
    assert moving.fenced == ("a", "b", "c")
    assert {moving.former(group) for group in PACKED} == {"a", None}
    assert moving.moved().leftovers_in == ("a",)
    assert moving.moved().fenced == ("b", "c", "a")
    assert moving.moved().cleaned().fenced == ("b", "c")


def test_one_step_at_a_time() -> None:
    """Neither two moves at once nor an addition with a removal: the former home would be ambiguous."""
    moving = steady("a", "b").move_to(["a", "b", "c"])
    for layout in (moving, moving.moved()):
        with pytest.raises(InvalidInputError, match="finish that one first"):
            layout.move_to(["a"])
    with pytest.raises(InvalidInputError, match="added and taken away at once"):
        steady("a", "b").move_to(["b", "c"])
