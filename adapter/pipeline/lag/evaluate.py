"""What one bucket's parts say: its new state, and its rows of the tables. Pure: parts in, parts and Arrow tables out.

A key whose largest record is a tombstone is in no table. Its state is kept for a week, as long as Meta Services keep tombstones,
so that late rows do not bring it back. A shard without a new head for a week is dropped too, and so is a move that was told.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapter.model.lag import BURROW_GROUP, SEVERITIES, Judgement, Past, judge
from adapter.model.lag_rows import UNKNOWN, Bools, Commits, Floats, Heads, Ints, LagSettings
from adapter.model.lag_status import BY_SEVERITY, Status
from adapter.model.records import LONG_MAX
from adapter.model.schemas import TIME
from adapter.pipeline.lag.clock import Clock
from adapter.pipeline.lag.part import KEY, MOVES, ODDS, SHARD, WARNED, Part, first_of_each, kept, merge
from adapter.pipeline.lag.runs import NULL, coded, ids_of, ints, places_in_runs, stacked, tidied
from adapter.pipeline.lag.schemas import GROUP_SUMS, GROUPS, REJECTS, REWINDS, SHARDS

DAY_US = 24 * 3_600 * 1_000_000
KEPT_DAYS = 7
# Keys that are judged at a time: the matrices of their commits, and of their shards' heads, take some 50 MB.
_BLOCK = 32_768
_HALF_BITS = 32
_STATUS_NAMES = pa.array([status.name for status in Status])
_BY_SEVERITY = pa.array([status.name for status in BY_SEVERITY])
_GROUP_NAMES = ("namespace", "group")
_SUMMED = ("shards", "unknown", "undrained", "lag_upper", "lag_lower")
_LARGEST = ("lag_seconds", "drain_seconds", "burrow")
_WORST = ("worst_severity", "worst_lag", "worst_shard")


@dataclass(frozen=True)
class Evaluated:
    """What `evaluate` finds: the new state, rows of the tables (see `schemas`), and `groups` as GROUP_SUMS."""

    state: Part
    shards: pa.Table
    rewinds: pa.Table
    rejects: pa.Table
    groups: pa.Table


def evaluate(before: Part | None, added: Sequence[Part], clock: Clock, settings: LagSettings) -> Evaluated:
    """Merge what was added into a bucket's state, and judge its keys. The result does not depend on the order of `added`."""
    since = kept_since(clock.now)
    merged = merge([*([before] if before else []), *added], settings)
    moves, told = _new_moves(merged)
    state = kept(replace(merged, moves=told, odds=ODDS.empty_table()), since)
    shards, groups, warned = _judged(state, clock, settings)
    return Evaluated(replace(state, warned=warned), shards, _rewinds(moves), _rejects(merged.odds), groups)


def kept_since(now: int) -> int:
    """The time before which state is dropped, in microseconds: KEPT_DAYS before the day of `now`."""
    return now - now % DAY_US - KEPT_DAYS * DAY_US


def merged_groups(partials: Sequence[pa.Table]) -> pa.Table:
    """Partial sums of groups (GROUP_SUMS) of several tasks as one table, a row for each group, in the order of the names."""
    rows = pa.concat_tables([GROUP_SUMS.empty_table(), *partials]).combine_chunks()
    order = [("namespace", "ascending"), ("group", "ascending"), ("worst_severity", "descending")]
    rows = rows.sort_by([*order, ("worst_lag", "descending"), ("worst_shard", "ascending")])
    return _summed(rows)


