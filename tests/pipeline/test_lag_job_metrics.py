"""The lag job serves its own metrics while it runs."""

import io
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import anyio.from_thread
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.errors import ListenError
from adapter.pipeline.config import JobConfig, LagSection
from adapter.pipeline.jobs import DONE, Switches
from adapter.pipeline.lag import job as lag_job
from adapter.pipeline.lag.files import BatchInfo
from adapter.pipeline.lag.metrics import LagMetrics
from adapter.pipeline.places import Place
from adapter.runtime.settings.config import MetricsSection
from adapter.testing.processes import free_port
from adapter.testing.waiting import eventually
from tests.pipeline.segments import commits, write_segment

ROWS = 3 * 4  # of a segment


def config(journal: Path, output: Path, port: int) -> JobConfig:
    """Two batches, of one segment each."""
    metrics = MetricsSection(listen=f"127.0.0.1:{port}")
    return JobConfig(lag=LagSection(journals=(Place.of(journal),), output=Place.of(output), max_files=1, metrics=metrics))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait, in a thread, until it holds."""
    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(eventually, condition)


def test_the_metrics_can_be_scraped_between_two_batches(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not any more when it has ended."""
    segments = [write_segment(journal, commits(1, 3, 4, first_cycle=number), number) for number in range(2)]
    url = f"http://127.0.0.1:{(port := free_port())}/metrics"
    scraped: list[str] = []
    on_batch = LagMetrics.on_batch

    def scraping(metrics: LagMetrics, info: BatchInfo, seconds: float) -> None:
        on_batch(metrics, info, seconds)
        if info.batch:  # Spark tells of the batch before some time after it
            wait_until(lambda: metrics.registry.get_sample_value("offset_lag_job_segments_total") == 1)
        with urllib.request.urlopen(url, timeout=30) as reply:
            scraped.append(reply.read().decode())

    monkeypatch.setattr(LagMetrics, "on_batch", scraping)
    given = Switches(available_now=True, console=Console(file=io.StringIO()))
    assert lag_job.run(spark, config(journal, tmp_path / "lag", port), given) == DONE
    for number, text in enumerate(scraped, 1):
        assert f"offset_lag_job_rows_total {number * ROWS:.1f}\n" in text
        assert 'offset_lag_job_journal_timestamp_seconds{broker="broker-1"}' in text
    assert len(scraped) == 2
    assert "offset_lag_job_backlog_segments 1.0\n" in scraped[1]
    size = segments[0].stat().st_size
    assert f"offset_lag_job_segment_bytes_total {size:.1f}\n" in scraped[1]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=30)


def test_an_address_that_is_in_use_is_told_by_its_setting(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """Before anything is read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ListenError, match=r"lag\.metrics\.listen = '127\.0\.0\.1:\d+': .*in use"):
            lag_job.run(spark, config(journal, tmp_path / "lag", port), Switches(available_now=True))
