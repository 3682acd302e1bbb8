"""What the tasks of a batch do, in Spark's Python workers. Each stage is for `mapInArrow`: Arrow batches in, Arrow batches out.

    rows of segments -> gathering: reads them, and reduces them to a part for each bucket
    -- shuffle by bucket -> evaluating: the bucket's state and its new parts -> its files, and partial sums of its groups
    -- with many buckets, shuffle by group -> combining: the partial sums -> files of the table `groups`

A task may be repeated, or run twice at once: its files have names that nobody else uses, and it tells the driver which they are.
What it writes depends only on its input. Memory is bounded by a few parts of one bucket.
"""

import json
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adapter.errors import AdapterError
from adapter.model.lag_rows import LagSettings
from adapter.pipeline.journal.listing import Segment
from adapter.pipeline.journal.readers import SEGMENTS, segments_of
from adapter.pipeline.journal.segment import read_table
from adapter.pipeline.lag import part as parts
from adapter.pipeline.lag.clock import clock_of, newest_of
from adapter.pipeline.lag.evaluate import evaluate
from adapter.pipeline.lag.evaluate import groups as groups_of
from adapter.pipeline.lag.files import STATE, relative, start_again
from adapter.pipeline.lag.part import Part
from adapter.pipeline.lag.segment_rows import COLUMNS, Gathered, Origin, gather, unreadable
from adapter.pipeline.places import Place

# The columns that the stages pass on, as Spark's types.
GATHERED = "bucket int, told string, part binary"
EVALUATED = "piece int, bucket int, now long, told string, groups binary"
COMBINED = "told array<string>, path string"
# The additional column of a segment's row: when the batch was planned, in microseconds. Spark stores it with the batch.
PLANNED_US = "planned_us"
# Parts of segments are merged when they have grown to this size, in bytes.
_MERGE_BYTES = 64 * 2**20
# Names that repeat in many rows.
_REPEATED = (
    "namespace",
    "group",
    "shard",
    "topic",
    "broker",
    "status",
    "burrow",
    "kind",
    "worst_shard",
    "segment",
    "run",
    "problem",
)
# What readers filter by.
_SORTED = ("namespace", "group", "status")

Batches = Iterator[pa.RecordBatch]
Stage = Callable[[Batches], Batches]


@dataclass(frozen=True)
class Work:
    """What all tasks of a batch know.

    `brokers`: the newest time of each before the batch; `state`: the files of the state before it, by the buckets of then;
    `pieces`: into how many the groups are split, a power of two as is `buckets`.
    """

    output: Place
    batch: int
    journals: tuple[str, ...]
    settings: LagSettings
    buckets: int
    pieces: int = 1
    brokers: Mapping[str, int] = field(default_factory=dict)
    state: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """What a task tells the driver of journal rows: the newest time of each broker, the number of rows, and of odd ones."""

    brokers: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    odd: int = 0


@dataclass(frozen=True)
class Bucket:
    """What a task tells the driver of a bucket: all that was told of the rows, its keys and rejects, and its files by table."""

    bucket: int
    told: Told
    keys: int
    rejects: int
    files: Mapping[str, Sequence[str]]

    @classmethod
    def from_json(cls, text: str) -> "Bucket":
        """The inverse of `to_json`."""
        found = json.loads(text)
        return cls(**{**found, "told": Told(**found["told"])})


def to_json(told: Told | Bucket) -> str:
    """As a row has it."""
    return json.dumps(asdict(told))


def gathering(work: Work) -> Stage:
    """Rows of segments (SEGMENTS, PLANNED_US) -> for each bucket a row of GATHERED with the part that this task has found."""

    def run(batches: Batches) -> Batches:
        found = _Gathered(work.settings)
        empty = True
        for batch in batches:
            planned_us = batch.column(PLANNED_US)[0].as_py() if batch.num_rows else 0
            for segment, missing in segments_of(batch.select(SEGMENTS.names), work.journals):
                empty = False
                for origin, some in _read(segment, missing, planned_us):
                    found.add(origin, some)
        if not empty:
            yield from _split(found, work.buckets)

    return run


def _read(segment: Segment, missing: str | None, planned_us: int) -> Iterator[tuple[Origin, Gathered]]:
    """What a segment says, and what is wrong with it; `missing`: why it is not to be read."""
    origin = Origin(segment.broker, segment.run, segment.path)
    problem = missing
    if missing is None:
        table, problem = read_table(segment, COLUMNS)
        yield origin, gather(table, origin, planned_us)
    if problem is not None:
        yield origin, unreadable(origin, problem)


class _Gathered:
    """The sum of what a task has read."""

    def __init__(self, settings: LagSettings) -> None:
        self._settings = settings
        self._parts: list[Part] = []
        self._bytes = 0
        self._limit = _MERGE_BYTES
        self._told = Told()

    def add(self, origin: Origin, found: Gathered) -> None:
        """Add a segment. Parts are merged as they come: what is repeated takes no memory."""
        at = {} if found.newest is None else {origin.broker: found.newest}
        before = self._told
        self._told = Told(newest_of([before.brokers, at]), before.rows + found.rows, before.odd + found.odd)
        self._parts.append(found.part)
        self._bytes += found.part.nbytes
        if self._bytes > self._limit:
            self._merge()
            self._limit = 2 * self._bytes + _MERGE_BYTES

    def whole(self) -> tuple[Part, Told]:
        """All that was added."""
        self._merge()
        return self._parts[0], self._told

    def _merge(self) -> None:
        self._parts = [parts.merge(self._parts, self._settings)]
        self._bytes = self._parts[0].nbytes


