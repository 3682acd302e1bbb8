"""The lag of one adapter for KEDA: which changes wake who waits for them."""

from types import SimpleNamespace
from typing import Any, cast

import anyio
import numpy as np

from adapter.errors import NotReadyError
from adapter.sidecar.lag.filters import Filters
from adapter.sidecar.lag.scaler_source import LiveLagSource
from adapter.sidecar.lag.watching import LagWatches
from adapter.testing.waiting import PATIENCE_S

GROUP = ("default", "g")


class Lag:
    """What the source reads of a live lag: a group that changes when the test says so."""

    def __init__(self) -> None:
        self.watches = LagWatches(Filters())
        self.complete, self.left_out = True, 0
        self._version = 0
        self.evaluate(changed=True)

    def number_of(self, key: object) -> int | None:
        """There is one group."""
        return 0 if key == GROUP else None

    def evaluate(self, *, changed: bool) -> None:
        """Another evaluation."""
        self._version += 1
        before = getattr(self, "view", None)
        self.view = SimpleNamespace(
            version=self._version,
            groups=[GROUP],
            sums=SimpleNamespace(shards=[1]),
            changed=np.array([self._version if changed or not before else before.changed[0]]),
            forgotten=0,
        )
        self.watches.note(cast("Any", self.view))


def source_of(lag: Lag) -> LiveLagSource:
    """A source that pauses for no time."""
    return LiveLagSource(lambda: cast("Any", SimpleNamespace(core=None, lag=lag)), pause_s=0.0)


async def wakes(changes: Any) -> bool:
    """Whether who waits is woken although nothing more happens: the event loop runs until all others wait."""
    waiting = anyio.Event()

    async def wait() -> None:
        await anext(changes)
        waiting.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        woken = waiting.is_set()
        tasks.cancel_scope.cancel()
    return woken


async def test_a_change_after_the_look_wakes_although_it_came_in_the_pause() -> None:
    """It was lost until the answer was repeated, 30 seconds later."""
    lag = Lag()
    changes = source_of(lag).changes(*GROUP)
    await anext(changes)  # the caller looks now
    lag.evaluate(changed=True)
    with anyio.fail_after(PATIENCE_S):
        await anext(changes)
    await changes.aclose()


async def test_an_evaluation_without_a_change_of_the_group_wakes_nobody() -> None:
    """There is one each second."""
    lag = Lag()
    changes = source_of(lag).changes(*GROUP)
    await anext(changes)
    lag.evaluate(changed=False)
    assert not await wakes(changes)


async def test_what_makes_a_lag_unknown_wakes_as_well() -> None:
    """Shards that have no room, an adapter that has not looked at all it stores, one that serves no more."""
    lag = Lag()
    for change in ({"left_out": 1}, {"complete": False}):
        changes = source_of(lag).changes(*GROUP)
        await anext(changes)
        for name, value in change.items():
            setattr(lag, name, value)
        lag.evaluate(changed=False)
        assert await wakes(changes)

    serving = [lag]

    def read() -> Any:
        if not serving:
            raise NotReadyError("away")
        return SimpleNamespace(core=None, lag=serving[0])

    changes = LiveLagSource(read, pause_s=0.0).changes(*GROUP)
    await anext(changes)
    serving.clear()
    with anyio.fail_after(PATIENCE_S):
        await anext(changes)
    await changes.aclose()
