"""The lag job's own metrics: its batches, how far it has read each broker's journal, and what it has found and not yet read."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

from adapter.errors import ListenError
from adapter.pipeline.journal.offset import from_json, step
from adapter.pipeline.lag.files import BatchInfo
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.config import MetricsSection

PREFIX = "offset_lag_job"
OBSERVED = "journal"  # the name of the observation in the progress of the query
_BUCKETS = (0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_US_OF_SECOND = 1_000_000


class LagMetrics(StreamingQueryListener):
    """In a registry of their own. The job tells of each batch, and Spark, as to a listener, of what is left to read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rows = Counter(f"{PREFIX}_rows", "Journal rows in complete batches.", registry=self.registry)
        self._rejects = Counter(f"{PREFIX}_rejects", "Rows of them that could not be used.", registry=self.registry)
        self._seconds = Histogram(
            f"{PREFIX}_batch_seconds", "Seconds that a complete batch took.", buckets=_BUCKETS, registry=self.registry
        )
        self._last = Gauge(
            f"{PREFIX}_last_batch_timestamp_seconds", "When the last batch was complete (Unix time).", registry=self.registry
        )
        self._newest = Gauge(
            f"{PREFIX}_journal_timestamp_seconds",
            "Time of the newest row that was read of a broker's journal (Unix time).",
            ["broker"],
            registry=self.registry,
        )
        self._settled = Gauge(
            f"{PREFIX}_settled_timestamp_seconds",
            "Time up to which the journals of all live brokers are read (Unix time).",
            registry=self.registry,
        )
        self._segments = Counter(f"{PREFIX}_segments", "Segments in batches.", registry=self.registry)
        self._bytes = Counter(f"{PREFIX}_segment_bytes", "Their size, compressed.", registry=self.registry)
        self._backlog = Gauge(
            f"{PREFIX}_backlog_segments", "Segments that were found and are in no batch yet.", registry=self.registry
        )

    @classmethod
    @contextmanager
    def serving(cls, spark: SparkSession, section: MetricsSection) -> Iterator[Self]:
        """Metrics that Spark feeds and that are served at `/metrics`, unless `listen` is empty. Raises ListenError."""
        metrics = cls()
        with metrics._served(section):
            spark.streams.addListener(metrics)
            try:
                yield metrics
            finally:
                spark.streams.removeListener(metrics)

    def begin(self, newest: BatchInfo | None) -> None:
        """Note the newest batch of former runs. Without one no time is known yet: 0 would say that the job is 56 years behind."""
        self._last.set(math.nan)
        self._settled.set(math.nan)
        if newest:
            self._note_times(newest)

    def on_batch(self, info: BatchInfo, seconds: float) -> None:
        """Note a complete batch and its duration."""
        self._rows.inc(info.rows)
        self._rejects.inc(info.rejects)
        self._seconds.observe(seconds)
        self._last.set_to_current_time()
        self._note_times(info)

    def _note_times(self, info: BatchInfo) -> None:
        self._settled.set(info.settled / _US_OF_SECOND)
        for broker, newest_us in info.brokers.items():
            self._newest.labels(broker).set(newest_us / _US_OF_SECOND)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Note what a batch has read, and what the source has found beyond it."""
        read = event.progress.observedMetrics.get(OBSERVED)
        if read:
            self._segments.inc(read["segments"])
            self._bytes.inc(read["bytes"] or 0)
        self._backlog.set(sum(map(backlog, event.progress.sources)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""

    @contextmanager
    def _served(self, section: MetricsSection) -> Iterator[None]:
        if not section.listen:
            yield
            return
        host, port = split_address(section.listen)
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise ListenError(
                f"lag.metrics.listen = {section.listen!r}: {error.strerror}: choose another port or stop what uses it"
            ) from error
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def observed(segments: DataFrame) -> DataFrame:
    """The segments of a stream, with what is read in its progress: as `segments` and `bytes` of the observation OBSERVED."""
    return segments.observe(OBSERVED, sf.count(sf.lit(1)).alias("segments"), sf.sum("size").alias("bytes"))


def backlog(source: SourceProgress) -> int:
    """The number of segments between the end of a batch and all that the source had found; 0 if it does not tell."""
    end, latest = (json.loads(text) if text != "None" else None for text in (source.endOffset, source.latestOffset))
    if end is None or latest is None:
        return 0
    taken = step(from_json(end), from_json(latest)).taken.values()
    return sum(last - first + 1 for ranges in taken for first, last in ranges)
