"""Numbers of lag, as a person reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.cli.lag_text import (
    STATUSES,
    UNKNOWN,
    WORDS,
    age_text,
    arrow,
    count_text,
    rate_text,
    shards_text,
    span_text,
    status_word,
    trend_text,
)
from adapter.model.lag_status import severity
from adapter.rpc import lag_pb


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (0.44, "0.4s"),
        (9.96, "10s"),
        (12.9, "12s"),
        (59.99, "59s"),
        (60, "1m"),
        (200, "3m 20s"),
        (3_600, "1h"),
        (18_120, "5h 2m"),
        (86_399, "23h 59m"),
        (4 * 86_400 + 3 * 3_600 + 59, "4d 3h"),
        (-3, "0s"),
        (1e11, "1,157,407d"),
    ],
)
def test_a_span_has_at_most_two_units(seconds: float | None, text: str) -> None:
    """Whole ones, cut off: what is 59.99 s old has not been there for a minute."""
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999_999, "999,999"),
        (1_000_000, "1M"),
        (1_234_567, "1.23M"),
        (999_700_000, "1,000M"),
        (2**63, "9.22E"),
    ],
)
def test_a_count_is_exact_below_a_million(count: int | None, text: str) -> None:
    """Above, three digits."""
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("rate", "text", "growth", "way"),
    [
        (None, "-", "-", " "),
        (0.0, "0", "0", "→"),
        (0.01, "0.01", "0", "→"),
        (-0.04, None, "0", "→"),
        (0.5, "0.5", "+0.5", "↑"),
        (-12.34, None, "-12.3", "↓"),
        (100.4, "100", "+100", "↑"),
        (4_321.0, "4,321", "+4,321", "↑"),
        (5e6, "5M", "+5M", "↑"),
    ],
)
def test_rates_and_trends(rate: float | None, text: str | None, growth: str, way: str) -> None:
    """A trend has a sign, and is level where it is next to nothing."""
    assert (trend_text(rate), arrow(rate)) == (growth, way)
    if text is not None:
        assert rate_text(rate) == text


def test_an_age_is_never_negative_and_unknown_is_not_1970() -> None:
    """The clock of a committer may be ahead."""
    assert [age_text(at, 10_000) for at in (0, 4_000, 99_000)] == ["-", "6s", "0s"]


def test_shards_by_status_the_worst_first() -> None:
    """Nothing is said of those that are well."""
    assert shards_text(lag_pb.GroupLag(shards=1_200)) == "1,200"
    assert shards_text(lag_pb.GroupLag(shards=12, stop=2, warn=1, rewind=3, stall=4)) == "12: 2 stop, 4 stall, 3 rewind, 1 warn"


def test_every_status_of_the_proto_has_a_word_from_good_to_bad() -> None:
    """The same for the option and for the labels of metrics; one of a later version is unknown."""
    assert {*WORDS} == {*lag_pb.LagStatus.values()}
    assert [*STATUSES] == ["ok", "warn", "rewind", "stall", "stop", "beyond"]
    assert [*STATUSES.values()] == sorted(STATUSES.values(), key=severity)
    assert status_word(99) == UNKNOWN


@given(st.floats(min_value=0, max_value=1e15))
def test_a_cell_stays_narrow(value: float) -> None:
    """It fits its column on the live screen."""
    assert len(rate_text(value)) <= 9
    assert len(count_text(int(value))) <= 9
    assert len(span_text(min(value, 8e9))) <= 8
