"""Which groups a filter chooses, and that its comparison lets other work run."""

from types import SimpleNamespace
from typing import cast

import anyio
import anyio.lowlevel
import numpy as np

from adapter.model.records import GroupKey
from adapter.sidecar.lag.filters import Filter, Filters
from adapter.sidecar.lag.view import View

GROUPS = 1_000
WORST = "a" * 250  # with this name, the worst pattern takes 0.4 ms


def view_of(names: list[str]) -> View:
    """A view of groups that are all kept, as far as a filter looks at it."""
    count = len(names)
    made = SimpleNamespace(
        kept=np.ones(count, np.bool_),
        sums=SimpleNamespace(status=np.zeros(count, np.uint8)),
        names_version=1,
        groups=[GroupKey("n", name) for name in names],
    )
    return cast("View", made)


async def test_the_worst_pattern_over_the_worst_names_lets_other_work_run() -> None:
    """At most 20 names, 8 ms of them, are compared in a row: callers choose both pattern and names."""
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        found = await Filters().matching(view_of([WORST] * GROUPS), Filter(pattern="*" + "a" * 120 + "b"))
        tasks.cancel_scope.cancel()
    assert not found.any()
    assert turns >= GROUPS // 20


async def test_a_namespace_and_a_pattern_both_have_to_fit() -> None:
    """The pattern is a shell's, and has to fit the whole name."""
    view = view_of(["orders-1", "orders-2", "my-orders-1"])
    assert (await Filters().matching(view, Filter("n", "orders-?"))).tolist() == [True, True, False]
    assert not (await Filters().matching(view, Filter("m", "orders-?"))).any()
