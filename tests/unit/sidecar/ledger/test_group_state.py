"""What is known of groups: the newest records, up to a size, and what the Meta Service holds."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.model.codec import encode_key
from adapter.model.records import GroupKey, Held, OffsetKey, OffsetRecord
from adapter.sidecar.ledger import group_state
from adapter.sidecar.ledger.group_state import MAX_REMOVED, GroupStates
from adapter.sidecar.ledger.store import LocalStore
from tests.model.disk import Platter, SimDisk
from tests.unit.helpers import key, record

G, H, J = (GroupKey("default", name) for name in "ghj")


def held(offset: int) -> Held:
    """A record as the cache holds it."""
    return record(offset), offset, b"key"


def states_of(max_keys: int) -> GroupStates:
    """States of groups with room for so many keys."""
    states = GroupStates()
    states._max_keys = max_keys
    return states


def test_the_newest_of_a_shard_is_there() -> None:
    """The other shards of its group stay."""
    hot = GroupStates()
    hot.put(G, {"a": held(1), "b": held(2)})
    hot.put(G, {"a": held(3)})
    assert hot.records(G) == {"a": held(3), "b": held(2)}
    assert hot.get(key("a")) == held(3)
    assert len(hot) == 2


def test_what_is_not_there_is_none() -> None:
    """A look-up does not create an empty group."""
    hot = GroupStates()
    assert hot.records(G) == {}
    assert hot.get(key("a")) is None
    hot.discard(key("a"))
    hot.put(G, {"a": held(1)})
    hot.discard(key("a"))
    assert (hot.get(key("a")), len(hot)) == (None, 0)


def test_beyond_its_size_the_group_that_was_used_longest_ago_leaves() -> None:
    """A read counts as use."""
    hot = states_of(4)
    hot.put(G, {"a": held(1), "b": held(1)})
    hot.put(H, {"a": held(1), "b": held(1)})
    assert hot.records(G)
    hot.put(J, {"a": held(1)})
    assert (len(hot), bool(hot.records(G)), bool(hot.records(H)), bool(hot.records(J))) == (3, True, False, True)


def test_a_group_that_is_larger_than_the_size_leaves_at_once() -> None:
    """The bound also holds for a single group."""
    hot = states_of(2)
    hot.put(G, {shard: held(1) for shard in "abc"})
    assert len(hot) == 0


def test_a_look_has_the_groups_that_were_used_since_the_last_one() -> None:
    """The newest first; a read counts as use. What leaves for lack of room is told."""
    hot = states_of(2)
    gone: list[Held] = []
    hot.evicted = gone.extend
    hot.put(G, {"a": held(1)})
    hot.put(H, {"a": held(2)})
    assert hot.used() == [H, G]
    assert hot.used() == []
    hot.put(G, {"a": held(3)})
    assert hot.used() == [G]
    assert hot.held([G, H, J]) == [held(3), held(2)]
    hot.put(J, {"a": held(4)})
    assert (gone, hot.used(), len(hot)) == ([held(2)], [J], 2)
    hot.put(H, {"a": held(5), "b": held(6)})
    assert (gone, hot.used()) == ([held(2), held(3), held(4)], [H])


def test_what_was_not_used_since_the_last_round_leaves() -> None:
    """In slices; what is busy stays, whatever the marks of looks are between. What a group is known for stays, too."""
    hot = GroupStates()
    gone: list[Held] = []
    hot.evicted = gone.extend
    hot.put(G, {"a": held(1)})
    hot.put(H, {"a": held(2), "b": held(3)})
    hot.put(J, {"a": held(4)})
    hot.note_loaded([G])
    assert not hot.leave_idle(2, lambda _: False)
    assert hot.used() == [J, H, G]
    assert hot.records(H)
    assert hot.leave_idle(1, lambda group: group == J)
    assert not hot.leave_idle(9, lambda group: group == J)
    assert (gone, len(hot), hot.held([G, H, J])) == ([held(1)], 3, [held(2), held(3), held(4)])
    assert (hot.is_loaded(G), hot.is_loaded(H), hot.used()) == (True, False, [J, H])
    while hot.leave_idle(1, lambda _: False):
        pass
    hot.put(G, {"a": held(5)})
    assert (len(hot), hot.used()) == (1, [G])


def test_the_cache_answers_from_memory_what_is_in_the_store(tmp_path: Path) -> None:
    """After a write, an overwrite, a removal and a reopening."""
    store = LocalStore.open(tmp_path / "store", "never")
    store.write({key("a"): record(1), key("b"): record(2, metadata="m")})
    store.write({key("a"): record(5), key("b"): None})
    assert store.hold_all(G, ()).keys() == {"a"}
    assert (store.get(key("a")), store.get(key("b"))) == (record(5), None)
    store.close()
    again = LocalStore.open(tmp_path / "store", "never")
    assert again.hold_all(G, ()) == {}
    assert again.find(key("a")) == (record(5), 3)
    assert again.hold_all(G, ()).keys() == {"a"}
    again.close()


def test_what_stands_is_read_also_when_its_group_is_too_large_for_the_memory(tmp_path: Path) -> None:
    """The reply is complete, and reads nothing from the disk twice."""
    store = LocalStore.open(tmp_path / "store", "never")
    shards = [str(at) for at in range(10)]
    store.write({key(shard): record(at) for at, shard in enumerate(shards)})
    store.states = states_of(4)
    answer = store.hold_all(G, [*shards, "absent"])
    assert answer.keys() == {*shards, "absent"}
    assert answer["absent"] == (None, 0, encode_key(key("absent")))
    assert len(store.states) == 0
    few = store.hold_all(G, shards[:3])
    assert {shard: (fields, seq) for shard, (fields, seq, _) in few.items()} == {
        shard: (record(at), at + 1) for at, shard in enumerate(shards[:3])
    }
    assert store.hold_all(G, shards[1:4]).keys() >= set(shards[1:4])
    assert len(store.states) == 4
    store.close()


def test_nothing_is_kept_of_a_group_whose_records_are_gone() -> None:
    """Groups that come and go, such as those of consoles, do not fill the memory."""
    cache = GroupStates()
    for number in range(100):
        group = GroupKey("default", f"console-{number}")
        cache.put(group, {"s": (record(1), 1, b"key")})
        cache.discard(OffsetKey(*group, "s"))
    assert cache.used() == []
    assert not cache._states


def test_what_is_remembered_of_absent_keys_and_removals_is_bounded() -> None:
    """When entries are dropped, the result may only be a needless second load."""
    states = states_of(100)
    for at in range(3 * MAX_REMOVED):
        states.note_absent([key(f"s{at}", f"h{at}")])
        states.note_removal([GroupKey("default", f"g{at}")] if at % 2 else [])
        assert len(states) <= 100
    assert len(states._states) <= MAX_REMOVED + 101
    newest = states.removals
    assert states.removed_since([GroupKey("default", "g1")], 0)
    assert not states.removed_since([GroupKey("default", "g1")], newest)
    states.note_removal([G])
    assert states.removed_since([G], newest)
    assert not states.removed_since([H], newest)


def test_what_is_remembered_of_rewinds_is_bounded() -> None:
    """When entries are dropped, the result may only be a needless second load."""
    states = states_of(100)
    for at in range(MAX_REMOVED + 10):
        states.note_rewind([key(f"s{at}")])
    newest, last = states.removals, key(f"s{MAX_REMOVED + 9}")
    assert states.rewound_since([key("s1")], 0) is None
    assert states.rewound_since([], 0) == set()
    assert states.rewound_since([key("s1"), last], newest - 1) == {last}
    assert states.rewound_since([last], newest) == set()
    assert len(states._rewound) <= MAX_REMOVED


def test_groups_that_readers_name_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are known; of the others half at most. What was removed of a group that is forgotten may be removed since."""
    monkeypatch.setattr(group_state, "MAX_GROUPS", 10)
    states = GroupStates()
    states.note_removal([G])
    for number in range(100):
        last, large = ([GroupKey("default", f"{kind}{number}{which}") for which in "abc"] for kind in ("g", "large"))
        states.note_loaded(last)
        assert all(map(states.is_loaded, last))
        assert states._resting.count <= 10
        if number == 50:
            assert not states.removed_since([last[0]], 0)
        if number > 50:
            states.note_large(large)
            assert all(map(states.is_large, large))
            assert len(states._states) <= 10
    assert states.removed_since([G], 0)
    assert states.removed_since([last[0]], 0)


