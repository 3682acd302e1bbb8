"""The record cache: it has the newest records, up to its size."""

from pathlib import Path

from adapter.model.codec import encode_key
from adapter.model.records import GroupKey, Held, OffsetKey
from adapter.sidecar.storage.record_cache import RecordCache
from adapter.sidecar.storage.store import LocalStore
from tests.unit.helpers import key, record

G, H, J = (GroupKey("default", name) for name in "ghj")


def held(offset: int) -> Held:
    """A record as the cache holds it."""
    return record(offset), offset, b"key"


def test_the_newest_of_a_shard_is_there() -> None:
    """The other shards of its group stay."""
    hot = RecordCache()
    hot.update(G, {"a": held(1), "b": held(2)})
    hot.update(G, {"a": held(3)})
    assert hot.of(G) == {"a": held(3), "b": held(2)}
    assert hot.get(key("a")) == held(3)
    assert len(hot) == 2


def test_what_is_not_there_is_none() -> None:
    """A look-up does not create an empty group."""
    hot = RecordCache()
    assert hot.of(G) == {}
    assert hot.get(key("a")) is None
    hot.discard(key("a"))
    hot.update(G, {"a": held(1)})
    hot.discard(key("a"))
    assert (hot.get(key("a")), len(hot)) == (None, 0)


def test_beyond_its_size_the_group_that_was_used_longest_ago_leaves() -> None:
    """A read counts as use."""
    hot = RecordCache(max_keys=4)
    hot.update(G, {"a": held(1), "b": held(1)})
    hot.update(H, {"a": held(1), "b": held(1)})
    assert hot.of(G)
    hot.update(J, {"a": held(1)})
    assert (len(hot), bool(hot.of(G)), bool(hot.of(H)), bool(hot.of(J))) == (3, True, False, True)


def test_a_group_that_is_larger_than_the_size_leaves_at_once() -> None:
    """The bound also holds for a single group."""
    hot = RecordCache(max_keys=2)
    hot.update(G, {shard: held(1) for shard in "abc"})
    assert len(hot) == 0


def test_a_look_has_the_groups_that_were_used_since_the_last_one() -> None:
    """The newest first; a read counts as use. What leaves for lack of room is told."""
    hot = RecordCache(max_keys=2)
    gone: list[Held] = []
    hot.evicted = gone.extend
    hot.update(G, {"a": held(1)})
    hot.update(H, {"a": held(2)})
    assert hot.used() == [H, G]
    assert hot.used() == []
    hot.update(G, {"a": held(3)})
    assert hot.used() == [G]
    assert hot.held([G, H, J]) == [held(3), held(2)]
    hot.update(J, {"a": held(4)})
    assert (gone, hot.used(), len(hot)) == ([held(2)], [J], 2)
    hot.update(H, {"a": held(5), "b": held(6)})
    assert (gone, hot.used()) == ([held(2), held(3), held(4)], [H])


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
    store._cache = RecordCache(max_keys=4)
    answer = store.hold_all(G, [*shards, "absent"])
    assert answer.keys() == {*shards, "absent"}
    assert answer["absent"] == (None, 0, encode_key(key("absent")))
    assert len(store._cache) == 0
    few = store.hold_all(G, shards[:3])
    assert {shard: (fields, seq) for shard, (fields, seq, _) in few.items()} == {
        shard: (record(at), at + 1) for at, shard in enumerate(shards[:3])
    }
    assert store.hold_all(G, shards[1:4]).keys() >= set(shards[1:4])
    assert len(store._cache) == 4
    store.close()


def test_nothing_is_kept_of_a_group_whose_records_are_gone() -> None:
    """Groups that come and go, such as those of consoles, do not fill the memory."""
    cache = RecordCache()
    for number in range(100):
        group = GroupKey("default", f"console-{number}")
        cache.update(group, {"s": (record(1), 1, b"key")})
        cache.discard(OffsetKey(*group, "s"))
    assert cache.used() == []
