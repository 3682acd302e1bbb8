"""The listener in Spark: real queries, sources with offsets of their own, and a driver that is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import SourceProgress
from pyspark.sql.streaming.query import StreamingQuery

from adapter.client import BlockingOffsetClient
from adapter.pipeline.java import java_home
from adapter.pipeline.listener import OffsetCommitListener, Position
from adapter.testing.sidecars import sidecar_in_thread
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.documents import blocks
from tests.pipeline.jvm import SHORT_LIVED

ROOT = Path(__file__).parent.parent.parent
ROWS = 10  # of a batch
LIMIT_S = 550  # far above what it takes


def rate_positions(source: SourceProgress) -> list[Position]:
    """Those of the source `rate-micro-batch`, as the document has it."""
    example = next(block for block in blocks((ROOT / "docs" / "spark.md").read_text(), "python") if "def positions" in block)
    names: dict[str, Any] = {}
    exec(compile(example.partition("listener = ")[0], "spark.md", "exec"), names)  # noqa: S102 - the example is what is tested
    found: list[Position] = names["positions"](source)
    return found


def run(spark: SparkSession, address: str, directory: Path, batch: Callable[[DataFrame, int], None], last: int) -> StreamingQuery:
    """Run the query `numbers` with the listener until batch number `last` is done."""
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
        while last not in done:
            running.awaitTermination(1)
        running.stop()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    return running


def test_each_batch_of_a_query_is_committed_when_it_is_done(spark: SparkSession, tmp_path: Path) -> None:
    """When the query has ended, so are its last offsets: nobody has to wait for the listener."""
    seen: list[int] = []
    with sidecar_in_thread(tmp_path) as address, BlockingOffsetClient(address, PATIENCE_S) as client:

        def batch(rows: DataFrame, _: int) -> None:
            assert rows.count() == ROWS
            seen.append(next((row.offset for row in client.read("numbers").values()), 0))

        ended = run(spark, address, tmp_path, batch, last=3)
        committed = {shard: row.offset for shard, row in client.read("numbers").items()}
    assert ended.lastProgress
    assert committed == {"numbers/0": (ended.lastProgress.batchId + 1) * ROWS}
    assert all(offset <= number * ROWS for number, offset in enumerate(seen))


# The driver of a query of its own, which dies in its fourth batch, after the work.
DRIVER = """
import os, signal, sys
from pathlib import Path

from adapter.pipeline.session import spark_session
from tests.pipeline.test_listener_stream import reached, run

address, directory = sys.argv[1], Path(sys.argv[2])

def batch(rows, number):
    (directory / "processed").write_text(str(reached(rows)))
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)

run(spark_session("driver", "local[2]"), address, directory, batch, 4)
"""


def reached(rows: DataFrame) -> int:
    """The next number behind those of a batch."""
    numbers: list[int] = [row["value"] for row in rows.collect()]
    return max(numbers) + 1


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_has_committed_nothing_that_it_had_not_processed(spark: SparkSession, tmp_path: Path) -> None:
    """The batch in which it died is not committed. The next run does it again, and has committed all in the end."""
    with sidecar_in_thread(tmp_path) as address, BlockingOffsetClient(address, PATIENCE_S) as client:
        killed = driver(address, tmp_path)
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
        assert (tmp_path / "processed").read_text() == str(4 * ROWS)
        assert {row.offset for row in client.read("numbers").values()} <= {ROWS, 2 * ROWS, 3 * ROWS}
        processed: list[int] = []
        run(spark, address, tmp_path, lambda rows, _: processed.append(reached(rows)), last=4)
        assert processed[:2] == [4 * ROWS, 5 * ROWS]
        assert {row.offset for row in client.read("numbers").values()} == {processed[-1]}


def driver(address: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run DRIVER."""
    environment = {**os.environ, "JAVA_HOME": str(java_home(os.environ)), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", DRIVER, address, directory],
        env={**environment, "JDK_JAVA_OPTIONS": SHORT_LIVED},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
