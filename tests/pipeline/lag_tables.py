"""Tables as the lag job writes them, made by hand, for tests of their readers."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adapter.model.schemas import TIME
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.places import Place

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # the time of what cannot be read

_TYPES = {"time": TIME, "string": pa.string(), "long": pa.int64(), "int": pa.int32(), "double": pa.float64()}


def _columns(text: str) -> Mapping[str, pa.DataType]:
    return {name: _TYPES[kind] for name, kind in (column.split() for column in text.split(","))}


COLUMNS = {
    "groups": _columns(
        "evaluated_at time, namespace string, group string, status string, burrow string, shards int, unknown_lag_shards int,"
        "total_lag long, max_lag_seconds double, drain_seconds double, worst_shard string"
    ),
    "shards": _columns(
        "evaluated_at time, namespace string, group string, shard string, topic string, partition long, broker string,"
        "epoch long, offset long, committed_at time, head long, head_at time, lag long, lost long, lag_seconds double,"
        "consume_rate double, produce_rate double, drain_seconds double, trend double, status string, burrow string, points int"
    ),
    "rewinds": _columns(
        "at time, namespace string, group string, shard string, broker string, kind string, from_epoch long, from_offset long,"
        "epoch long, offset long, duplicates long, skipped long"
    ),
    "rejects": _columns(
        "at time, broker string, segment string, namespace string, group string, shard string, kind string, problem string"
    ),
}


def at(seconds: float) -> datetime:
    """The time this many seconds after the start."""
    return START + timedelta(seconds=seconds)


def write(tables: Path, name: str, batch: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a batch of a table; absent columns of a row are null."""
    columns = COLUMNS[name]
    schema = pa.schema(list(columns.items()))
    directory = tables / name / f"batch={batch}"
    directory.mkdir(parents=True, exist_ok=True)
    full = [{column: row.get(column) for column in columns} for row in rows]
    table = pa.Table.from_pylist(full, schema)
    for place, field in enumerate(schema):
        if field.type == pa.string():  # as the job writes names
            table = table.set_column(place, field.name, table.column(place).dictionary_encode())
    pq.write_table(table, directory / "part-00000.parquet")


def group(name: str, status: str = "OK", lag: int | None = 0, seconds: float | None = None, **others: Any) -> dict[str, Any]:
    """A row of `groups`."""
    usual = {"namespace": "default", "burrow": status, "shards": 1, "worst_shard": f"{name}/0"}
    known = {"unknown_lag_shards": int(lag is None), "total_lag": lag, "max_lag_seconds": seconds}
    return {**usual, **known, "group": name, "status": status, **others}


def rewind(seconds: float, name: str, before: int | None, after: int, duplicates: int | None, **others: Any) -> dict[str, Any]:
    """A row of `rewinds`."""
    usual = {"namespace": "default", "shard": f"{name}/0", "broker": "b1", "kind": "rewind", "from_epoch": 1, "epoch": 2}
    moved = {"from_offset": before, "offset": after, "duplicates": duplicates, "skipped": 0}
    return {**usual, **moved, "at": at(seconds), "group": name, **others}


def write_batch(tables: Path, batch: int, seconds: float, groups: Sequence[Mapping[str, Any]]) -> None:
    """Write a batch of `groups`, and of `shards` with as many shards for each group as it says, all of its status."""
    time = at(seconds)
    write(tables, "groups", batch, [{"evaluated_at": time, **row} for row in groups])
    copied = ("namespace", "group", "status", "burrow")
    shards = [
        {name: row[name] for name in copied}
        | {"evaluated_at": time, "shard": f"{row['group']}/{number}", "topic": row["group"], "partition": number}
        for row in groups
        for number in range(row["shards"])
    ]
    write(tables, "shards", batch, shards)
    complete(tables, batch, seconds)


def complete(tables: Path, batch: int, seconds: float) -> None:
    """Write the manifest of a batch, with all files that it has. A table without any gets an empty one, as of the job."""
    for name in COLUMNS:
        if not (tables / name / f"batch={batch}").exists():
            write(tables, name, batch, [])
    found = {name: sorted((tables / name / f"batch={batch}").glob("*.parquet")) for name in COLUMNS}
    paths = {name: [str(path.relative_to(tables)) for path in files] for name, files in found.items()}
    now = round(at(seconds).timestamp() * 1_000_000)
    files = LagFiles(Place.of(tables))
    rejects, rewinds = (sum(pq.read_metadata(path).num_rows for path in found[name]) for name in ("rejects", "rewinds"))
    info = BatchInfo(batch, 1, now, now, odd=rejects + rewinds, rejects=rejects, files=paths)
    files.manifest(batch).write(info.to_json())


def fleet(tables: Path, batches: int = 60, first: int = 0) -> None:
    """Two hours of a small fleet: stopped, stalled, slow, rewound and healthy groups, and one with an unknown lag."""
    for batch in range(batches):
        done = batch / max(batches - 1, 1)
        seconds = 7_200 * done
        saw = batch % 8
        rewound = max(0, 42_000 - 2_100 * (batch - batches // 2)) if batch >= batches // 2 else 150
        write_batch(
            tables,
            first + batch,
            seconds,
            [
                group("audit-export", "STOP", 40_000 + round(310_000 * done), 7_000 * done, shards=6, worst_shard="audit/3"),
                group(
                    "search-indexer", "STALL", 9_000 + round(88_000 * done), 900 + 4_000 * done, shards=4, worst_shard="docs/1"
                ),
                group("billing", "REWIND" if rewound else "OK", rewound, rewound / 60, drain_seconds=rewound / 70, shards=3),
                group("recommendations", "WARN", round(61_000 * done**2), 800 * done**2, shards=8, unknown_lag_shards=2),
                group("orders", "OK", 300 + 220 * saw, 1.5 + saw, drain_seconds=4.2, shards=12),
                group("mail", "OK", 40 * saw, 0.4 * saw, drain_seconds=0.8 * saw, shards=2),
                group("legacy-sync", "OK", None, None, shards=2, unknown_lag_shards=2, worst_shard=None),
                group("thumbnails", "OK", 0, 0.0, drain_seconds=0.0, shards=2),
            ],
        )
    rewinds = [
        rewind(3_700, "billing", 912_000, 870_000, 42_000),
        rewind(1_500, "orders", 5_100, 1_000, 4_100, kind="reset"),
        rewind(5_100, "mail", 9_000, 8_930, 70),
        rewind(5_200, "mail", None, 9_000, None, kind="reset", skipped=None),
        rewind(5_300, "mail", 9_000, 9_500, 0, kind="reset", skipped=500),
    ]
    last = first + batches - 1
    write(tables, "rewinds", last, rewinds)
    torn = {"segment": "/journal/date=2026-11-21/broker=b1/1763711990000-00000003.parquet", "problem": "is torn: has no footer"}
    write(tables, "rejects", last, [{"at": EPOCH, "kind": "unreadable", **torn}])
    complete(tables, last, 7_200)
