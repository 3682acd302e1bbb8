"""Journal segments for tests and benchmarks: from rows, or from Arrow tables of millions of rows, in the layout of the adapter.

Nothing here needs Spark. Segments are renamed to their place when they are whole, as the adapter does it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adapter.model.schemas import BROKER, JOURNAL, JOURNAL_VERSION, VERSION_OF_JOURNAL

RUN = 1_764_547_200_000  # 2025-12-01 00:00:00
START = datetime(2025, 12, 1, tzinfo=UTC)
Row = Mapping[str, Any]

_US_OF_SECOND = 1_000_000
_DEFAULTS: Row = {
    "at": START,
    "seq": 0,
    "kind": "flush",
    "namespace": "default",
    "group": "g",
    "shard": "T/0",
    "topic": "T",
    "partition": 0,
    "epoch": 0,
    "offset": 0,
    "live": True,
}


def journal_table(rows: Iterable[Row]) -> pa.Table:
    """A table of rows; what a row does not say is as in a plain commit of offset 0; `seq` counts the rows."""
    return pa.Table.from_pylist([{**_DEFAULTS, "seq": seq, **row} for seq, row in enumerate(rows)], schema=JOURNAL)


def commits(
    cycles: int,
    groups: int = 10,
    shards: int = 10,
    *,
    start: datetime = START,
    interval_s: float = 10.0,
    consume_rate: float = 100.0,
    produce_rate: float = 100.0,
    backlog: int = 1_000,
    namespace: str = "default",
    first_seq: int = 0,
    first_cycle: int = 0,
) -> pa.Table:
    """`cycles * groups * shards` plain commits: every key commits once in each cycle, with its high watermark.

    Offsets grow by `consume_rate` messages a second; heads by `produce_rate`, from `backlog` ahead. Keys differ a little.
    """
    keys = groups * shards
    cycle = np.repeat(np.arange(first_cycle, first_cycle + cycles, dtype=np.int64), keys)
    key = np.tile(np.arange(keys, dtype=np.int64), cycles)
    began = int(start.timestamp()) * _US_OF_SECOND
    at = began + (cycle * (interval_s * _US_OF_SECOND)).astype(np.int64)
    offset = key * 7 + (cycle * (interval_s * consume_rate)).astype(np.int64)
    head = key * 7 + backlog + (cycle * (interval_s * produce_rate)).astype(np.int64)
    rows = len(key)
    times = pa.array(at).cast(JOURNAL.field("at").type)
    nothing = pa.nulls(rows, pa.int64())
    columns = {
        "at": times,
        "seq": pa.array(np.arange(first_seq, first_seq + rows, dtype=np.int64)),
        "kind": _same("flush", rows),
        "namespace": _same(namespace, rows),
        "group": _named([f"group-{group}" for group in range(groups)], key // shards),
        "shard": _named([f"orders/{shard}" for shard in range(shards)], key % shards),
        "topic": _same("orders", rows),
        "partition": pa.array(key % shards),
        "epoch": pa.array(np.zeros(rows, dtype=np.int64)),
        "offset": pa.array(offset),
        "live": pa.array(np.ones(rows, dtype=np.bool_)),
        "committed_at": times,
        "from_epoch": nothing,
        "from_offset": nothing,
        "low_watermark": pa.array(np.zeros(rows, dtype=np.int64)),
        "high_watermark": pa.array(head),
        "watermark_at": times,
        "log_id": pa.nulls(rows, pa.string()),
        "problem": pa.nulls(rows, pa.string()),
    }
    return pa.table(columns, schema=JOURNAL)


def segment_path(root: Path, date: str, broker: str, number: int, run: int = RUN) -> Path:
    """The path of a segment of this date (YYYY-MM-DD)."""
    return root / f"date={date}" / f"broker={quote(broker, safe='')}" / f"{run:013}-{number:08}.parquet"


def write_segment(
    root: Path,
    rows: pa.Table | Iterable[Row],
    number: int = 0,
    *,
    broker: str = "broker-1",
    run: int = RUN,
    date: str | None = None,
    metadata: Mapping[bytes, bytes] | None = None,
) -> Path:
    """One segment; `date` None: that of its first row. `metadata` instead of the adapter's own, for bad files."""
    table = rows if isinstance(rows, pa.Table) else journal_table(rows)
    if date is None:
        date = _dates(table)[0] if table.num_rows else START.date().isoformat()
    told = {VERSION_OF_JOURNAL: JOURNAL_VERSION.encode(), BROKER: broker.encode()} if metadata is None else dict(metadata)
    path = segment_path(root, date, broker, number, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = root / ".open" / path.name
    opened.parent.mkdir(exist_ok=True)
    pq.write_table(table.replace_schema_metadata(told), opened, compression="zstd", write_page_checksum=True)
    opened.rename(path)
    return path


def write_segments(
    root: Path,
    table: pa.Table,
    rows_per_segment: int,
    *,
    broker: str = "broker-1",
    run: int = RUN,
    first_number: int = 0,
) -> list[Path]:
    """Write a table in order of time as one run of a broker: segments of at most this many rows, each of one date."""
    pieces = (piece for day in _days(table) for piece in _pieces(day, rows_per_segment))
    return [write_segment(root, piece, first_number + at, broker=broker, run=run) for at, piece in enumerate(pieces)]


def _same(value: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)


def _named(names: Sequence[str], indices: Any) -> pa.Array:
    return pa.array(names).take(pa.array(indices))


def _dates(table: pa.Table) -> list[str]:
    found: list[str] = pc.strftime(table["at"].unique(), "%Y-%m-%d").unique().to_pylist()
    return found


def _days(table: pa.Table) -> Iterator[pa.Table]:
    if len(dates := _dates(table)) == 1:
        yield table
        return
    of_row = pc.strftime(table["at"], "%Y-%m-%d")
    for date in dates:
        yield table.filter(pc.equal(of_row, date))


def _pieces(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for begin in range(0, table.num_rows, rows):
        yield table.slice(begin, rows)
