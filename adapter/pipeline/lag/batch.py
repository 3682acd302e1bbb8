"""One batch of the lag job: computes the tables from its rows and the previous state, stages them, and publishes them at once."""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from adapter.pipeline.config import LagSection
from adapter.pipeline.lag import tables as lag
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.lag.journal_rows import US_OF_SECOND, brokers, checked, reduced

# A broker whose journal is behind the newest one by more than this counts as gone. Before that, no group counts as stopped for a
# time that this broker's journal does not cover yet.
LIVE_US = 300 * US_OF_SECOND
STATE = ("keys", "heads", "moves")

State = Mapping[str, DataFrame | None]


class Steps:
    """The seconds of each step of a batch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a step."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def process(rows: DataFrame, batch: int, section: LagSection, files: LagFiles, steps: Steps) -> BatchInfo:
    """Process and publish a batch of journal rows. Raises AdapterError if the previous state is missing."""
    before = files.before(batch)
    files.begin(batch)
    state = _read_state(rows.sparkSession, files, before)
    gathered = reduced(checked(rows, section.point_distance_ms)).persist()
    try:
        with steps("read and gather"):
            info = _info_of(gathered, batch, before)
        with steps("state"):
            _stage_state(gathered, state, info.now, section, files)
        with steps("moves and rejects"):
            info = _stage_odd(gathered, state["moves"], info, before, files)
    finally:
        gathered.unpersist()
    _stage_tables(rows.sparkSession, info, section, files, steps)
    with steps("show"):
        files.publish(info)
    return info


def settled(now: int, newest: Mapping[str, int]) -> int:
    """The time up to which the journals of all live brokers are read, in microseconds."""
    return min((at for at in newest.values() if at >= now - LIVE_US), default=now)


def _read_state(spark: SparkSession, files: LagFiles, before: BatchInfo | None) -> State:
    return {name: None if before is None else spark.read.parquet(str(files.state(before.batch, name))) for name in STATE}


def _info_of(gathered: DataFrame, batch: int, before: BatchInfo | None) -> BatchInfo:
    newest = dict(before.brokers) if before else {}
    found = brokers(gathered).collect()
    for row in found:
        if row["at"] is not None:
            newest[row["broker"]] = max(row["at"], newest.get(row["broker"], 0))
    rows, odd = sum(row["rows"] for row in found), sum(row["odd"] for row in found)
    return BatchInfo(batch, rows, max(newest.values(), default=0), odd, brokers=dict(sorted(newest.items())))


def _stage_state(gathered: DataFrame, state: State, now: int, section: LagSection, files: LagFiles) -> None:
    keys = lag.merged_keys(state["keys"], gathered, section.window_points)
    _write(lag.kept_keys(keys, now), files.staged("state") / "keys")
    heads = lag.merged_heads(state["heads"], gathered, section.head_points, section.head_distance_ms)
    _write(lag.kept_heads(heads, now), files.staged("state") / "heads")


def _stage_odd(
    gathered: DataFrame, seen: DataFrame | None, info: BatchInfo, before: BatchInfo | None, files: LagFiles
) -> BatchInfo:
    """Stage moves and rejects. Most batches have none; then no Spark job is run for them."""
    moved = lag.moves(gathered, seen)
    tables = {"rewinds": lag.rewinds(moved), "rejects": lag.rejects(gathered)}
    moves = files.staged("state") / "moves"
    for name, table in tables.items():
        if info.odd:
            _write(table.coalesce(1), files.staged(name))
        else:
            _write_empty(table, files.staged(name))
    if info.odd:
        _write(lag.seen_moves(seen, moved, info.now).coalesce(1), moves)
    elif before:
        shutil.copytree(files.state(before.batch, "moves"), moves)
    else:
        _write_empty(lag.seen_moves(None, moved, info.now), moves)
    rejects = pq.ParquetDataset(files.staged("rejects")).read(columns=["kind"]).num_rows if info.odd else 0
    return replace(info, rejects=rejects)


def _stage_tables(spark: SparkSession, info: BatchInfo, section: LagSection, files: LagFiles, steps: Steps) -> None:
    clock = files.staged("state") / "clock"
    clock.mkdir()
    pq.write_table(pa.table({"now": [info.now], "settled": [settled(info.now, info.brokers)]}), clock / "clock.parquet")
    keys, heads, times = (spark.read.parquet(str(files.staged("state") / name)) for name in ("keys", "heads", "clock"))
    with steps("shards"):
        _write(lag.shards(keys, heads, times, section), files.staged("shards"))
    with steps("groups"):
        _write(lag.groups(spark.read.parquet(str(files.staged("shards")))).coalesce(1), files.staged("groups"))


def _write(table: DataFrame, place: Path) -> None:
    table.write.mode("overwrite").parquet(str(place))


def _write_empty(table: DataFrame, place: Path) -> None:
    place.mkdir(parents=True)
    pq.write_table(to_arrow_schema(table.schema, timezone="UTC").empty_table(), place / "empty.parquet")
