"""The rules for a Meta Service that stores only offsets, without one: `as_seen`, and which keys count as not compared."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from adapter.errors import AdapterError, MetaUnavailableError, OverloadedError, RefusedError
from adapter.meta.epochless import Saver, Seen
from adapter.meta.kinds import OFFSETS_ONLY, WITH_EPOCHS
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, as_seen, meet
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit, commit_of, core_over, during, key, record, send
from tests.unit.sidecar.engine.losses import counts, left_behind

A, B = key("a"), key("b")
DEAD = OffsetRecord(2**32, 0, live=False, committed_at_ms=9)


@pytest.mark.parametrize(
    ("local", "remote", "seen"),
    [
        (record(5, 0, metadata="m"), record(5, 0), record(5, 1, metadata="m")),
        (record(5, 0), record(6, 0), record(6, 1)),
        (record(5, 0), record(4, 0), record(4, 1)),
        (record(5, 2, committed_at_ms=9), record(6, 0), record(6, 2)),
        (DEAD, record(0, 0), record(0, 2**32 + 1)),
        (DEAD._replace(offset=50), record(7, 0), record(7, 2**32 + 1)),
    ],
    ids=["equal", "larger", "smaller", "rewound here", "deleted here", "expired here, smaller there"],
)
def test_an_offset_without_an_epoch_gets_one_from_what_is_here(
    local: OffsetRecord, remote: OffsetRecord, seen: OffsetRecord
) -> None:
    """A local epoch of 0 becomes the first one, as there is no other. Over a tombstone any offset is live."""
    assert as_seen(remote, local) == seen
    assert meet(seen, local).epoch > 0


async def test_a_server_with_epochs_is_sent_what_it_is_given() -> None:
    """Including tombstones and unknown epochs: such a server merges."""
    meta = FakeMeta({A: record(9, 4)})
    entries = [SaveEntry(A, record(7, 0)), SaveEntry(B, DEAD)]
    outcomes = await Saver(meta).save(entries, uncompared=lambda _: True)
    assert outcomes == [SaveOutcome(Status.SUPERSEDED, record(9, 4)), SaveOutcome(Status.APPLIED, DEAD)]
    assert meta.saves == [entries]


class TurningMeta(FakeMeta):
    """A failover to a server with epochs, behind the read of a save that was meant for one without."""

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        found = await super().get(keys, patient=patient)
        self.kind = WITH_EPOCHS
        return found


async def test_what_was_only_read_is_not_remembered_as_what_stands() -> None:
    """The save behind it went to another server: back at the first one, a rewind would count as below another writer's."""
    meta = TurningMeta()
    meta.kind = OFFSETS_ONLY
    saver = Saver(meta)
    assert [outcome.status for outcome in await saver.save([SaveEntry(A, record(160))])] == [Status.APPLIED]
    assert saver.seen(A) is None


class HalfMeta(FakeMeta):
    """A server without epochs, which stores what it is told to; calls that name the shard b end with an error."""

    def __init__(self, error: AdapterError) -> None:
        super().__init__({A: record(1, 0)})
        self.kind = OFFSETS_ONLY
        self._error = error

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        if any(entry.key == B for entry in entries):
            raise self._error
        assert all(self.records[where].offset == expected for where, _, expected in entries)
        self.records.update((where, found._replace(epoch=0)) for where, found, _ in entries)
        return [SaveOutcome(Status.APPLIED, found) for _, found, _ in entries]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RefusedError("no by the test"), Status.INVALID),
        (MetaUnavailableError("down by the test"), Status.UNAVAILABLE),
        (OverloadedError("too much by the test"), Status.UNAVAILABLE),
    ],
)
async def test_what_was_saved_before_a_call_failed_is_told(error: AdapterError, status: Status) -> None:
    """A save takes several calls. What the first one stored is the caller's to adopt; only the others have failed (2)."""
    saver = Saver(HalfMeta(error))
    saver.note(A, Seen(1))
    outcomes = await saver.save([SaveEntry(A, record(2)), SaveEntry(B, record(7))])
    assert [outcome.status for outcome in outcomes] == [Status.APPLIED, status]
    assert str(error) in outcomes[1].message
    with pytest.raises(type(error), match="by the test"):
        await saver.save([SaveEntry(B, record(7))])


async def test_a_commit_that_was_refused_for_another_shard_does_not_take_this_one_back(tmp_path: Path) -> None:
    """Written through, in one request: a is stored, b refused. The next commit of a may be lower; what stands is not (2)."""
    meta = HalfMeta(RefusedError("no by the test"))
    async with core_over(tmp_path, meta, mode="write_through") as core:
        await commit(core, 1, "a")
        with pytest.raises(RefusedError):
            await send(core, commit_of({A: 2, B: 7}))
        await commit(core, 1, "a")
        assert meta.records[A].offset == 2
        assert (stood := core.ledger.store.get(A)) is not None
        assert stood.offset == 2


async def test_what_is_dirty_at_the_end_of_a_recovery_stays_uncompared_until_it_is_acknowledged(tmp_path: Path) -> None:
    """Only those keys: later commits go to keys that have been compared."""
    left_behind(tmp_path, {A: record(5), B: record(5)})
    meta = FakeMeta({B: record(5)})
    meta.faults.append(MetaUnavailableError("down by the test"))
    async with core_over(tmp_path, meta, recovered=False) as core:
        await core.recovery.run()
        assert core.ledger.dirty._uncompared == {A}
        await commit(core, 6, "b")
        await core.flusher.flush_once()
        assert core.ledger.dirty._uncompared == set()


async def test_a_push_that_meets_something_larger_counts_as_adopted(tmp_path: Path) -> None:
    """The larger value came between the comparison and the push."""
    left_behind(tmp_path, {A: record(5), B: record(5)})
    meta = FakeMeta()

    async def overtake() -> None:
        meta.records[A] = record(9)

    meta.faults.append(during(meta, overtake))
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert counts(await core.recovery.run()) == (2, 1, 1, 0, 0)
        assert core.ledger.store.get(A) == record(9)
