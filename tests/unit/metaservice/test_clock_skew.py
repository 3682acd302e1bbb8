"""Commit times of adapters whose clock is wrong, as the Meta Service stores them."""

import time

import pytest
from structlog.testing import capture_logs

from adapter.metaservice.clock_skew import SkewedClocks, shifted, shifted_entries, shifted_records
from adapter.metaservice.metrics import MetaMetrics
from adapter.model.codec import decode_record, encode_record
from adapter.model.records import SaveEntry
from tests.unit.helpers import key, record

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("their_ms", "shift_ms"),
    [
        (0, 0),
        (NOW_MS, 0),
        (NOW_MS - 30_000, 0),
        (NOW_MS + 30_000, 0),
        (NOW_MS - 30_001, 30_001),
        (NOW_MS + 8 * DAY_MS, -8 * DAY_MS),
    ],
)
def test_a_clock_is_off_beyond_half_a_minute(their_ms: int, shift_ms: int) -> None:
    """Times of a caller that does not send its clock are never shifted."""
    metrics = MetaMetrics()
    assert SkewedClocks(metrics).shift_ms(their_ms, NOW_MS, "b") == shift_ms
    assert metrics.registry.get_sample_value("offset_meta_skewed_saves_total") == bool(shift_ms)


@pytest.mark.parametrize(
    ("at_ms", "shift_ms", "stored_ms"),
    [
        (NOW_MS - 8 * DAY_MS, 8 * DAY_MS, NOW_MS),
        (NOW_MS - 9 * DAY_MS, 8 * DAY_MS, NOW_MS - DAY_MS),
        (NOW_MS - 5, 8 * DAY_MS, NOW_MS),  # once adopted from here: it is not moved beyond now
        (NOW_MS + 8 * DAY_MS, -8 * DAY_MS, NOW_MS),
        (5, -8 * DAY_MS, 1),
    ],
)
async def test_a_time_is_moved_by_as_much_and_never_beyond_now(at_ms: int, shift_ms: int, stored_ms: int) -> None:
    """In both forms of a save. It never becomes 0, which would mean no time."""
    assert shifted(at_ms, shift_ms, NOW_MS) == stored_ms
    before = record(5, 2, committed_at_ms=at_ms, metadata="m", topic="t", partition=3)
    after = before._replace(committed_at_ms=stored_ms)
    (entry,) = shifted_entries([SaveEntry(key(), before, 4)], shift_ms, NOW_MS)
    assert entry == SaveEntry(key(), after, 4)
    (data,) = await shifted_records([encode_record(before)], shift_ms, NOW_MS)
    assert decode_record(data) == after


@pytest.mark.parametrize("their_ms", [NOW_MS, 0])
def test_a_time_that_has_not_come_yet_is_corrected_whoever_sends_it(their_ms: int) -> None:
    """Also from a job, which sends no clock: its group would never expire, and its record of unknown epoch undo a reset (7)."""
    clocks = SkewedClocks(MetaMetrics())
    assert clocks.correction_ms(NOW_MS + 30_001, their_ms, NOW_MS, "b") == 0
    assert clocks.correction_ms(NOW_MS + 30_000, their_ms, NOW_MS, "b") is None


def test_a_warning_is_not_repeated_with_each_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one a minute."""
    clocks = SkewedClocks(MetaMetrics())
    began = time.monotonic()
    told = []
    for seconds in (0, 59, 61):
        monkeypatch.setattr("adapter.metaservice.clock_skew.time.monotonic", lambda at=began + seconds: at)
        with capture_logs() as logs:
            clocks.shift_ms(NOW_MS - DAY_MS, NOW_MS, "b")
        told.append([entry["event"] for entry in logs] == ["save.clock_skew"])
    assert told == [True, False, True]
