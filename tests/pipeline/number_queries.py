"""A query of numbers whose offsets a listener commits, for tests of the listener."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import SourceProgress
from pyspark.sql.streaming.query import StreamingQuery

from adapter.client import BlockingOffsetClient
from adapter.pipeline.listener import OffsetCommitListener, Position
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.documents import ROOT, blocks

ROWS = 10  # of a batch


def rate_positions(source: SourceProgress) -> list[Position]:
    """Those of the source `rate-micro-batch`, as the document has it."""
    example = next(block for block in blocks((ROOT / "docs" / "spark.md").read_text(), "python") if "def positions" in block)
    names: dict[str, Any] = {}
    exec(compile(example.partition("listener = ")[0], "spark.md", "exec"), names)  # noqa: S102 - the example is what is tested
    found: list[Position] = names["positions"](source)
    return found


def run(spark: SparkSession, address: str, directory: Path, batch: Callable[[DataFrame, int], None], last: int) -> StreamingQuery:
    """Run the query `numbers` with the listener until batch number `last` is done. Raises StreamingQueryException."""
    done: set[int] = set()

    def noted(rows: DataFrame, number: int) -> None:
        batch(rows, number)
        done.add(number)

    listener = OffsetCommitListener(address, positions=rate_positions, flush_s=PATIENCE_S)
    spark.streams.addListener(listener)
    try:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("startTimestamp", 1).load()
        query = numbers.writeStream.queryName("numbers").option("checkpointLocation", str(directory / "checkpoint"))
        running = query.foreachBatch(noted).start()
        while max(done, default=-1) < last:  # it may be further on already
            running.awaitTermination(1)
        running.stop()
    finally:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        spark.streams.removeListener(listener)
        listener.close()
    return running


def committed(client: BlockingOffsetClient) -> int:
    """The offset of the query's group; 0 if there is none."""
    return next((row.offset for row in client.read("numbers").values()), 0)
