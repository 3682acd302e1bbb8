"""The listener in Spark, with a source whose offsets are its own."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from adapter.client import BlockingOffsetClient
from adapter.testing.sidecars import sidecar_in_thread
from adapter.testing.waiting import PATIENCE_S
from tests.pipeline.number_queries import ROWS, committed, run


def test_each_batch_of_a_query_is_committed_when_it_is_done(spark: SparkSession, tmp_path: Path) -> None:
    """When a run has ended, so are its last offsets: nobody has to wait for the listener. The next run goes on from there."""
    seen: dict[int, int] = {}
    with sidecar_in_thread(tmp_path) as address, BlockingOffsetClient(address, PATIENCE_S) as client:

        def batch(rows: DataFrame, number: int) -> None:
            assert rows.count() == ROWS
            seen[number] = committed(client)

        for last in (2, 4):
            ended = run(spark, address, tmp_path, batch, last)
            assert ended.lastProgress
            assert committed(client) == (ended.lastProgress.batchId + 1) * ROWS
    assert len(seen) >= 4
    assert all(offset <= number * ROWS for number, offset in seen.items())


def test_a_batch_that_fails_is_not_committed(spark: SparkSession, tmp_path: Path) -> None:
    """Those before it are."""

    def batch(_: DataFrame, number: int) -> None:
        if number == 2:
            raise ValueError("this batch fails")

    with sidecar_in_thread(tmp_path) as address, BlockingOffsetClient(address, PATIENCE_S) as client:
        with pytest.raises(StreamingQueryException):
            run(spark, address, tmp_path, batch, 3)
        assert committed(client) == 2 * ROWS
