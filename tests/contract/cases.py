"""Single saves and their outcomes: one table for all engines, and for the FakeMeta that replaces them in unit tests."""

from typing import NamedTuple

from adapter.metaservice.engine import Engine
from adapter.model.records import EPOCH_LIMIT, EPOCH_MAX, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, next_era
from tests.unit.helpers import record, tombstone

CLUSTER = "cluster"

APPLIED, SUPERSEDED, CONFLICT, INVALID = Status.APPLIED, Status.SUPERSEDED, Status.CONFLICT, Status.INVALID
OVER = next_era(EPOCH_LIMIT)


def at(committed_at_ms: int, metadata: str = "") -> OffsetRecord:
    """A record at a fixed position with these other fields."""
    return OffsetRecord(1, 5, committed_at_ms=committed_at_ms, metadata=metadata)


async def save(engine: Engine, *entries: tuple[OffsetKey, OffsetRecord]) -> list[SaveOutcome]:
    """Save records in one request."""
    return await engine.save(CLUSTER, [SaveEntry(*entry) for entry in entries])


class Case(NamedTuple):
    """A save over a stored record: the outcome, and the record afterwards (None: absent)."""

    name: str
    before: OffsetRecord | None
    offered: OffsetRecord
    status: Status
    after: OffsetRecord | None
    expected_offset: int | None = None


CASES = [
    Case("the first save", None, record(5), APPLIED, record(5)),
    Case("the first save, at offset 0", None, record(0), APPLIED, record(0)),
    Case("the first save, in a high epoch", None, record(5, 7), APPLIED, record(5, 7)),
    Case("the first save, of unknown epoch", None, record(5, 0), APPLIED, record(5, 1)),
    Case("a larger offset", record(5), record(6), APPLIED, record(6)),
    Case("the same again", record(5), record(5), APPLIED, record(5)),
    Case("a smaller offset", record(5), record(4), SUPERSEDED, record(5)),
    Case("a smaller offset in a higher epoch", record(5), record(4, 2), APPLIED, record(4, 2)),
    Case("a larger offset in a lower epoch", record(5, 2), record(9, 1), SUPERSEDED, record(5, 2)),
    Case("later, at the same offset", at(1), at(2), APPLIED, at(2)),
    Case("earlier, at the same offset", at(2), at(1), SUPERSEDED, at(2)),
    Case("larger metadata at the same time", at(1, "a"), at(1, "b"), APPLIED, at(1, "b")),
    Case("smaller metadata at the same time", at(1, "b"), at(1, "a"), SUPERSEDED, at(1, "b")),
    Case("unknown epoch, larger offset", record(5, 3), record(6, 0), APPLIED, record(6, 3)),
    Case("unknown epoch, same offset", record(5, 3), record(5, 0), APPLIED, record(5, 3)),
    Case("unknown epoch, smaller offset", record(5, 3), record(4, 0), SUPERSEDED, record(5, 3)),
    Case("a tombstone", record(5), tombstone(2), APPLIED, tombstone(2)),
    Case("a late tombstone", record(5, 3), tombstone(2), SUPERSEDED, record(5, 3)),
    Case("a tombstone in the epoch of a live record", record(0, 2), tombstone(2), SUPERSEDED, record(0, 2)),
    Case("onto a tombstone, from before it", tombstone(2), record(9, 1), SUPERSEDED, tombstone(2)),
    Case("onto a tombstone, in its epoch", tombstone(2), record(0, 2), APPLIED, record(0, 2)),
    Case("onto a tombstone, of unknown epoch", tombstone(2), record(3, 0), APPLIED, record(3, 2)),
    Case("the largest epoch from outside", None, record(5, EPOCH_LIMIT), APPLIED, record(5, EPOCH_LIMIT)),
    Case("an epoch over the limit", None, record(5, EPOCH_LIMIT + 1), INVALID, None),
    Case("the largest epoch of all", record(5), record(5, EPOCH_MAX), INVALID, record(5)),
    Case("a rewind of the limit", record(5, EPOCH_LIMIT), record(4, EPOCH_LIMIT + 1), APPLIED, record(4, EPOCH_LIMIT + 1)),
    Case("a reset of the limit", record(5, EPOCH_LIMIT), record(4, OVER), APPLIED, record(4, OVER)),
    Case("two resets over the limit", record(5, EPOCH_LIMIT), record(4, next_era(OVER)), INVALID, record(5, EPOCH_LIMIT)),
    Case("a tombstone over the limit", record(5, EPOCH_LIMIT), tombstone(OVER), APPLIED, tombstone(OVER)),
    Case("expected and found", record(5), record(6), APPLIED, record(6), expected_offset=5),
    Case("expected and not found", record(5), record(6), CONFLICT, record(5), expected_offset=4),
    Case("expected 0 and found", record(0), record(6), APPLIED, record(6), expected_offset=0),
    Case("expected 0 of an absent key", None, record(6), APPLIED, record(6), expected_offset=0),
    Case("expected 0 of a deleted key", tombstone(2), record(6, 2), APPLIED, record(6, 2), expected_offset=0),
    Case("expected, found, but smaller", record(5), record(4), SUPERSEDED, record(5), expected_offset=5),
    Case("expected, found, smaller in a higher epoch", record(5), record(4, 2), APPLIED, record(4, 2), expected_offset=5),
    Case("expected and found, of unknown epoch", record(5, 3), record(6, 0), APPLIED, record(6, 3), expected_offset=5),
]


class Request(NamedTuple):
    """A request with one key more than once: its entries apply one after the other."""

    name: str
    before: OffsetRecord | None
    entries: list[tuple[OffsetRecord, int | None]]
    outcomes: list[SaveOutcome]
    after: OffsetRecord | None


REQUESTS = [
    Request(
        "growing",
        None,
        [(record(5), None), (record(6), None)],
        [SaveOutcome(APPLIED, record(5)), SaveOutcome(APPLIED, record(6))],
        record(6),
    ),
    Request(
        "shrinking",
        record(1),
        [(record(6), None), (record(5), None)],
        [SaveOutcome(APPLIED, record(6)), SaveOutcome(SUPERSEDED, record(6))],
        record(6),
    ),
    Request(
        "the unknown epoch is the one of the entry before",
        record(9, 2),
        [(record(1, 4), None), (record(3, 0), None)],
        [SaveOutcome(APPLIED, record(1, 4)), SaveOutcome(APPLIED, record(3, 4))],
        record(3, 4),
    ),
    Request(
        "compare-and-set sees the entry before",
        record(1),
        [(record(2), 1), (record(3), 1), (record(4), 2)],
        [SaveOutcome(APPLIED, record(2)), SaveOutcome(CONFLICT, record(2)), SaveOutcome(APPLIED, record(4))],
        record(4),
    ),
    Request(
        "deleted and brought back",
        record(8),
        [(tombstone(2), None), (record(9), None), (record(3, 2), None)],
        [SaveOutcome(APPLIED, tombstone(2)), SaveOutcome(SUPERSEDED, tombstone(2)), SaveOutcome(APPLIED, record(3, 2))],
        record(3, 2),
    ),
]
