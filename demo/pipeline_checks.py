"""Compares the tables of the pipeline to what the load knows. Reads the Parquet files with pyarrow, without Spark."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from adapter.model.records import OffsetKey
from demo.pipeline_load import Load, Rewind, Way

# The expected status for each way to consume.
EXPECTED = {Way.STEADY: "OK", Way.SLOW: "WARN", Way.STOPS: "STOP", Way.REWINDS: "REWIND"}


class Check(NamedTuple):
    """A comparison: its name, the number of compared values, and the wrong ones."""

    what: str
    compared: int
    wrong: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """True if values were compared and none was wrong."""
        return bool(self.compared) and not self.wrong


def newest(table: Path) -> list[dict[str, Any]]:
    """The rows of the newest batch of a table of the lag job; empty if there is none."""
    batches = sorted(table.glob("batch=*"), key=lambda path: int(path.name.partition("=")[2]))
    return _rows(batches[-1]) if batches else []


def every(table: Path) -> list[dict[str, Any]]:
    """All rows of a table."""
    return [row for path in sorted(table.rglob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]


def key_of(row: Mapping[str, Any]) -> OffsetKey:
    """The key of a row."""
    return OffsetKey(row["namespace"], row["group"], row["shard"])


def offsets_and_lag(shards: list[dict[str, Any]], load: Load) -> Check:
    """Compare for every key: the last acknowledged offset, the end of its log, and the lag."""
    found = {key_of(row): (row["offset"], row["head"], row["lag"]) for row in shards}
    heads = load.heads
    wanted = {key: (offset, heads[key.shard], max(heads[key.shard] - offset, 0)) for key, offset in load.acknowledged.items()}
    return Check("lag table: offset, head and lag of every key", len(wanted), _differences(found, wanted))


def rewinds(rows: list[dict[str, Any]], load: Load) -> Check:
    """Compare the rewinds: each one once, with its number of messages read again, and no others."""
    found = sorted(
        (Rewind(key_of(row), row["from_offset"], row["offset"]), row["duplicates"], row["skipped"], row["kind"]) for row in rows
    )
    wanted = sorted((rewind, rewind.before - rewind.after, 0, "rewind") for rewind in load.rewinds)
    counted = {str(number): row for number, row in enumerate(found)}
    return Check(
        "rewinds: each once, with what is read again",
        len(wanted),
        _differences(counted, {str(number): row for number, row in enumerate(wanted)}),
    )


def statuses(groups: list[dict[str, Any]], load: Load) -> Check:
    """Compare the status of every group to that expected for its way to consume."""
    wanted = {group: EXPECTED[way] for group, way in load.ways.items()}
    return Check("status of every group", len(wanted), _differences({row["group"]: row["status"] for row in groups}, wanted))


def survived(what: str, held: Mapping[OffsetKey, int], load: Load, keys: set[OffsetKey]) -> Check:
    """Check that stored offsets are at least those acknowledged, and at most those sent."""
    wrong = [
        f"{key.group} {key.shard}: acknowledged {load.acknowledged[key]}, sent {load.sent[key]}, held {held.get(key)}"
        for key in sorted(keys)
        if not load.acknowledged[key] <= held.get(key, -1) <= load.sent[key]
    ]
    return Check(what, len(keys), tuple(wrong))


def equal(what: str, found: Mapping[OffsetKey, int], wanted: Mapping[OffsetKey, int]) -> Check:
    """Check that both have the same keys with the same offsets."""
    return Check(what, len(wanted), _differences(found, wanted))


def _rows(directory: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(directory.glob("*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]


def _differences(found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> tuple[str, ...]:
    return tuple(
        f"{'/'.join(key) if isinstance(key, tuple) else key}: {_shown(found.get(key))} instead of {_shown(wanted.get(key))}"
        for key in sorted({*found, *wanted})
        if found.get(key) != wanted.get(key)
    )


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)
