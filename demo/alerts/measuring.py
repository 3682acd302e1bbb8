"""Makes a fault and measures: until the page shows it, until the alert fires, and until both are over after the repair."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from demo.alerts.faults import Fault
from demo.alerts.prometheus import Prometheus
from demo.fleet.visitor import Visitor

Shown = Callable[[], Awaitable[bool]]

LOOK_S = 0.05
PAGE_BAR_S = 2.0
SLACK_S = 5.0  # of a busy machine, for a scrape, an evaluation and a look
LIMIT_S = 90.0  # far above what anything here takes


@dataclass(frozen=True)
class Measured:
    """Seconds of one fault; None: it did not happen within LIMIT_S.

    `shown`, `fired`: after the fault is there. `nominal`: for how long the alert's condition has to hold. `hidden`, `cleared`:
    after the repair; of what lasts, `hidden` says that it is still shown.
    """

    fault: Fault
    shown: float | None
    fired: float | None
    nominal: float
    hidden: float | None
    cleared: float | None

    @property
    def problems(self) -> list[str]:
        """What did not happen, or not in time."""
        found = []
        if self.shown is None:
            found.append("the page never showed it")
        elif self.shown > PAGE_BAR_S:
            found.append(f"the page took {self.shown:.1f} s to show it, more than {PAGE_BAR_S:g} s")
        if self.fired is None:
            found.append(f"{self.fault.alert} never fired")
        elif self.fired > self.nominal + SLACK_S:
            found.append(f"{self.fault.alert} took {self.fired:.1f} s to fire, more than {self.nominal:.1f} s and {SLACK_S:g} s")
        if self.hidden is None:
            found.append("the page never took it back")
        if self.cleared is None:
            found.append(f"{self.fault.alert} never ended")
        return found


async def measure(fault: Fault, visitor: Visitor, prometheus: Prometheus, nominal_s: float) -> Measured:
    """Make the fault, wait for page and alert, repair it, and wait until both are over. The page is open all the time."""
    async with anyio.create_task_group() as tasks:
        page = await tasks.start(visitor.live, fault.path, fault.query, name="page")

        async def shown() -> bool:
            return fault.shown(page.root)

        async def firing() -> bool:
            return await prometheus.firing(fault.alert, fault.labels)

        try:
            await fault.inject()
            with anyio.fail_after(LIMIT_S):
                await fault.real()
            seen, fired = await _both(shown, firing, time.monotonic())
        finally:
            with anyio.CancelScope(shield=True):
                await fault.repair()
        hidden, cleared = await _both(shown if fault.lasting else _not(shown), _not(firing), time.monotonic())
        tasks.cancel_scope.cancel()
    return Measured(fault, seen, fired, nominal_s, hidden, cleared)


def _not(condition: Shown) -> Shown:
    async def opposite() -> bool:
        return not await condition()

    return opposite


async def _both(first: Shown, second: Shown, since: float) -> tuple[float | None, float | None]:
    """When each held for the first time, in seconds since `since`."""
    found: dict[int, float] = {}

    async def wait(number: int, condition: Shown) -> None:
        with anyio.move_on_after(LIMIT_S):
            while not await condition():  # noqa: ASYNC110 - in other processes
                await anyio.sleep(LOOK_S)
            found[number] = time.monotonic() - since

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, 1, first)
        tasks.start_soon(wait, 2, second)
    return found.get(1), found.get(2)
