"""The reader as Spark's processes use it: which filters it accepts, how it divides the records, and that each is read once."""

from itertools import pairwise, product
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, Not, StringStartsWith

from adapter.errors import MetaUnavailableError, StoreDamagedError
from adapter.model.codec import pack_names
from adapter.model.paging import parse_page_token
from adapter.model.records import OffsetRecord
from adapter.pipeline.offsets.options import ReadOptions, parse_options
from adapter.pipeline.offsets.reader import (
    PART_RANGES,
    PART_RECORDS,
    SPLIT_RANGES,
    FilteringReader,
    OffsetsReader,
    _thinned,
)
from adapter.pipeline.offsets.selection import MAX_RANGES, prefix_ranges
from adapter.pipeline.offsets.source import OffsetsDataSource
from adapter.pipeline.pushdown import filters_are_offered
from tests.pipeline.bulk_meta import BulkMeta, serving
from tests.unit.helpers import key, record

R = TypeVar("R", bound=OffsetsReader)

NAMESPACE, GROUP = EqualTo(("namespace",), "n"), EqualTo(("group",), "g")


def reader_of(**options: str) -> OffsetsReader:
    """A reader that was not created in a worker of Spark."""
    return made(OffsetsReader, options)


def made(kind: type[R], options: dict[str, str]) -> R:
    """A reader with or without filters."""
    schema = OffsetsDataSource({}).schema()
    return kind(parse_options(ReadOptions, {"endpoints": "127.0.0.1:1", "retryms": "20000", **options}), schema)


def rows_of(reader: OffsetsReader) -> list[dict[str, Any]]:
    """All rows of all parts, in their order."""
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


START = StringStartsWith(("group",), "g")
GROUPS = In(("group",), ("h", None, "g", "\x00"))


@pytest.mark.parametrize(
    ("options", "filters", "left", "asked"),
    [
        ({}, [NAMESPACE, GROUP], [], [("n", "g")]),
        ({}, [GROUP, NAMESPACE], [], [("n", "g")]),
        ({}, [NAMESPACE], [], [("n", "")]),
        ({}, [EqualNullSafe(("namespace",), "n")], [], [("n", "")]),
        ({}, [GROUP], [GROUP], [("", "")]),
        ({}, [GROUPS], [GROUPS], [("", "")]),
        ({}, [NAMESPACE, GROUPS], [], [("n", "g"), ("n", "h")]),
        ({}, [GROUPS, In(("namespace",), ("n", "m"))], [], [("m", "g"), ("m", "h"), ("n", "g"), ("n", "h")]),
        ({"namespace": "m"}, [GROUP], [], [("m", "g")]),
        ({"namespace": "m"}, [NAMESPACE], [NAMESPACE], [("m", "")]),
        ({"namespace": "m", "group": "h"}, [GROUP], [GROUP], [("m", "h")]),
        ({}, [START], [START], [("", "")]),
        ({}, [NAMESPACE, START], [], [("n", "")]),
        ({}, [START, GROUP, NAMESPACE], [START], [("n", "g")]),
        ({}, [NAMESPACE, EqualTo(("namespace",), "m")], [EqualTo(("namespace",), "m")], [("n", "")]),
    ],
)
def test_filters_are_taken_where_they_name_ranges_of_keys(
    options: dict[str, str], filters: list[Filter], left: list[Filter], asked: list[tuple[str, str]]
) -> None:
    """Spark applies the other filters itself."""
    reader = made(FilteringReader, options)
    assert list(reader.pushFilters(filters)) == left
    assert reader._selection.pairs() == asked


@pytest.mark.parametrize(
    "found",
    [
        Not(NAMESPACE),
        In(("namespace",), ("", None)),
        StringStartsWith(("namespace",), "n"),
        EqualTo(("namespace", "x"), "n"),
        EqualTo(("shard",), "n"),
        EqualTo(("namespace",), ""),
        EqualTo(("namespace",), "\x00"),
        EqualTo(("namespace",), "n" * 256),
        EqualNullSafe(("namespace",), None),
    ],
)
def test_any_other_filter_is_left_to_spark(found: Filter) -> None:
    """Also a value that the Meta Service would refuse, for which Spark finds no rows."""
    reader = made(FilteringReader, {})
    assert list(reader.pushFilters([found])) == [found]
    assert reader._selection.namespaces is None


def test_a_filter_with_very_many_names_is_left_to_spark() -> None:
    """Each name is a call."""
    many = In(("group",), tuple(f"g{number}" for number in range(MAX_RANGES + 1)))
    reader = made(FilteringReader, {"namespace": "n"})
    assert list(reader.pushFilters([many])) == [many]
    assert reader._selection.pairs() == [("n", "")]


