"""Epochs that a flush learned are stored as if one by one: `FirstEpochs` has the effect of a `Reconcile` for each key."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, Run, as_first
from adapter.runtime.clocks import Clocks
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import FirstEpochs, Forget, Operation, Reconcile
from adapter.sidecar.ledger.store import LocalStore
from tests.model.disk import Platter, SimDisk
from tests.unit.helpers import commit_of, key, record

FIELDS = st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["g", "h"]), st.integers(1, 4), st.sampled_from(["", "m"]))
CHANGES = st.lists(st.tuples(st.sampled_from(["commit", "rewind", "adopt", "forget"]), FIELDS), max_size=6)


class Side:
    """A store with its dirty keys, while all of them are being flushed."""

    def __init__(self, before: Sequence[tuple[str, str, int, str]], epoch: int) -> None:
        self.store = LocalStore.over(SimDisk(Platter(), lambda: None), "never")
        self.ledger = Ledger(self.store, Clocks(lambda: 1.0))
        self.dirty = self.ledger.dirty
        if epoch:
            self.store.states.note_loaded(GroupKey("default", group) for group in "gh")
        for fields in before:
            self.commit(fields)
        self.sent = [Run(group, list(held), list(held.values())) for group, held in self.dirty.take().items()]

    def commit(self, fields: tuple[str, str, int, str], *, overwrite: bool = False) -> None:
        """Commit a key, with a time that identifies the commit."""
        shard, group, offset, metadata = fields
        change = commit_of({key(shard, group): offset}, overwrite=overwrite, metadata=metadata, committed_at_ms=offset)
        self.ledger.apply(change)

    def meanwhile(self, what: str, fields: tuple[str, str, int, str]) -> None:
        """Do something else before the reply to the flush is applied."""
        shard, group, offset, metadata = fields
        where = key(shard, group)
        known = self.store.get(where)
        if what == "commit":
            self.commit(fields)
        elif what == "rewind" and (known is None or known.epoch):  # else it is refused
            self.commit(fields, overwrite=True)
        elif what == "adopt":
            self.ledger.apply(Reconcile([(where, record(offset, 1 + offset % 2, metadata=metadata))]))
        elif what == "forget":
            self.ledger.apply(Forget([where], gone=True))

    def end(self, *changes: Operation) -> None:
        """Apply the reply, and end the flush."""
        for change in changes:
            self.ledger.apply(change)
        for group, shards, _ in self.sent:
            self.dirty.acknowledge_all(group, shards)
        self.dirty.settle()

    def all(self) -> tuple[dict[OffsetKey, OffsetRecord], set[OffsetKey], int]:
        """Records, dirty keys, and the sum of the write counters, which an open checks."""
        stored = list(self.store.scan())
        return {each.key: each.record for each in stored}, self.dirty.keys(), self.store.keys


@given(st.lists(FIELDS, min_size=1, max_size=8), CHANGES, st.sampled_from([0, 0, 1]))
def test_first_epochs_do_what_a_reconcile_of_each_does(
    before: list[tuple[str, str, int, str]], changes: list[tuple[str, tuple[str, str, int, str]]], epoch: int
) -> None:
    """For any commits, rewinds, adoptions and removals during the flush (2, 3)."""
    sides = Side(before, epoch), Side(before, epoch)
    for side in sides:
        for what, fields in changes:
            side.meanwhile(what, fields)
    together, single = sides
    together.end(FirstEpochs(together.sent))
    single.end(
        *(
            Reconcile([(OffsetKey(*group, shard), as_first(OffsetRecord(*fields)))])
            for group, shards, held in single.sent
            for shard, (fields, _, _) in zip(shards, held, strict=True)
        )
    )
    assert together.all() == single.all()
    # What the store counts about itself is true: the next open finds nothing missing.
    again = LocalStore.over(together.store._disk, "never")
    assert again.loss is None


def test_what_was_committed_meanwhile_is_not_replaced_by_what_was_sent() -> None:
    """It takes the epoch that is known now, and stays dirty (1, 3)."""
    side = Side([("a", "g", 1, ""), ("b", "g", 1, "")], 0)
    side.commit(("a", "g", 4, ""))
    side.end(FirstEpochs(side.sent))
    assert side.store.get(key("a")) == record(4, 1, committed_at_ms=4)
    assert side.store.get(key("b")) == record(1, 1, committed_at_ms=1)
    assert side.dirty.keys() == {key("a")}


def test_what_is_begun_is_clean_and_its_write_is_not_sent_again() -> None:
    """The Meta Service holds exactly the same record (6)."""
    side = Side([("a", "g", 1, ""), ("b", "h", 1, "m")], 0)
    side.end(FirstEpochs(side.sent))
    assert not side.dirty
    assert side.dirty.take() == {}
