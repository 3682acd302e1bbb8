"""The data source `offset-journal` in Spark: a stream and a batch read the same rows, each once, bad files included."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from adapter.pipeline.journal.readers import segments_of
from adapter.pipeline.journal.segment import COLUMNS, read_table
from tests.pipeline.buckets import is_hidden, running_bucket
from tests.pipeline.segments import RUN, START, Row, commits, journal_table, segment_path, write_segment, write_segments

# Names that Spark reads as of another type, or quotes, or that end a path.
BROKERS = ("broker-1", "north/ä b%.*=1", "007")
Found = dict[int, list[tuple[Any, ...]]]


class DriverDiedError(Exception):
    """Raised after a batch was written, before Spark records that it is done."""


def run(spark: SparkSession, root: Path, work: Callable[[DataFrame, int], None], files: int) -> None:
    """Read all that is there, in batches of this many files.

    Spark gives the Python process of a streaming source 10 s to start, and has no setting for it: a busy machine takes longer.
    """
    try:
        _run(spark, root, work, files)
    except StreamingQueryException as error:
        if "Python worker failed to connect back" not in str(error):
            raise
        run(spark, root, work, files)


def _run(spark: SparkSession, root: Path, work: Callable[[DataFrame, int], None], files: int) -> None:
    stream = spark.readStream.format("offset-journal").option("maxFilesPerTrigger", files).load(str(root))
    query = (
        stream.writeStream.foreachBatch(work)
        .option("checkpointLocation", str(root.parent / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def identities(df: DataFrame) -> list[tuple[Any, ...]]:
    """A unique part of each row; of unreadable segments, the name."""
    return sorted((row.broker, row.run, row.seq, row.kind, row.segment) for row in df.collect())


def test_a_stream_has_every_row_once_over_batches_a_crash_late_segments_and_bad_ones(spark: SparkSession, journal: Path) -> None:
    """A repeated batch has the same rows although there are new segments; a batch read has the same rows in the end."""
    table = commits(4, 5, 2)
    for broker in BROKERS:
        write_segments(journal, table, 10, broker=broker)
    bad = segment_path(journal, "2025-12-01", BROKERS[0], 4)
    bad.write_bytes(b"PAR1 and no more")
    late = segment_path(journal, "2025-12-01", BROKERS[1], 1)
    content = late.read_bytes()
    late.unlink()
    batches: Found = {}

    def dying(df: DataFrame, number: int) -> None:
        batches[number] = identities(df)
        if number == 1:
            raise DriverDiedError

    with pytest.raises(StreamingQueryException):
        run(spark, journal, dying, 5)
    assert batches.keys() == {0, 1}
    seen = batches.pop(1)
    late.write_bytes(content)
    write_segment(journal, [{}, {}], 9, broker=BROKERS[2])

    def living(df: DataFrame, number: int) -> None:
        batches[number] = identities(df)

    run(spark, journal, living, 5)
    assert batches[1] == seen
    assert all(len({row[-1] for row in rows}) <= 5 for rows in batches.values())
    streamed = [row for rows in batches.values() for row in rows]
    good = Counter({(broker, RUN, seq): 1 for broker in BROKERS for seq in range(40)}) + Counter(
        [(BROKERS[2], RUN, seq) for seq in (0, 1)]
    )
    assert Counter(row[:3] for row in streamed if row[3] == "flush") == good
    assert [row[4] for row in streamed if row[3] == "unreadable"] == [str(bad)]
    assert sorted(streamed) == identities(spark.read.format("offset-journal").load(str(journal)))


def test_columns_come_as_declared_from_several_directories(spark: SparkSession, tmp_path: Path) -> None:
    """Given as a path and as a URL; values are those that were written."""
    rows: list[Row] = [
        {"offset": 2**63 - 1, "from_offset": 5, "kind": "rewind"},
        {"offset": None, "problem": "18446744073709551615"},
    ]
    one = write_segment(tmp_path / "one", rows)
    root = tmp_path / "two"
    two = write_segment(root, [{"group": "ä\n\0"}], broker="b")
    paths = f'["{tmp_path / "one"}", "{root.as_uri()}"]'
    df = spark.read.format("offset-journal").option("paths", paths).load()
    assert to_arrow_schema(df.schema, timezone="UTC") == COLUMNS
    found = sorted(df.toArrow().to_pylist(), key=lambda row: (row["broker"], row["seq"]), reverse=True)
    first, second = journal_table(rows).to_pylist()
    where = {"broker": "broker-1", "run": RUN, "segment": str(one)}
    third = journal_table([{"group": "ä\n\0"}]).to_pylist()[0] | {
        "broker": "b",
        "run": RUN,
        "segment": f"{root.as_uri()}/{two.relative_to(root)}",
    }
    assert found == [second | where, first | where, third]
    fewer = df.sparkSession.read.format("offset-journal").schema("offset long, broker string").option("paths", paths).load()
    assert pa.table(fewer.toArrow()).num_rows == 3
    assert fewer.columns == ["offset", "broker"]


def test_filters_leave_segments_unopened(spark: SparkSession, journal: Path) -> None:
    """Here each segment is a partition of its own. Dates of a session in UTC are those of the directories."""
    for day in range(3):
        for broker in BROKERS:
            write_segment(journal, [{"at": START + timedelta(days=day, hours=5)}], day, broker=broker)
    df = spark.read.format("offset-journal").option("partitionBytes", 1).load(str(journal))

    def found(condition: str) -> tuple[int, int]:
        chosen = df.filter(condition)
        return chosen.rdd.getNumPartitions(), chosen.count()

    assert found("kind = 'flush'") == (9, 9)
    assert found("broker in ('007', 'other')") == (3, 3)
    assert found("to_date(at) = '2025-12-02'") == (3, 3)
    assert found("at >= '2025-12-02' and at < '2025-12-03 05:00:00' and broker = 'broker-1'") == (2, 1)


def test_an_empty_directory_gives_no_rows_and_a_wrong_one_an_error(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """For a batch and for a stream."""
    assert spark.read.format("offset-journal").load(str(journal)).count() == 0
    batches: list[int] = []

    def count(df: DataFrame, _: int) -> None:
        batches.append(df.count())

    run(spark, journal, count, 5)
    assert not any(batches)
    with pytest.raises(Exception, match="typo: does not exist"):
        spark.read.format("offset-journal").load(str(tmp_path / "typo")).count()
    with pytest.raises(StreamingQueryException, match="typo: does not exist"):
        run(spark, tmp_path / "typo", count, 5)


def test_a_mount_that_is_lost_during_a_batch_loses_no_row(spark: SparkSession, journal: Path) -> None:
    """The tasks fail, a start without the mount fails, the offset stays, and a start with it has every row."""
    write_segments(journal, commits(4, 5, 2), 10)
    elsewhere = journal.with_name("elsewhere")
    batches: Found = {}

    def work(df: DataFrame, number: int) -> None:
        if number == 1 and not elsewhere.exists() and 1 not in batches:
            journal.rename(elsewhere)
            journal.mkdir()
        batches[number] = identities(df)

    with pytest.raises(StreamingQueryException, match=r"was listed by the driver, but .* does not find it"):
        run(spark, journal, work, 2)
    with pytest.raises(StreamingQueryException, match="is not found, and may be in what cannot be listed"):
        run(spark, journal, work, 2)
    assert batches.keys() == {0}
    journal.rmdir()
    elsewhere.rename(journal)
    batches[1] = []
    run(spark, journal, work, 2)
    rows = [row for number in sorted(batches) for row in batches[number]]
    assert [(row[2], row[3]) for row in rows] == [(seq, "flush") for seq in range(40)]


def test_segments_behind_a_url_are_read_by_a_job_that_gets_their_names_only(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials are in no row, no plan and no progress; the tasks have them."""
    with running_bucket() as bucket:
        for path in write_segments(tmp_path / "j", commits(4, 5, 2), 10):
            bucket.put(tmp_path / "j", path, "j")
        root = bucket.url("j")
        stream = spark.readStream.format("offset-journal-segments").option("maxFilesPerTrigger", 3).load(root)
        found: list[tuple[int, list[Any], int]] = []

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                counts = [read_table(segment, ["seq"])[0].num_rows for segment, _ in segments_of(batch, [root])]
                yield pa.record_batch({"rows": pa.array(counts, pa.int64())})

        def work(df: DataFrame, number: int) -> None:
            rows = sum(row.rows for row in df.mapInArrow(read, "rows long").collect())
            found.append((number, [*df.collect(), df._jdf.queryExecution().toString()], rows))

        query = (
            stream.writeStream.foreachBatch(work)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert [(number, rows) for number, _, rows in found] == [(0, 30), (1, 10)]
    (source,) = query.recentProgress[0].sources
    assert [json.loads(offset)[f"broker-1/{RUN}"]["next"] for offset in (source.endOffset, source.latestOffset)] == [3, 4]
    stored = [path.read_text() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file() and path.suffix != ".crc"]
    assert is_hidden(found, stored, [progress.json for progress in query.recentProgress], caplog.text)
