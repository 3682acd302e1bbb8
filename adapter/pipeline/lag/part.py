"""A part: what some rows of journals say of keys and shards. It merges by maximum: rows may come late, again and in any order.

The state of a bucket, what a task reads from its segments, and what is sent between tasks are all parts. Of a key (namespace,
group, shard) a part has the largest record of all (`keys`), and the newest `window_points` time slots, each with its largest
record (`points`). Of a shard (namespace, shard) it has the newest low, the log's first offset (`shards`), and the newest
`head_points` time slots, each with its newest head, the log's end (`heads`), and when its newest two logs were told last, by
their identity (`logs`). `moves` are the identities of moves that were told already; `odds` are moves and rows with a problem, to
be told. `warned` are the keys that were WARN, which only a state knows.

Times are microseconds. NULL is unknown. What `merge`, `split` and `kept` return is canonical: equal content has equal bytes. The
part of a segment that `segment_rows` makes has a key for each row, and is merged first.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa

from adapter.model.lag_rows import US_OF_MS, Ints, LagSettings
from adapter.pipeline.lag.runs import (
    NULL,
    TEXT,
    Runs,
    coded,
    ids_of,
    ints,
    newest,
    paired,
    places_in_runs,
    ranks,
    stacked,
    tidied,
)

KEY = ("namespace", "group", "shard")
SHARD = ("namespace", "shard")
IDENTITY = ("broker", "run", "seq")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


_LONG = pa.int64()
_RECORD = {"epoch": _LONG, "offset": _LONG, "live": _LONG, "t": _LONG}

# `topic`, `partition`, `broker` are those of the largest record. In its columns after the key, the larger record is larger.
KEYS = _schema(**dict.fromkeys(KEY, TEXT), **_RECORD, topic=TEXT, partition=_LONG, broker=TEXT)
# `key`: the row in `keys`. `lag`: at the time of the commit. `near`: minus the time of the head that the lag was taken from: of
# equal commits the one with the older head is larger, because it has the lag at the time of the commit.
POINTS = _schema(key=_LONG, **_RECORD, near=_LONG, lag=_LONG)
SHARDS = _schema(**dict.fromkeys(SHARD, TEXT), low_t=_LONG, low=_LONG)
# `shard`: the row in `shards`.
HEADS = _schema(shard=_LONG, t=_LONG, high=_LONG)
# The newest log is the one that was told last.
LOGS = _schema(shard=_LONG, log=TEXT, t=_LONG)
WARNED = _schema(key=_LONG)
MOVES = _schema(**dict.fromkeys(SHARD, TEXT), broker=TEXT, run=_LONG, seq=_LONG, t=_LONG)
ODDS = _schema(
    **dict.fromkeys(KEY, TEXT),
    at=_LONG,
    broker=TEXT,
    run=_LONG,
    seq=_LONG,
    segment=TEXT,
    kind=TEXT,
    **dict.fromkeys(("from_epoch", "from_offset", "epoch", "offset"), _LONG),
    problem=pa.string(),
    is_move=pa.bool_(),
)
_SCHEMAS = {
    "keys": KEYS,
    "points": POINTS,
    "shards": SHARDS,
    "heads": HEADS,
    "moves": MOVES,
    "odds": ODDS,
    "logs": LOGS,
    "warned": WARNED,
}
_LOGS_KEPT = 2
_TOP, _POINT = KEYS.names[len(KEY) :], POINTS.names[1:]

# A part in bytes: the mark, the CRC-32 of what follows it, the sizes of the tables, the tables as Arrow streams.
_MARK = b"lagpart2"
# How many tables a part has: one of an earlier release has no logs, and knows nobody who was WARN.
_HEADS = {mark: struct.Struct(f"<8sI4x{count}Q") for mark, count in ((b"lagpart1", 6), (_MARK, len(_SCHEMAS)))}
_ALIGNED = 64
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Part:
    """The tables of a part; see the module and the schemas. They are not changed."""

    keys: pa.Table = field(default_factory=KEYS.empty_table)
    points: pa.Table = field(default_factory=POINTS.empty_table)
    shards: pa.Table = field(default_factory=SHARDS.empty_table)
    heads: pa.Table = field(default_factory=HEADS.empty_table)
    moves: pa.Table = field(default_factory=MOVES.empty_table)
    odds: pa.Table = field(default_factory=ODDS.empty_table)
    logs: pa.Table = field(default_factory=LOGS.empty_table)
    warned: pa.Table = field(default_factory=WARNED.empty_table)

    @property
    def nbytes(self) -> int:
        """Its size in memory, in bytes."""
        return sum(int(table.nbytes) for table in self.tables())

    def tables(self) -> list[pa.Table]:
        """Its tables, in the order of the fields."""
        return [getattr(self, one.name) for one in fields(self)]


def merge(parts: Sequence[Part], settings: LagSettings) -> Part:
    """One part that says what all of them say. The order of the parts does not matter; a part may be given twice."""
    keys = stacked([part.keys for part in parts], KEYS)
    points = _stacked_below(parts, "points", "key")
    by_key = Runs(ids_of(keys, KEY))
    largest = by_key.largest([ranks(keys[name]) if name in {"topic", "broker"} else ints(keys, name) for name in _TOP])
    shards, heads, logs = _merged_shards(parts, settings)
    warned = by_key.numbers()[ints(_stacked_below(parts, "warned", "key"), "key")]
    moves = stacked([part.moves for part in parts], MOVES)
    return Part(
        keys=tidied(keys.take(pa.array(largest))),
        points=_newest_slots(
            points, "key", by_key.numbers(), _POINT, settings.point_distance_ms * US_OF_MS, settings.window_points
        ),
        shards=shards,
        heads=heads,
        moves=tidied(moves.take(pa.array(first_of_each(moves)))),
        odds=_distinct(stacked([part.odds for part in parts], ODDS)),
        logs=logs,
        warned=pa.table([np.unique(warned)], schema=WARNED),
    )


def split(part: Part, buckets: int) -> list[Part]:
    """A part for each bucket. All that belongs to a shard is in the same one: CRC-32 of namespace and shard, modulo `buckets`.

    So bucket b of n is split into b and b + n of 2n.
    """
    if buckets == 1:
        return [part]
    keys, shards, moves, odds = (_buckets(table, buckets) for table in (part.keys, part.shards, part.moves, part.odds))
    return _dealt(part, (keys, shards, moves, odds), buckets)


def kept(part: Part, since: int) -> Part:
    """Without what is older than this time: keys whose largest record is a tombstone, shards by their newest head, told moves."""
    heads = np.full(part.shards.num_rows, NULL)
    np.maximum.at(heads, ints(part.heads, "shard"), ints(part.heads, "t"))
    keys = (ints(part.keys, "live") > 0) | (ints(part.keys, "t") >= since)
    moves = ints(part.moves, "t") >= since
    if keys.all() and (heads >= since).all() and moves.all():
        return part
    odds = np.ones(part.odds.num_rows, np.int64)
    return _dealt(part, (keys.astype(np.int64), (heads >= since).astype(np.int64), moves.astype(np.int64), odds), 2)[1]


def first_of_each(moves: pa.Table) -> Ints:
    """Where the rows of `moves` or `odds` with different identities are, in the order of the identities."""
    by_identity = Runs(paired(paired(ids_of(moves, ["broker"]), ints(moves, "run")), ints(moves, "seq")))
    return by_identity.order[by_identity.starts]


def to_bytes(part: Part) -> bytes:
    """A part as bytes, compressed. Equal canonical parts give equal bytes."""
    streams = [_stream(table) for table in part.tables()]
    rest = b"".join(streams)
    return _HEADS[_MARK].pack(_MARK, zlib.crc32(rest), *map(len, streams)) + rest


def from_bytes(data: bytes | memoryview | pa.Buffer) -> Part:
    """The inverse of `to_bytes`. Raises ValueError if the bytes are damaged, or not a part."""
    view = memoryview(data)
    head = _HEADS.get(bytes(view[: len(_MARK)]), _HEADS[_MARK])
    if len(view) < head.size:
        raise ValueError(f"is no part of the lag job: has {len(view)} bytes")
    mark, crc, *sizes = head.unpack_from(view)
    rest = view[head.size :]
    if mark not in _HEADS or len(rest) != sum(sizes) or zlib.crc32(rest) != crc:
        raise ValueError("is no part of the lag job, or damaged: mark, size or checksum differ")
    begins = np.cumsum([0, *sizes]).tolist()
    tables = [
        pa.ipc.open_stream(pa.py_buffer(rest[begin : begin + size])).read_all()
        for begin, size in zip(begins, sizes, strict=False)
    ]
    wrong = [name for (name, schema), table in zip(_SCHEMAS.items(), tables, strict=False) if table.schema != schema]
    if wrong:
        raise ValueError(f"is a part of another version of the lag job: {', '.join(wrong)} differ")
    return Part(*tables)


def _stacked_below(parts: Sequence[Part], name: str, parent: str) -> pa.Table:
    """The rows of a table below `keys` or `shards` of all parts; each belongs to a row of the stacked keys or shards."""
    above = "keys" if parent == "key" else "shards"
    tables, base = [], 0
    for part in parts:
        table = getattr(part, name)
        tables.append(table.set_column(0, parent, pa.array(ints(table, parent) + base)))
        base += getattr(part, above).num_rows
    return stacked(tables, _SCHEMAS[name])


def _merged_shards(parts: Sequence[Part], settings: LagSettings) -> tuple[pa.Table, pa.Table, pa.Table]:
    """`shards`, `heads`, `logs`."""
    shards = stacked([part.shards for part in parts], SHARDS)
    heads = _stacked_below(parts, "heads", "shard")
    by_shard = Runs(ids_of(shards, SHARD))
    newest_low = by_shard.largest([ints(shards, "low_t"), ints(shards, "low")])
    distance = settings.head_distance_ms * US_OF_MS
    return (
        tidied(shards.take(pa.array(newest_low))),
        _newest_slots(heads, "shard", by_shard.numbers(), HEADS.names[1:], distance, settings.head_points),
        _newest_logs(_stacked_below(parts, "logs", "shard"), by_shard.numbers()),
    )


def _newest_logs(logs: pa.Table, numbers: Ints) -> pa.Table:
    """Of each shard the logs that were told last, with the time, in its order; `numbers`: the new row of each shard."""
    of, names, times = numbers[ints(logs, "shard")], ranks(logs["log"]), ints(logs, "t")
    rows = Runs(paired(of, names)).largest([times])
    rows = rows[np.lexsort((names[rows], times[rows], of[rows]))]
    rows = rows[newest(of[rows], _LOGS_KEPT)]
    return tidied(logs.take(pa.array(rows)).set_column(0, LOGS.field("shard"), pa.array(of[rows])))


def _newest_slots(table: pa.Table, parent: str, numbers: Ints, columns: Sequence[str], distance: int, count: int) -> pa.Table:
    """Of each parent the newest `count` slots of time, each with its largest row; `numbers`: the new row of each parent."""
    of = numbers[ints(table, parent)]
    slots = Runs(paired(of, ints(table, "t") // distance))
    largest = slots.largest([ints(table, name) for name in columns])
    largest = largest[newest(of[largest], count)]
    return pa.table([pa.array(of[largest]), *(pa.array(ints(table, name)[largest]) for name in columns)], schema=table.schema)


def _distinct(odds: pa.Table) -> pa.Table:
    """Without rows that are equal in all columns, in the order of the columns."""
    if not odds.num_rows:
        return odds
    plain = pa.table(
        [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in odds.columns],
        odds.column_names,
    )
    once = plain.group_by(plain.column_names, use_threads=False).aggregate([])
    return tidied(once.select(odds.column_names).sort_by([(name, "ascending") for name in odds.column_names]).cast(ODDS))


def _dealt(part: Part, of: tuple[Ints, Ints, Ints, Ints], count: int) -> list[Part]:
    """As many parts: each row of keys, shards, moves and odds goes to the one with its number, with its points and heads."""
    keys, shards, moves, odds = of
    tables = zip(
        _rows_of_each(part.keys, keys, count),
        _dealt_below(part.points, "key", keys, count),
        _rows_of_each(part.shards, shards, count),
        _dealt_below(part.heads, "shard", shards, count),
        _rows_of_each(part.moves, moves, count),
        _rows_of_each(part.odds, odds, count),
        _dealt_below(part.logs, "shard", shards, count),
        _dealt_below(part.warned, "key", keys, count),
        strict=True,
    )
    return [Part(*map(tidied, some)) for some in tables]


def _dealt_below(table: pa.Table, parent: str, of_parents: Ints, count: int) -> list[pa.Table]:
    order = np.argsort(of_parents, kind="stable")
    places = np.empty(len(order), np.int64)
    places[order] = places_in_runs(of_parents[order])[0]
    of = ints(table, parent)
    moved = table.set_column(0, table.schema.field(parent), pa.array(places[of]))
    return _rows_of_each(moved, of_parents[of], count)


def _rows_of_each(table: pa.Table, of: Ints, count: int) -> list[pa.Table]:
    order = np.argsort(of, kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=count))[:-1]
    return [table.take(pa.array(rows)) for rows in np.split(order, ends)]


def _buckets(table: pa.Table, buckets: int) -> Ints:
    namespaces, shards = (coded(table[name]) for name in SHARD)
    pairs, place = np.unique(namespaces[0] * max(len(shards[1]), 1) + shards[0], return_inverse=True)
    first = [zlib.crc32(word.encode()) for word in namespaces[1].to_pylist()]
    second = [word.encode() for word in shards[1].to_pylist()]
    found = [zlib.crc32(second[pair % len(second)], first[pair // len(second)]) % buckets for pair in pairs.tolist()]
    buckets_of: Ints = np.array(found, np.int64)[place.reshape(-1)]
    return buckets_of


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_LZ4) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content + bytes(-len(content) % _ALIGNED)