def test_a_group_stays_loaded_when_its_records_leave() -> None:
    """It is asked for again only where it has to be. What is absent one by one leaves with them."""
    states = states_of(2)
    states.put(G, {"a": held(1)})
    states.note_absent([key("b")])
    states.note_loaded([H])
    assert (states.knows_absent(key("b")), states.knows_absent(key("c"))) == (True, False)
    states.put(J, {"a": held(1), "b": held(2)})
    assert (states.knows_absent(key("b")), len(states)) == (False, 2)
    states.put(H, {"a": held(1), "b": held(2)})
    states.put(J, {"a": held(3), "b": held(4)})
    assert (states.records(H), states.is_loaded(H)) == ({}, True)
    states.note_removal([H])
    assert not states.is_loaded(H)


def test_what_is_stored_is_not_absent_any_more() -> None:
    """Also when it is removed later: the Meta Service may have it by then."""
    states = GroupStates()
    states.note_absent([key("a"), key("b")])
    states.put(G, {"a": held(1)})
    states.discard(key("a"))
    assert (states.knows_absent(key("a")), states.knows_absent(key("b")), len(states)) == (False, True, 1)


@pytest.mark.parametrize("stored", [True, False])
def test_a_removal_leaves_nothing_known_to_be_absent(stored: bool) -> None:
    """Whoever removes keys of a group may hand them over: another adapter may commit any of its keys. What is stored stays."""
    states = GroupStates()
    if stored:
        states.put(G, {"a": held(1)})
    states.note_absent([key("b"), key("b", "h")])
    states.note_removal([G])
    assert not states.knows_absent(key("b"))
    assert states.epoch_of_absent(key("b")) == 0
    assert states.knows_absent(key("b", "h"))
    assert len(states) == 1 + stored
    assert states.records(G) == ({"a": held(1)} if stored else {})
    assert set(states.used()) == ({G} if stored else set()) | {GroupKey("default", "h")}


