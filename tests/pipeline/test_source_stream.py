"""The data source `offsets` as the sink of a stream: each row counts once, however often its batch is run."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from adapter.errors import ConfigError, InvalidInputError
from adapter.model.records import OffsetRecord
from adapter.pipeline.offsets.source import OffsetsDataSource
from tests.pipeline.bulk_meta import BulkMeta, answer_lost, serving
from tests.unit.helpers import key

SCHEMA = "shard string, offset long"


def rows_of(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of the files in a directory, with the time of their batch."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    return source.select(
        sf.lit("default").alias("namespace"),
        sf.lit("g").alias("group"),
        "shard",
        "offset",
        sf.current_timestamp().alias("committed_at"),
    )


def arrive(tmp_path: Path, name: str, **offsets: int) -> None:
    """A file with the offsets of shards."""
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / name).write_text("\n".join(json.dumps({"shard": s, "offset": o}) for s, o in offsets.items()))


def run(rows: DataFrame, tmp_path: Path, address: str, **options: str) -> None:
    """Write all that is there."""
    target = {"endpoints": address, "checkpointLocation": str(tmp_path / "checkpoint"), **options}
    rows.writeStream.format("offsets").options(**target).trigger(availableNow=True).start().awaitTermination()


def forget(tmp_path: Path, batch: int) -> None:
    """Remove Spark's note that a batch is done, as if the driver had died before."""
    for name in (str(batch), f".{batch}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()


def standing(meta: BulkMeta) -> dict[str, Any]:
    """(epoch, offset, time) by shard."""
    return {found.shard: (*value.position, value.committed_at_ms) for found, value in meta.records.items()}


def test_a_batch_that_is_run_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows have the times of the first run: they neither supersede it nor undo a reset that came since."""
    meta = BulkMeta()
    meta.faults.append(answer_lost)
    report = tmp_path / "report.json"
    arrive(tmp_path, "1.json", a=10, b=20)
    with serving(meta) as address:
        run(rows_of(spark, tmp_path), tmp_path, address, report=str(report))
        arrive(tmp_path, "2.json", a=11)
        run(rows_of(spark, tmp_path), tmp_path, address, report=str(report))
        first = standing(meta)
        counts = json.loads(report.read_text())
        assert [counts[name] for name in ("state", "batch", "sent", "applied")] == ["committed", 1, 1, 1]
        assert {shard: value[1] for shard, value in first.items()} == {"a": 11, "b": 20}
        forget(tmp_path, 1)
        run(rows_of(spark, tmp_path), tmp_path, address, report=str(report))
        assert standing(meta) == first
        reset = OffsetRecord(1 << 32, 3, committed_at_ms=first["a"][2] + 1)
        meta.records[key("a")] = reset
        forget(tmp_path, 1)
        run(rows_of(spark, tmp_path), tmp_path, address, report=str(report))
    assert meta.records[key("a")] == reset
    assert json.loads(report.read_text())["superseded"] == 1


def test_a_bad_row_ends_the_query_before_its_batch_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    """The report tells of the batch; with badRows = skip the query goes on."""
    meta = BulkMeta()
    report = tmp_path / "report.json"
    arrive(tmp_path, "1.json", a=1, b=-1)
    with serving(meta) as address:
        with pytest.raises(StreamingQueryException, match="shard 'b': offset is -1"):
            run(rows_of(spark, tmp_path), tmp_path, address, report=str(report))
        assert not meta.records
        assert (json.loads(report.read_text())["state"], json.loads(report.read_text())["batch"]) == ("aborted", 0)
        run(rows_of(spark, tmp_path), tmp_path, address, badRows="skip", report=str(report))
    assert {shard: value[1] for shard, value in standing(meta).items()} == {"a": 1}


def test_a_stream_has_to_say_when_its_rows_were_committed(spark: SparkSession, tmp_path: Path) -> None:
    """The source cannot: it would have another time when a batch is run again. A row without a time is invalid."""
    arrive(tmp_path, "1.json", a=1)
    source = OffsetsDataSource({"endpoints": "a:1"})
    rows = rows_of(spark, tmp_path)
    with pytest.raises(InvalidInputError, match=r"column `committed_at` is missing: .* current_timestamp\(\)"):
        source.streamWriter(rows.drop("committed_at").schema, overwrite=False)
    with pytest.raises(ConfigError, match=r"outputMode\('update'\)"):
        source.streamWriter(rows.schema, overwrite=True)
    meta = BulkMeta()
    with serving(meta) as address, pytest.raises(StreamingQueryException, match="committed_at is null"):
        run(rows.withColumn("committed_at", sf.lit(None).cast("timestamp")), tmp_path, address)
    assert not meta.merges
