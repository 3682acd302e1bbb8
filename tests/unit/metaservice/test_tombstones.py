"""When the Meta Service removes tombstones."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import cast

import pytest
from structlog.testing import capture_logs

from adapter.errors import AdapterError, DiskFullError, StorageFailedError
from adapter.metaservice.config import TombstoneSection
from adapter.metaservice.engine import Engine
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.process import HOUR_MS, STORES_KEPT_MS, drop_tombstones
from adapter.runtime.settings.live import Live
from adapter.testing.waiting import eventually

NOW_MS = 1_700_000_000_000


class NotedEngine:
    """An engine that records what it is asked to remove, gives the test's answers, then hangs."""

    def __init__(self, *answers: int | AdapterError) -> None:
        self.asked: list[int] = []
        self.stores_asked: list[int] = []
        self._answers = deque(answers)

    async def drop_tombstones(self, before_ms: int) -> int:
        """Record the call."""
        if not self._answers:
            await asyncio.Event().wait()
        self.asked.append(before_ms)
        answer = self._answers.popleft()
        if isinstance(answer, AdapterError):
            raise answer
        return answer

    async def forget_stores(self, before_ms: int) -> int:
        """Record the call."""
        self.stores_asked.append(before_ms)
        return 0


async def dropping(engine: NotedEngine, **section: int) -> MetaMetrics:
    """Run the task until the engine has given its answers, or the task ends."""
    metrics = MetaMetrics()
    settings = Live(TombstoneSection(interval_ms=10, **section))
    task = asyncio.create_task(drop_tombstones(cast("Engine", engine), settings, metrics, lambda: NOW_MS))
    await eventually(lambda: not engine._answers or task.done())
    if not task.done():
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return metrics


def dropped(metrics: MetaMetrics) -> float | None:
    """The value of the metric."""
    return metrics.registry.get_sample_value("offset_meta_tombstones_dropped_total")


async def test_tombstones_older_than_the_retention_are_forgotten_again_and_again() -> None:
    """They are counted in a metric, and logged if there were any."""
    engine = NotedEngine(3, 0, 4, 0)
    with capture_logs() as lines:
        metrics = await dropping(engine, retention_hours=2)
    assert engine.asked == [NOW_MS - 2 * HOUR_MS] * 4
    assert dropped(metrics) == 7
    assert [line["count"] for line in lines if line["event"] == "tombstones.dropped"] == [3, 4]


async def test_without_a_retention_they_are_kept_until_there_is_one() -> None:
    """The settings may change while the task runs, and end the pause that it is in. Reports of stores are forgotten as ever."""
    engine, metrics = NotedEngine(0, 0, 1), MetaMetrics()
    section = Live(TombstoneSection(interval_ms=10, retention_hours=0))
    task = asyncio.create_task(drop_tombstones(cast("Engine", engine), section, metrics, lambda: NOW_MS))
    await eventually(lambda: len(engine.stores_asked) == 1)
    assert engine.stores_asked == [NOW_MS - STORES_KEPT_MS]
    section.take(TombstoneSection(interval_ms=86_400_000, retention_hours=0))
    await asyncio.sleep(0.1)
    section.take(TombstoneSection(interval_ms=10, retention_hours=3))
    await eventually(lambda: not engine._answers)
    task.cancel()
    assert engine.asked[0] == 0
    assert engine.asked[-1] == NOW_MS - 3 * HOUR_MS


async def test_a_full_disk_puts_it_off() -> None:
    """The next run tries again."""
    engine = NotedEngine(DiskFullError("no space by the test"), 2, 0)
    with capture_logs() as lines:
        assert dropped(await dropping(engine)) == 2
    assert [line["event"] for line in lines] == ["tombstones.kept", "tombstones.dropped"]


async def test_a_failed_store_ends_the_process() -> None:
    """As a failed sync of a save does: only a new process may continue."""
    with pytest.raises(StorageFailedError, match="by the test"):
        await dropping(NotedEngine(StorageFailedError("failed by the test")))