def _split(found: _Gathered, buckets: int) -> Batches:
    whole, told = found.whole()
    for bucket, part in enumerate(parts.split(whole, buckets)):
        empty = not any(table.num_rows for table in part.tables())
        yield _row(GATHERED, bucket, to_json(told), None if empty else parts.to_bytes(part))


def evaluating(work: Work) -> Stage:
    """Rows of GATHERED -> writes the files of each bucket, and yields rows of EVALUATED: what was written, and sums of groups."""

    def run(batches: Batches) -> Batches:
        gathered: dict[int, list[tuple[Told, Part | None]]] = {}
        for bucket, told, blob in _rows(batches):
            part = parts.from_bytes(blob.as_buffer()) if blob.is_valid else None
            gathered.setdefault(bucket.as_py(), []).append((Told(**json.loads(told.as_py())), part))
        for bucket, found in gathered.items():
            yield from _evaluated(work, bucket, found)

    return run


def _evaluated(work: Work, bucket: int, gathered: Sequence[tuple[Told, Part | None]]) -> Batches:
    tolds = [told for told, _ in gathered]
    brokers = newest_of([work.brokers, *(told.brokers for told in tolds)])
    clock = clock_of(brokers)
    added = [part for _, part in gathered if part is not None]
    found = evaluate(_state(work, bucket), added, clock, work.settings)
    files = {STATE: [_write(work, STATE, bucket, ".part", parts.to_bytes(found.state))]}
    files["shards"] = [_write_table(work, "shards", bucket, found.shards)]
    for name, table in (("rewinds", found.rewinds), ("rejects", found.rejects)):
        files[name] = [_write_table(work, name, bucket, table)] if table.num_rows else []
    told = Told(brokers, sum(told.rows for told in tolds), sum(told.odd for told in tolds))
    text = to_json(Bucket(bucket, told, found.state.keys.num_rows, found.rejects.num_rows, files))
    for piece, groups in enumerate(_pieces(found.groups, work.pieces)):
        yield _row(EVALUATED, piece, bucket, clock.now, None if piece else text, _to_bytes(groups))


def combining(work: Work) -> Stage:
    """Rows of EVALUATED -> writes a file of `groups` for each piece, and yields rows of COMBINED: what was told, and the file."""

    def run(batches: Batches) -> Batches:
        told, paths = combined(work, batches)
        for path in paths:
            yield _row(COMBINED, told, path)
            told = []

    return run


def combined(work: Work, batches: Iterable[pa.RecordBatch]) -> tuple[list[str], list[str]]:
    """Write a file of `groups` for each piece: what the buckets told, and the paths."""
    sums: dict[tuple[int, int], dict[int, pa.Table]] = {}
    texts: dict[int, str] = {}
    for piece, bucket, now, text, groups in _rows(batches):
        if text.is_valid:
            texts[bucket.as_py()] = text.as_py()
        sums.setdefault((piece.as_py(), now.as_py()), {})[bucket.as_py()] = _from_bytes(groups.as_buffer())
    found = [
        _write_table(work, "groups", piece, groups_of([table for _, table in sorted(of_buckets.items())], now))
        for (piece, now), of_buckets in sums.items()
    ]
    return [text for _, text in sorted(texts.items())], found


def write_empty(work: Work, name: str, schema: pa.Schema) -> str:
    """Write a file without rows, so that a table without rows can be read by its directory; returns its path."""
    return _write_table(work, name, 0, schema.empty_table())


def _state(work: Work, bucket: int) -> Part | None:
    """The state of a bucket before the batch. With more buckets than before, a part of what its bucket was then."""
    if not work.state:
        return None
    place = work.output / work.state[bucket % len(work.state)]
    try:
        part = parts.from_bytes(place.read())
    except FileNotFoundError as error:
        raise AdapterError(
            f"{place}: is not found on this machine. If it is there on the driver's, let all machines of the cluster share the "
            f"directory; if it was deleted: {start_again(work.output)}"
        ) from error
    except ValueError as error:
        raise AdapterError(f"{place}: is damaged ({error}); {start_again(work.output)}") from error
    return part if len(work.state) == work.buckets else parts.split(part, work.buckets)[bucket]


def _pieces(groups: pa.Table, pieces: int) -> Iterator[pa.Table]:
    """The rows of each piece: a group is wholly in one."""
    if pieces == 1:
        yield groups
        return
    names = zip(groups["namespace"].to_pylist(), groups["group"].to_pylist(), strict=True)
    of_row = np.array([zlib.crc32(group.encode(), zlib.crc32(namespace.encode())) % pieces for namespace, group in names])
    for piece in range(pieces):
        yield groups.filter(pa.array(of_row == piece))


def _write_table(work: Work, name: str, bucket: int, table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    repeated, ordered = ([column for column in columns if column in table.column_names] for columns in (_REPEATED, _SORTED))
    pq.write_table(table, sink, compression="lz4", use_dictionary=repeated, write_statistics=ordered)
    return _write(work, name, bucket, ".parquet", sink.getvalue())


def _write(work: Work, name: str, bucket: int, suffix: str, content: bytes) -> str:
    """Write a file under a name that no other task uses; returns its path below the output."""
    path = f"{relative(name, work.batch)}/{bucket:05}-{secrets.token_hex(8)}{suffix}"
    (work.output / path).write_unsynced(content)
    return path


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    """The rows as Arrow scalars: binaries are not copied."""
    return (row for batch in batches for row in zip(*batch.columns, strict=True))


def _row(schema: str, *values: object) -> pa.RecordBatch:
    columns = (column.rsplit(" ", 1) for column in schema.split(", "))
    return pa.RecordBatch.from_pydict(
        {name: pa.array([value], _TYPES[kind]) for (name, kind), value in zip(columns, values, strict=True)}
    )


_TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "array<string>": pa.list_(pa.string()),
}


def _to_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _from_bytes(content: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
