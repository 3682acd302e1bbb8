"""The state of the live lag, and its evaluation: which row is which key, what leaves for lack of room, what is judged again.

Everything here runs in a worker thread, one call of `LagTable.evaluate` at a time; the event loop gets an immutable `View`. Work
on Python's objects is done in blocks of a millisecond or less, with a rest behind each, because a thread that computes holds up
the event loop by the interpreter's lock; numpy's own work mostly does not.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import structlog

from adapter.model.bounds import Bounds, ShardKey
from adapter.model.codec import unpack_names
from adapter.model.lag import SEVERITIES, Judgement, Past, Sums, judge, lag_now, summed
from adapter.model.lag_rows import UNKNOWN, US_OF_MS, Bools, Commits, Floats, Heads, Ints, LagSettings
from adapter.model.lag_status import Status, severity
from adapter.model.records import LONG_MAX, GroupKey, Held
from adapter.sidecar.config import LagSection
from adapter.sidecar.lag.feed import News
from adapter.sidecar.lag.view import Removed, Rows, View
from adapter.sidecar.lag.windows import MAX_SHARDS, Windows, WindowsFile

BLOCK = 1_000  # records that are looked at between two rests: half a millisecond
BLOCK_NEW = 200  # keys that are taken in between two rests
JUDGED_AT_ONCE = 4_096
PASSES = 10  # evaluations until every row was judged again
REST_S = 0.0002
FIRST_ROWS = 1_024
MAX_REMOVED = 10_000  # groups that are remembered for watchers
MAX_ASKED = 20_000  # shards whose bounds are asked for after one evaluation
KEEP_MS = 10_000  # between two writes of the windows

log = structlog.get_logger(__name__)

T = TypeVar("T", Commits, Heads)
N = TypeVar("N")

_fields_of, _seq_of, _key_of = itemgetter(0), itemgetter(1), itemgetter(2)


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
        size = min(FIRST_ROWS, self._most)
        self._commits, self._heads = Commits.empty(size, self._settings), Heads.empty(size, self._settings)
        self._rows: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._free: list[int] = []
        self._seqs = np.full(size, UNKNOWN)  # of each row the write counter; -1: the row is free
        self._stopped_at = np.full(size, UNKNOWN)  # of each row the commit after which it was STOP when its window was kept
        self._warned = np.zeros(size, np.bool_)  # of each row whether it was WARN
        self._group_of = np.zeros(size, np.int64)
        self._head_of = np.zeros(size, np.int64)
        self._group_ids = _Ids[bytes]()
        self._groups: list[GroupKey] = []
        self._ranks = np.zeros(0, np.int64)
        self._head_ids = _Ids[ShardKey]()
        self._logs: dict[int, str] = {}  # of the shards whose log has an identity
        self._anew: list[int] = []  # shards whose log was replaced in this evaluation
        self._asked_at = np.zeros(size, np.int64)
        self._shown = Rows.empty(0)
        self._sums: Sums | None = None
        self._since = self._changed = np.zeros(0, np.int64)
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
        self._drop([row for key, seq in gone.items() if (row := self._rows.get(key)) is not None and self._seqs[row] <= seq])
        # One after the other: a key that was written since it was read from the store is in both.
        parts = [self._admitted(self._moved(records), gone) for records in (news.records, news.filled)]
        heard = self._hear([*news.bounds, *told], now_ms)
        changed = np.zeros(len(self._keys), np.bool_)
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
        return Evaluated(view, asking, self._of_new_logs(), time.thread_time() - began)

    def fail(self) -> None:
        """Begin anew with the next evaluation: the last one failed half way."""
        self._failed = True

    def group_id(self, prefix: bytes) -> int | None:
        """The number of a group by its packed names. For any thread: the view says if it is still that group's."""
        return self._group_ids.of.get(prefix)

    def _moved(self, records: Sequence[Held]) -> _Moved:
        """The records that are not known yet."""
        found: list[Held] = []
        rows, seqs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for at in range(0, len(records), BLOCK):
            some = records[at : at + BLOCK]
            size = len(some)
            row = np.fromiter(map(self._rows.get, map(_key_of, some), repeat(UNKNOWN)), np.int64, size)
            seq = np.fromiter(map(_seq_of, some), np.int64, size)
            new = (row < 0) | (seq > self._seqs[row])
            found += some if new.all() else [some[place] for place in np.flatnonzero(new).tolist()]
            rows.append(row[new])
            seqs.append(seq[new])
            _rest()
        return _Moved(found, np.concatenate(rows), np.concatenate(seqs))

    def _admitted(self, found: _Moved, gone: dict[bytes, int]) -> _Moved:
        """Give rows to new keys, and take them from tombstones, and from those that moved longest ago if there is no room.

        Returns the live records that have a row.
        """
        live = np.fromiter((held[0][2] for held in found.records), np.bool_, len(found.records))
        for place in np.flatnonzero(~live).tolist():
            held, row = found.records[place], int(found.rows[place])
            gone[held[2]] = max(gone.get(held[2], 0), held[1])
            if row >= 0 and UNKNOWN < self._seqs[row] <= held[1]:
                self._drop([row])
        if gone:
            live &= np.fromiter((held[1] > gone.get(held[2], 0) for held in found.records), np.bool_, len(found.records))
        found = _some(found, live)
        known = found.rows >= 0
        known &= self._seqs[found.rows] >= 0  # its row may have been taken meanwhile
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
                found.rows[some] = [self._rows.get(found.records[place][2], UNKNOWN) for place in some]
                _rest()
        return found

    def _still(self, found: _Moved) -> _Moved:
        """Those that have a row, and have not lost it to others since."""
        if not found.records:
            return found
        there = found.rows >= 0
        there &= self._seqs[found.rows] >= found.seqs
        places = np.flatnonzero(there).tolist()
        keys = self._keys
        same = np.fromiter((keys[found.rows[place]] == found.records[place][2] for place in places), np.bool_, len(places))
        there[places] = same
        return _some(found, there)

    def _make_room(self, new: dict[bytes, int]) -> None:
        """Let the keys go that were written longest ago, of the kept and the new ones."""
        over = len(self._rows) + len(new) - self._most
        if over <= 0:
            return
        rows = np.flatnonzero(self._seqs >= 0)
        seqs = np.concatenate((self._seqs[rows], np.fromiter(new.values(), np.int64, len(new))))
        limit = np.partition(seqs, over - 1)[over - 1]
        self._drop(rows[self._seqs[rows] <= limit].tolist())
        for key in [key for key, seq in new.items() if seq <= limit]:
            del new[key]
        self._forgotten += over

    def _take_in(self, new: dict[bytes, int]) -> None:
        """Give a row to each new key, in blocks."""
        keys = list(new)
        self._grow(len(self._rows) + len(keys))
        heads: list[int] = []
        for at in range(0, len(keys), BLOCK_NEW):
            for key in keys[at : at + BLOCK_NEW]:
                end = key[0] + 1
                end += key[end] + 1
                prefix = key[:end]
                row = self._free.pop() if self._free else len(self._keys)
                if row == len(self._keys):
                    self._keys.append(key)
                self._keys[row] = key
                self._rows[key] = row
                self._seqs[row] = new[key]
                group, is_new = self._group_ids.use(prefix)
                if is_new:
                    self._groups[group : group + 1] = [GroupKey(*unpack_names(prefix))]
                self._group_of[row] = group
                shard = ShardKey(self._groups[group].namespace, key[end + 1 :].decode())
                head, is_new = self._head_ids.use(shard)
                self._head_of[row] = head
                if is_new:
                    heads.append(head)
            _rest()
        rows = np.fromiter(map(self._rows.__getitem__, keys), np.int64, len(keys))
        self._commits.clear(rows)
        self._stopped_at[rows] = UNKNOWN
        self._warned[rows] = False
        self._heads.clear(np.array(heads, np.int64))
        for head in heads:
            self._logs.pop(head, None)
        self._asked_at[heads] = 0
        self._restore(keys)

    def _windows(self) -> Windows:
        """The windows of the shards that are not well, the worst first."""
        count = len(self._shown.epochs)
        severities = SEVERITIES[self._shown.judged.shown] * (self._seqs[:count] >= 0)
        rows = np.flatnonzero(severities > severity(Status.UNKNOWN))
        if len(rows) > MAX_SHARDS:
            rows = rows[np.argsort(-severities[rows], kind="stable")[:MAX_SHARDS]]
        heads = self._head_of[rows]
        return Windows(
            [self._keys[row] for row in rows.tolist()],
            self._commits.take(rows),
            self._shown.judged.status[rows] == Status.STOP,
            _newest(self._heads.highs, self._heads.counts, heads),
            self._heads.lows[heads],
            _newest(self._heads.times, self._heads.counts, heads),
            self._heads.anew[heads],
            [self._logs.get(head, "") for head in heads.tolist()],
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

    def _restore(self, keys: Sequence[bytes]) -> None:
        """Give new rows the windows that were kept of them."""
        found = [(self._rows[key], place) for key in keys if (place := self._to_restore.pop(key, None)) is not None]
        if not found or self._restored is None:
            return
        rows, places = np.array(found, np.int64).T
        kept, commits = self._restored, self._restored.commits.take(places)
        there = np.arange(commits.times.shape[1]) < commits.counts[:, None]
        times, epochs, offsets, lags = (array[there] for array in (commits.times, commits.epochs, commits.offsets, commits.lags))
        self._commits.add(np.repeat(rows, commits.counts), times, epochs, offsets, lags, self._settings)
        self._stopped_at[rows] = np.where(kept.stopped[places], commits.top_times, UNKNOWN)
        known = kept.told[places] >= 0
        heads, places = self._head_of[rows[known]], places[known]
        self._heads.anew[heads] = kept.anew[places]
        self._logs |= {
            head: kept.logs[place] for head, place in zip(heads.tolist(), places.tolist(), strict=True) if kept.logs[place]
        }
        self._heads.add(heads, kept.told[places], kept.highs[places], kept.lows[places], self._settings)
        _rest()

    def _drop(self, rows: Sequence[int]) -> None:
        """Free rows."""
        for done, row in enumerate(rows, start=1):
            key = self._keys[row]
            del self._rows[key]
            self._seqs[row] = UNKNOWN
            self._keys[row] = b""
            self._free.append(row)
            group, head = int(self._group_of[row]), int(self._head_of[row])
            if self._group_ids.leave(group):
                self._removals += 1
                self._removed.append(Removed(self._version, self._groups[group], group))
            self._head_ids.leave(head)
            if done % BLOCK == 0:
                _rest()
        del self._removed[:-MAX_REMOVED]

    def _forget_all(self) -> None:
        self._forgotten += len(self._rows)
        self._removals += 1  # of which nobody is told: all watchers begin anew
        self._removed.clear()
        self._begin()

    def _grow(self, rows: int) -> None:
        """Have room for so many rows, twice as much as before at least."""
        have = len(self._seqs)
        if rows <= have:
            return
        size = min(max(rows, 2 * have), self._most)
        self._commits = _grown(self._commits, Commits.empty(size, self._settings))
        self._heads = _grown(self._heads, Heads.empty(size, self._settings))
        for name, fill in (
            ("_seqs", UNKNOWN),
            ("_stopped_at", UNKNOWN),
            ("_warned", False),
            ("_group_of", 0),
            ("_head_of", 0),
            ("_asked_at", 0),
        ):
            larger = np.full(size, fill)
            larger[:have] = getattr(self, name)
            setattr(self, name, larger)

    def _hear(self, bounds: Sequence[tuple[ShardKey, Bounds]], now_ms: int) -> Ints:
        """Take in bounds of the shards that are kept; returns the rows of their logs."""
        new = [self._head_ids.names[head] for head in self._head_ids.take_new()]
        told = [(shard, before) for shard in new if (before := self._reported(shard))]
        found = [(head, one) for shard, one in (*told, *bounds) if (head := self._head_ids.of.get(shard)) is not None]
        for at in range(0, len(found), BLOCK):
            some = found[at : at + BLOCK]
            self._note_logs(some)
            heads = np.fromiter((head for head, _ in some), np.int64, len(some))
            lows, highs = _clamped([one[0] for _, one in some]), _clamped([one[1] for _, one in some])
            times = np.minimum(_clamped([one[2] for _, one in some]), now_ms) * US_OF_MS
            self._heads.add(heads, times, highs, lows, self._settings)
            _rest()
        return np.fromiter((head for head, _ in found), np.int64, len(found))

    def _note_logs(self, bounds: Sequence[tuple[int, Bounds]]) -> None:
        """Let the heads of those shards begin anew whose log is another one than before."""
        anew = []
        for head, one in bounds:
            if one.log_id and self._logs.setdefault(head, one.log_id) != one.log_id:
                anew.append(head)
                self._logs[head] = one.log_id
        if anew:  # one line, however many: a topic may have thousands of shards
            log.warning("lag.log_made_anew", shards=len(anew), example="/".join(self._head_ids.names[anew[0]]))
        self._heads.begin_anew(np.array(anew, np.int64))
        self._anew += anew

    def _of_new_logs(self) -> list[int]:
        """The rows of the shards whose log began anew since the last call."""
        heads, self._anew = np.array(self._anew, np.int64), []
        if not len(heads):
            return []
        count = len(self._keys)
        rows: Ints = np.flatnonzero((self._seqs[:count] >= 0) & np.isin(self._head_of[:count], heads))
        return list(map(int, rows[:BLOCK]))

    def _add(self, found: _Moved, now_ms: int, *, at_commit: bool) -> None:
        """Merge records into their rows. `at_commit`: the bounds that are known are those of the time of the commits."""
        for at in range(0, len(found.records), BLOCK):
            records, rows = found.records[at : at + BLOCK], found.rows[at : at + BLOCK]
            values = list(map(_fields_of, records))
            epochs, offsets = _clamped([one[0] for one in values]), _clamped([one[1] for one in values])
            times = np.minimum(_clamped([one[3] for one in values]), now_ms)
            if at_commit:
                times[times == 0] = now_ms
                heads = self._head_of[rows]
                lags = lag_now(offsets, _newest(self._heads.highs, self._heads.counts, heads), self._heads.lows[heads])
            else:
                lags = np.full(len(rows), UNKNOWN)
            self._commits.add(rows, times * US_OF_MS, epochs, offsets, lags, self._settings)
            _rest()

    def _due(self, changed: Bools, heard: Ints) -> Ints:
        """The rows to judge now: those that changed, those whose log did, and the next part of all."""
        count = len(self._keys)
        if not count:
            return np.zeros(0, np.int64)
        if len(heard):
            moved = np.zeros(len(self._seqs), np.bool_)
            moved[heard] = True
            changed |= moved[self._head_of[:count]]
        part = max(JUDGED_AT_ONCE, -(-count // PASSES))
        if part >= count:
            changed[:] = True
        else:
            changed[np.arange(self._cursor, self._cursor + part) % count] = True
            self._cursor = (self._cursor + part) % count
        due: Ints = np.flatnonzero(changed & (self._seqs[:count] >= 0))
        return due

    def _judge(self, due: Ints, now: int) -> None:
        self._shown = shown = self._shown.copied(len(self._keys))
        for at in range(0, len(due), JUDGED_AT_ONCE):
            rows = due[at : at + JUDGED_AT_ONCE]
            commits, heads = self._commits.take(rows), self._head_of[rows]
            # A shard that was STOP before a restart is so still, while nothing was committed since.
            was_stopped = self._stopped_at[rows] == commits.top_times
            watched = np.where(was_stopped, 0, self._began_ms * US_OF_MS)
            past = Past(watched, self._warned[rows])
            judged = judge(commits, self._heads, heads, now, now, self._settings, past)
            self._warned[rows] = judged.status == Status.WARN
            for field in fields(Judgement):
                getattr(shown.judged, field.name)[rows] = getattr(judged, field.name)
            shown.epochs[rows], shown.offsets[rows], shown.times[rows] = (
                commits.top_epochs,
                commits.top_offsets,
                commits.top_times,
            )
            shown.head_times[rows] = _newest(self._heads.times, self._heads.counts, heads)
            shown.lows[rows] = self._heads.lows[heads]
            _rest()

    def _view(self, now_ms: int) -> View:
        """What is shown from now on."""
        rows, groups = len(self._keys), len(self._groups)
        used: Ints = np.flatnonzero(self._seqs[:rows] >= 0)
        shown = self._shown
        judged = Judgement(*(getattr(shown.judged, field.name)[used] for field in fields(Judgement)))
        none = np.zeros((len(used), 0), np.int64)
        tops = shown.epochs[used], shown.offsets[used], shown.times[used]
        group_of = self._group_of[used]
        sums = summed(judged, Commits(none, none, none, none, np.zeros(len(used), np.int64), *tops), group_of, groups)
        found = sums.worst >= 0
        sums.worst[found] = used[sums.worst[found]]
        self._note_changes(sums, now_ms)
        if self._group_ids.take_changed() or len(self._ranks) != groups:
            self._rank(groups)
            self._names_version = self._version
        return View(
            version=self._version,
            evaluated_at_ms=now_ms,
            rows=shown,
            keys=list(self._keys),
            group_of=np.where(self._seqs[:rows] >= 0, self._group_of[:rows], UNKNOWN),
            groups=list(self._groups),
            sums=sums,
            since_ms=self._since,
            changed=self._changed,
            ranks=self._ranks,
            shards_kept=len(used),
            groups_kept=len(self._group_ids.of),
            forgotten=self._forgotten,
            names_version=self._names_version,
            removed=tuple(self._removed),
            removals=self._removals,
        )

    def _rank(self, groups: int) -> None:
        """Sort the groups by name. As numbers in arrays of bytes, since sorting those does not hold up the event loop."""
        used = np.fromiter(self._group_ids.of.values(), np.int64, len(self._group_ids.of))
        parts = [np.zeros(0, "S1")]
        for at in range(0, len(used), BLOCK):
            parts.append(np.array([_name(self._groups[group]) for group in used[at : at + BLOCK].tolist()]))
            _rest()
        self._ranks = np.full(groups, groups)
        self._ranks[used[np.argsort(np.concatenate(parts), kind="stable")]] = np.arange(len(used))

    def _note_changes(self, sums: Sums, now_ms: int) -> None:
        """Note which groups differ from the last view, and since when each has its status."""
        groups, before = len(self._groups), self._sums
        known = len(self._changed)
        changed, since = np.zeros(groups, np.bool_), _lengthened(self._since, groups, now_ms)
        changed[known:] = True
        others = np.zeros(groups, np.bool_)
        others[self._group_ids.take_new()] = True  # the number may have been another group's
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
        used = np.fromiter(self._head_ids.of.values(), np.int64, len(self._head_ids.of))
        due = used[self._asked_at[used] + self._asked_us <= now]
        if len(due) > MAX_ASKED:
            due = due[np.argpartition(self._asked_at[due], MAX_ASKED)[:MAX_ASKED]]
        self._asked_at[due] = now
        return [self._head_ids.names[head] for head in due.tolist()]


class _Ids(Generic[N]):
    """Small numbers for names: reused, so that they can be places in arrays. A name ends when its last use does."""

    def __init__(self) -> None:
        self.of: dict[N, int] = {}
        self.names: list[N] = []
        self._changed = False
        self._uses: list[int] = []
        self._free: list[int] = []
        self._new: list[int] = []

    def use(self, name: N) -> tuple[int, bool]:
        """The number of a name, and whether it is new."""
        number = self.of.get(name)
        if number is not None:
            self._uses[number] += 1
            return number, False
        if self._free:
            number = self._free.pop()
            self.names[number], self._uses[number] = name, 1
        else:
            number = len(self.names)
            self.names.append(name)
            self._uses.append(1)
        self.of[name] = number
        self._new.append(number)
        self._changed = True
        return number, True

    def leave(self, number: int) -> bool:
        """End one use; True if it was the last."""
        self._uses[number] -= 1
        if self._uses[number]:
            return False
        del self.of[self.names[number]]
        self._free.append(number)
        self._changed = True
        return True

    def take_changed(self) -> bool:
        """Whether a name came or went since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def take_new(self) -> list[int]:
        """The numbers that were given to names since the last call, and are still theirs."""
        new, self._new = self._new, []
        return [number for number in new if self._uses[number]]


def _name(group: GroupKey) -> bytes:
    """Sorts as (namespace, name) do: no name has a control character."""
    return group.namespace.encode() + b"\x01" + group.group.encode()


def _rest() -> None:
    """Let the event loop have the interpreter's lock."""
    time.sleep(REST_S)


def _some(found: _Moved, mask: Bools) -> _Moved:
    if mask.all():
        return found
    return _Moved([found.records[place] for place in np.flatnonzero(mask).tolist()], found.rows[mask], found.seqs[mask])


def _clamped(values: Sequence[int]) -> Ints:
    """Unsigned numbers of 64 bits as signed ones, at most LONG_MAX."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return np.fromiter((min(value, LONG_MAX) for value in values), np.int64, len(values))


def _newest(matrix: Ints, counts: Ints, rows: Ints) -> Ints:
    """The last value of some rows; -1 for an empty one."""
    count = counts[rows]
    return np.where(count > 0, matrix[rows, np.maximum(count, 1) - 1], UNKNOWN)


def _grown(table: T, larger: T) -> T:
    for field in fields(table):
        array = getattr(table, field.name)
        getattr(larger, field.name)[: len(array)] = array
    return larger


def _lengthened(array: Ints, size: int, fill: int) -> Ints:
    return np.append(array, np.full(size - len(array), fill))


def _differs(new: Ints | Floats, old: Ints | Floats) -> Bools:
    differs: Bools = new != old
    return differs & ~(np.isnan(new) & np.isnan(old)) if new.dtype.kind == "f" else differs
