"""The dirty keys: what leaves the set, what stays, and for how long it has been there."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from adapter.dirty import DirtyKeys, DirtyRecord
from adapter.model import OffsetKey
from tests.unit.helpers import key, record


def dirty_with(*shards: str, since: float = 1.0) -> DirtyKeys:
    """A set in which these shards wait, with the counters 1, 2, 3 and so on."""
    dirty = DirtyKeys()
    for seq, shard in enumerate(shards, start=1):
        dirty.add(key(shard), record(seq), seq, since)
    return dirty


def only(taken: Mapping[OffsetKey, DirtyRecord], *shards: str) -> dict[OffsetKey, DirtyRecord]:
    """The entries of these shards."""
    return {key(shard): taken[key(shard)] for shard in shards}


def test_a_key_is_dirty_from_the_commit_to_the_end_of_its_flush() -> None:
    """In flight is not clean yet (3)."""
    dirty = dirty_with("a")
    assert key("a") in dirty
    dirty.take()
    assert key("a") in dirty
    assert (len(dirty), dirty.waiting) == (1, 0)
    dirty.settle({}, {})
    assert key("a") not in dirty
    assert len(dirty) == 0


def test_a_commit_during_a_flush_waits_for_the_next() -> None:
    """The acknowledgement is for the value that was sent (3)."""
    dirty = dirty_with("a")
    dirty.take()
    dirty.add(key("a"), record(9), 2, 2.0)
    dirty.settle({}, {})
    assert key("a") in dirty
    assert dirty.take()[key("a")].record == record(9)


def test_what_was_not_sent_waits_again() -> None:
    """A failed flush loses nothing (4)."""
    dirty = dirty_with("a", "b")
    taken = dirty.take()
    dirty.settle({}, only(taken, "b"))
    assert key("a") not in dirty
    assert dict(dirty.take()) == {key("b"): DirtyRecord(record(2), 2, 1.0)}


def test_what_was_not_sent_goes_under_a_newer_commit_with_its_older_time() -> None:
    """The newest value is sent next, and its key has been dirty all along (4)."""
    dirty = dirty_with("a", since=1.0)
    taken = dirty.take()
    dirty.add(key("a"), record(9), 2, 5.0)
    dirty.settle({}, taken)
    assert dirty.take()[key("a")] == DirtyRecord(record(9), 2, 1.0)


def test_a_refused_key_is_dirty_but_not_sent_with_the_others() -> None:
    """It waits for its own turn (4)."""
    dirty = dirty_with("a", "b")
    taken = dirty.take()
    dirty.settle(only(taken, "a"), {})
    assert key("a") in dirty
    assert dirty.is_refused(key("a"))
    assert (len(dirty), dirty.waiting, dirty.refused, dirty.lowest_refused_seq()) == (1, 0, 1, 1)
    dirty.retry_refused()
    assert (dirty.waiting, dirty.refused, dirty.lowest_refused_seq()) == (1, 0, None)
    assert dirty.take()[key("a")].record == record(1)


def test_a_retry_of_a_refused_key_sends_the_newer_commit() -> None:
    """What was refused goes under what came in since."""
    dirty = dirty_with("a")
    dirty.settle(dirty.take(), {})
    dirty.add(key("a"), record(9), 2, 7.0)
    dirty.retry_refused()
    assert dirty.take()[key("a")] == DirtyRecord(record(9), 2, 1.0)


def test_a_newer_value_that_is_acknowledged_settles_the_refused_one() -> None:
    """The Meta Service has at least the refused value then."""
    dirty = dirty_with("a")
    dirty.settle(dirty.take(), {})
    dirty.add(key("a"), record(9), 2, 7.0)
    dirty.take()
    dirty.settle({}, {})
    assert len(dirty) == 0
    assert dirty.lowest_refused_seq() is None


def test_a_newer_value_that_is_not_sent_keeps_the_key_dirty() -> None:
    """A key that was refused and whose next flush failed is not forgotten (4)."""
    dirty = dirty_with("a")
    dirty.settle(dirty.take(), {})
    dirty.add(key("a"), record(9), 2, 7.0)
    dirty.settle({}, dirty.take())
    assert dirty.take()[key("a")].record == record(9)


def test_discard_cleans_what_waits_and_what_was_refused() -> None:
    """The Meta Service was seen to hold as much."""
    dirty = dirty_with("a", "b")
    dirty.settle(only(dirty.take(), "a"), {})
    dirty.add(key("b"), record(3), 3, 1.0)
    dirty.discard(key("a"))
    dirty.discard(key("b"))
    dirty.discard(key("never there"))
    assert len(dirty) == 0


def test_discard_leaves_the_running_flush_alone() -> None:
    """Its answer decides about what it carries."""
    dirty = dirty_with("a")
    taken = dirty.take()
    dirty.discard(key("a"))
    dirty.settle({}, taken)
    assert key("a") in dirty


def test_the_number_of_dirty_keys_grows_with_keys_and_not_with_commits() -> None:
    """A million commits of three keys are three entries, also with a flush under way and one refused (4)."""
    dirty = dirty_with("a", "b", "c")
    dirty.settle(only(dirty.take(), "a"), {})
    dirty.add(key("b"), record(1), 1, 0.0)
    dirty.take()
    for seq in range(1000):
        dirty.add(key("abc"[seq % 3]), record(seq), seq, 0.0)
    assert len(dirty) == 3
    assert dirty.waiting == 3


def test_the_oldest_age_counts_from_the_first_commit_that_is_not_acknowledged() -> None:
    """Not from the newest; refused and sent keys count as well."""
    dirty = dirty_with("a", since=10.0)
    dirty.add(key("a"), record(2), 2, 15.0)
    assert dirty.oldest_age(20.0) == 10.0
    taken = dirty.take()
    dirty.add(key("b"), record(3), 3, 18.0)
    assert dirty.oldest_age(20.0) == 10.0
    dirty.settle(taken, {})
    assert dirty.oldest_age(20.0) == 10.0
    dirty.discard(key("a"))
    assert dirty.oldest_age(20.0) == 2.0


def test_nothing_dirty_has_no_age() -> None:
    """The metric is 0 then."""
    assert DirtyKeys().oldest_age(5.0) == 0.0


STEPS = st.lists(st.tuples(st.sampled_from(["add", "ok", "lost", "refused", "retry"]), st.sampled_from("abc")), max_size=40)


@given(STEPS)
def test_no_order_of_events_loses_the_newest_value(steps: list[tuple[str, str]]) -> None:
    """A key is clean exactly when its newest value was in a flush that was acknowledged (3, 4)."""
    dirty, newest, acknowledged = DirtyKeys(), dict[OffsetKey, int](), dict[OffsetKey, int]()
    for seq, (step, shard) in enumerate(steps, start=1):
        where = key(shard)
        if step == "add":
            dirty.add(where, record(seq), seq, float(seq))
            newest[where] = seq
        elif step == "retry":
            dirty.retry_refused()
        else:
            taken = dirty.take()
            hit = {where: taken[where]} if where in taken else {}
            dirty.settle(hit if step == "refused" else {}, hit if step == "lost" else {})
            acknowledged |= {found: entry.seq for found, entry in taken.items() if found not in hit or step == "ok"}
        assert {found for found in newest if found in dirty} == {
            found for found, value in newest.items() if acknowledged.get(found, 0) < value
        }