def test_a_group_that_is_loaded_is_not_large() -> None:
    """Large ones are loaded by their keys until then."""
    states = GroupStates()
    states.note_large([G])
    assert (states.is_large(G), states.is_large(H)) == (True, False)
    states.note_loaded([G])
    assert not states.is_large(G)


GROUPS = st.sampled_from([G, H, J])
STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "loaded", "large", "removal", "absent", "remove", "idle"]), GROUPS), max_size=40
)


@given(STEPS)
def test_what_left_memory_comes_back_as_it_was(steps: list[tuple[str, GroupKey]]) -> None:  # noqa: C901 - a case for each step
    """Records to the last bit, and what is known of groups; of absent keys less may be known, and of removals no less."""
    store = LocalStore.over(SimDisk(Platter(), lambda: None), "never")
    states = store.states
    written: dict[OffsetKey, tuple[OffsetRecord | None, int]] = {}
    loaded, large, absent = set[GroupKey](), set[GroupKey](), set[GroupKey]()
    removed: dict[GroupKey, int] = {}
    for at, (what, group) in enumerate(steps, start=1):
        shard = OffsetKey(*group, "s")
        if what == "write":
            store.write({shard: record(at, epoch=at, metadata="m" * (at % 3))})
            written[shard] = record(at, epoch=at, metadata="m" * (at % 3)), store.seq
            absent.discard(group)
        elif what == "remove":
            store.write({shard: None})
            written[shard] = None, 0
        elif what == "idle":
            while states.leave_idle(1, lambda _: False):
                pass
        elif what == "absent" and not written.get(shard, (None, 0))[0]:
            states.note_absent([shard])
            absent.add(group)
        elif what == "removal":
            states.note_removal([group])
            loaded.discard(group)
            absent.discard(group)
            removed[group] = states.removals
        elif what == "loaded":
            states.note_loaded([group])
            loaded.add(group)
            large.discard(group)
        elif what == "large":
            states.note_large([group])
            large.add(group)
        for one in (G, H, J):
            assert (states.is_loaded(one), states.is_large(one)) == (one in loaded, one in large)
            assert states.knows_absent(OffsetKey(*one, "s")) in {one in loaded, one in loaded | absent}
            assert all(states.removed_since([one], before) for before in range(removed.get(one, 0)))
    assert {shard: store.find(shard) for shard in written} == written