def groups(partials: Sequence[pa.Table], now: int) -> pa.Table:
    """The table GROUPS of all tasks' partial sums; `now` in microseconds."""
    sums = merged_groups(partials)
    unknown, shards = ints(sums, "unknown"), ints(sums, "shards")
    upper, lower = ints(sums, "lag_upper"), ints(sums, "lag_lower")
    upper = upper + (lower >> _HALF_BITS)
    total = np.where(upper >> 31 > 0, LONG_MAX, (np.minimum(upper, 2**31 - 1) << _HALF_BITS) | (lower & 0xFFFF_FFFF))
    of_group = pa.array([None, *BURROW_GROUP.values()])
    drained = ints(sums, "undrained") == 0
    columns = {
        "evaluated_at": _times(np.full(sums.num_rows, now)),
        **{name: sums[name] for name in _GROUP_NAMES},
        "status": _BY_SEVERITY.take(sums["worst_severity"]),
        "burrow": of_group.take(sums["burrow"]),
        "shards": pa.array(shards),
        "unknown_lag_shards": pa.array(unknown),
        "total_lag": pa.array(total, mask=unknown == shards),
        "max_lag_seconds": sums["lag_seconds"],
        "drain_seconds": pc.if_else(pa.array(drained), sums["drain_seconds"], None),
        "worst_shard": sums["worst_shard"],
    }
    return pa.table(columns).cast(GROUPS)


def _new_moves(merged: Part) -> tuple[pa.Table, pa.Table]:
    """The moves among `odds` that were not told before, each once; and the identities of all, now told."""
    moves = merged.odds.filter(merged.odds["is_move"])
    both = stacked([merged.moves, _identities(moves)], MOVES)
    first = first_of_each(both)
    before = merged.moves.num_rows
    return moves.take(pa.array(first[first >= before] - before)), tidied(both.take(pa.array(first)))


def _identities(moves: pa.Table) -> pa.Table:
    return moves.rename_columns({"at": "t"}).select(MOVES.names)


def _rewinds(moves: pa.Table) -> pa.Table:
    before, after = ints(moves, "from_offset"), ints(moves, "offset")
    unknown = before == NULL
    back = np.where(unknown, 0, before) - after
    columns = {name: moves[name] for name in ("namespace", "group", "shard", "broker", "kind")}
    columns |= {name: _longs(ints(moves, name)) for name in ("from_epoch", "from_offset", "epoch", "offset")}
    columns |= {"at": _times(ints(moves, "at"))}
    columns |= {name: pa.array(np.maximum(way, 0), mask=unknown) for name, way in (("duplicates", back), ("skipped", -back))}
    return pa.table(columns).select(REWINDS.names).cast(REWINDS)


def _rejects(odds: pa.Table) -> pa.Table:
    rows = odds.filter(odds["problem"].is_valid())
    columns = {name: rows[name] for name in REJECTS.names}
    columns |= {"at": _times(ints(rows, "at"))} | {name: _longs(ints(rows, name)) for name in ("epoch", "offset")}
    return pa.table(columns).cast(REJECTS)


def _judged(state: Part, clock: Clock, settings: LagSettings) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The rows of SHARDS, the partial sums of groups, and WARNED."""
    live = np.flatnonzero(ints(state.keys, "live") > 0)
    keys = state.keys.take(pa.array(live))
    state, anew = _of_newest_logs(state)
    shards = _shards_of(keys, state.shards)
    blocks = [
        judge(commits, heads, of_heads, clock.now, clock.settled, settings, Past(np.zeros(len(warned), np.int64), warned))
        for commits, heads, of_heads, warned in _blocks(state, live, shards, anew, settings)
    ]
    found = Judgement(*(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(Judgement)))
    warned = pa.table([live[found.status == Status.WARN]], schema=WARNED)
    return _shard_rows(keys, _head_times(state)[shards], found, clock), _group_sums(keys, found), warned


def _of_newest_logs(state: Part) -> tuple[Part, Ints]:
    """Without the bounds of logs that were replaced by others, and when the log before was told last, by shard; -1: none was."""
    of, times = ints(state.logs, "shard"), ints(state.logs, "t")
    place, size = places_in_runs(of)
    before = np.flatnonzero(place < size - 1)
    anew = np.full(state.shards.num_rows, UNKNOWN)
    anew[of[before]] = times[before]
    heads = state.heads.filter(pa.array(ints(state.heads, "t") > anew[ints(state.heads, "shard")]))
    low = np.where(ints(state.shards, "low_t") > anew, ints(state.shards, "low"), NULL)
    at = state.shards.schema.get_field_index("low")
    return replace(state, heads=heads, shards=state.shards.set_column(at, "low", pa.array(low))), anew


def _shards_of(keys: pa.Table, shards: pa.Table) -> Ints:
    """The row of each key's shard in `shards`; -1 if it has none."""
    both = pa.concat_tables([keys.select(SHARD), shards.select(SHARD)]).unify_dictionaries().combine_chunks()
    ids = ids_of(both, SHARD)
    of_keys, of_shards = ids[: keys.num_rows], ids[keys.num_rows :]
    if not len(of_shards):
        return np.full(len(of_keys), UNKNOWN)
    places = np.minimum(np.searchsorted(of_shards, of_keys), len(of_shards) - 1)
    return np.where(of_shards[places] == of_keys, places, UNKNOWN)


