"""The journal's thread: when it finishes segments, and what it does after failures. The tests run its steps themselves."""

import errno
from pathlib import Path

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from adapter.sidecar.journal.notes import Notes
from adapter.sidecar.journal.writer import RETRY_FIRST_S, RETRY_MAX_S, SLICE_ROWS, SegmentWriter
from adapter.testing.waiting import eventually
from tests.unit.helpers import key
from tests.unit.journaling import (
    DAY_MS,
    NOW_MS,
    SetTime,
    flush_of,
    moves_of,
    offsets_in,
    open_segments,
    rows_in,
    rows_of_file,
    segments,
    writer_over,
)

FULL = OSError(errno.ENOSPC, "No space left on device")


def put(notes: Notes, *offsets: int, at_ms: int = NOW_MS) -> None:
    """Note a flush."""
    assert notes.put(flush_of(offsets, at_ms), len(offsets))


def test_a_segment_is_finished_when_its_age_has_passed(tmp_path: Path) -> None:
    """The age counts since the last segment was finished."""
    time = SetTime()
    writer, notes, _ = writer_over(tmp_path, time, segment_max_age_ms=1_000)
    put(notes, 1)
    writer._turn(stopping=False)
    time.passes(999)
    put(notes, 2)
    writer._turn(stopping=False)
    assert (len(open_segments(tmp_path)), segments(tmp_path)) == (1, [])
    time.passes(1)
    writer._turn(stopping=False)
    assert (open_segments(tmp_path), len(segments(tmp_path))) == ([], 1)
    assert offsets_in(tmp_path) == [1, 2]
    time.passes(999)
    put(notes, 3)
    writer._turn(stopping=False)
    assert len(segments(tmp_path)) == 1


def test_a_long_queue_does_not_put_off_the_end_of_a_segment(tmp_path: Path) -> None:
    """The age is checked after each slice of the queue."""
    time = SetTime()
    writer, notes, files = writer_over(tmp_path, time, segment_max_age_ms=1_000)
    put(notes, *range(6 * SLICE_ROWS))
    append = files.append

    def slow(batch: pa.RecordBatch, at_ms: int) -> None:
        time.passes(400)
        append(batch, at_ms)

    files.append = slow  # type: ignore[method-assign]
    writer._turn(stopping=False)
    assert offsets_in(tmp_path) == list(range(6 * SLICE_ROWS))
    assert len(segments(tmp_path)) == 2


def test_when_nothing_happens_a_heartbeat_says_so(tmp_path: Path) -> None:
    """One segment with a heartbeat for each age without rows, but none at the stop."""
    time = SetTime()
    writer, notes, _ = writer_over(tmp_path, time, segment_max_age_ms=1_000)
    for _ in range(2):
        time.passes(1_000)
        writer._turn(stopping=False)
    put(notes, 7, at_ms=time.now_ms)
    writer._turn(stopping=False)
    time.passes(1_000)
    writer._turn(stopping=False)
    time.passes(1_000)
    writer._turn(stopping=True)
    rows = rows_in(tmp_path)
    assert [(row["seq"], row["kind"], row["group"]) for row in rows] == [
        (0, "heartbeat", ""),
        (1, "heartbeat", ""),
        (2, "flush", "g"),
    ]
    assert [round(row["at"].timestamp() * 1000) - NOW_MS for row in rows] == [1_000, 2_000, 2_000]
    assert len(segments(tmp_path)) == 3


def test_the_stop_finishes_the_segment(tmp_path: Path) -> None:
    """It has everything that was noted."""
    writer, notes, _ = writer_over(tmp_path, SetTime())
    writer.start()
    put(notes, 1)
    notes.put(moves_of("reset", key(), 1, 2), 1)
    writer.wake()
    writer.stop()
    assert not writer._thread.is_alive()
    assert [(row["seq"], row["kind"], row["offset"]) for row in rows_in(tmp_path)] == [(0, "flush", 1), (1, "reset", 2)]
    assert (notes.counts.rows, notes.counts.queued, notes.counts.segments) == (2, 0, 1)
    assert open_segments(tmp_path) == []


