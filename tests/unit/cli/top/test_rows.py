"""The groups of a live table: what is told, what begins anew, what is filtered and how it is sorted."""

import random
from typing import Any

import pytest

from adapter.cli.names import searcher
from adapter.cli.top.rows import BETTER, CHANGED, LATELY_MS, ORDERS, SAME, WORSE, Order, Rows
from adapter.rpc import lag_pb
from tests.unit.cli.fake_lag import NOW_MS, group


def rows_of(*groups: lag_pb.GroupLag) -> Rows:
    """Groups that were told."""
    rows = Rows()
    rows.told(groups)
    return rows


def names(rows: Rows, order: Order, **options: object) -> list[str]:
    """The groups' names in an order."""
    return [row.told.group for row in rows.shown(order, NOW_MS, **options)]  # type: ignore[arg-type]


def test_by_worst_a_group_that_got_worse_lately_stands_before_all_that_were_bad_before() -> None:
    """Among those, and among the others: by status, lag time, lag, name."""
    rows = rows_of(
        group("stopped", lag_pb.STOP, lag_seconds=5.0),
        group("warned", lag_pb.WARN, lag_seconds=9.0, lag=1),
        group("warned-more", lag_pb.WARN, lag_seconds=9.0, lag=2),
        group("unknown", lag_pb.LAG_STATUS_UNSPECIFIED),
        group("well", lag_pb.OK),
        group("falls", lag_pb.OK),
        group("recovers", lag_pb.STOP),
    )
    rows.told(
        [
            group("falls", lag_pb.WARN, status_since_ms=NOW_MS - 1),
            group("recovers", lag_pb.WARN, status_since_ms=NOW_MS - 1),
        ]
    )
    expected = ["falls", "stopped", "warned-more", "warned", "recovers", "unknown", "well"]
    assert names(rows, "worst") == expected
    assert names(rows, "worst", backwards=True) == expected[::-1]
    later = [row.told.group for row in rows.shown("worst", NOW_MS + LATELY_MS)]
    assert later == ["stopped", "warned-more", "warned", "falls", "recovers", "unknown", "well"]


def test_a_change_is_marked_by_its_way_for_a_while() -> None:
    """Of the first thing that is told, the way is not known. From unknown to ok is no change."""
    rows = rows_of(group("a", lag_pb.OK, status_since_ms=NOW_MS - 5), group("b", lag_pb.LAG_STATUS_UNSPECIFIED))
    a = rows.get(("default", "a"))
    assert a
    assert (a.change, a.lately(NOW_MS), a.lately(NOW_MS + LATELY_MS)) == (CHANGED, CHANGED, SAME)
    for status, change in ((lag_pb.WARN, WORSE), (lag_pb.WARN, WORSE), (lag_pb.STOP, WORSE), (lag_pb.REWIND, BETTER)):
        rows.told([group("a", status, status_since_ms=NOW_MS)])
        a = rows.get(("default", "a"))
        assert a
        assert a.change == change
    rows.told([group("b", lag_pb.OK, status_since_ms=NOW_MS)])
    b = rows.get(("default", "b"))
    assert b
    assert b.lately(NOW_MS) == SAME


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_unknown_comes_last_either_way(order: Order, backwards: bool) -> None:
    """Except by name, where nothing is unknown."""
    known: dict[str, Any] = {"lag": 5, "lag_seconds": 1.0, "trend": -3.0, "commit_rate": 2.0}
    rows = rows_of(group("z", **known), group("a", last_commit_at_ms=0, status_since_ms=0), group("y", **known))
    shown = names(rows, order, backwards=backwards)
    if order not in {"name", "worst"}:
        assert shown[-1] == "a"
    assert sorted(shown) == ["a", "y", "z"]


def test_each_key_sorts_by_its_value() -> None:
    """The largest first; the commit that is the longest ago first."""
    rows = rows_of(
        group("a", lag=1, lag_seconds=3.0, trend=-9.0, commit_rate=7.0, last_commit_at_ms=NOW_MS - 1),
        group("b", lag=2, lag_seconds=2.0, trend=9.0, commit_rate=8.0, last_commit_at_ms=NOW_MS - 3),
        group("c", lag=3, lag_seconds=1.0, trend=0.0, commit_rate=6.0, last_commit_at_ms=NOW_MS - 2),
    )
    expected = {
        "lag": "cba",
        "seconds": "abc",
        "trend": "bca",
        "rate": "bac",
        "last-commit": "bca",
        "name": "abc",
        "worst": "abc",
    }
    assert {order: "".join(names(rows, order)) for order in ORDERS} == expected
    assert "".join(names(rows, "lag", backwards=True)) == "abc"


def test_sorting_is_the_same_whatever_came_first() -> None:
    """Equal rows are in the order of their names: a screen that is drawn again does not dance."""
    groups = [group(f"g{number}", random.choice([lag_pb.OK, lag_pb.WARN]), lag=number % 3) for number in range(50)]
    for order in ORDERS:
        expected = names(rows_of(*groups), order)
        random.shuffle(groups)
        assert names(rows_of(*groups), order) == expected


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("", ["default/orders-a", "default/orders-b", "team/Orders-a"]),
        ("orders-a", ["default/orders-a", "team/Orders-a"]),
        ("ORDERS team", ["team/Orders-a"]),
        ("default/*-a", ["default/orders-a"]),
        ("*-a default", ["default/orders-a"]),
        ("[", []),
        ("?", []),
    ],
)
def test_a_filter_is_words_or_patterns(words: str, taken: list[str]) -> None:
    """In any case; every word has to be met."""
    takes = searcher(words)
    assert [name for name in ("default/orders-a", "default/orders-b", "team/Orders-a") if takes(name)] == taken


def test_after_a_new_beginning_what_is_not_told_again_is_gone_and_the_rest_stays_meanwhile() -> None:
    """A restarted adapter tells its groups in several messages: the table must not be empty in between."""
    rows = rows_of(group("stays", lag_pb.OK), group("goes"))
    rows.began_anew(NOW_MS)
    assert len(rows) == 2
    rows.told([group("stays", lag_pb.WARN, status_since_ms=NOW_MS)])
    assert not rows.settle(NOW_MS)
    assert len(rows) == 2
    assert rows.settle(NOW_MS + 1)
    assert names(rows, "name") == ["stays"]
    assert rows.shown("name", NOW_MS)[0].change == WORSE


def test_groups_that_are_removed_are_gone() -> None:
    """Also those that were never there."""
    rows = rows_of(group("a"), group("b"))
    rows.removed([("default", "a"), ("default", "x")])
    assert names(rows, "name") == ["b"]
    assert rows.counts() == {lag_pb.OK: 1}


def test_a_name_is_printable() -> None:
    """As in every table: a group's name is what a consumer chose."""
    assert rows_of(group("\x1b[31m\u202e")).shown("name", NOW_MS)[0].name == "default/\\x1b[31m\\u202e"
