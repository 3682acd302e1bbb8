"""The live lag of one open store: looks at what was written about once a second, and has it evaluated in a worker thread.

An evaluation never overlaps the next one. The pause between two is longer where they are long, so that the event loop is held for
at most 1/REST_LOOP of the time, and a processor is used for at most 1/REST_WORK: commits go first. Each core begins anew.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import numpy as np
import structlog

from adapter.client.broker_log import BrokerLog
from adapter.errors import StorageFailedError
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord
from adapter.runtime.clocks import Clocks
from adapter.sidecar.config import LagSection
from adapter.sidecar.journal.notes import Moved
from adapter.sidecar.lag.bounds import Asking
from adapter.sidecar.lag.feed import Feed
from adapter.sidecar.lag.filters import Filters
from adapter.sidecar.lag.metrics import LagMetrics
from adapter.sidecar.lag.table import Evaluated, LagTable
from adapter.sidecar.lag.view import View
from adapter.sidecar.lag.watching import LagWatches
from adapter.sidecar.lag.windows import WindowsFile
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.shard_bounds import ReportedBounds

log = structlog.get_logger(__name__)
R = TypeVar("R")

REST_LOOP = 100
REST_WORK = 30
FAILED_S = 10.0  # the pause behind an evaluation that failed


class LiveLag:
    """Evaluates what is committed to a store. `view` is the last evaluation. `windows`: the file for what survives a restart.

    `note` is told of shards whose log was replaced by another one.
    """

    def __init__(
        self,
        section: LagSection,
        store: LocalStore,
        bounds: ReportedBounds,
        broker_log: BrokerLog,
        clocks: Clocks,
        metrics: LagMetrics,
        *,
        windows: Path | None = None,
        note: Callable[[Sequence[Moved]], None] = lambda _: None,
        in_thread: Callable[[Callable[[], Evaluated]], Awaitable[Evaluated]] = anyio.to_thread.run_sync,
    ) -> None:
        self._section = section
        self._clocks = clocks
        self._metrics = metrics
        self._in_thread = in_thread
        self._note = note
        self._feed = Feed(store, bounds, section.shards)
        self._asking = Asking(broker_log)
        self.table = LagTable(section, bounds.get, WindowsFile(windows) if windows else None)
        self.view = View.nothing()
        self.filters = Filters()
        self.watches = LagWatches(self.filters)
        self.left_out = 0  # offsets of the store that had no room when it was read
        self._complete_from: int | None = None  # the version of the view that has all offsets of the store
        self._to_fill = anyio.Event()

    @property
    def bounds_error(self) -> str:
        """Why bounds are missing that the broker should have told; empty if none are."""
        return self._asking.error

    @property
    def complete(self) -> bool:
        """Whether the view has all offsets of the store; not yet while they are being read after a start."""
        return self._complete_from is not None and self.view.version >= self._complete_from

    def number_of(self, key: GroupKey) -> int | None:
        """The number of a group in the view; None if there is no lag of it."""
        view = self.view
        number = self.table.group_id(key)
        if number is None or number >= len(view.groups) or view.groups[number] != key or not view.sums.shards[number]:
            return None
        return number

    async def run(self) -> None:
        """Read the store's offsets, and evaluate, until cancelled. Begin it when the store was compared with the Meta Service."""
        self._begin_anew()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._asking.run, name="lag.bounds")
            tasks.start_soon(self._keep_filled, name="lag.fill")
            rest_s = 0.0
            while True:
                await anyio.sleep(rest_s)
                try:
                    rest_s = await self.evaluate()
                except Exception:  # commits go on, whatever is wrong here
                    log.exception("lag.failed", help="what was known is forgotten, and begins anew; report this")
                    self.table.fail()
                    self._begin_anew()
                    rest_s = FAILED_S

    def end(self) -> None:
        """Note that the store is about to be closed: watches end, and metrics have nothing of it any more."""
        self.watches.end()
        self._metrics.ended()

    async def evaluate(self) -> float:
        """Evaluate what was written since the last time; returns for how many seconds to rest."""
        began = time.perf_counter()
        news = await self._feed.take()
        now_ms = self._clocks.now_ms()
        told, ask = self._asking.take(), self._asking.idle
        work = partial(self.table.evaluate, news, told, now_ms, ask=ask, complete=self.complete and not news.anew)
        view, asked, anew, cpu_s = await self._in_thread(work)
        self.view = view
        if news.anew:
            self._begin_anew()
        self._note([_kept(view, row) for row in anew])
        if asked:
            self._asking.ask(asked)
        took_s = time.perf_counter() - began
        self._metrics.evaluated(view, took_s, cpu_s + news.held_s, news.longest_s)
        self.watches.note(view)
        log.debug("lag.evaluated", shards=view.shards_kept, seconds=took_s, cpu=cpu_s, held=news.held_s, longest=news.longest_s)
        return max(self._section.interval_ms / 1000 - took_s, REST_LOOP * news.held_s, REST_WORK * cpu_s)

    def _begin_anew(self) -> None:
        """Have the store's offsets read: those of a group that stands still would not come otherwise."""
        self._complete_from = None
        self._to_fill.set()

    async def _keep_filled(self) -> None:
        """Read the store's offsets at the start, and each time when all was forgotten."""
        while True:
            await self._to_fill.wait()
            self._to_fill = anyio.Event()
            await self._fill()

    async def _fill(self) -> None:
        try:
            self.left_out = await self._feed.fill(anyio.sleep)
        except StorageFailedError:
            return  # it is about to be opened again
        if not self._to_fill.is_set():
            self._complete_from = self.view.version + 2  # the next one may have been under way when the last offsets were read
        if self.left_out:
            log.warning(
                "lag.left_out",
                offsets=self.left_out,
                help="their lag is kept as soon as they move; raise lag.shards to keep more",
            )


def _kept(view: View, row: int) -> Moved:
    """A shard that stays where it is."""
    shown = view.rows.take(np.array([row]))
    record = OffsetRecord(int(shown.epochs[0]), int(shown.offsets[0]))
    namespace, group = view.groups[view.group_of[row]]
    return Moved(OffsetKey(namespace, group, view.shard(row)), record, record)
