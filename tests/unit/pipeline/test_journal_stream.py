"""The data source `offset-journal` as Spark calls it, without Spark: limits, availableNow, plans and options."""

import json
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles
from pyspark.sql.types import LongType, StringType, StructField, StructType

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.journal.listing import Listing
from adapter.pipeline.journal.segment import UNREADABLE
from adapter.pipeline.journal.source import JournalDataSource, JournalPartition, JournalStreamReader
from tests.pipeline.segments import RUN, commits, write_segment, write_segments

Json = dict[str, Any]


def stream(*roots: Path, **options: str) -> JournalStreamReader:
    """The reader of a query."""
    source = JournalDataSource({"paths": json.dumps([str(root) for root in roots]), **options})
    return source.streamReader(source.schema())


def rows(reader: JournalStreamReader, partitions: Sequence[InputPartition]) -> list[tuple[Any, ...]]:
    """The rows of the tasks of a batch; reader and partitions are pickled as for a worker."""
    found: list[tuple[Any, ...]] = []
    for partition in partitions:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):  # noqa: S301 - our own
            found += zip(*(batch[name].to_pylist() for name in ("broker", "run", "seq", "kind", "segment")), strict=True)
    return found


def batches(reader: JournalStreamReader, start: Json) -> Iterator[tuple[Json, Json]]:
    """Each batch as Spark runs it: offsets are converted to JSON and back."""
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        end = json.loads(json.dumps(end))
        yield start, end
        start = end


def test_a_batch_has_at_most_so_many_files_and_each_row_comes_once(tmp_path: Path) -> None:
    """Over all batches, for two directories and three brokers."""
    table = commits(10, 5, 2)
    for root, broker in ((tmp_path / "x", "a"), (tmp_path / "x", "b/c"), (tmp_path / "y", "d")):
        write_segments(root, table, 10, broker=broker)
    reader = stream(tmp_path / "x", tmp_path / "y", maxFilesPerTrigger="4")
    assert reader.getDefaultReadLimit() == ReadMaxFiles(4)
    seen: Counter[tuple[Any, ...]] = Counter()
    for start, end in batches(reader, reader.initialOffset()):
        found = rows(reader, reader.partitions(start, end))
        assert len({row[-1] for row in found}) <= 4
        seen.update(row[:3] for row in found)
    assert seen == Counter({(broker, RUN, seq): 1 for broker in ("a", "b/c", "d") for seq in range(100)})


def test_read_all_available_is_without_limit(tmp_path: Path) -> None:
    """Spark uses it for Trigger.Once."""
    write_segments(tmp_path, commits(10, 5, 2), 10)
    reader = stream(tmp_path, maxFilesPerTrigger="1", maxBytesPerTrigger="1")
    end = reader.latestOffset({}, ReadAllAvailable())
    assert len(rows(reader, reader.partitions({}, end))) == 100


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadMaxFiles(1000)),
        ({"maxbytespertrigger": "5000"}, ReadMaxBytes(5000)),
        ({"maxFilesPerTrigger": "7"}, ReadMaxFiles(7)),
    ],
)
def test_the_limit_is_what_the_options_say(tmp_path: Path, options: dict[str, str], limit: object) -> None:
    """The default is a thousand files."""
    source = JournalDataSource(lowered({"path": str(tmp_path), **options}))
    assert source.streamReader(source.schema()).getDefaultReadLimit() == limit


def lowered(options: dict[str, str]) -> dict[str, str]:
    """Spark's options ignore case."""
    return cast("dict[str, str]", CaseInsensitiveDict(options))


def test_bytes_are_a_limit(tmp_path: Path) -> None:
    """Counted as the size of the files."""
    sizes = [path.stat().st_size for path in write_segments(tmp_path, commits(10, 5, 2), 20)]
    reader = stream(tmp_path, maxBytesPerTrigger=str(sizes[0] + sizes[1]), maxFilesPerTrigger="4")
    counts = [len(rows(reader, reader.partitions(start, end))) for start, end in batches(reader, {})]
    assert max(counts) == 40
    assert sum(counts) == 100


def test_available_now_takes_nothing_that_comes_later_and_ends(tmp_path: Path) -> None:
    """Otherwise a busy fleet would keep it running for ever."""
    write_segments(tmp_path, commits(4, 5, 2), 10)
    reader = stream(tmp_path, maxFilesPerTrigger="3")
    reader.prepareForTriggerAvailableNow()
    counts = []
    for start, end in batches(reader, {}):
        counts.append(len(rows(reader, reader.partitions(start, end))))
        write_segment(tmp_path, commits(1), 100 + len(counts), broker="new")
    assert counts == [30, 10]


def test_a_batch_planned_again_has_the_same_partitions(tmp_path: Path) -> None:
    """In another process, when there are more segments than before."""
    write_segments(tmp_path, commits(10, 5, 2), 10, broker="a")
    write_segments(tmp_path, commits(10, 5, 2), 5, broker="b")
    reader = stream(tmp_path, maxFilesPerTrigger="12", partitionBytes="65536")
    (_, first), (start, end), *_ = list(batches(reader, {}))
    assert first == start
    planned = reader.partitions(start, end)
    assert len(planned) > 2
    write_segment(tmp_path, commits(1), 90, broker="a")
    write_segment(tmp_path, commits(1), 0, broker="0")
    again = stream(tmp_path, partitionBytes="65536").partitions(start, end)
    assert again == planned