def _blocks(
    state: Part, live: Ints, shards: Ints, anew: Ints, settings: LagSettings
) -> Iterator[tuple[Commits, Heads, Ints, Bools]]:
    """The live keys' commits, the heads of their shards, where they are in these, and who was WARN, some keys at a time.

    `shards`: the row of each key's shard in the state; `anew`: see `_of_newest_logs`.
    """
    warned = np.zeros(state.keys.num_rows, np.bool_)
    warned[ints(state.warned, "key")] = True
    for begin in range(0, max(len(live), 1), _BLOCK):
        keys = live[begin : begin + _BLOCK]
        used, of_keys = np.unique(shards[begin : begin + _BLOCK], return_inverse=True)
        of_heads = np.where(used[of_keys] < 0, UNKNOWN, of_keys)
        yield _commits(state, keys, settings), _heads(state, used, anew, settings), of_heads, warned[keys]


def _commits(state: Part, keys: Ints, settings: LagSettings) -> Commits:
    rows, points = _rows_of(state.points, "key", keys)
    empty = Commits.empty(len(keys), settings)
    at = rows, places_in_runs(rows)[0]
    for matrix, name in ((empty.times, "t"), (empty.epochs, "epoch"), (empty.offsets, "offset"), (empty.lags, "lag")):
        matrix[at] = np.maximum(ints(points, name), UNKNOWN)
    # A tombstone is no commit.
    empty.offsets[at] = np.where(ints(points, "live") > 0, empty.offsets[at], UNKNOWN)
    tops = (ints(state.keys, name)[keys] for name in ("epoch", "offset", "t"))
    return Commits(empty.times, empty.epochs, empty.offsets, empty.lags, np.bincount(rows, minlength=len(keys)), *tops)


def _heads(state: Part, shards: Ints, anew: Ints, settings: LagSettings) -> Heads:
    """The heads of these shards; -1 is one of which nothing is known."""
    rows, heads = _rows_of(state.heads, "shard", shards)
    empty = Heads.empty(len(shards), settings)
    at = rows, places_in_runs(rows)[0]
    empty.times[at], empty.highs[at] = ints(heads, "t"), ints(heads, "high")
    known = np.flatnonzero(shards >= 0)
    for array, name in ((empty.lows, "low"), (empty.low_times, "low_t")):
        array[known] = np.maximum(ints(state.shards, name)[shards[known]], UNKNOWN)
    empty.anew[known] = anew[shards[known]]
    counts = np.bincount(rows, minlength=len(shards))
    return Heads(empty.times, empty.highs, counts, empty.lows, empty.low_times, empty.anew)


def _rows_of(table: pa.Table, parent: str, parents: Ints) -> tuple[Ints, pa.Table]:
    """The rows that belong to some parents, in order; `parents` ascend. Also for each of them the place of its parent."""
    of = ints(table, parent)
    begin, end = np.searchsorted(of, [parents[0], parents[-1] + 1]) if len(parents) else (0, 0)
    places = np.searchsorted(parents, of[begin:end])
    found = parents[places] == of[begin:end]
    return places[found], table.slice(begin, end - begin).filter(pa.array(found))


