"""Journals behind a URL with credentials: everything reads them, and nothing shows them."""

import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapter.errors import ConfigError
from adapter.pipeline.journal.listing import Lister, Segment, roots_of
from adapter.pipeline.journal.readers import JournalStreamReader, segments_of
from adapter.pipeline.journal.segment import MissingSegmentError, read_table
from adapter.pipeline.journal.source import JournalDataSource, SegmentsDataSource
from tests.pipeline.buckets import KEY, SECRET, Bucket, is_hidden, running_bucket
from tests.pipeline.segments import commits, write_segments


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """An empty bucket."""
    with running_bucket() as running:
        yield running


def put(bucket: Bucket, folder: str, tmp_path: Path) -> list[str]:
    """Two segments of 50 rows below a folder of the bucket; their keys."""
    return [bucket.put(tmp_path, path, folder) for path in write_segments(tmp_path, commits(10, 5, 2), 50, broker="a/b")]


def reader(*roots: str) -> JournalStreamReader:
    """The streaming reader of a directory."""
    source = JournalDataSource({"path": roots[0]})
    return source.streamReader(source.schema())


def test_tasks_read_the_segments_and_the_column_names_them_without_credentials(bucket: Bucket, tmp_path: Path) -> None:
    """The reader and the partitions are pickled, as for a worker."""
    put(bucket, "j", tmp_path)
    found = reader(bucket.url("j"))
    end = found.latestOffset({}, found.getDefaultReadLimit())
    batches = [
        batch
        for partition in found.partitions({}, end)
        for batch in pickle.loads(pickle.dumps(found)).read(pickle.loads(pickle.dumps(partition)))  # noqa: S301 - our own
    ]
    assert sum(batch.num_rows for batch in batches) == 100
    names = {name for batch in batches for name in batch["segment"].to_pylist()}
    assert all(name.startswith("s3://journals/j/date=2025-12-01/broker=a%252Fb/") for name in names)
    assert is_hidden(end, names, found.partitions({}, end))


def test_the_source_of_segments_has_no_credentials_and_its_tasks_get_them_back(bucket: Bucket, tmp_path: Path) -> None:
    """From the roots that the job was given."""
    put(bucket, "j", tmp_path)
    root = bucket.url("j/")
    source = SegmentsDataSource({"path": root})
    found = source.streamReader(source.schema())
    (partition,) = found.partitions({}, found.latestOffset({}, found.getDefaultReadLimit()))
    (batch,) = found.read(partition)
    assert is_hidden(batch.to_pylist())
    tables = [read_table(segment, ["at", "group"]) for segment, _ in segments_of(batch, [root])]
    assert [(table.num_rows, problem) for table, problem in tables] == [(50, None)] * 2


def test_no_message_shows_credentials(bucket: Bucket, tmp_path: Path) -> None:
    """Of a root that is absent or empty, a segment that is not there, and one that is gone."""
    keys = put(bucket, "j", tmp_path)
    with capture_logs() as logs:
        listing = Lister([bucket.url("j"), bucket.url("none")]).list()
    assert listing.troubles.keys() == {bucket.shown("none")}
    assert logs
    found = reader(bucket.url("j"))
    end = found.latestOffset({}, found.getDefaultReadLimit())
    (partition,) = found.partitions({}, end)
    bucket.delete(keys[0])
    with pytest.raises(MissingSegmentError) as missing:
        list(found.read(partition))
    assert "s3://journals/j/date=2025-12-01" in str(missing.value)
    again = reader(bucket.url("j"))
    gone, _ = again.partitions({}, end)
    rows = [row for batch in again.read(gone) for row in batch.to_pylist()]
    assert [row["kind"] for row in rows] == ["unreadable"]
    assert is_hidden(logs, listing, missing.value, missing.value.__cause__, rows)


@pytest.mark.parametrize("url", ["s3://{0}:{1}@b/x?no=such", "s3://{0}:{1} @b/x", "nosuch://{0}:{1}@b/x", "s3://{0}:a/{1}@b/x"])
def test_no_traceback_of_a_wrong_url_shows_credentials(url: str) -> None:
    """Spark shows the traceback of an error with its causes, whose texts have the URL."""
    with pytest.raises(ConfigError) as caught:
        Lister([url.format(KEY, SECRET)])
    assert is_hidden("".join(traceback.format_exception(caught.value)))
    assert "cannot be opened" in str(caught.value)


def test_a_root_is_one_whatever_its_credentials() -> None:
    """Otherwise its segments would be listed twice; the first credentials are used."""
    assert roots_of(["s3://a:b@j/x/", "s3://c:d@j/x", "s3://j/x", "s3://j/y/?region=r"]) == ["s3://a:b@j/x", "s3://j/y?region=r"]


def test_a_segment_shows_its_path_only() -> None:
    """In a traceback or a log of a task."""
    segment = Segment("s3://k:s@j/x", "2025-12-01", "b", 1, 2, 3)
    assert repr(segment) == "Segment('s3://j/x/date=2025-12-01/broker=b/0000000000001-00000002.parquet', 3 bytes)"