def test_a_segment_that_vanished_before_its_batch_was_run_again_is_told(tmp_path: Path) -> None:
    """The offset has it, but no directory does."""
    first, second = write_segments(tmp_path, commits(2, 5, 2), 10, broker="a b")
    reader = stream(tmp_path)
    end = reader.latestOffset({}, ReadAllAvailable())
    first.unlink()
    found = rows(stream(tmp_path), stream(tmp_path).partitions({}, end))
    assert found[0] == ("a b", RUN, 0, UNREADABLE, f"{tmp_path}/date=*/broker=a%20b/{RUN}-00000000.parquet")
    assert [row[-1] for row in found[1:]] == [str(second)] * 10


def test_segments_that_are_given_up_are_told(tmp_path: Path) -> None:
    """When a run ends, one row reports those that never came."""
    for number in (0, 1, 4):
        write_segment(tmp_path, [{}], number)
    reader = stream(tmp_path)
    start = reader.latestOffset({}, ReadAllAvailable())
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    write_segment(tmp_path, [{}], 0, run=RUN + 1, date="2026-01-01")
    end = reader.latestOffset(start, ReadAllAvailable())
    told, segment = reader.partitions(start, end)
    assert isinstance(told, JournalPartition)
    assert isinstance(segment, JournalPartition)
    ((broker, run, _, problem),) = told.missing
    assert (broker, run) == ("broker-1", RUN)
    assert "segments 2 to 3 of this run never arrived" in problem
    assert len(segment.segments) == 1


def test_partitions_are_about_equal_and_in_order(tmp_path: Path) -> None:
    """A few large ones instead of one for each file."""
    sizes = {path.stat().st_size for path in write_segments(tmp_path, commits(100, 5, 2), 10)}
    cost = max(sizes) + 2**14
    source = JournalDataSource({"path": str(tmp_path), "partitionBytes": str(cost * 26)})
    planned = source.reader(source.schema()).partitions()
    assert all(isinstance(partition, JournalPartition) for partition in planned)
    numbers = [
        [segment.number for segment in partition.segments] for partition in planned if isinstance(partition, JournalPartition)
    ]
    assert [number for part in numbers for number in part] == list(range(100))
    assert [len(part) for part in numbers] == pytest.approx([25] * 4, abs=1)


def test_nothing_between_equal_offsets(tmp_path: Path) -> None:
    """Spark may ask for such a batch."""
    write_segment(tmp_path, [{}])
    reader = stream(tmp_path)
    end = reader.latestOffset({}, ReadAllAvailable())
    assert reader.partitions(end, end) == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_batch_read_fails_when_something_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream would read it later; a batch would silently leave it out."""
    trouble = {"/j/date=2025-12-01": "cannot be listed: Permission denied"}
    monkeypatch.setattr("adapter.pipeline.journal.source.Lister.list", lambda _: Listing({}, trouble))
    source = JournalDataSource({"path": str(tmp_path)})
    with pytest.raises(AdapterError, match=r"not all segments.*/j/date=2025-12-01 cannot be listed"):
        source.reader(source.schema()).partitions()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"maxFilesPerTriger": "5"}, "no such option: maxFilesPerTriger"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger = '0'"),
        ({"maxBytesPerTrigger": "16m"}, "maxBytesPerTrigger = '16m'"),
        ({"partitionBytes": "-1"}, "partitionBytes = '-1'"),
        ({"paths": "/a,/b"}, "is no JSON"),
        ({"paths": '["/a", 5]'}, "is no JSON list"),
        ({"paths": '"/a"'}, "is no JSON list"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(options: dict[str, str], told: str) -> None:
    """For a stream and for a batch."""
    source = JournalDataSource(options)
    for reader in (source.reader, source.streamReader):
        with pytest.raises(ConfigError) as caught:
            reader(source.schema())
        assert told in str(caught.value)


def test_a_schema_of_other_columns_is_refused(tmp_path: Path) -> None:
    """The error names the columns."""
    schema = StructType([StructField("offset", StringType()), StructField("of", LongType()), StructField("seq", LongType())])
    with pytest.raises(ConfigError, match="no such columns, or not of this type: offset, of;"):
        JournalDataSource({"path": str(tmp_path)}).reader(schema)


def test_a_schema_of_fewer_columns_is_read_so(tmp_path: Path) -> None:
    """Columns come in the order of the schema."""
    write_segment(tmp_path, [{}, {"offset": 5}])
    schema = StructType([StructField("offset", LongType()), StructField("group", StringType())])
    reader = JournalDataSource({"path": str(tmp_path)}).reader(schema)
    (partition,) = reader.partitions()
    assert pa.Table.from_batches(reader.read(partition)).to_pylist() == [{"offset": 0, "group": "g"}, {"offset": 5, "group": "g"}]
