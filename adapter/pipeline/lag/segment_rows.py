"""The rows of one segment as a part: each row is a commit, a head, a move, a problem, or several of these.

No row is dropped: one that cannot be used, or whose times contradict each other, is told with its problem. The result depends on
nothing but the rows, and the time at which the batch was planned.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapter.model.lag_rows import US_OF_MS, Bools, Ints
from adapter.model.schemas import KINDS
from adapter.pipeline.lag.part import HEADS, KEY, KEYS, LOGS, ODDS, POINTS, SHARD, SHARDS, Part
from adapter.pipeline.lag.runs import NULL, TEXT, ints

COMMITS = frozenset({"flush", "rewind", "reset", "clone", "import", "delete", "expire"})
MOVES = frozenset({"rewind", "reset", "clone", "import"})

US_OF_SECOND = 1_000_000
# Times from one machine that differ by more than this are a problem. The limit allows for clock steps and the time until a flush.
SKEW_US = 60 * US_OF_SECOND
# A row further ahead of this machine than this is not counted. One that is less far ahead is, but the time that it gives to its
# broker is cut at SKEW_US: one clock that is ahead would make the groups of all other brokers look silent.
FUTURE_US = 3_600 * US_OF_SECOND

# The columns of the journal that are read.
COLUMNS = (
    *("at", "seq", "kind", *KEY, "topic", "partition", "epoch", "offset", "live", "committed_at"),
    *("from_epoch", "from_offset", "low_watermark", "high_watermark", "watermark_at", "log_id", "problem"),
)
_TEXTS = ("kind", *KEY, "topic")


@dataclass(frozen=True)
class Origin:
    """Where rows come from: the broker, the run of its adapter (start, Unix time in milliseconds), the segment's path or URL."""

    broker: str
    run: int
    path: str


@dataclass(frozen=True)
class Gathered:
    """The part of a segment, with a key for each row.

    `newest`: the newest time of the rows that count, at most SKEW_US after the batch was planned; None if no row counts.
    `rows`: of the segment; `odd`: moves, and rows with a problem.
    """

    part: Part
    newest: int | None
    rows: int
    odd: int


def gather(table: pa.Table, origin: Origin, planned_us: int) -> Gathered:
    """The part of a segment's rows. `table`: at least COLUMNS; `planned_us`: when the batch was planned, in microseconds."""
    texts = {name: _text(table[name]) for name in _TEXTS}
    rows = _Rows(table, texts, planned_us)
    odd = np.flatnonzero(rows.trouble(origin.run) | (rows.is_commit & rows.is_move))
    points, heads = np.flatnonzero(rows.is_commit), np.flatnonzero(rows.tells_head)
    logs = np.flatnonzero(table["log_id"].is_valid().to_numpy()[heads])
    part = Part(
        keys=_keys(rows, texts, origin.broker, points),
        points=_table(POINTS, [np.arange(len(points)), *(values[points] for values in rows.point())]),
        shards=_table(
            SHARDS,
            [*(texts[name].take(pa.array(heads)) for name in SHARD), *(values[heads] for values in rows.newest_low())],
        ),
        heads=_table(HEADS, [np.arange(len(heads)), rows.head_t[heads], rows.high[heads]]),
        logs=_table(LOGS, [logs, _text(table["log_id"].take(pa.array(heads[logs]))), rows.head_t[heads[logs]]]),
        odds=_odds(table.take(pa.array(odd)), origin, planned_us, (rows.is_commit & rows.is_move)[odd]),
    )
    newest = min(int(rows.at[rows.trusted].max()), planned_us + SKEW_US) if rows.trusted.any() else None
    return Gathered(part, newest, table.num_rows, len(odd))


def unreadable(origin: Origin, problem: str) -> Gathered:
    """What stands for a segment, or the rest of one, that cannot be read: one row with the problem, at the time 0."""
    row = {"at": 0, "broker": origin.broker, "run": origin.run, "seq": 0, "segment": origin.path, "kind": "unreadable"}
    odds = pa.Table.from_pylist([dict.fromkeys(KEY, "") | row | {"problem": problem, "is_move": False}], ODDS)
    return Gathered(Part(odds=odds), None, 1, 1)


class _Rows:
    """The columns of a segment, and what each row is. NULL is null; times are microseconds."""

    def __init__(self, table: pa.Table, texts: dict[str, pa.DictionaryArray], planned_us: int) -> None:
        self.at, self.epoch, self.offset = (ints(table, name) for name in ("at", "epoch", "offset"))
        self.committed, self.live = ints(table, "committed_at"), ints(table, "live")
        self.low, self.high, seen = (ints(table, name) for name in ("low_watermark", "high_watermark", "watermark_at"))
        self._run_out = self.at > planned_us + FUTURE_US
        self._known, self.is_move = _is_one_of(texts["kind"], frozenset(KINDS)), _is_one_of(texts["kind"], MOVES)
        self._beats = _is_one_of(texts["kind"], {"heartbeat"})
        self._named = ~np.logical_or.reduce([_is_one_of(texts[name], {""}) for name in KEY])
        self._whole = (self.offset >= 0) & (self.epoch >= 0)
        self.partition = ints(table, "partition")
        self.trusted = self._known & ~self._run_out
        self.is_commit = self.trusted & self._named & self._whole & _is_one_of(texts["kind"], COMMITS)
        self.tells_head = self.trusted & ~_is_one_of(texts["shard"], {""}) & (self.high >= 0)
        self.t = np.where(self.committed == NULL, self.at, np.minimum(self.committed, self.at))
        self.head_t = np.where(seen == NULL, self.at, np.minimum(seen, self.at))
        self._said = table["problem"].is_valid().to_numpy()

    def trouble(self, run_ms: int) -> Bools:
        """Which rows have a problem: those for which `_problem` has a text."""
        skewed = (self.committed != NULL) & (self.committed - self.at > SKEW_US)
        in_values = ~self._beats & (~self._named | ~self._whole | skewed)
        trouble: Bools = self._said | ~self._known | self._run_out | in_values | (self.at < run_ms * US_OF_MS - SKEW_US)
        return trouble

    def point(self) -> tuple[Ints, ...]:
        """The columns of POINTS after the first."""
        near = np.where(self.tells_head, -self.head_t, NULL)
        lag = np.where(self.tells_head, np.maximum(self.high - np.maximum(self.offset, self.low), 0), NULL)
        return self.epoch, self.offset, self.live, self.t, near, lag

    def newest_low(self) -> tuple[Ints, Ints]:
        """The columns `low_t` and `low` of SHARDS."""
        known = self.low >= 0
        return np.where(known, self.head_t, NULL), np.where(known, self.low, NULL)


