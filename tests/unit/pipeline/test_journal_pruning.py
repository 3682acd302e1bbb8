"""Filters leave out directories and segments in which no row can pass, and no other."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from adapter.pipeline.journal.options import JournalOptions
from adapter.pipeline.journal.plan import JournalPartition
from adapter.pipeline.journal.pruning import Pruning
from adapter.pipeline.journal.readers import JournalReader, PruningReader
from adapter.pipeline.journal.source import JournalDataSource
from tests.pipeline.segments import RUN, START, write_segment

AT, BROKER = ("at",), ("broker",)
NOON = START + timedelta(hours=12)
DAY = timedelta(days=1)
EVERY = ["2025-12-01 a", "2025-12-01 b", "2025-12-02 a", "2025-12-02 b", "2025-12-03 a", "2025-12-03 b"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three days of two brokers, a segment each."""
    for number in range(3):
        for broker in "ab":
            write_segment(tmp_path, [{"at": START + number * DAY}], number, broker=broker)
    return tmp_path


def opened(root: Path, *filters: Filter) -> list[str]:
    """Date and broker of the segments that tasks open."""
    reader = PruningReader(JournalOptions.of({"path": str(root)}))
    assert list(reader.pushFilters(list(filters))) == list(filters)
    planned = [partition for partition in reader.partitions() if isinstance(partition, JournalPartition)]
    return sorted(f"{segment.date} {segment.broker}" for part in planned for segment in part.segments)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], EVERY),
        ([EqualTo(BROKER, "a")], EVERY[::2]),
        ([EqualNullSafe(BROKER, "b")], EVERY[1::2]),
        ([In(BROKER, ("b", "c"))], EVERY[1::2]),
        ([In(BROKER, ("c",))], []),
        ([StringStartsWith(BROKER, "a")], EVERY[::2]),
        ([EqualTo(AT, NOON)], EVERY[:2]),
        ([In(AT, (NOON, NOON + 2 * DAY))], EVERY[:2] + EVERY[4:]),
        ([GreaterThan(AT, NOON)], EVERY),
        ([GreaterThanOrEqual(AT, START + DAY)], EVERY[2:]),
        ([LessThan(AT, START + DAY)], EVERY[:2]),
        ([LessThanOrEqual(AT, START + DAY)], EVERY[:4]),
        ([GreaterThanOrEqual(AT, START + DAY), LessThan(AT, START + 2 * DAY), EqualTo(BROKER, "a")], ["2025-12-02 a"]),
        ([EqualTo(("run",), RUN)], EVERY),
        ([EqualTo(("run",), RUN + 1)], []),
    ],
)
def test_only_segments_in_which_rows_may_pass_are_opened(root: Path, filters: list[Filter], left: list[str]) -> None:
    """By date, broker and run; Spark applies the filters to their rows."""
    assert opened(root, *filters) == left


@pytest.mark.parametrize(
    "other",
    [
        Not(EqualTo(BROKER, "a")),
        EqualNullSafe(BROKER, None),
        In(AT, (None,)),
        IsNotNull(AT),
        StringContains(BROKER, "x"),
        EqualTo(("kind",), "flush"),
        EqualTo(("broker", "at"), "x"),
    ],
)
def test_a_filter_that_says_nothing_about_paths_opens_all(root: Path, other: Filter) -> None:
    """It is left to Spark."""
    assert opened(root, other) == EVERY


def test_directories_that_are_left_out_are_not_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With years of days, listing them would take longer than reading."""
    listed: list[str] = []
    monkeypatch.setattr("adapter.pipeline.journal.listing._entries", noting(listed))
    opened(root, EqualTo(BROKER, "a"), LessThan(AT, START + DAY))
    assert [Path(path).name for path in listed] == [root.name, "date=2025-12-01", "broker=a"]


def noting(listed: list[str]) -> Callable[..., Any]:
    """Lists a directory, and notes its path."""
    from adapter.pipeline.journal.listing import _entries  # noqa: PLC0415 - before it is replaced

    def entries(files: Any, path: str, troubles: dict[str, str]) -> Sequence[Any]:
        listed.append(path)
        return _entries(files, path, troubles)

    return entries


TIMES = st.datetimes(datetime(2025, 11, 30), datetime(2025, 12, 5), timezones=st.just(UTC))  # noqa: DTZ001 - Hypothesis adds it
KINDS: Mapping[Any, Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,
    GreaterThanOrEqual: lambda value, other: value >= other,
    LessThan: lambda value, other: value < other,
    LessThanOrEqual: lambda value, other: value <= other,
}


@given(at=TIMES, kind=st.sampled_from(list(KINDS)), value=TIMES)
def test_a_row_that_passes_is_never_left_out(at: datetime, kind: Any, value: datetime) -> None:
    """Whatever the filter on its time."""
    if KINDS[kind](at, value):
        assert Pruning.by([kind(AT, value)]).date(at.date().isoformat())


def test_the_source_prunes_only_where_spark_offers_filters(root: Path) -> None:
    """Elsewhere Spark refuses such a reader while pushdown is off."""
    source = JournalDataSource({"path": str(root)})
    reader = source.reader(source.schema())
    assert type(reader) is JournalReader
    assert pa.Table.from_batches(batch for part in reader.partitions() for batch in reader.read(part)).num_rows == 6
