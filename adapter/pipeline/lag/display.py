"""The display of the job `lag`: at a terminal the worst groups after each batch, otherwise only a summary at the end."""

import json
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from rich.live import Live
from rich.table import Table

from adapter.pipeline.config import LagSection
from adapter.pipeline.jobs import Switches
from adapter.pipeline.lag.files import TABLES, BatchInfo, LagFiles
from adapter.pipeline.lag.segment_rows import US_OF_SECOND
from adapter.pipeline.lag.status import SEVERITY
from adapter.runtime.wording import counted

_WORST = 10
_COLUMNS = ("namespace", "group", "status", "burrow", "total_lag", "max_lag_seconds", "drain_seconds", "worst_shard")


class LagDisplay:
    """Counts batches and displays the last one while its context is open."""

    def __init__(self, switches: Switches, files: LagFiles) -> None:
        self._switches, self._files = switches, files
        self._live = Live(console=switches.console, auto_refresh=False) if switches.console.is_terminal else None
        self.batches = self.rows = self.rejects = 0
        self.seconds = 0.0
        # The error of the batch that ended the stream.
        self.failure: Exception | None = None

    def __enter__(self) -> Self:
        """Start the live table, if there is a terminal."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the live table, leaving the last one visible."""
        if self._live:
            self._live.stop()

    def batch(self, info: BatchInfo, seconds: float) -> None:
        """Count and display a batch and its duration."""
        self.batches += 1
        self.rows += info.rows
        self.rejects += info.rejects
        self.seconds += seconds
        if self._live:
            self._live.update(self._worst(info, seconds), refresh=True)

    def summary(self) -> str:
        """The summary of all batches since the start."""
        rate = f", {self.rows / self.seconds:,.0f} rows/s" if self.seconds else ""
        rejects = f"; {counted(self.rejects, 'row')} not taken as they stand: see the table rejects" if self.rejects else ""
        batches = "1 batch" if self.batches == 1 else f"{self.batches:,} batches"
        return f"lag: {batches}, {counted(self.rows, 'row')}{rate}; tables in {self._files.output}{rejects}"

    def _worst(self, info: BatchInfo, seconds: float) -> Table:
        groups = self._files.read(info.batch, "groups", _COLUMNS)
        at = datetime.fromtimestamp(info.now / US_OF_SECOND, UTC)
        rate = f"{counted(info.rows, 'row')} in {seconds:.1f} s, {info.rows / seconds:,.0f} rows/s"
        table = Table(title=f"batch {info.batch}, {at:%Y-%m-%d %H:%M:%S} UTC: {rate}", title_justify="left")
        for name in _COLUMNS:
            table.add_column(name.replace("_", " "))
        for row in worst(groups, _WORST):
            table.add_row(*(_cell(row[name]) for name in _COLUMNS))
        return table


def worst(groups: pa.Table, count: int) -> list[dict[str, object]]:
    """Some rows of the table `groups`, the worst first: by status, then by lag, an unknown one last."""
    level = pc.index_in(groups["status"], pa.array(SEVERITY))
    ordered = groups.append_column("level", level)
    order = [("level", "descending"), ("total_lag", "descending"), ("namespace", "ascending"), ("group", "ascending")]
    rows: list[dict[str, object]] = ordered.take(pc.sort_indices(ordered, order)[:count]).to_pylist()
    return rows


def dry_run(spark: SparkSession, section: LagSection, files: LagFiles, switches: Switches) -> None:
    """Count the rows of all journals, and print where tables would be written. Writes nothing."""
    rows = spark.read.format("offset-journal").option("paths", json.dumps([place.url for place in section.journals])).load()
    counts = rows.groupBy("broker").agg(
        sf.count_distinct("segment").alias("segments"),
        sf.count(sf.lit(1)).alias("rows"),
        sf.count_if(sf.col("problem").isNotNull()).alias("problems"),
        sf.min(sf.when(sf.col("kind") != "unreadable", sf.col("at"))).alias("from"),
        sf.max("at").alias("to"),
    )
    table = Table(title="dry run: all that the journals hold", title_justify="left")
    for name in counts.columns:
        table.add_column(name)
    for row in counts.orderBy("broker").collect():
        table.add_row(*map(_cell, row))
    switches.console.print(table)
    done = files.complete()
    switches.tell(
        f"read: {', '.join(map(str, section.journals))}"
        + (f"; what is in batches up to {done[-1]} is not read again" if done else "")
    )
    switches.tell(f"written: {', '.join(f'{files.output}/{name}' for name in TABLES)} and the state beside them")


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.1f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