def _keys(rows: _Rows, texts: dict[str, pa.DictionaryArray], broker: str, of: Ints) -> pa.Table:
    one_broker = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(of), np.int32)), pa.array([broker]))
    names = [texts[name].take(pa.array(of)) for name in KEY]
    record = [values[of] for values in (rows.epoch, rows.offset, rows.live, rows.t)]
    return _table(KEYS, [*names, *record, texts["topic"].take(pa.array(of)), rows.partition[of], one_broker])


def _odds(rows: pa.Table, origin: Origin, planned_us: int, is_move: Bools) -> pa.Table:
    columns = {name: rows[name] for name in (*KEY, "seq", "kind", "from_epoch", "from_offset", "epoch", "offset")}
    count = rows.num_rows
    where = {
        "broker": pa.repeat(origin.broker, count),
        "run": pa.repeat(origin.run, count),
        "segment": pa.repeat(origin.path, count),
    }
    told = {"at": rows["at"].cast(pa.int64()), "problem": _problem(rows, origin.run, planned_us), "is_move": pa.array(is_move)}
    columns |= where | told
    return pa.table({field.name: _as(columns[field.name], field.type) for field in ODDS}, ODDS)


def _problem(rows: pa.Table, run_ms: int, planned_us: int) -> pa.Array:
    """Why each row, or a part of it, does not count; null if it does."""
    at, committed, kind = rows["at"].cast(pa.int64()), rows["committed_at"].cast(pa.int64()), rows["kind"].cast(pa.string())
    ahead, late, back = pc.subtract(at, planned_us), pc.subtract(committed, at), pc.subtract(run_ms * US_OF_MS, at)
    has_values = pc.not_equal(kind, "heartbeat")
    unnamed = [pc.equal(rows[name].cast(pa.string()), "") for name in KEY]
    absent = [pc.fill_null(pc.less(rows[name], 0), fill_value=True) for name in ("offset", "epoch")]
    reasons = [
        (rows["problem"].is_valid(), rows["problem"]),
        (
            pc.invert(pc.is_in(kind, value_set=pa.array(KINDS))),
            _joined("kind '", kind, "' is not known here: use the pipeline of the adapter's version; not counted"),
        ),
        (
            pc.greater(ahead, FUTURE_US),
            _joined("the broker's clock is ", _seconds(ahead), " s ahead of this machine: set the clocks; not counted"),
        ),
        (pc.and_(has_values, reduce(pc.or_, unnamed)), pa.scalar("namespace, group or shard is empty; not counted")),
        (pc.and_(has_values, reduce(pc.or_, absent)), pa.scalar("offset or epoch is missing or negative; not counted")),
        (
            pc.and_(has_values, pc.greater(late, SKEW_US)),
            _joined("was committed ", _seconds(late), " s after it was journaled: set the clocks; the earlier time is taken"),
        ),
        (
            pc.greater(back, SKEW_US),
            _joined("the adapter's clock went back ", _seconds(back), " s behind its start; counted as it stands"),
        ),
    ]
    holds = pc.make_struct(*(condition for condition, _ in reasons), field_names=list(map(str, range(len(reasons)))))
    return pc.case_when(holds, *(text for _, text in reasons))


def _joined(*texts: object) -> pa.Array:
    return pc.binary_join_element_wise(*texts, "")


def _seconds(micros: pa.Array) -> pa.Array:
    return pc.divide(micros, US_OF_SECOND).cast(pa.string())


def _is_one_of(column: pa.DictionaryArray, words: AbstractSet[str]) -> Bools:
    found = np.array([word in words for word in column.dictionary.to_pylist()], np.bool_)
    return found[column.indices.to_numpy()] if len(column) else np.empty(0, np.bool_)


def _text(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """A column as a dictionary array, in one chunk."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.cast(TEXT).unify_dictionaries().combine_chunks() if column.num_chunks else pa.array([], TEXT)


def _as(column: pa.Array, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of this type; whole numbers have NULL for null."""
    if pa.types.is_integer(kind):
        return pc.fill_null(column, NULL)
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.cast(kind)


def _table(schema: pa.Schema, columns: list[pa.Array | Ints]) -> pa.Table:
    return pa.table([pa.array(values) if isinstance(values, np.ndarray) else values for values in columns], schema=schema)
