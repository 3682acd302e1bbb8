"""What was written to the local store since the last look, for the live lag. On the event loop.

A commit does nothing for this. The states of groups (`ledger`) have what every path wrote (commits, write-through, adopted
values, resets, tombstones), whether or not the Meta Service answers, and are kept in the order of their use: a look takes the
records of the groups that were used since the last one. Two things are not there afterwards, and are told as they happen, off the
path of an ordinary commit: records that leave memory for lack of room, and keys that are removed from the store.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np

from adapter.model.bounds import Bounds, ShardKey
from adapter.model.codec import encode_key, pack_names
from adapter.model.records import Held, OffsetKey
from adapter.runtime.serving.large_calls import SLICE_ROWS
from adapter.runtime.slices import others
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.shard_bounds import ReportedBounds

SLICE_GROUPS = 2_000  # of a look, between two yields: a millisecond or two
MAX_REMOVED = 200_000  # keys that are removed between two looks; beyond, all begins anew
SORTED_AT_ONCE = 20_000
MAX_FILLED = 20_000  # records of the first read that wait for a look: some 400 bytes each
WAIT_S = 0.05  # until one may have taken them
REST = 4  # so many times as long as a slice of the first read takes, other work has the event loop

Pause = Callable[[float], Awaitable[None]]


@dataclass
class News:
    """Records (some maybe seen before), removed keys with the write that they stood behind, and newly reported bounds.

    `filled`: records from the read of the whole store, whose commits are older. `anew`: forget all that was known before.
    """

    records: list[Held] = field(default_factory=list)
    filled: list[Held] = field(default_factory=list)
    removed: dict[bytes, int] = field(default_factory=dict)
    bounds: list[tuple[ShardKey, Bounds]] = field(default_factory=list)
    anew: bool = False
    held_s: float = 0.0  # the time for which the event loop was held, and the longest such time
    longest_s: float = 0.0


class Feed:
    """Follows a store. `shards`: how many are of interest, at most."""

    def __init__(self, store: LocalStore, bounds: ReportedBounds, shards: int) -> None:
        self._store = store
        self._bounds = bounds
        self._shards = shards
        self._evicted: deque[Held] = deque(maxlen=shards)
        self._filled: list[Held] = []
        self._removed: dict[bytes, int] = {}
        self._too_many = False
        self._since = 0  # the write counter at the last look
        store.follow(self)

    def evicted(self, records: Collection[Held]) -> None:
        """Keep what was written since the last look."""
        since = self._since
        self._evicted.extend([held for held in records if held[1] > since])

    def removed(self, key: OffsetKey, seq: int) -> None:
        """Keep the key, up to MAX_REMOVED."""
        self._removed[encode_key(key)] = seq
        if len(self._removed) > MAX_REMOVED:
            self._removed.clear()
            self._too_many = True

    async def take(self) -> News:
        """What was written since the last call, in slices. For one caller."""
        news, watch = News(), _Watch()
        since = self._store.seq
        with watch:
            names = self._store.used()
        for at in range(0, len(names), SLICE_GROUPS):
            await others()
            with watch:
                news.records += self._store.held_of(names[at : at + SLICE_GROUPS])
        await others()
        with watch:
            # Together: what was evicted or read before a removal is known to be older than it.
            news.records += self._evicted
            self._evicted.clear()
            self._since = since
            news.filled, self._filled = self._filled, []
            news.removed, self._removed = self._removed, {}
            news.anew, self._too_many = self._too_many, False
            news.bounds = self._bounds.news()
        news.held_s, news.longest_s = watch.total_s, watch.longest_s
        return news

    async def fill(self, pause: "Pause") -> int:
        """Read the current offsets from the store, the most recently written ones; returns how many were left out.

        In slices, between which `pause` sleeps, also while many wait for a look. What is written meanwhile comes by `take`, and
        wins.
        """
        floor = await self._floor(pause) if self._store.keys > self._shards else 0
        after: OffsetKey | None = None
        left_out = 0
        while True:
            began = time.perf_counter()
            page = self._store.first(SLICE_ROWS, after=after)
            for key, record, seq in page:
                if seq < floor:
                    left_out += record.live
                elif record.live:
                    self._filled.append((record, seq, pack_names(*key)))
            if len(page) < SLICE_ROWS:
                return left_out
            after = page[-1].key
            await pause((time.perf_counter() - began) * REST)
            while len(self._filled) >= MAX_FILLED:
                await pause(WAIT_S)

    async def _floor(self, pause: "Pause") -> int:
        """The write from which on as many records were written as are of interest."""
        newest = np.zeros(0, np.int64)
        read: list[int] = []
        after: OffsetKey | None = None
        while True:
            began = time.perf_counter()
            page = self._store.first(SLICE_ROWS, after=after)
            read += [seq for _, record, seq in page if record.live]
            last = len(page) < SLICE_ROWS
            if last or len(read) > SORTED_AT_ONCE:
                newest = np.append(newest, np.array(read, np.int64))
                read.clear()
                if len(newest) > self._shards:
                    newest = -np.partition(-newest, self._shards - 1)[: self._shards]
            if last:
                return int(newest.min(initial=self._store.seq))
            after = page[-1].key
            await pause((time.perf_counter() - began) * REST)


class _Watch:
    """Measures how long the event loop is held, in seconds: each time, and in all."""

    def __init__(self) -> None:
        self.total_s = self.longest_s = self._began = 0.0

    def __enter__(self) -> Self:
        """Begin a slice."""
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it."""
        took_s = time.perf_counter() - self._began
        self.total_s += took_s
        self.longest_s = max(self.longest_s, took_s)
