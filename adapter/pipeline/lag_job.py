"""The job `lag`: Structured Streaming over the journals; each batch makes all tables anew from the state and the new rows.

Each segment has its effect exactly once, whatever is killed when: `lag_files` tells how. The tables depend on the journals alone,
never on the time at which they are read. Nothing of a journal is changed.
"""

import json
import re
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
from adapter.pipeline.jobs import DONE, NOT_AS_ASKED, WITH_REJECTS, Switches
from adapter.pipeline.journal_rows import PLANNED_AT
from adapter.pipeline.lag_batch import Steps, process
from adapter.pipeline.lag_files import LagFiles
from adapter.pipeline.lag_shown import Shown, dry_run

# A backlog is taken in parts, so that the rows of one fit in memory: compressed, these are some millions.
BATCH_BYTES = 64 * 2**20
SETTINGS = {
    # Rows are gathered by key in memory, not sorted, up to so many keys in a task.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "200000",
    # With their zone, for readers other than Spark.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_POLL_S = 1
_PATIENCE_S = 60.0
# The last line of a trace.
_RAISED = re.compile(r"^(?:[\w.]*\.)?\w*(?:Error|Exception): (.+)$", re.MULTILINE)


def run(spark: SparkSession, config: JobConfig, switches: Switches) -> int:
    """Follow the journals until SIGTERM or Ctrl-C, or with `available_now` until all is read; the exit code.

    0; 1 when the stream failed, which is told in a line; 3 when all is read and there are rejects. Raises ConfigError when the
    directory cannot be written.
    """
    section = config.lag
    files = LagFiles(section.output, section.keep_hours)
    if switches.dry_run:
        dry_run(spark, section, files, switches)
        return DONE
    try:
        section.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"[lag] output = '{section.output}': cannot be made: {error.strerror}") from error
    with _stop_asked() as stop, Shown(switches, files) as shown:
        query = _writer(spark, section, files, switches, shown).start()
        try:
            _follow(query, stop)
        except StreamingQueryException as error:
            if not stop.is_set():  # a Ctrl-C may have ended the workers, too
                switches.tell(f"lag: stopped by an error: {cause(shown.failure or error)}")
                return NOT_AS_ASKED
    switches.tell(shown.summary())
    return WITH_REJECTS if switches.available_now and shown.rejects else DONE


def stream(spark: SparkSession, section: LagSection) -> DataFrame:
    """The journals as a stream."""
    source = spark.readStream.format("offset-journal").option("paths", json.dumps(list(section.journals)))
    limited = source.option("maxFilesPerTrigger", str(section.max_files)).option("maxBytesPerTrigger", str(BATCH_BYTES))
    # The time of the batch, which Spark keeps with its offsets: the same when it is run again.
    return limited.load().withColumn(PLANNED_AT, sf.current_timestamp())


def cause(error: BaseException) -> str:
    """What went wrong, in one line: that of the last error in a trace which a worker of Spark sent, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = _RAISED.findall(str(error))
    return found[-1].strip() if found else next(iter(lines), type(error).__name__)


def _writer(spark: SparkSession, section: LagSection, files: LagFiles, switches: Switches, shown: Shown) -> DataStreamWriter:
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)

    def batch(rows: DataFrame, number: int) -> None:
        steps = Steps()
        began = time.perf_counter()
        try:
            told = process(rows, number, section, files, steps)
        except Exception as error:
            shown.failure = error  # Spark tells its trace without the last line
            raise
        shown.batch(rows.sparkSession, told, time.perf_counter() - began)

    writer = stream(spark, section).writeStream.queryName("lag").foreachBatch(batch)
    placed = writer.option("checkpointLocation", str(files.checkpoint))
    if switches.available_now:
        return placed.trigger(availableNow=True)
    return placed.trigger(processingTime=f"{section.trigger_ms} milliseconds")


def _follow(query: StreamingQuery, stop: Event) -> None:
    """Wait for the end of the stream, or for the stop, which lets the batch in work end. Raises StreamingQueryException."""
    while not query.awaitTermination(_POLL_S):
        if stop.is_set():
            waited_until = time.monotonic() + _PATIENCE_S
            while query.status["isTriggerActive"] and time.monotonic() < waited_until:
                query.awaitTermination(_POLL_S)
            query.stop()
            return


@contextmanager
def _stop_asked() -> Iterator[Event]:
    """Set by SIGTERM and Ctrl-C; a second one ends the process at once."""
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
