"""Group commit: the commits that come in one turn of the event loop, from whatever connections, are one write.

It is written before anything else happens, so that nobody waits for company. What is not a lone commit is left to its caller.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from adapter.errors import AdapterError
from adapter.sidecar.engine.fast_path import Run
from adapter.sidecar.metrics import AdapterMetrics

if TYPE_CHECKING:
    from adapter.sidecar.engine.core import Core

log = structlog.get_logger(__name__)

# How many requests of a run, from its first, are committed; and why the next one is refused, unless it is to go the general way.
Done = Callable[[int, AdapterError | None], None]


class GroupCommit:
    """Collects what comes, until the event loop's turn ends."""

    def __init__(self, core: Callable[[], "Core"], metrics: AdapterMetrics, refused: Callable[[AdapterError], None]) -> None:
        self._core = core
        self._metrics = metrics
        self._refused = refused
        self._runs: list[tuple[Run, Done]] = []
        self._began = 0.0

    def add(self, run: Run, done: Done) -> None:
        """Commit a run; `done` is called at the end of this turn."""
        if not self._runs:
            self._began = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._end)
        self._runs.append((run, done))

    def _end(self) -> None:
        runs, self._runs = self._runs, []
        counts, failure = [0] * len(runs), None
        try:
            core = self._core()
            counts = core.lone.commit([run for run, _ in runs], core.clocks.now_ms())
        except AdapterError as error:
            failure = error
        except Exception:  # the general way will say what it is, to each by itself
            log.exception("turn.failed")
        for (_, done), count in zip(runs, counts, strict=True):
            self._tell(done, count, failure)
        self._metrics.committed_together(sum(counts), time.perf_counter() - self._began)

    def _tell(self, done: Done, count: int, failure: AdapterError | None) -> None:
        """An answer that fails is nobody else's matter."""
        try:
            if failure:
                self._refused(failure)
            done(count, failure)
        except Exception:
            log.exception("turn.answer_failed")