def test_many_notes_share_batches_and_a_long_one_is_cut(tmp_path: Path) -> None:
    """Rows keep their order; over midnight they go into two segments."""
    writer, notes, _ = writer_over(tmp_path, SetTime())
    expected: list[int] = []
    for at in range(40):
        size = SLICE_ROWS + 5 if at % 10 == 3 else 2
        offsets = range(1000 * at, 1000 * at + size)
        expected += offsets
        put(notes, *offsets, at_ms=NOW_MS + (at // 20) * DAY_MS)
    writer._turn(stopping=True)
    rows = rows_in(tmp_path)
    assert [row["offset"] for row in rows] == expected
    assert [row["seq"] for row in rows] == list(range(len(expected)))
    assert [{f"{row['at']:%d}" for row in rows_of_file(found)} for found in segments(tmp_path)] == [{"14"}, {"15"}]


async def test_a_full_disk_is_told_once_and_tried_again(tmp_path: Path) -> None:
    """Nothing is lost while the queue has room, and nothing is written twice."""
    with capture_logs() as logs:
        writer, notes, files = writer_over(tmp_path, SetTime())
        files.fault = FULL
        writer.start()
        put(notes, 1)
        writer.wake()
        await eventually(lambda: notes.counts.failures >= 3)
        assert "No space left" in notes.counts.last_error
        put(notes, 2)
        files.fault = None
        await eventually(lambda: notes.counts.rows == 2)
        await eventually(lambda: not notes.counts.last_error)
        writer.stop()
    assert [entry["event"] for entry in logs] == ["journal.failed", "journal.resumed"]
    assert offsets_in(tmp_path) == [1, 2]
    assert (notes.counts.dropped, notes.counts.failures >= 3) == (0, True)


async def test_after_a_failure_rows_of_two_days_stay_apart(tmp_path: Path) -> None:
    """Each segment has the rows of one day."""
    writer, notes, files = writer_over(tmp_path, SetTime())
    put(notes, 1)
    put(notes, 2, at_ms=NOW_MS + DAY_MS)
    files.fault = FULL
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            writer._turn(stopping=False)
    put(notes, 3, at_ms=NOW_MS + DAY_MS)
    files.fault = None
    writer._turn(stopping=True)
    assert [[row["offset"] for row in rows_of_file(found)] for found in segments(tmp_path)] == [[1], [2, 3]]


def test_pauses_between_attempts_grow_to_a_limit(tmp_path: Path) -> None:
    """After a success they begin again with the shortest."""
    writer, _, _ = writer_over(tmp_path, SetTime())
    pauses = []
    for _ in range(9):
        writer._failed("by the test")
        pauses.append(writer._pause_s)
    assert pauses[:3] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S]
    assert pauses[-1] == RETRY_MAX_S
    writer._well()
    writer._failed("by the test")
    assert writer._pause_s == RETRY_FIRST_S


def test_what_cannot_be_written_by_the_stop_is_counted(tmp_path: Path) -> None:
    """After one more attempt the process ends."""
    writer, notes, files = writer_over(tmp_path, SetTime())
    files.fault = FULL
    with capture_logs() as logs:
        writer.start()
        put(notes, *range(2 * SLICE_ROWS))
        put(notes, 1)
        writer.stop()
    assert not writer._thread.is_alive()
    assert (notes.counts.dropped, notes.counts.queued) == (2 * SLICE_ROWS + 1, 0)
    assert [entry["dropped_rows"] for entry in logs if entry["event"] == "journal.incomplete"] == [2 * SLICE_ROWS + 1]


def test_dropped_rows_leave_a_gap_in_the_numbers(tmp_path: Path) -> None:
    """A reader sees that rows are missing."""
    writer, notes, _ = writer_over(tmp_path, SetTime())
    put(notes, 1)
    writer._turn(stopping=False)
    notes.counts.overflowed += 5
    put(notes, 2)
    writer._turn(stopping=True)
    assert [row["seq"] for row in rows_in(tmp_path)] == [0, 6]


async def test_a_bug_costs_its_rows_and_not_the_journal(tmp_path: Path) -> None:
    """They are counted, and logged with a trace; later rows are written."""
    writer, notes, files = writer_over(tmp_path, SetTime())
    files.fault = ValueError("by the test")
    with capture_logs() as logs:
        writer.start()
        put(notes, 1, 2)
        writer.wake()
        await eventually(lambda: notes.counts.lost == 2)
        files.fault = None
        put(notes, 3)
        writer.stop()
    assert "journal.rows_lost" in [entry["event"] for entry in logs]
    assert [(row["offset"], row["seq"]) for row in rows_in(tmp_path)] == [(3, 2)]


def test_a_disk_that_does_not_answer_does_not_hold_up_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a time limit the process ends, whether or not the rows were written."""
    monkeypatch.setattr("adapter.sidecar.journal.writer.STOP_LIMIT_S", 0.05)
    writer, notes, files = writer_over(tmp_path, SetTime())
    files.gate.clear()
    with capture_logs() as logs:
        writer.start()
        put(notes, 1)
        writer.stop()
        assert [entry["event"] for entry in logs] == ["journal.stuck"]
        assert isinstance(writer, SegmentWriter)
        files.gate.set()
        writer._thread.join()
    assert offsets_in(tmp_path) == [1]
