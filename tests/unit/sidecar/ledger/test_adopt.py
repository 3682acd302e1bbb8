"""Rows that are adopted in columns: as a Load of the same rows, without objects for those of which nothing is known."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.errors import ContendedError
from adapter.model.codec import encode_key, encode_record, is_plain
from adapter.model.records import EPOCH_MAX, GroupKey, Held, OffsetKey, OffsetRecord, next_era
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Adopt, Load, Operation
from adapter.sidecar.ledger.store import LocalStore
from tests.model.disk import Platter, SimDisk
from tests.unit.helpers import key, record, tombstone

GROUPS = [GroupKey("default", name) for name in ("g", "gg", "h")]
Rows = Mapping[OffsetKey, OffsetRecord]

keys = st.builds(OffsetKey, st.just("default"), st.sampled_from([group.group for group in GROUPS]), st.sampled_from("abcä"))
epochs, any_epoch = st.integers(1, 3), st.sampled_from([0, 1, 2, 2**32 - 1, 2**32, next_era(2**32), EPOCH_MAX])
offsets, times = st.integers(0, 4) | st.just(2**64 - 1), st.integers(0, 2)
plain = st.tuples(epochs, offsets, st.just(True), times).map(lambda fields: OffsetRecord(*fields))  # noqa: FBT003 - live
records = plain | st.tuples(any_epoch, offsets, st.booleans(), times, st.sampled_from(["", "m"])).map(
    lambda fields: OffsetRecord(*fields)
)


class Here(NamedTuple):
    """What a ledger has before: records, those of them that are dirty, dirty keys that are not stored, groups with a removal."""

    stored: Rows
    dirty: Sequence[OffsetKey]
    only_dirty: Sequence[OffsetKey]
    removed: Sequence[GroupKey]


class Found(NamedTuple):
    """What a ledger has behind an operation, and what watchers were told."""

    stored: Rows
    dirty: frozenset[OffsetKey]
    told: frozenset[OffsetKey]
    keys: int
    seq: int
    eras: int


@contextmanager
def ledger_with(here: Here) -> Iterator[Ledger]:
    """A ledger over a store with this, which finds no damage when it is opened again."""
    platter = Platter()
    store = LocalStore.over(SimDisk(platter, lambda: None), "never")
    ledger = Ledger(store)
    store.write(here.stored)
    for one in here.dirty:
        if held := store.hold(one):
            ledger.dirty.add(one.group_key, {one.shard: held}, 0.0)
    for one in here.only_dirty:
        if not store.get(one):
            ledger.dirty.add(one.group_key, {one.shard: (record(1), 1, encode_key(one))}, 0.0)
    store.states.note_removal(here.removed)
    yield ledger
    again = LocalStore.over(SimDisk(platter, lambda: None), "never")
    assert not again.loss
    assert again.keys == store.keys


async def after(ledger: Ledger, operation: Operation) -> Found | None:
    """What there is behind an operation; None if it is refused."""
    store = ledger.store
    with ledger.watches.watcher(()) as watcher:
        await watcher.next()
        try:
            ledger.apply(operation)
        except ContendedError:
            return None
        told = frozenset((await watcher.next()).keys) if watcher.pending else frozenset()
    stored = {one.key: one.record for one in store.scan()}
    assert {one: store.get(one) for one in stored} == stored
    return Found(stored, frozenset(ledger.dirty.keys()), told, store.keys, store.seq, ledger.eras)


@example(Here({}, [], [key("a")], []), {key("a"): record(1), key("b"): record(1)}, 0)
@given(
    st.builds(
        Here,
        st.dictionaries(keys, records, max_size=4),
        st.lists(keys, max_size=2),
        st.lists(keys, max_size=2),
        st.lists(st.sampled_from(GROUPS), max_size=1),
    ),
    st.dictionaries(keys, plain, max_size=8),
    st.integers(0, 1),
)
async def test_what_is_adopted_in_columns_stands_as_if_it_was_loaded(here: Here, there: Rows, removals: int) -> None:
    """Whatever is here, dirty, or removed meanwhile: the same records, dirty keys, news and bookkeeping, or refused (2, 3)."""
    with ledger_with(here) as ledger:
        loaded = await after(ledger, Load((), list(there.items()), removals))
    with ledger_with(here) as ledger:
        rows = sorted((encode_key(one), encode_record(found, seq=9)) for one, found in there.items())
        assert await after(ledger, Adopt(rows, removals)) == loaded


@given(records)
@example(record(1)._replace(partition=3))
@example(record(1)._replace(topic="t"))
@example(tombstone(1))
def test_plain_is_a_live_offset_of_the_first_era(found: OffsetRecord) -> None:
    """All else says more than its bytes in columns are looked at for."""
    only_an_offset = found == OffsetRecord(found.epoch, found.offset, committed_at_ms=found.committed_at_ms)
    assert is_plain(encode_record(found, seq=7)) is (only_an_offset and 0 < found.epoch < next_era(0))


@pytest.mark.parametrize("follows", [False, True])
async def test_who_follows_the_store_is_given_what_does_not_come_into_memory(tmp_path: Path, *, follows: bool) -> None:
    """Else the live lag would not know the shards that come back while it runs."""
    store = LocalStore.open(tmp_path, "never")
    told: list[Held] = []
    if follows:
        store.states.evicted = told.extend
    Ledger(store).apply(Adopt([(encode_key(key("a")), encode_record(record(5)))], 0))
    assert len(store.states) == 0
    assert told == ([(record(5), 1, encode_key(key("a")))] if follows else [])
    store.close()