@pytest.mark.parametrize("count", [2, 3 * SPLIT_RANGES, 3 * PART_RANGES])
@pytest.mark.parametrize("options", [{}, {"partitions": "2"}])
def test_named_groups_are_read_and_nothing_else(options: dict[str, str], count: int) -> None:
    """Many of them share a task; a group that is not there has no rows."""
    meta = BulkMeta()
    meta.records = {key(shard, f"g{number}"): record(number) for number in range(count + 5) for shard in "ab"}
    with serving(meta) as address:
        reader = made(FilteringReader, {"endpoints": address, "namespace": "default", **options})
        assert reader.pushFilters([In(("group",), (*(f"g{number}" for number in range(count)), "gone"))]) == []
        found = rows_of(reader)
        parts = len(reader.partitions())
    assert sorted((row["group"], row["shard"]) for row in found) == sorted(
        (f"g{at}", shard) for at in range(count) for shard in "ab"
    )
    if count > SPLIT_RANGES:
        assert parts == (2 if options else -(-(count + 1) // PART_RANGES))


NAMES = st.text(st.sampled_from("ab\u00e4\uffff\U0001f600"), min_size=1, max_size=5)


@given(NAMES, NAMES, NAMES)
@example("ab", "ab", "s")
@example("a", "a" + "\U0010ffff" * 63, "\U0010ffff" * 63)
@example("\u00e4", "\u00e4" * 127, "\u00e4" * 127)
def test_prefix_ranges_have_the_keys_of_the_prefix(prefix: str, group: str, shard: str) -> None:
    """Each of its groups, of any length, is in one range, and no other is in any."""
    ranges = list(prefix_ranges("c", "n", prefix))
    where = pack_names("c", "n", group, shard)
    assert sum(after < where <= until for after, until in ranges) == group.startswith(prefix)
    assert ranges == sorted(ranges)
    for token in (token for both in ranges for token in both):
        assert parse_page_token(token, pack_names("c", "n"), 4) == token


def test_groups_by_prefix_are_read_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """By key ranges, and where there are few records without them."""
    meta = BulkMeta()
    meta.records = {
        key(shard, group, namespace): record(1)
        for group in (*(f"g{number}" for number in range(30)), "\u00e4", "\u00e4" * 100)
        for shard in "ab"
        for namespace in ("n", "m")
    }
    with serving(meta) as address:
        for prefix, many in product(("g1", "\u00e4", "nobody"), (0, 1_000_000)):
            monkeypatch.setattr("adapter.pipeline.offsets.reader.PREFIX_RECORDS", many)
            reader = made(FilteringReader, {"endpoints": address, "cluster": "c", "partitions": "7", "pagesize": "3"})
            assert reader.pushFilters([NAMESPACE, StringStartsWith(("group",), prefix)]) == []
            wanted = sorted((at.group, at.shard) for at in meta.records if at.namespace == "n" and at.group.startswith(prefix))
            assert sorted((row["group"], row["shard"]) for row in rows_of(reader)) == wanted, (prefix, many)


def test_outside_of_sparks_worker_for_filters_a_reader_takes_none() -> None:
    """While pushdown is off, Spark refuses a reader with filters in its other workers."""
    assert not filters_are_offered()
    source = OffsetsDataSource({"endpoints": "a:1"})
    assert type(source.reader(source.schema())) is OffsetsReader


@given(st.integers(0, 80), st.integers(1, 90))
@example(63, 64)
@example(63, 1)
def test_thinned_tokens_make_parts_of_about_the_same_size(tokens: int, parts: int) -> None:
    """As many as asked for, at most as there are; ordered, without repetition."""
    found = _thinned([bytes([token]) for token in range(tokens)], parts)
    assert len(found) == min(parts - 1, tokens)
    edges = [-1, *(token[0] for token in found), tokens]
    sizes = [after - before for before, after in pairwise(edges)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("options", [{}, {"partitions": "1"}, {"partitions": "3"}, {"partitions": "100", "pagesize": "1"}])
def test_each_record_is_read_once_however_it_is_parted(options: dict[str, str]) -> None:
    """For parts and pages of any size; without the option, few records are one part."""
    meta = BulkMeta()
    meta.records = {
        key(f"s{number:02}", group): record(number, metadata="ä") for number in range(9) for group in ("a", "ab", "ä")
    }
    with serving(meta) as address:
        reader = reader_of(**{"pagesize": "4", **options, "endpoints": address})
        if not options:
            assert len(reader.partitions()) == 1
        found = [(row["group"], row["shard"], row["offset"]) for row in rows_of(reader)]
    assert sorted(found) == sorted((at.group, at.shard, value.offset) for at, value in meta.records.items())


def test_many_records_are_many_parts() -> None:
    """One part for each PART_RECORDS."""
    meta = BulkMeta()
    meta.records = {key(f"s{number}"): record(1) for number in range(50)}
    meta.claims = 5 * PART_RECORDS - 1
    with serving(meta) as address:
        assert len(reader_of(endpoints=address).partitions()) == 5


def test_tombstones_are_shown_only_when_asked_for() -> None:
    """A page with only tombstones is an empty batch, not the end."""
    meta = BulkMeta()
    gone = OffsetRecord(1 << 32, 0, live=False)
    meta.records = {key("a"): gone, key("b"): gone, key("c"): record(1)}
    with serving(meta) as address:
        assert [row["shard"] for row in rows_of(reader_of(endpoints=address, pagesize="1"))] == ["c"]
        shown = rows_of(reader_of(endpoints=address, tombstones="true"))
    assert [(row["shard"], row["live"]) for row in shown] == [("a", False), ("b", False), ("c", True)]


def test_a_meta_service_that_goes_away_between_two_pages_ends_the_task() -> None:
    """A partial read is an error, never a short result."""
    meta = BulkMeta()
    meta.records = {key(f"s{number}"): record(1) for number in range(9)}
    with serving(meta) as address:
        reader = reader_of(endpoints=address, pagesize="2", retryms="0")
        pages = reader.read(reader.partitions()[0])
        next(pages)
        meta.down = True
        with pytest.raises(MetaUnavailableError, match="down by the test"):
            list(pages)


def test_a_damaged_record_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names it; the record is not left out."""
    meta = BulkMeta()
    meta.records = {key(): record(1)}
    monkeypatch.setattr("tests.pipeline.bulk_meta.encode_record", lambda _record: b"cut")
    with serving(meta) as address, pytest.raises(StoreDamagedError, match="record 637574 is damaged"):
        rows_of(reader_of(endpoints=address))