def _head_times(state: Part) -> Ints:
    """When the newest head of each shard was told; the last one, for keys without a shard, is unknown."""
    times = np.full(state.shards.num_rows + 1, NULL)
    times[ints(state.heads, "shard")] = ints(state.heads, "t")  # in order of time: the last one stays
    return times


def _shard_rows(keys: pa.Table, head_at: Ints, found: Judgement, clock: Clock) -> pa.Table:
    columns = {name: keys[name] for name in (*KEY, "topic", "partition", "broker", "epoch", "offset")}
    columns |= {
        "evaluated_at": _times(np.full(keys.num_rows, clock.now)),
        "committed_at": _times(ints(keys, "t")),
        "head": pa.array(found.end, mask=found.end < 0),
        "head_at": _times(head_at),
        "lag": pa.array(found.lag, mask=found.lag < 0),
        "lost": pa.array(found.lost),
        "lag_seconds": _doubles(found.lag_seconds),
        "consume_rate": _doubles(found.commit_rate),
        "produce_rate": _doubles(found.produce_rate),
        "drain_seconds": _doubles(found.drain_seconds),
        "trend": _doubles(found.trend),
        "status": pa.DictionaryArray.from_arrays(pa.array(found.shown.astype(np.int32)), _STATUS_NAMES),
        "burrow": pa.DictionaryArray.from_arrays(pa.array(found.burrow.astype(np.int32)), _STATUS_NAMES),
        "points": pa.array(found.points.astype(np.int32)),
    }
    return pa.table(columns).select(SHARDS.names).cast(SHARDS)


def _group_sums(keys: pa.Table, found: Judgement) -> pa.Table:
    unknown, undrained, severities = found.lag < 0, np.isnan(found.drain_seconds), SEVERITIES[found.shown]
    lag = np.where(unknown, 0, found.lag)
    # The texts of keys are ordered in their dictionaries: the order of codes is that of texts.
    order = np.lexsort(
        (coded(keys["shard"])[0], -found.lag, -severities, *(coded(keys[name])[0] for name in ("group", "namespace")))
    )
    columns = {
        **{name: keys[name].cast(pa.string()) for name in _GROUP_NAMES},
        "shards": pa.array(np.ones(len(lag), np.int64)),
        "unknown": pa.array(unknown.astype(np.int64)),
        "undrained": pa.array(undrained.astype(np.int64)),
        "lag_upper": pa.array(lag >> _HALF_BITS),
        "lag_lower": pa.array(lag & 0xFFFF_FFFF),
        "lag_seconds": _doubles(found.lag_seconds),
        "drain_seconds": _doubles(found.drain_seconds),
        "burrow": pa.array(found.burrow.astype(np.int64)),
        "worst_severity": pa.array(severities.astype(np.int64)),
        "worst_lag": pa.array(found.lag),
        "worst_shard": keys["shard"].cast(pa.string()),
    }
    return _summed(pa.table(columns).take(pa.array(order)))


def _summed(rows: pa.Table) -> pa.Table:
    """One row for each group, in the order of first rows; the first row of a group has the worst shard."""
    functions = [(name, "sum") for name in _SUMMED] + [(name, "max") for name in _LARGEST] + [(name, "first") for name in _WORST]
    sums = rows.group_by(list(_GROUP_NAMES), use_threads=False).aggregate(functions)
    return sums.rename_columns([*_GROUP_NAMES, *_SUMMED, *_LARGEST, *_WORST]).select(GROUP_SUMS.names).cast(GROUP_SUMS)


def _longs(values: Ints) -> pa.Array:
    return pa.array(values, mask=values == NULL)


def _times(micros: Ints) -> pa.Array:
    return _longs(micros).cast(TIME)


def _doubles(values: Floats) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))
