"""The data source `offset-journal` as Spark calls it, without Spark: limits, availableNow, plans and options."""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles
from pyspark.sql.types import LongType, StringType, StructField, StructType

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.journal.listing import Listing
from adapter.pipeline.journal.plan import JournalPartition
from adapter.pipeline.journal.readers import SEGMENTS, JournalStreamReader, segments_of
from adapter.pipeline.journal.segment import UNREADABLE, MissingSegmentError
from adapter.pipeline.journal.source import JournalDataSource, SegmentsDataSource
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


def lost_root(root: Path) -> None:
    """The directory of the mount itself is gone."""
    root.rename(root.parent / "elsewhere")


def empty_root(root: Path) -> None:
    """What is below a mount that is lost: an empty directory."""
    root.rename(root.parent / "elsewhere")
    root.mkdir()


def no_directory(root: Path) -> None:
    """Another thing stands there."""
    root.rename(root.parent / "elsewhere")
    root.touch()


@pytest.mark.parametrize("lose", [lost_root, empty_root, no_directory])
@pytest.mark.parametrize("other", [False, True])
def test_a_lost_mount_of_the_driver_loses_no_row(tmp_path: Path, lose: Callable[[Path], None], other: bool) -> None:
    """Neither as rows that say so, nor by an offset that advances; once it is back, the batch is as it was.

    Also when another directory is still there.
    """
    root = tmp_path / "mount" / "j"
    roots = [root, tmp_path / "other"][: 1 + other]
    for number in range(3):
        write_segment(root, [{}], number)
    write_segment(tmp_path / "other", [{}], broker="b")
    reader = stream(*roots)
    end = reader.latestOffset({}, ReadAllAvailable())
    before = reader.partitions({}, end)
    lose(root)
    with pytest.raises(AdapterError, match=r"mount/j.*"):
        stream(*roots).partitions({}, end)
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    if root.is_dir():
        root.rmdir()
    root.unlink(missing_ok=True)
    (root.parent / "elsewhere").rename(root)
    assert stream(*roots).partitions({}, end) == before


class Closed(fs.LocalFileSystem):  # type: ignore[misc] # pyarrow has no types
    """A file system with directories that cannot be listed: root may read everything."""

    def __init__(self, closed: str) -> None:
        super().__init__()
        self._closed = closed

    def get_file_info(self, what: object) -> object:
        """Refuses to list the directory."""
        if isinstance(what, fs.FileSelector) and what.base_dir.endswith(self._closed):
            raise PermissionError(13, "Permission denied")
        return super().get_file_info(what)


@pytest.mark.parametrize("closed", ["date=2025-12-01", "broker=broker-1", "broker=other"])
def test_a_segment_is_gone_only_if_no_directory_may_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """Root, date and the broker's directory have to be listed; that of another broker does not matter."""
    paths = [write_segment(tmp_path, [{}], number) for number in range(2)]
    write_segment(tmp_path, [{}], broker="other")
    end = stream(tmp_path).latestOffset({}, ReadAllAvailable())
    write_segment(tmp_path, [{}], 2, date="2025-12-02")
    paths[0].unlink()
    monkeypatch.setattr("adapter.pipeline.journal.listing.Place.opened", lambda place: (Closed(closed), place.url))
    end.pop("other/1764547200000")
    if closed == "broker=other":
        missing, found = stream(tmp_path).partitions({}, end)
        assert [row[3] for row in rows(stream(tmp_path), [missing, found])] == [UNREADABLE, "flush"]
    else:
        with pytest.raises(AdapterError, match=rf"segment 0 of run {RUN} of broker 'broker-1'.*{closed} cannot be listed"):
            stream(tmp_path).partitions({}, end)


def test_a_segment_that_is_deleted_after_it_was_planned_fails_its_task_and_is_told_by_the_next_plan(tmp_path: Path) -> None:
    """The task cannot know why it is not there; the driver that starts again can."""
    first, _ = write_segments(tmp_path, commits(2, 5, 2), 10)
    reader = stream(tmp_path)
    end = reader.latestOffset({}, ReadAllAvailable())
    planned = reader.partitions({}, end)
    first.unlink()
    with pytest.raises(MissingSegmentError):
        rows(reader, planned)
    assert [row[3] for row in rows(reader, stream(tmp_path).partitions({}, end))].count(UNREADABLE) == 1


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
    ((first, problem),) = told.missing
    assert (first.broker, first.run, first.number) == ("broker-1", RUN, 2)
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


def test_the_progress_has_the_offset_of_all_that_was_found(tmp_path: Path) -> None:
    """So a dashboard sees how far the query is behind; before the first batch it is not known."""
    write_segments(tmp_path, commits(3, 5, 2), 10)
    reader = stream(tmp_path, maxFilesPerTrigger="1")
    assert reader.reportLatestOffset() is None
    ends = []
    for _, end in batches(reader, {}):
        ends.append(end)
        assert reader.reportLatestOffset() == {f"broker-1/{RUN}": {"next": 3, "date": "2025-12-01"}}
    assert [end[f"broker-1/{RUN}"]["next"] for end in ends] == [1, 2, 3]
    assert reader.reportLatestOffset() == ends[-1]


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
    monkeypatch.setattr("adapter.pipeline.journal.readers.Lister.list", lambda _: Listing({}, trouble))
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


def test_the_segments_come_as_rows_in_the_same_partitions(tmp_path: Path) -> None:
    """None is opened; one that is gone has its problem."""
    written = write_segments(tmp_path, commits(3, 5, 2), 10, broker="a/b")
    source = SegmentsDataSource({"path": str(tmp_path), "partitionBytes": "40000"})
    reader = source.streamReader(source.schema())
    end = reader.latestOffset({}, ReadAllAvailable())
    assert reader.partitions({}, end) == stream(tmp_path, partitionBytes="40000").partitions({}, end)
    written[0].unlink()
    written[1].write_text("torn")
    again = source.streamReader(source.schema())
    batches = [batch for partition in again.partitions({}, end) for batch in again.read(partition)]
    assert all(batch.schema.equals(SEGMENTS) for batch in batches)
    found = [pair for batch in batches for pair in segments_of(batch, [str(tmp_path)])]
    assert [(segment.path, problem is None) for segment, problem in found] == [
        (f"{tmp_path}/date=*/broker=a%2Fb/{RUN}-00000000.parquet", False),
        (str(written[1]), True),
        (str(written[2]), True),
    ]
    assert list(again.read(InputPartition(None))) == []
