"""Notes become Arrow columns; and reading an open segment after a kill or a power cut."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.model.bounds import Bounds, ShardKey
from adapter.model.records import LONG_MAX, OffsetRecord, SaveEntry, SaveOutcome, Status
from adapter.model.schemas import JOURNAL, KINDS
from adapter.sidecar.journal.frames import framed, read
from adapter.sidecar.journal.notes import Flushed, Moved, Moves
from adapter.sidecar.journal.rows import Row, heartbeat, rows_of, to_batch
from adapter.sidecar.shard_bounds import ReportedBounds
from tests.unit.helpers import KEYS, RECORDS, key, record
from tests.unit.journaling import NOW_MS, batch_of, moves_of

U64_MAX = 2**64 - 1
YEAR_9999_MS = 253_402_300_799_999


def told(rows: list[Row], bounds: dict[ShardKey, Bounds] | None = None, first_seq: int = 0) -> list[dict[str, Any]]:
    """Rows, by way of their columns."""
    reported = ReportedBounds()
    reported.note(bounds or {})
    batch = to_batch(rows, first_seq, reported)
    batch.validate(full=True)
    assert batch.schema == JOURNAL
    assert all(not batch.column(field.name).null_count for field in JOURNAL if not field.nullable)
    return list(batch.to_pylist())


def utc(at_ms: int) -> datetime:
    """A Unix time in milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def test_a_row_has_everything_in_its_place() -> None:
    """Names, labels, records after and before, bounds and times."""
    after = OffsetRecord(3, 7, committed_at_ms=NOW_MS - 5, metadata="m", topic="t", partition=4)
    note = Moves(NOW_MS, "rewind", [Moved(key("s", "g", "n"), record(9, 2), after)])
    (row,) = told(list(rows_of(note)), {ShardKey("n", "s"): Bounds(1, 20, NOW_MS - 9, "a")}, first_seq=6)
    assert row == {
        "at": utc(NOW_MS),
        "seq": 6,
        "kind": "rewind",
        "namespace": "n",
        "group": "g",
        "shard": "s",
        "topic": "t",
        "partition": 4,
        "epoch": 3,
        "offset": 7,
        "live": True,
        "committed_at": utc(NOW_MS - 5),
        "from_epoch": 2,
        "from_offset": 9,
        "low_watermark": 1,
        "high_watermark": 20,
        "watermark_at": utc(NOW_MS - 9),
        "log_id": "a",
        "problem": None,
    }


def test_of_a_flush_only_what_was_acknowledged_is_a_row() -> None:
    """A superseded entry gives the record that stands; a save without outcomes gives the records sent."""
    statuses = [Status.APPLIED, Status.SUPERSEDED, Status.CONFLICT, Status.INVALID, Status.APPLIED]
    standing = [record(1), record(50, 2), record(60), None, None]
    entries = [SaveEntry(key(f"s{at}"), record(at + 1)) for at in range(5)]
    note = Flushed(NOW_MS, entries, [SaveOutcome(status, stands) for status, stands in zip(statuses, standing, strict=True)])
    rows = told(list(rows_of(note)))
    assert [(row["shard"], row["epoch"], row["offset"]) for row in rows] == [("s0", 1, 1), ("s1", 2, 50), ("s4", 1, 5)]
    assert {(row["kind"], row["from_epoch"], row["from_offset"]) for row in rows} == {("flush", None, None)}


def test_a_heartbeat_has_only_its_time() -> None:
    """Readers learn from it that nothing happened until then."""
    (row,) = told([heartbeat(NOW_MS)])
    assert {name: value for name, value in row.items() if value} == {"at": utc(NOW_MS), "kind": "heartbeat"}
    assert (row["epoch"], row["offset"], row["live"]) == (None, None, False)


def test_what_is_unknown_is_null() -> None:
    """An absent time of commit, unknown bounds, and no record before."""
    (row,) = told(list(rows_of(moves_of("clone", key(), None, 5))))
    unknown = (
        "committed_at",
        "from_epoch",
        "from_offset",
        "low_watermark",
        "high_watermark",
        "watermark_at",
        "log_id",
        "problem",
    )
    assert [row[name] for name in unknown] == [None] * 8
    (row,) = told(list(rows_of(moves_of("clone", key(), None, 5))), {ShardKey("default", "s"): Bounds(1, 20, NOW_MS)})
    assert (row["high_watermark"], row["log_id"]) == (20, None)


