"""What moved offsets on purpose, and who asked for it: the newest changes, in memory, for `ListChanges`.

Stands before the journal, which is told of every such change behind its write. A change that a caller asked for is one entry for
each group that it moved. Rewinds, which can come with every commit, and the pages of an expiry are merged: those of one group
within `MERGED_MS` are one entry. Both have a list of their own, so that rewinds never push out what somebody asked for.

Keeps names and positions, no metadata: at most 19 MiB, with 20 shards of the longest names in each change.
Never waits, raises, or touches a disk.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import NamedTuple

from adapter.model.records import GroupKey, OffsetRecord, SaveEntry, SaveOutcome
from adapter.sidecar.journal.journal import Journal
from adapter.sidecar.journal.notes import Counts, Moved
from adapter.sidecar.shard_bounds import ReportedBounds

MAX_CHANGES = 1_000  # kept of those that somebody asked for, and as many of the others
MAX_ROWS = 20  # of one change
MERGED_MS = 60_000


class Caller(NamedTuple):
    """Who asks for a change, as in the audit log: as far as it is verified, as the caller says, and from where."""

    who: str
    claimed: str
    peer: str


_caller: ContextVar[Caller | None] = ContextVar("caller of OffsetAdmin", default=None)


@contextmanager
def asked_by(caller: Caller) -> Iterator[None]:
    """Note `caller` with the changes that this task makes inside the context."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


class Place(NamedTuple):
    """Where an offset stood."""

    epoch: int
    offset: int
    live: bool


class Noted:
    """One change of one group. `rows`: shard -> the places before and after, of the first shards that it moved."""

    __slots__ = ("at_ms", "began_ms", "caller", "group", "kind", "rows", "shards")

    def __init__(self, at_ms: int, kind: str, group: GroupKey, caller: Caller | None) -> None:
        self.at_ms = at_ms
        self.began_ms = at_ms
        self.kind = kind
        self.group = group
        self.caller = caller
        self.shards = 0
        self.rows: dict[str, tuple[Place | None, Place | None]] = {}

    def add(self, at_ms: int, moved: Sequence[Moved]) -> None:
        """Count what it moved as well, and keep the first shards."""
        self.at_ms = max(at_ms, self.at_ms)
        self.shards += len(moved)
        for (_, _, shard), before, after in moved:
            known = self.rows.get(shard)
            if known is not None:
                self.rows[shard] = (known[0], _place(after))
            elif len(self.rows) < MAX_ROWS:
                self.rows[shard] = (_place(before), _place(after))
            elif len(moved) > MAX_ROWS:
                break


class _Ring:
    """The newest changes of one sort, in the order in which they began."""

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.changes: deque[Noted] = deque()
        self._last: dict[tuple[str, GroupKey], Noted] = {}  # the newest of each kind and group

    def last(self, kind: str, group: GroupKey) -> Noted | None:
        return self._last.get((kind, group))

    def add(self, change: Noted) -> None:
        self.changes.append(change)
        self._last[change.kind, change.group] = change
        if len(self.changes) > MAX_CHANGES:
            oldest = self.changes.popleft()
            self.since_ms = max(self.since_ms, oldest.at_ms + 1)
            if self._last.get((oldest.kind, oldest.group)) is oldest:
                del self._last[oldest.kind, oldest.group]


class History:
    """The newest changes. A Journal that passes on all that it is told."""

    def __init__(self, journal: Journal, now_ms: Callable[[], int]) -> None:
        self.counts: Counts | None = journal.counts
        self._journal = journal
        self._now_ms = now_ms
        now = now_ms()
        self._asked, self._own = _Ring(now), _Ring(now)

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """Note that offsets were moved, and pass it on."""
        if moved:
            self._note(kind, moved, _caller.get())
            self._journal.moved(kind, moved)

    def logs_made_anew(self, kept: Sequence[Moved]) -> None:
        """Note that the logs of these shards were replaced by others, where their offsets stayed."""
        if kept:
            self._note("new-log", kept, None)

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """Pass it on."""
        self._journal.flushed(entries, outcomes)

    def sees(self, bounds: ReportedBounds) -> None:
        """Pass it on."""
        self._journal.sees(bounds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the journal."""
        async with self._journal.running():
            yield

    @property
    def since_ms(self) -> int:
        """All changes since then are kept. Unix time in milliseconds."""
        return max(self._asked.since_ms, self._own.since_ms)

    def newest(self, names: tuple[str, ...], limit: int) -> list[Noted]:
        """At most `limit` changes of the groups below `names`, which are (), (namespace,) or (namespace, group); newest first."""
        count = len(names)
        found = [change for ring in (self._asked, self._own) for change in ring.changes if change.group[:count] == names]
        found.sort(key=lambda change: change.at_ms, reverse=True)
        return found[:limit]

    def _note(self, kind: str, moved: Sequence[Moved], caller: Caller | None) -> None:
        now = self._now_ms()
        if len(moved) == 1:  # the rewind of one commit
            self._note_group(now, kind, moved[0].key.group_key, moved, caller)
            return
        for names, of_group in groupby(moved, lambda one: one.key[:2]):
            self._note_group(now, kind, GroupKey(*names), list(of_group), caller)

    def _note_group(self, now: int, kind: str, group: GroupKey, moved: Sequence[Moved], caller: Caller | None) -> None:
        ring = self._own if caller is None else self._asked
        change = ring.last(kind, group)
        # A large change comes in parts, of one caller. What nobody asked for has a time in which it is one change.
        if change is None or change.caller is not caller or (caller is None and now - change.began_ms >= MERGED_MS):
            change = Noted(now, kind, group, caller)
            ring.add(change)
        change.add(now, moved)


def _place(record: OffsetRecord | None) -> Place | None:
    return Place(record.epoch, record.offset, record.live) if record else None
