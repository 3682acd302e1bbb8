"""Group commit: what is offered to the fast path in one iteration of the event loop, by whatever connections, is one write.

It is written at the end of that iteration, so that nothing waits for others to come. What the fast path leaves is left to its
caller, who goes on with the next step of a commit (`api.commits`).
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

# How many requests of a run, from its first, are committed; the fast path has left the one behind them. Or why all are refused.
Done = Callable[[int, AdapterError | None], None]


class GroupCommit:
    """Collects runs of requests until the iteration of the event loop ends, then has the fast path commit them in one write."""

    def __init__(self, core: Callable[[], "Core"], metrics: AdapterMetrics, refused: Callable[[AdapterError], None]) -> None:
        self._core = core
        self._metrics = metrics
        self._refused = refused
        self._runs: list[tuple[Run, Done]] = []
        self._began = 0.0

    def add(self, run: Run, done: Done) -> None:
        """Commit a run at the end of this iteration; `done` is called then, once."""
        if not self._runs:
            self._began = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._commit)
        self._runs.append((run, done))

    def _commit(self) -> None:
        runs, self._runs = self._runs, []
        counts, failure = [0] * len(runs), None
        try:
            core = self._core()
            counts = core.fast_path.commit([run for run, _ in runs], core.clocks.now_ms())
        except AdapterError as error:
            failure = error
        except Exception:  # left to the next step: each request then reports its own error
            log.exception("group_commit.failed")
        for (_, done), count in zip(runs, counts, strict=True):
            self._call(done, count, failure)
        self._metrics.committed_together(sum(counts), time.perf_counter() - self._began)

    def _call(self, done: Done, count: int, failure: AdapterError | None) -> None:
        """Call a `done`. If it raises, the others are still called."""
        try:
            if failure:
                self._refused(failure)
            done(count, failure)
        except Exception:
            log.exception("group_commit.answer_failed")