def test_what_arrow_cannot_hold_is_null_and_told() -> None:
    """In the column `problem` of that row; other rows are not affected."""
    far = OffsetRecord(U64_MAX, LONG_MAX + 1, committed_at_ms=U64_MAX)
    note = Moves(NOW_MS, "rewind", [Moved(key("a"), record(1), record(2)), Moved(key("b"), record(LONG_MAX + 2, U64_MAX), far)])
    bounds = {ShardKey("default", "b"): Bounds(LONG_MAX, LONG_MAX + 3, NOW_MS)}
    first, second = told(list(rows_of(note)), bounds)
    assert (first["offset"], first["from_offset"], first["problem"]) == (2, 1, None)
    names = ("epoch", "offset", "committed_at", "from_epoch", "from_offset", "high_watermark")
    assert [second[name] for name in names] == [None] * 6
    assert second["low_watermark"] == LONG_MAX
    assert second["problem"].split("; ") == [
        f"epoch {U64_MAX} is over {LONG_MAX}",
        f"offset {LONG_MAX + 1} is over {LONG_MAX}",
        f"committed_at {U64_MAX} is over {YEAR_9999_MS}",
        f"from_epoch {U64_MAX} is over {LONG_MAX}",
        f"from_offset {LONG_MAX + 2} is over {LONG_MAX}",
        f"high_watermark {LONG_MAX + 3} is over {LONG_MAX}",
    ]


def test_the_last_time_and_number_that_fit_are_kept() -> None:
    """The end of the year 9999, and 2^63 - 1."""
    rows = told([(NOW_MS, "flush", key(), OffsetRecord(LONG_MAX, LONG_MAX, committed_at_ms=YEAR_9999_MS), None)])
    assert (rows[0]["epoch"], rows[0]["offset"], rows[0]["problem"]) == (LONG_MAX, LONG_MAX, None)
    assert rows[0]["committed_at"].year == 9999
    (late,) = told([(NOW_MS, "flush", key(), OffsetRecord(1, 1, committed_at_ms=YEAR_9999_MS + 1), None)])
    assert (late["committed_at"], late["problem"]) == (None, f"committed_at {YEAR_9999_MS + 1} is over {YEAR_9999_MS}")


@given(st.lists(st.tuples(st.sampled_from(KINDS), KEYS, RECORDS, st.none() | RECORDS), min_size=1, max_size=8))
def test_whatever_a_store_can_hold_becomes_a_row(found: list[Any]) -> None:
    """No record is left out, and each number is in its column or in `problem`."""
    rows = told([(NOW_MS, *row) for row in found])
    for row, (kind, at, stands, before) in zip(rows, found, strict=True):
        assert (row["kind"], row["namespace"], row["group"], row["shard"], row["topic"]) == (kind, *at, stands.topic)
        for name, value in (("epoch", stands.epoch), ("offset", stands.offset), ("from_offset", before and before.offset)):
            assert row[name] == value or f"{name} {value} is over" in row["problem"]


def an_open_segment(batches: int) -> tuple[bytes, list[int]]:
    """The bytes of an open segment with this many batches of two rows, and where each batch ends."""
    data, ends = framed(JOURNAL.serialize()), []
    for at in range(batches):
        data += framed(batch_of([2 * at, 2 * at + 1], 2 * at).serialize())
        ends.append(len(data))
    return data, ends


def offsets(rows: pa.Table | None) -> list[int]:
    """The offsets that were read back."""
    return list(rows["offset"].to_pylist()) if rows is not None else []


def test_cut_anywhere_an_open_segment_gives_its_whole_batches() -> None:
    """The number of bytes of an incomplete batch is reported."""
    data, ends = an_open_segment(3)
    schema = len(an_open_segment(0)[0])
    for cut in sorted({*range(0, len(data), 7), 0, schema, *ends}):
        whole = sum(end <= cut for end in ends)
        rows, torn = read(data[:cut])
        assert offsets(rows) == list(range(2 * whole))
        assert torn <= cut
        assert bool(torn) == (cut not in {0, schema, *ends})


@pytest.mark.parametrize("damage", ["zeros", "a flipped bit"])
def test_a_damaged_batch_ends_it(damage: str) -> None:
    """A power cut may leave zeros, which must not be read as rows."""
    data, ends = an_open_segment(3)
    for at in range(ends[0], ends[1], 11):
        hurt = bytearray(data)
        if damage == "zeros":
            hurt[at : at + 64] = bytes(64)
        else:
            hurt[at] ^= 0x10
        if hurt != data:
            assert offsets(read(bytes(hurt)).rows)[:4] in ([0, 1], [0, 1, 2, 3])
            assert offsets(read(bytes(hurt)).rows) == [0, 1] or at + 64 > ends[1]
    assert read(bytes(4096)) == (None, 4096)
    assert read(data[: ends[0]] + bytes(4096)).torn == 4096
