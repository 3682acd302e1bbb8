"""Journals behind a URL with credentials: everything reads them, and nothing shows them."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer
from structlog.testing import capture_logs

from adapter.pipeline.journal.listing import Lister, Segment, roots_of
from adapter.pipeline.journal.segment import MissingSegmentError, read_table
from adapter.pipeline.journal.source import JournalDataSource, JournalStreamReader, SegmentsDataSource, segments_of
from tests.pipeline.segments import commits, write_segments

KEY, SECRET = "AKIAKEY", "SECRETWORD"


class Bucket(NamedTuple):
    """A bucket of a local S3 server: its URL with credentials, without the parameters, and these."""

    client: Any
    parameters: str

    def url(self, path: str) -> str:
        """The URL of a directory."""
        return f"s3://{KEY}:{SECRET}@journals/{path}?{self.parameters}"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="journals")
    yield Bucket(client, f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1")
    server.stop()


def put(bucket: Bucket, folder: str, tmp_path: Path) -> list[str]:
    """Two segments of 50 rows below a folder of the bucket; their keys."""
    keys = []
    for path in write_segments(tmp_path, commits(10, 5, 2), 50, broker="a/b"):
        keys.append(f"{folder}/{path.relative_to(tmp_path)}")
        bucket.client.upload_file(str(path), "journals", keys[-1])
    return keys


def reader(*roots: str) -> JournalStreamReader:
    """The streaming reader of a directory."""
    source = JournalDataSource({"path": roots[0]})
    return source.streamReader(source.schema())


def is_hidden(*shown: object) -> bool:
    """Whether no text or value shows the key or the secret."""
    return not any(word in f"{value} {value!r}" for value in shown for word in (KEY, SECRET))


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
    assert all(name.startswith("s3://journals/j/date=2025-12-01/broker=a%2Fb/") for name in names)
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
    assert listing.troubles.keys() == {f"s3://journals/none?{bucket.parameters}"}
    assert logs
    found = reader(bucket.url("j"))
    end = found.latestOffset({}, found.getDefaultReadLimit())
    (partition,) = found.partitions({}, end)
    bucket.client.delete_object(Bucket="journals", Key=keys[0])
    with pytest.raises(MissingSegmentError) as missing:
        list(found.read(partition))
    assert "s3://journals/j/date=2025-12-01" in str(missing.value)
    again = reader(bucket.url("j"))
    gone, _ = again.partitions({}, end)
    rows = [row for batch in again.read(gone) for row in batch.to_pylist()]
    assert [row["kind"] for row in rows] == ["unreadable"]
    assert is_hidden(logs, listing, missing.value, missing.value.__cause__, rows)


def test_a_root_is_one_whatever_its_credentials() -> None:
    """Otherwise its segments would be listed twice; the first credentials are used."""
    assert roots_of(["s3://a:b@j/x/", "s3://c:d@j/x", "s3://j/x", "s3://j/y"]) == ["s3://a:b@j/x", "s3://j/y"]


def test_a_segment_shows_its_path_only() -> None:
    """In a traceback or a log of a task."""
    segment = Segment("s3://k:s@j/x", "2025-12-01", "b", 1, 2, 3)
    assert repr(segment) == "Segment('s3://j/x/date=2025-12-01/broker=b/0000000000001-00000002.parquet', 3 bytes)"
