"""The job `lag`: Structured Streaming over the journals. Each batch computes all tables from the state and the new rows.

Each segment takes effect exactly once, also after a crash: `files.py` and `publisher.py` describe how. The tables depend only on
the journals, not on the time at which they are read; whether a status is WARN also on that in the batch before. Journals are not
changed.
"""

import hashlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from adapter.errors import ConfigError
from adapter.pipeline.config import JobConfig, LagSection
from adapter.pipeline.jobs import DONE, WITH_REJECTS, JobError, Switches
from adapter.pipeline.lag.batch import process
from adapter.pipeline.lag.display import LagDisplay, dry_run
from adapter.pipeline.lag.files import LagFiles
from adapter.pipeline.lag.history import History
from adapter.pipeline.lag.lock import FIELD, Check, only_driver
from adapter.pipeline.lag.metrics import LagMetrics, observed
from adapter.pipeline.lag.publisher import Publisher
from adapter.pipeline.lag.stages import PLANNED_US
from adapter.pipeline.places import Place, unusable
from adapter.pipeline.spark_errors import in_one_line

# The size of a batch, compressed: some millions of rows, so that nothing that a batch shuffles is large.
BATCH_BYTES = 64 * 2**20
_POLL_S = 1
_PATIENCE_S = 60.0


def run(spark: SparkSession, config: JobConfig, switches: Switches) -> int:
    """Follow the journals until SIGTERM or Ctrl-C, or with `available_now` until all is read; returns the exit code.

    0: done; 3: all is read, and there are rejects. Raises JobError if the stream fails, ConfigError if the directory cannot be
    written, or another driver writes it, ListenError if the metrics cannot be served.
    """
    section = config.lag
    files = LagFiles(section.output)
    if switches.dry_run:
        dry_run(spark, section, files, switches)
        return DONE
    with (
        only_driver(files.output) as check,
        _stop_asked() as stop,
        LagMetrics.serving(spark, section.metrics) as metrics,
        LagDisplay(switches, files) as display,
    ):
        publisher = _publisher(files, section, check)
        metrics.begin(publisher.newest())
        history = History(files, section.history)
        query = _writer(spark, section, publisher, history, switches, display, metrics).start()
        try:
            _follow(query, stop)
        except StreamingQueryException as error:
            if not stop.is_set():  # a Ctrl-C may have ended the workers, which is no failure
                raise JobError(f"lag: stopped by an error: {in_one_line(display.failure or error)}") from error
    switches.tell(display.summary())
    return WITH_REJECTS if switches.available_now and display.rejects else DONE


def stream(spark: SparkSession, section: LagSection) -> DataFrame:
    """The segments of the journals as a streaming DataFrame."""
    source = spark.readStream.format("offset-journal-segments").option(
        "paths", json.dumps([place.url for place in section.journals])
    )
    limited = source.option("maxFilesPerTrigger", str(section.max_files)).option("maxBytesPerTrigger", str(BATCH_BYTES))
    # The time of the batch. Spark stores it with the offsets, so it is the same if the batch is repeated.
    return observed(limited.load()).withColumn(PLANNED_US, sf.unix_micros(sf.current_timestamp()))


def checkpoint_of(section: LagSection) -> Place:
    """The directory of Spark's checkpoint."""
    return section.checkpoint or section.output / "checkpoint"


def plan_of(checkpoint: Place, batch: int) -> str:
    """Identifies the segments of a batch, by what Spark has stored of it before it began; empty if that cannot be read."""
    try:
        return hashlib.sha256((checkpoint / f"offsets/{batch}").read()).hexdigest()
    except (OSError, ConfigError):  # a file system that only Spark has: such a batch is done again
        return ""


def stream_of(segments: DataFrame) -> str:
    """The name of the stream that a batch is of: Spark gives it with the checkpoint, which keeps it."""
    return str(segments.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _publisher(files: LagFiles, section: LagSection, check: Check) -> Publisher:
    try:
        publisher = Publisher(files, section.keep_hours, check)
        publisher.sweep()
    except OSError as error:
        raise unusable(files.output, FIELD, error) from error
    return publisher


def _writer(
    spark: SparkSession,
    section: LagSection,
    publisher: Publisher,
    history: History,
    switches: Switches,
    display: LagDisplay,
    metrics: LagMetrics,
) -> DataStreamWriter:
    checkpoint = checkpoint_of(section)

    def batch(segments: DataFrame, number: int) -> None:
        began = time.perf_counter()
        try:
            plan = plan_of(checkpoint, number)
            # It may be done already: then the job crashed before Spark knew it.
            info = publisher.done(number, plan) or process(segments, number, plan, section, publisher)
            history.add(info, stream_of(segments))
        except Exception as error:
            display.failure = error  # Spark reports its traceback without the last line
            raise
        seconds = time.perf_counter() - began
        display.batch(info, seconds)
        metrics.on_batch(info, seconds)

    writer = stream(spark, section).writeStream.queryName("lag").foreachBatch(batch)
    placed = writer.option("checkpointLocation", checkpoint.for_spark)
    if switches.available_now:
        return placed.trigger(availableNow=True)
    return placed.trigger(processingTime=f"{section.trigger_ms} milliseconds")


def _follow(query: StreamingQuery, stop: Event) -> None:
    """Wait for the end of the stream, or for `stop`, and then for the current batch. Raises StreamingQueryException."""
    while not query.awaitTermination(_POLL_S):
        if stop.is_set():
            waited_until = time.monotonic() + _PATIENCE_S
            while query.status["isTriggerActive"] and time.monotonic() < waited_until:
                query.awaitTermination(_POLL_S)
            query.stop()
            return


@contextmanager
def _stop_asked() -> Iterator[Event]:
    """An event that SIGTERM and Ctrl-C set; a second signal ends the process at once."""
    stop = Event()

    def ask(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    former = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
