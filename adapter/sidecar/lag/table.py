"""The state of the live lag, and its evaluation: which row is which key, what leaves for lack of room, what is judged again.

Everything here runs in a worker thread, one call of `LagTable.evaluate` at a time; the event loop gets an immutable `View`. Work
on Python's objects is done in blocks of a millisecond or less, with a rest behind each, because a thread that computes holds up
the event loop by the interpreter's lock; numpy's own work mostly does not.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import structlog

from adapter.model.bounds import Bounds, ShardKey
from adapter.model.codec import pack_names
from adapter.model.lag import SEVERITIES, Judgement, Past, Sums, judge, lag_now, summed
from adapter.model.lag_rows import UNKNOWN, US_OF_MS, Bools, Commits, Floats, Heads, Ints, LagSettings
from adapter.model.lag_status import Status, severity
from adapter.model.records import LONG_MAX, GroupKey, Held
from adapter.runtime import heap
from adapter.sidecar.config import LagSection
from adapter.sidecar.lag.feed import News
from adapter.sidecar.lag.ids import longer
from adapter.sidecar.lag.names import Keys
from adapter.sidecar.lag.packed import Packed, let_others
from adapter.sidecar.lag.view import Numbers, Removed, Rows, View
from adapter.sidecar.lag.windows import MAX_SHARDS, Windows, WindowsFile

BLOCK = 1_000  # records that are looked at between two rests: half a millisecond
JUDGED_AT_ONCE = 4_096
PASSES = 10  # evaluations until every row was judged again
MAX_REMOVED = 10_000  # groups that are remembered for watchers
MAX_ASKED = 20_000  # shards whose bounds are asked for after one evaluation
KEEP_MS = 10_000  # between two writes of the windows

log = structlog.get_logger(__name__)

_seq_of, _key_of = itemgetter(1), itemgetter(2)


class Evaluated(NamedTuple):
    """The result of an evaluation: what is to be shown, whose bounds are to be asked for, and CPU seconds.

    `anew`: the rows of the shards whose log was replaced by another one, some of them if there are many.
    """

    view: View
    ask: list[ShardKey]
    anew: list[int]
    cpu_s: float


@dataclass
class _Moved:
    """Records that are newer than their rows, or of keys without a row (-1), and their places in all."""

    records: list[Held]
    rows: Ints
    seqs: Ints
    dropped: int  # `Keys.dropped` when the rows were found


class LagTable:
    """Rows of keys and of shards' logs. `reported` gives the bounds that commits told of a shard; `file` keeps windows."""

    def __init__(
        self, section: LagSection, reported: Callable[[ShardKey], Bounds | None], file: WindowsFile | None = None
    ) -> None:
        self._settings = LagSettings(
            section.window_points,
            section.minimum_points,
            section.point_distance_ms,
            section.allowed_lag,
            section.head_points,
            section.head_distance_ms,
        )
        self._most = section.shards
        self._asked_us = section.bounds_interval_ms * US_OF_MS
        self._reported = reported
        self._file = file
        self._began_ms = 0  # when the first evaluation was: no commit that came since is unknown
        self._kept_at_ms = 0
        self._version = 0
        self._forgotten = 0
        self._removed: list[Removed] = []
        self._removals = 0
        self._names_version = 0
        self._failed = False
        self._begin()
        self._kept: Windows | None = None  # as they were written last
        self._restored: Windows | None = None
        self._to_restore: dict[bytes, int] = {}  # key -> its place in `_restored`

    def _begin(self) -> None:
        """Forget all."""
        settings, none = self._settings, np.zeros(0, np.int64)
        self._commits = Packed(lambda rows: Commits.empty(rows, settings))
        self._heads = Packed(lambda rows: Heads.empty(rows, settings))  # by log
        self._shown = Packed(Rows.empty)
        self._keys = Keys()
        self._seqs = none  # of each row the write counter; -1: the row is free
        self._stopped_at = none  # of each row the commit after which it was STOP when its window was kept
        self._warned = np.zeros(0, np.bool_)  # of each row whether it was WARN
        self._asked_at = none  # of each log
        self._ranks = none
        self._logs: dict[int, str] = {}  # of the shards whose log has an identity
        self._anew: list[int] = []  # shards whose log was replaced in this evaluation
        self._sums: Sums | None = None
        self._since = self._changed = none
        self._cursor = 0

    def evaluate(
        self, news: News, told: Sequence[tuple[ShardKey, Bounds]], now_ms: int, *, ask: bool, complete: bool = True
    ) -> Evaluated:
        """Take in what is new, judge what changed and a part of the rest.

        `told`: bounds from the broker; `ask` for more. `complete`: all that the store holds was in this news or earlier.
        """
        began = time.thread_time()
        self._version += 1
        if not self._began_ms:
            self._began_ms = now_ms
            self._restore_from(self._file.load() if self._file else None)
        if news.anew or self._failed:
            self._failed = False
            self._restore_from(self._kept)
            self._forget_all()
        gone = dict(news.removed)
        rows = self._keys.find(list(gone))
        self._drop(rows[(rows >= 0) & (self._seqs_of(rows) <= np.fromiter(gone.values(), np.int64, len(gone)))])
        # One after the other: a key that was written since it was read from the store is in both.
        parts = [self._admitted(self._moved(records), gone) for records in (news.records, news.filled)]
        heard = self._hear([*news.bounds, *told], now_ms)
        changed = np.zeros(self._keys.rows, np.bool_)
        for part, at_commit in zip(parts, (True, False), strict=True):
            found = self._still(part)
            self._add(found, now_ms, at_commit=at_commit)
            changed[found.rows] = True
        self._judge(self._due(changed, heard), now_ms * US_OF_MS)
        view = self._view(now_ms)
        if complete:
            self._restore_from(None)
            self._keep(now_ms)
        asking = self._to_ask(now_ms * US_OF_MS) if ask else []
        for table in (self._commits, self._heads, self._shown, self._keys):
            table.rest()
        heap.give_back()  # for some milliseconds, an evaluation takes some hundred bytes a shard
        return Evaluated(view, asking, self._of_new_logs(), time.thread_time() - began)

    def fail(self) -> None:
        """Begin anew with the next evaluation: the last one failed half way."""
        self._failed = True

    def group_id(self, group: GroupKey) -> int | None:
        """The number of a group. For any thread: the view says if it is still that group's."""
        number = int(self._keys.groups.find([pack_names(*group)])[0])
        return None if number < 0 else number

    def _seqs_of(self, rows: Ints) -> Ints:
        """The write counters of rows; -1 for -1, no row."""
        return np.append(self._seqs, UNKNOWN)[rows]

    def _moved(self, records: Sequence[Held]) -> _Moved:
        """The records that are not known yet."""
        found: list[Held] = []
        rows, seqs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for at in range(0, len(records), BLOCK):
            some = records[at : at + BLOCK]
            row = self._keys.find(list(map(_key_of, some)))
            seq = np.fromiter(map(_seq_of, some), np.int64, len(some))
            new = (row < 0) | (seq > self._seqs_of(row))
            found += some if new.all() else [some[place] for place in np.flatnonzero(new).tolist()]
            rows.append(row[new])
            seqs.append(seq[new])
            let_others()
        return _Moved(found, np.concatenate(rows), np.concatenate(seqs), self._keys.dropped)

    def _admitted(self, found: _Moved, gone: dict[bytes, int]) -> _Moved:
        """Give rows to new keys, and take them from tombstones, and from those that moved longest ago if there is no room.

        Returns the live records that have a row.
        """
        live = np.fromiter((held[0][2] for held in found.records), np.bool_, len(found.records))
        dead = set()
        for place in np.flatnonzero(~live).tolist():
            held, row = found.records[place], int(found.rows[place])
            gone[held[2]] = max(gone.get(held[2], 0), held[1])
            if row >= 0 and UNKNOWN < self._seqs[row] <= held[1]:
                dead.add(row)
        self._drop(np.array([*dead], np.int64))
        if gone:
            live &= np.fromiter((held[1] > gone.get(held[2], 0) for held in found.records), np.bool_, len(found.records))
        found = _some(found, live)
        known = found.rows >= 0
        known &= self._seqs_of(found.rows) >= 0  # its row may have been taken meanwhile
        found.rows[~known] = UNKNOWN
        np.maximum.at(self._seqs, found.rows[known], found.seqs[known])
        new: dict[bytes, int] = {}
        for place in np.flatnonzero(~known).tolist():
            held = found.records[place]
            new[held[2]] = max(new.get(held[2], 0), held[1])
        if new:
            self._make_room(new)
            self._take_in(new)
            places = np.flatnonzero(~known).tolist()
            for at in range(0, len(places), BLOCK):
                some = places[at : at + BLOCK]
                found.rows[some] = self._keys.find([found.records[place][2] for place in some])
                let_others()
        return found

    def _still(self, found: _Moved) -> _Moved:
        """Those that have a row, and have not lost it to others since."""
        there = found.rows >= 0
        there &= self._seqs_of(found.rows) >= found.seqs
        if self._keys.dropped != found.dropped:
            there &= self._keys.find([one[2] for one in found.records]) == found.rows
        return _some(found, there)

    def _make_room(self, new: dict[bytes, int]) -> None:
        """Let the keys go that were written longest ago, of the kept and the new ones."""
        over = self._keys.used + len(new) - self._most
        if over <= 0:
            return
        rows = np.flatnonzero(self._seqs >= 0)
        seqs = np.concatenate((self._seqs[rows], np.fromiter(new.values(), np.int64, len(new))))
        limit = np.partition(seqs, over - 1)[over - 1]
        self._drop(rows[self._seqs[rows] <= limit])
        for key in [key for key, seq in new.items() if seq <= limit]:
            del new[key]
        self._forgotten += over

    def _take_in(self, new: dict[bytes, int]) -> None:
        """Give a row to each new key, in blocks."""
        keys = list(new)
        rows, logs = self._keys.add(keys)
        self._seqs, self._stopped_at = (longer(one, self._keys.rows, UNKNOWN) for one in (self._seqs, self._stopped_at))
        self._warned = longer(self._warned, self._keys.rows, 0)
        self._asked_at = longer(self._asked_at, self._keys.logs.count, 0)
        self._seqs[rows] = np.fromiter(new.values(), np.int64, len(new))
        self._commits.clear(rows)
        self._stopped_at[rows] = UNKNOWN
        self._warned[rows] = False
        self._heads.clear(np.array(logs, np.int64))
        for head in logs:
            self._logs.pop(head, None)
        self._asked_at[logs] = 0
        self._restore(keys, rows)

    def _windows(self) -> Windows:
        """The windows of the shards that are not well, the worst first."""
        rows: Ints = np.flatnonzero(self._seqs[: self._keys.rows] >= 0)
        shown = self._shown.take(rows)
        severities, status = SEVERITIES[shown.shown], shown.status
        worst = np.flatnonzero(severities > severity(Status.UNKNOWN))
        if len(worst) > MAX_SHARDS:
            worst = worst[np.argsort(-severities[worst], kind="stable")[:MAX_SHARDS]]
        rows = rows[worst]
        logs = self._keys.log_of[rows].astype(np.int64)
        heads = self._heads.take(logs)
        return Windows(
            list(map(self._keys.key, rows.tolist())),
            self._commits.take(rows),
            status[worst] == Status.STOP,
            _newest(heads.highs, heads.counts),
            heads.lows,
            _newest(heads.times, heads.counts),
            heads.anew,
            [self._logs.get(head, "") for head in logs.tolist()],
        )

    def _keep(self, now_ms: int) -> None:
        if now_ms - self._kept_at_ms >= KEEP_MS:
            self._kept_at_ms, self._kept = now_ms, self._windows()
            if self._file:
                self._file.save(self._kept)

    def _restore_from(self, windows: Windows | None) -> None:
        """Give these windows to their keys when those come."""
        self._restored = windows
        self._to_restore = {key: place for place, key in enumerate(windows.keys)} if windows else {}

    def _restore(self, keys: Sequence[bytes], new: Ints) -> None:
        """Give new rows the windows that were kept of them."""
        found = [
            (row, place)
            for key, row in zip(keys, new.tolist(), strict=True)
            if (place := self._to_restore.pop(key, None)) is not None
        ]
        if not found or self._restored is None:
            return
        rows, places = np.array(found, np.int64).T
        kept, commits = self._restored, self._restored.commits.take(places)
        there = np.arange(commits.times.shape[1]) < commits.counts[:, None]
        times, epochs, offsets, lags = (array[there] for array in (commits.times, commits.epochs, commits.offsets, commits.lags))
        into = self._commits.take(rows)
        into.add(np.repeat(np.arange(len(rows)), commits.counts), times, epochs, offsets, lags, self._settings)
        self._commits.put(rows, into)
        self._stopped_at[rows] = np.where(kept.stopped[places], commits.top_times, UNKNOWN)
        known = kept.told[places] >= 0
        logs, places = self._keys.log_of[rows[known]], places[known]
        self._logs |= {
            log: kept.logs[place] for log, place in zip(logs.tolist(), places.tolist(), strict=True) if kept.logs[place]
        }
        used, which = np.unique(logs, return_inverse=True)
        heads = self._heads.take(used)
        heads.anew[which] = kept.anew[places]
        heads.add(which, kept.told[places], kept.highs[places], kept.lows[places], self._settings)
        self._heads.put(used, heads)
        let_others()

    def _drop(self, rows: Ints) -> None:
        """Free rows."""
        self._seqs[rows] = UNKNOWN
        for group in self._keys.drop(rows):
            self._removals += 1
            self._removed.append(Removed(self._version, self._keys.groups.name(group), group))
        del self._removed[:-MAX_REMOVED]

    def _forget_all(self) -> None:
        self._forgotten += self._keys.used
        self._removals += 1  # of which nobody is told: all watchers begin anew
        self._removed.clear()
        self._begin()

    def _hear(self, bounds: Sequence[tuple[ShardKey, Bounds]], now_ms: int) -> Ints:
        """Take in bounds of the shards that are kept; returns the rows of their logs."""
        logs = self._keys.logs
        found = [(log, before) for log in logs.take_new() if (before := self._reported(logs.name(log)))]
        for at in range(0, len(bounds), BLOCK):
            told = bounds[at : at + BLOCK]
            numbers = logs.find([pack_names(*shard) for shard, _ in told]).tolist()
            found += [(log, one) for log, (_, one) in zip(numbers, told, strict=True) if log >= 0]
            let_others()
        for at in range(0, len(found), BLOCK):
            some = found[at : at + BLOCK]
            self._note_logs(some)
            used, which = np.unique(np.fromiter((log for log, _ in some), np.int64, len(some)), return_inverse=True)
            lows, highs = _clamped([one[0] for _, one in some]), _clamped([one[1] for _, one in some])
            times = np.minimum(_clamped([one[2] for _, one in some]), now_ms) * US_OF_MS
            heads = self._heads.take(used)
            heads.add(which, times, highs, lows, self._settings)
            self._heads.put(used, heads)
            let_others()
        return np.fromiter((log for log, _ in found), np.int64, len(found))

    def _note_logs(self, bounds: Sequence[tuple[int, Bounds]]) -> None:
        """Let the heads of those shards begin anew whose log is another one than before."""
        anew = []
        for head, one in bounds:
            if one.log_id and self._logs.setdefault(head, one.log_id) != one.log_id:
                anew.append(head)
                self._logs[head] = one.log_id
        if anew:  # one line, however many: a topic may have thousands of shards
            log.warning("lag.log_made_anew", shards=len(anew), example="/".join(self._keys.logs.name(anew[0])))
            used = np.unique(np.array(anew, np.int64))
            heads = self._heads.take(used)
            heads.begin_anew(np.arange(len(used)))
            self._heads.put(used, heads)
        self._anew += anew

    def _of_new_logs(self) -> list[int]:
        """The rows of the shards whose log began anew since the last call."""
        heads, self._anew = np.array(self._anew, np.int64), []
        if not len(heads):
            return []
        count = self._keys.rows
        rows: Ints = np.flatnonzero((self._seqs[:count] >= 0) & np.isin(self._keys.log_of[:count], heads))
        return list(map(int, rows[:BLOCK]))

    def _add(self, found: _Moved, now_ms: int, *, at_commit: bool) -> None:
        """Merge records into their rows. `at_commit`: the bounds that are known are those of the time of the commits."""
        order = np.argsort(found.rows, kind="stable")  # neighbours are in one block
        for at in range(0, len(order), BLOCK):
            places = order[at : at + BLOCK]
            values, rows = [found.records[place][0] for place in places.tolist()], found.rows[places]
            epochs, offsets = _clamped([one[0] for one in values]), _clamped([one[1] for one in values])
            times = np.minimum(_clamped([one[3] for one in values]), now_ms)
            if at_commit:
                times[times == 0] = now_ms
                lags = lag_now(offsets, *self._ends(self._keys.log_of[rows]))
            else:
                lags = np.full(len(rows), UNKNOWN)
            used, which = np.unique(rows, return_inverse=True)
            commits = self._commits.take(used)
            commits.add(which, times * US_OF_MS, epochs, offsets, lags, self._settings)
            self._commits.put(used, commits)
            let_others()

    def _ends(self, logs: Numbers) -> tuple[Ints, Ints]:
        """The newest head and low of these logs; -1 is unknown."""
        used, which = np.unique(logs, return_inverse=True)
        heads = self._heads.take(used)
        return _newest(heads.highs, heads.counts)[which], heads.lows[which]

    def _due(self, changed: Bools, heard: Ints) -> Ints:
        """The rows to judge now: those that changed, those whose log did, and the next part of all."""
        count = self._keys.rows
        if not count:
            return np.zeros(0, np.int64)
        if len(heard):
            moved = np.zeros(self._keys.logs.count, np.bool_)
            moved[heard] = True
            changed |= moved[self._keys.log_of[:count]]
        part = max(JUDGED_AT_ONCE, -(-count // PASSES))
        if part >= count:
            changed[:] = True
        else:
            changed[np.arange(self._cursor, self._cursor + part) % count] = True
            self._cursor = (self._cursor + part) % count
        due: Ints = np.flatnonzero(changed & (self._seqs[:count] >= 0))
        return due

    def _judge(self, due: Ints, now: int) -> None:
        for at in range(0, len(due), JUDGED_AT_ONCE):
            rows = due[at : at + JUDGED_AT_ONCE]
            commits = self._commits.take(rows)
            used, which = np.unique(self._keys.log_of[rows], return_inverse=True)
            heads = self._heads.take(used)
            # A shard that was STOP before a restart is so still, while nothing was committed since.
            was_stopped = self._stopped_at[rows] == commits.top_times
            watched = np.where(was_stopped, 0, self._began_ms * US_OF_MS)
            past = Past(watched, self._warned[rows])
            judged = judge(commits, heads, which, now, now, self._settings, past)
            self._warned[rows] = judged.status == Status.WARN
            shown = Rows(
                **{field.name: getattr(judged, field.name) for field in fields(Judgement)},
                epochs=commits.top_epochs,
                offsets=commits.top_offsets,
                times=commits.top_times,
                head_times=_newest(heads.times, heads.counts)[which],
                lows=heads.lows[which],
            )
            self._shown.put(rows, shown)
            let_others()

    def _view(self, now_ms: int) -> View:
        """What is shown from now on."""
        keys, groups = self._keys, self._keys.groups.count
        used: Ints = np.flatnonzero(self._seqs[: keys.rows] >= 0)
        shown = self._shown.take(used)
        none = np.zeros((len(used), 0), np.int64)
        tops = shown.epochs, shown.offsets, shown.times
        group_of = np.where(self._seqs[: keys.rows] >= 0, keys.group_of[: keys.rows], np.int32(UNKNOWN))
        sums = summed(shown, Commits(none, none, none, none, np.zeros(len(used), np.int64), *tops), group_of[used], groups)
        found = sums.worst >= 0
        sums.worst[found] = used[sums.worst[found]]
        self._note_changes(sums, now_ms)
        if keys.groups.take_changed() or len(self._ranks) != groups:
            self._rank(groups)
            self._names_version = self._version
        return View(
            version=self._version,
            evaluated_at_ms=now_ms,
            rows=self._shown.copy(),
            group_of=group_of,
            log_of=keys.log_of[: keys.rows].copy(),
            groups=keys.groups.names(),
            logs=keys.logs.names(),
            sums=sums,
            since_ms=self._since,
            changed=self._changed,
            ranks=self._ranks,
            shards_kept=len(used),
            groups_kept=len(keys.groups),
            forgotten=self._forgotten,
            names_version=self._names_version,
            removed=tuple(self._removed),
            removals=self._removals,
        )

    def _rank(self, groups: int) -> None:
        """Sort the groups by name. As numbers in arrays of bytes, since sorting those does not hold up the event loop."""
        ids = self._keys.groups
        used = ids.used()
        parts = [np.zeros(0, "S1")]
        for at in range(0, len(used), BLOCK):
            parts.append(np.array([_sorting(ids.packed(group)) for group in used[at : at + BLOCK].tolist()]))
            let_others()
        self._ranks = np.full(groups, groups)
        self._ranks[used[np.argsort(np.concatenate(parts), kind="stable")]] = np.arange(len(used))

    def _note_changes(self, sums: Sums, now_ms: int) -> None:
        """Note which groups differ from the last view, and since when each has its status."""
        groups, before = self._keys.groups.count, self._sums
        known = len(self._changed)
        changed, since = np.zeros(groups, np.bool_), _lengthened(self._since, groups, now_ms)
        changed[known:] = True
        others = np.zeros(groups, np.bool_)
        others[self._keys.groups.take_new()] = True  # the number may have been another group's
        if before is not None:
            for field in fields(Sums):
                changed[:known] |= _differs(getattr(sums, field.name)[:known], getattr(before, field.name))
            turned = np.zeros(groups, np.bool_)
            turned[:known] = sums.status[:known] != before.status
            since[turned] = now_ms
        since[others] = now_ms
        self._since = since
        self._changed = np.where(changed | others, self._version, _lengthened(self._changed, groups, self._version))
        self._sums = sums

    def _to_ask(self, now: int) -> list[ShardKey]:
        """The shards whose bounds are to be asked for, those asked longest ago first."""
        ids = self._keys.logs
        used = ids.used()
        due = used[self._asked_at[used] + self._asked_us <= now]
        if len(due) > MAX_ASKED:
            due = due[np.argpartition(self._asked_at[due], MAX_ASKED)[:MAX_ASKED]]
        self._asked_at[due] = now
        return [ids.name(log) for log in due.tolist()]


def _sorting(name: bytes) -> bytes:
    """What sorts as a packed group's (namespace, name) do: no name has a control character."""
    end = name[0] + 1
    return name[1:end] + b"\x01" + name[end + 1 :]


def _some(found: _Moved, mask: Bools) -> _Moved:
    if mask.all():
        return found
    return _Moved(
        [found.records[place] for place in np.flatnonzero(mask).tolist()], found.rows[mask], found.seqs[mask], found.dropped
    )


def _clamped(values: Sequence[int]) -> Ints:
    """Unsigned numbers of 64 bits as signed ones, at most LONG_MAX."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.fromiter((min(value, LONG_MAX) for value in values), np.int64, len(values))


def _newest(matrix: Ints, counts: Ints) -> Ints:
    """The last value of each row; -1 for an empty one."""
    return np.where(counts > 0, matrix[np.arange(len(counts)), np.maximum(counts, 1) - 1], UNKNOWN)


def _lengthened(array: Ints, size: int, fill: int) -> Ints:
    return np.append(array, np.full(size - len(array), fill))


def _differs(new: Ints | Floats, old: Ints | Floats) -> Bools:
    differs: Bools = new != old
    return differs & ~(np.isnan(new) & np.isnan(old)) if new.dtype.kind == "f" else differs
