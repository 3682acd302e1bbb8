"""Times and durations as kafka-consumer-groups takes them."""

import time

import pytest

from adapter.errors import InvalidInputError
from adapter.runtime.times import before_ms, datetime_ms

NOON_MS = 1_795_262_400_000  # 2026-11-21T12:00:00Z
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "unix_ms"),
    [
        ("2026-11-21T12:00:00.000", NOON_MS),
        ("2026-11-21T12:00:00.000Z", NOON_MS),
        ("2026-11-21T13:00:00.000+01:00", NOON_MS),
        ("2026-11-21T06:30:00.000-0530", NOON_MS),
        ("2026-11-21T13:00:00.000+01", NOON_MS),
        ("2026-11-21T12:00:00.007", NOON_MS + 7),
        ("2026-11-21T12:00:00.5", NOON_MS + 500),
        ("2026-11-21T12:00:01", NOON_MS + 1_000),
        ("2026-11-21T12:00", NOON_MS),
        ("1970-01-01T00:00:00.000", 0),
        ("2024-02-29T00:00:00.000", 1_709_164_800_000),
    ],
)
def test_a_time_is_a_moment(text: str, unix_ms: int) -> None:
    """Without a zone it is UTC, whatever the machine's zone is, as Kafka's tool has it."""
    assert datetime_ms(text, "--to-datetime") == unix_ms


def test_the_machines_zone_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command gives the same moment on every machine."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "XYZ-9")
        time.tzset()
        found = datetime_ms("2026-11-21T12:00:00.000", "f")
    time.tzset()
    assert found == NOON_MS


@pytest.mark.parametrize("text", ["", "2026-11-21", "2026-11-21 12:00:00.000", "12:00", "1795262400000", "2026-W47-6T12:00", "x"])
def test_what_is_no_time_is_told_with_an_example(text: str) -> None:
    """The error says the format, and that a time without a zone is UTC."""
    with pytest.raises(InvalidInputError) as raised:
        datetime_ms(text, "--to-datetime")
    example = "is not a time like 2026-11-21T13:45:00.000+01:00; without a zone it is UTC"
    assert str(raised.value) == f"--to-datetime: {text!r} {example}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-02-29T00:00:00.000", "day is out of range for month"),
        ("2026-13-01T00:00:00.000", "month must be in 1..12"),
        ("2026-11-21T24:00:01.000", "hour must be in 0..23"),
        ("1969-12-31T23:59:59.999", "is before 1970"),
        ("1970-01-01T00:00:00.000+01:00", "is before 1970"),
    ],
)
def test_a_time_that_is_not_on_the_clock_is_told(text: str, reason: str) -> None:
    """With the reason."""
    with pytest.raises(InvalidInputError, match=reason):
        datetime_ms(text, "--to-datetime")


@pytest.mark.parametrize(
    ("text", "past_ms"),
    [
        ("P1D", DAY_MS),
        ("PT1H", 3_600_000),
        ("PT1M", 60_000),
        ("PT1S", 1_000),
        ("PT0S", 0),
        ("PT0.5S", 500),
        ("PT1.25S", 1_250),
        ("P7DT1H2M3.004S", 7 * DAY_MS + 3_723_004),
        ("P0DT0H5M0S", 300_000),
        ("PT36H", 36 * 3_600_000),
        ("pt1h", 3_600_000),
    ],
)
def test_a_duration_is_taken_from_now(text: str, past_ms: int) -> None:
    """ISO 8601, the part that java.time.Duration reads."""
    assert before_ms(text, NOON_MS, "--by-duration") == NOON_MS - past_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "P1", "P1W", "P1M", "P1Y", "-P1D", "P-1D", "PT1M1H", "PT1H1H", "P1H", "7d"]
)
def test_what_is_no_duration_is_told_with_examples(text: str) -> None:
    """Years and months are refused, because their length varies."""
    with pytest.raises(InvalidInputError, match="is not a duration like P7D, PT12H or P1DT2H30M5S"):
        before_ms(text, NOON_MS, "--by-duration")


@pytest.mark.parametrize("text", ["P30000D", "PT999999999999S"])
def test_a_duration_ends_in_1970(text: str) -> None:
    """A time before 1970 is refused."""
    with pytest.raises(InvalidInputError, match="is before 1970"):
        before_ms(text, NOON_MS, "--by-duration")
