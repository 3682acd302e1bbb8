"""Store marks and clocks in replies: every loss is detected although replies overtake each other; nothing else is a loss."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.meta.store_marks import SeenMarks, ServerReports, Skew
from adapter.model.records import StoreMark, StoreStart
from adapter.runtime.clocks import CLOCK_LIMIT_MS

ONE, OTHER = b"one store, of 16", b"another, also 16"


def mark(revision: int, store_id: bytes = ONE, incarnation: int = 1, name: str = "") -> StoreMark:
    """A mark; mostly only its revision matters."""
    return StoreMark(name, store_id, incarnation, revision)


def losses(*replies: StoreMark) -> list[bool]:
    """For each of these replies to consecutive calls, whether it shows a loss."""
    seen = SeenMarks()
    return [bool(seen.take(seen.snapshot(), reply)) for reply in replies]


@pytest.mark.parametrize(
    ("less", "why"),
    [
        (mark(4), "its store is at revision 4, and was at 5"),
        (mark(9, OTHER), f"its store is another one: {OTHER.hex()}, incarnation 1 in place of {ONE.hex()}, incarnation 1"),
        (mark(9, incarnation=2), f"its store is another one: {ONE.hex()}, incarnation 2 in place of {ONE.hex()}, incarnation 1"),
    ],
)
def test_a_store_that_came_back_with_less_is_told_once(less: StoreMark, why: str) -> None:
    """Reported once for a lower revision, another store, or the same one after a repair."""
    seen = SeenMarks()
    assert seen.take(seen.snapshot(), mark(5)) == ""
    assert seen.take(seen.snapshot(), less) == why
    assert seen.take(seen.snapshot(), less) == ""


A, B, C, D = (StoreStart(number, revision) for number, revision in enumerate((1, 5, 5, 9)))


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        # Restarted, once or more often, with all that it had; also a reply of the former start that comes late.
        ([mark(4)._replace(starts=(A,)), mark(5)._replace(starts=(A, B)), mark(12)._replace(starts=(B, D))], ""),
        ([mark(4)._replace(starts=(A,)), mark(5)._replace(starts=(A, B)), mark(5)._replace(starts=(A,))], ""),
        # Put back as of revision 5, and written to since.
        ([mark(7)._replace(starts=(A,)), mark(20)._replace(starts=(A, B))], "was started at revision 5, and was at 7"),
        # The same, seen from the copy: the answer of the one that was there comes late.
        ([mark(20)._replace(starts=(A, B)), mark(7)._replace(starts=(A,))], "was at revision 7, and was started at 5 since"),
        # A copy of before the last start, which nothing was seen of but that start.
        (
            [mark(5)._replace(starts=(A, B)), mark(20)._replace(starts=(A, C))],
            "lacks the last start of the store seen before",
        ),
        ([mark(5)._replace(starts=(A,)), mark(20)._replace(starts=(C,))], "shares no start with the store seen before"),
        ([mark(5)._replace(starts=(A,)), mark(20)], "shares no start with the store seen before"),
    ],
)
def test_a_copy_that_was_put_back_is_found_by_its_starts(marks: Sequence[StoreMark], why: str) -> None:
    """Although its revision has passed the one seen; reported once."""
    seen = SeenMarks()
    found = [seen.take(seen.snapshot(), reply) for reply in (*marks, marks[-1])]
    assert found == [""] * (len(marks) - 1) + [why and f"its store {why}", ""]


def test_each_raft_group_is_a_store_of_its_own() -> None:
    """Their revisions are independent."""
    assert losses(mark(9, name="a"), mark(1, name="b"), mark(8, name="b"), mark(9, name="a"), mark(7, name="b")) == [
        False
    ] * 4 + [True]


def test_a_late_reply_is_no_loss() -> None:
    """Of two concurrent calls, the earlier reply arrives last."""
    seen = SeenMarks()
    known_before = seen.snapshot()
    assert seen.take(known_before, mark(7)) == ""
    assert seen.take(known_before, mark(6)) == ""
    assert seen.newest("") == mark(7)


def test_a_late_answer_of_a_store_that_was_replaced_shows_a_loss() -> None:
    """What it acknowledged is lost, and the comparison that is running may have missed it."""
    seen = SeenMarks()
    known_before = seen.snapshot()
    seen.take(known_before, mark(7))
    before = seen.snapshot()
    assert seen.take(before, mark(2, OTHER))
    assert seen.take(before, mark(8))


@given(
    st.lists(
        st.tuples(st.sampled_from(["write", "begin", "answer", "restore"]), st.integers(0, 5), st.integers(0, 3)), max_size=40
    )
)
def test_replies_in_any_order_show_every_loss_and_nothing_else(steps: list[tuple[str, int, int]]) -> None:
    """Replies arrive in any order; between calls, a restore may set the revision back."""
    seen = SeenMarks()
    revision = 1
    calls: list[tuple[Mapping[str, StoreMark], int]] = []  # what was noted, and the revision at the answer
    for step, number, at in steps:
        if step == "write":
            revision += number
        elif step == "begin":
            calls.append((seen.snapshot(), revision))
        elif step == "restore" and revision > number + 1 and not calls:
            revision = max(revision - number - 1, 1)
        elif step == "answer" and calls:
            known_before, answered = calls.pop(at % len(calls))
            newest = [found.revision for found in (known_before.get(""), seen.newest("")) if found]
            lost = len(newest) > 1 and answered < min(newest)
            assert bool(seen.take(known_before, mark(answered))) is lost


def test_a_clock_counts_as_off_when_it_is_certainly_beyond_the_limit() -> None:
    """Half the round trip is the uncertainty. The state changes once in each direction."""
    skew = Skew()
    skew.take(100_000, 100_000, 100_000 + CLOCK_LIMIT_MS)
    assert (skew.ms, skew.off) == (-CLOCK_LIMIT_MS, False)
    skew.take(100_000, 104_000, 102_000 + CLOCK_LIMIT_MS + 1_000)
    assert (skew.ms, skew.off) == (-CLOCK_LIMIT_MS - 1_000, False)
    skew.take(100_000, 101_000, 100_500 - CLOCK_LIMIT_MS - 1_000)
    assert (skew.ms, skew.off) == (CLOCK_LIMIT_MS + 1_000, True)
    skew.take(100_000, 104_000, 102_000 - CLOCK_LIMIT_MS + 1_000)
    assert (skew.ms, skew.off) == (CLOCK_LIMIT_MS - 1_000, True)
    skew.take(100_000, 100_010, 100_000)
    assert (skew.ms, skew.off) == (5, False)


def test_a_loss_is_counted_and_wakes_who_waits() -> None:
    """Counted for each client, over all stores."""
    server_reports = ServerReports()
    server_reports.take({}, [mark(1), mark(1, name="a")], "meta:1")
    assert (server_reports.losses, server_reports.changed.is_set()) == (0, False)
    server_reports.take(server_reports.marks.snapshot(), [mark(2), mark(0, name="a")], "meta:1")
    assert (server_reports.losses, server_reports.why, server_reports.changed.is_set()) == (
        1,
        "meta:1: the store a is at revision 0, and was at 1",
        True,
    )
    assert server_reports.at_ms
