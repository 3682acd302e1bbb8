"""The set of dirty keys: which keys leave it, which stay, and since when they are dirty."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.model.records import GroupKey, Held, OffsetKey
from adapter.runtime.slices import SLICE
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.recovered import Recovered
from tests.unit.helpers import key, record

G = GroupKey("default", "g")

Taken = Mapping[GroupKey, Mapping[str, Held]]


SEQ = 100  # the newest write of the store when a flush begins


def held(offset: int, seq: int) -> Held:
    """A record as it is held in memory."""
    return record(offset), seq, b"key"


def dirty_with(*shards: str, since: float = 1.0) -> DirtyKeys:
    """A set in which these shards are dirty, with the write counters 1, 2, 3 and so on."""
    recovered = Recovered()
    recovered.finish()
    dirty = DirtyKeys(recovered)
    for seq, shard in enumerate(shards, start=1):
        dirty.add(G, {shard: held(seq, seq)}, since)
    return dirty


def flush(dirty: DirtyKeys, *, acknowledged: str = "", refused: str = "") -> None:
    """End a flush with this outcome; keys in neither list were not sent."""
    dirty.take(SEQ)
    for shard in acknowledged:
        dirty.acknowledge(key(shard))
    for shard in refused:
        dirty.refuse(key(shard))
    dirty.settle()


def keys_of(taken: Taken) -> set[OffsetKey]:
    """The keys of a flush."""
    return {OffsetKey(*group, shard) for group, shards in taken.items() for shard in shards}


def test_a_key_is_dirty_from_the_commit_to_its_acknowledgement() -> None:
    """A key in flight is still dirty (3)."""
    dirty = dirty_with("a", "b")
    assert key("a") in dirty
    dirty.take()
    assert key("a") in dirty
    assert (len(dirty), dirty.pending) == (2, 0)
    dirty.acknowledge(key("a"))
    assert key("a") not in dirty
    assert key("b") in dirty
    dirty.acknowledge(key("b"))
    dirty.settle()
    assert len(dirty) == 0
    assert not dirty


def test_a_commit_during_a_flush_waits_for_the_next() -> None:
    """The acknowledgement is for the value that was sent (3)."""
    dirty = dirty_with("a")
    dirty.take()
    dirty.add(G, {"a": held(9, 2)}, 2.0)
    dirty.acknowledge(key("a"))
    dirty.settle()
    assert key("a") in dirty
    assert dirty.take()[G]["a"][0] == record(9)


def test_what_was_not_sent_waits_again() -> None:
    """A failed flush loses nothing (4)."""
    dirty = dirty_with("a", "b")
    flush(dirty, acknowledged="a")
    assert key("a") not in dirty
    assert dirty.take() == {G: {"b": held(2, 2)}}


def test_what_was_not_sent_goes_under_a_newer_commit_with_its_older_time() -> None:
    """The newest value is sent next, and the key counts as dirty since the older commit (4)."""
    dirty = dirty_with("a", since=1.0)
    dirty.take()
    dirty.add(G, {"a": held(9, 2)}, 5.0)
    dirty.settle()
    assert dirty.oldest_age(6.0) == 5.0
    assert dirty.take() == {G: {"a": held(9, 2)}}


def test_what_little_came_in_during_a_flush_of_many_stays_above_what_was_not_sent() -> None:
    """Merging two sets of any sizes: the newest value is sent next, with the older time (4)."""
    dirty = dirty_with("a", "b", since=1.0)
    dirty.add(GroupKey("default", "h"), {"c": held(3, 3)}, 2.0)
    dirty.take()
    dirty.add(G, {"a": held(9, 4), "d": held(8, 5)}, 5.0)
    dirty.settle()
    assert (len(dirty), dirty.pending, dirty.oldest_age(6.0)) == (4, 4, 5.0)
    assert dirty.take() == {
        G: {"a": held(9, 4), "b": held(2, 2), "d": held(8, 5)},
        GroupKey("default", "h"): {"c": held(3, 3)},
    }


@pytest.mark.parametrize("first", [False, True])
def test_much_came_in_during_a_flush_of_little(first: bool) -> None:
    """Merging the other way round: the same stands."""
    dirty = dirty_with("a", "b", since=1.0)
    dirty.take()
    came = {"a": held(9, 4), **{f"c{number}": held(number, 5 + number) for number in range(5)}}
    dirty.add(G, came, 5.0)
    dirty.add(GroupKey("default", "h"), {"c": held(3, 11)}, 6.0)
    dirty.settle(first=first)
    assert (len(dirty), dirty.pending, dirty.oldest_age(6.0)) == (8, 8, 5.0)
    assert dirty.take() == {G: {"b": held(2, 2), **came}, GroupKey("default", "h"): {"c": held(3, 11)}}


@pytest.mark.parametrize("refused", ["bc", "cb"])
def test_no_refused_key_is_below_what_is_told_of_them(refused: str) -> None:
    """Also when the lowest was sent again meanwhile; without any there is nothing to tell."""
    dirty = dirty_with("a", "b", "c")
    flush(dirty, acknowledged="a", refused=refused)
    assert dirty.covers() == 1
    dirty.discard(key("b"))
    assert dirty.covers() <= 2
    dirty.retry_refused()
    flush(dirty, refused="c")
    assert dirty.covers() == 2
    dirty.retry_refused()
    flush(dirty, acknowledged="c")
    assert dirty.covers() == SEQ


def test_many_keys_of_a_group_are_acknowledged_together() -> None:
    """Newer commits and keys without a reply stay dirty; keys that were refused before become clean too (3)."""
    dirty = dirty_with("a", "b", "c", "d")
    flush(dirty, acknowledged="d", refused="a")
    dirty.add(G, {"a": held(9, 9)}, 2.0)
    dirty.take()
    dirty.add(G, {"b": held(10, 10)}, 3.0)
    dirty.acknowledge_all(G, ["a", "b"])
    dirty.acknowledge_all(GroupKey("default", "never there"), ["a"])
    assert dirty.keys() == {key("b"), key("c")}
    assert dirty.refused == 0
    dirty.settle()
    assert dirty.take() == {G: {"b": held(10, 10), "c": held(3, 3)}}


def test_a_refused_key_is_dirty_but_not_sent_with_the_others() -> None:
    """It waits for its own retry (4)."""
    dirty = dirty_with("a", "b")
    flush(dirty, acknowledged="b", refused="a")
    assert key("a") in dirty
    assert dirty.is_refused(key("a"))
    assert (len(dirty), dirty.pending, dirty.refused, dirty.covers()) == (1, 0, 1, 0)
    dirty.retry_refused()
    assert (dirty.pending, dirty.refused) == (1, 0)
    assert dirty.take()[G]["a"] == held(1, 1)


def test_a_retry_of_a_refused_key_sends_the_newer_commit() -> None:
    """A commit since the refusal replaces the refused value."""
    dirty = dirty_with("a")
    flush(dirty, refused="a")
    dirty.add(G, {"a": held(9, 2)}, 7.0)
    dirty.retry_refused()
    assert dirty.oldest_age(8.0) == 7.0
    assert dirty.take()[G]["a"] == held(9, 2)


def test_a_newer_value_that_is_acknowledged_settles_the_refused_one() -> None:
    """The Meta Service then has at least the refused value."""
    dirty = dirty_with("a")
    flush(dirty, refused="a")
    dirty.add(G, {"a": held(9, 2)}, 7.0)
    flush(dirty, acknowledged="a")
    assert (len(dirty), dirty.covers()) == (0, SEQ)


def test_a_newer_value_that_is_not_sent_keeps_the_key_dirty() -> None:
    """A key that was refused, and whose next flush failed, is not forgotten (4)."""
    dirty = dirty_with("a")
    flush(dirty, refused="a")
    dirty.add(G, {"a": held(9, 2)}, 7.0)
    flush(dirty)
    assert dirty.refused == 0
    assert dirty.take()[G]["a"] == held(9, 2)


def test_discard_cleans_what_waits_and_what_was_refused() -> None:
    """Used when a read has shown that the Meta Service holds at least these values."""
    dirty = dirty_with("a", "b")
    flush(dirty, acknowledged="b", refused="a")
    dirty.add(G, {"b": held(3, 3)}, 1.0)
    dirty.discard(key("a"))
    dirty.discard(key("b"))
    dirty.discard(key("never there"))
    assert len(dirty) == 0


def test_discard_leaves_the_running_flush_alone() -> None:
    """The reply to the flush decides about the keys in it."""
    dirty = dirty_with("a")
    dirty.take()
    dirty.discard(key("a"))
    dirty.settle()
    assert key("a") in dirty


def test_the_number_of_dirty_keys_grows_with_keys_and_not_with_commits() -> None:
    """A thousand commits of three keys are three entries, also while one is in flight and one refused (4)."""
    dirty = dirty_with("a", "b", "c")
    flush(dirty, acknowledged="bc", refused="a")
    dirty.add(G, {"b": held(1, 1)}, 0.0)
    dirty.take()
    for seq in range(1000):
        dirty.add(G, {"abc"[seq % 3]: held(seq, seq)}, 0.0)
    assert len(dirty) == 3
    assert dirty.pending == 3
    assert dirty.keys() == {key("a"), key("b"), key("c")}


def test_the_oldest_age_counts_from_the_first_commit_that_is_not_acknowledged() -> None:
    """Not from the newest one; refused keys and keys in flight count too."""
    dirty = dirty_with("a", since=10.0)
    dirty.add(G, {"a": held(2, 2)}, 15.0)
    assert dirty.oldest_age(20.0) == 10.0
    dirty.take()
    dirty.add(G, {"b": held(3, 3)}, 18.0)
    assert dirty.oldest_age(20.0) == 10.0
    dirty.refuse(key("a"))
    dirty.settle()
    assert dirty.oldest_age(20.0) == 10.0
    dirty.discard(key("a"))
    assert dirty.oldest_age(20.0) == 2.0


def test_nothing_dirty_has_no_age() -> None:
    """The metric is then 0."""
    assert DirtyKeys(Recovered()).oldest_age(5.0) == 0.0


@pytest.mark.parametrize("groups", [1, 3_000])
async def test_a_large_copy_lets_others_work_and_has_what_they_only_move(groups: int) -> None:
    """Of one large group, or of many: what was refused and is sent again meanwhile goes from one part to another."""
    dirty, count = DirtyKeys(Recovered()), 3_000
    keys = [OffsetKey("default", f"g{number % groups}", f"{number}") for number in range(count)]
    for seq, refused in enumerate(keys):
        dirty.add(refused.group_key, {refused.shard: held(1, seq)}, 1.0)
    dirty.take()
    for refused in keys[::2]:
        dirty.refuse(refused)
    dirty.settle()
    largest, found = 0, set[OffsetKey]()
    async for some in dirty.in_slices():
        dirty.retry_refused()
        dirty.take()
        dirty.settle()
        largest = max(largest, len(some))
        found |= {*some}
    assert found == {*keys}
    assert largest < 2 * SLICE


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "ok", "all", "lost", "refused", "retry"]), st.sampled_from("abc"), st.sampled_from("gh")),
    max_size=40,
)


@given(STEPS)
def test_no_order_of_events_loses_the_newest_value(steps: list[tuple[str, str, str]]) -> None:
    """A key is clean exactly when its newest value was in an acknowledged flush (3, 4)."""
    dirty, newest, acknowledged = DirtyKeys(Recovered()), dict[OffsetKey, int](), dict[OffsetKey, int]()
    for seq, (step, shard, group) in enumerate(steps, start=1):
        where = key(shard, group)
        if step == "add":
            dirty.add(where.group_key, {shard: held(seq, seq)}, float(seq))
            newest[where] = seq
        elif step == "retry":
            dirty.retry_refused()
        else:
            taken = dirty.take()
            sent = {OffsetKey(*of, name): one[1] for of, shards in taken.items() for name, one in shards.items()}
            for of in list(taken) if step == "all" else ():
                dirty.acknowledge_all(of, list(taken[of]))
            for found, value in sent.items():
                if found != where or step in {"ok", "all"}:
                    dirty.acknowledge(found)
                    acknowledged[found] = value
                elif step == "refused":
                    dirty.refuse(found)
            dirty.settle()
        unacknowledged = {found for found, value in newest.items() if acknowledged.get(found, 0) < value}
        assert {found for found in newest if found in dirty} == dirty.keys() == unacknowledged
        assert len(dirty) == len(unacknowledged)


def test_what_a_flush_covers_is_none_while_more_may_be_dirty_than_is_known() -> None:
    """Before the recovery, of a part of the groups, interrupted, and when stored keys became dirty meanwhile (3)."""
    recovered = Recovered()
    dirty = DirtyKeys(recovered)
    for first, only, marked in ((False, None, False), (False, [G], False), (True, None, False), (False, None, True)):
        dirty.add(G, {"a": held(1, 1)}, 1.0)
        dirty.take(SEQ, only)
        dirty.send_last()
        if marked:
            dirty.mark(key("b"), held(1, 2), 1.0)
        assert dirty.covered(7, SEQ) == (SEQ if recovered.now and not (only or marked) else 7)
        dirty.acknowledge(key("a"))
        dirty.settle(first=first)
        assert dirty.covers() == 0
        recovered.finish()
    dirty.discard(key("b"))
    assert (dirty.covered(7, SEQ), dirty.covered(7, 5)) == (SEQ, 5)
    recovered.begin_again()
    assert dirty.covered(7, SEQ) == 7


def test_a_refusal_in_an_earlier_save_of_a_flush_is_not_covered_by_its_last_one() -> None:
    """What is reported with that save is never more than what the Meta Service has."""
    dirty = dirty_with("a", "b")
    dirty.take(SEQ)
    dirty.refuse(key("a"))
    dirty.send_last()
    assert dirty.covered(0, SEQ) == 0
