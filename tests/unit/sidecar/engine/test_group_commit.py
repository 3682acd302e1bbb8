"""Group commit: requests that arrive in one iteration of the event loop are one write, then each gets its own reply."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from adapter.errors import AdapterError, DiskFullError, NotReadyError
from adapter.model.records import GroupKey
from adapter.runtime.clocks import Clocks
from adapter.sidecar.api.commits import Commits
from adapter.sidecar.engine.core import Core
from adapter.sidecar.metrics import AdapterMetrics
from tests.unit.helpers import key
from tests.unit.sidecar.engine.fast_requests import Request, request
from tests.unit.sidecar.engine.fast_store import Store
from tests.unit.sidecar.engine.standing import NOW_MS


class Offering:
    """A group commit over a simulated disk; keeps the answers."""

    def __init__(self) -> None:
        self.store = Store().holds(a=1, b=1)
        self.answers: list[tuple[str, int, AdapterError | None]] = []
        self.not_ready: AdapterError | None = None
        self.metrics = AdapterMetrics()
        self.commits = Commits(self.core, self.metrics)

    def core(self) -> Core:
        """The part of the sidecar's core that a group commit uses."""
        if self.not_ready:
            raise self.not_ready
        return cast("Core", SimpleNamespace(ledger=self.store.ledger, clocks=Clocks(lambda: 0.0, lambda: NOW_MS)))

    def add(self, name: str, *run: Request) -> None:
        """Add a run that arrives now."""
        self.commits.offer(run, lambda count, error: self.answers.append((name, count, error)))


async def test_what_comes_in_one_iteration_is_answered_at_its_end_in_order() -> None:
    """Not before it is written; there is one write."""
    offering = Offering()
    await asyncio.sleep(0)  # nothing of what was written before comes later
    before = offering.store.platter.unsynced
    offering.add("first", request("a", offset=5))
    offering.add("second", request("b", offset=6), Request())
    offering.add("third", Request())
    assert (offering.answers, offering.store.platter.unsynced) == ([], before)
    written: list[int] = []
    offering.commits.offer((request("a", offset=7),), lambda *_: written.append(offering.store.platter.unsynced))
    await asyncio.sleep(0)
    assert offering.answers == [("first", 1, None), ("second", 1, None), ("third", 0, None)]
    assert written == [before + 1] == [offering.store.platter.unsynced]


async def test_a_run_that_comes_during_the_answers_is_of_the_next_write() -> None:
    """It gets its own reply, once."""
    offering = Offering()
    offering.commits.offer((request("a", offset=5),), lambda *_: offering.add("next", request("a", offset=6)))
    await asyncio.sleep(0)
    assert offering.answers == []
    await asyncio.sleep(0)
    assert offering.answers == [("next", 1, None)]
    assert offering.store.offsets() == {"a": 6, "b": 1}


async def test_a_group_commit_that_cannot_be_written_refuses_all() -> None:
    """Each gets the reason and is counted; the next group commit is not affected."""
    offering = Offering()
    before = offering.store.state()
    offering.store.disk.refuses = full = DiskFullError("full")
    offering.add("first", request("a", offset=5))
    offering.add("second", request("b", offset=6))
    await asyncio.sleep(0)
    assert [(name, count, type(error)) for name, count, error in offering.answers] == [
        ("first", 0, type(full)),
        ("second", 0, type(full)),
    ]
    assert offering.metrics.commit_errors.labels("RESOURCE_EXHAUSTED")._value.get() == 2
    assert offering.store.state() == before
    offering.answers.clear()
    offering.add("again", request("a", offset=5))
    await asyncio.sleep(0)
    assert offering.answers == [("again", 1, None)]
    offering.store.again()


async def test_an_adapter_that_stops_before_the_write_takes_nothing_of_it() -> None:
    """Whether the adapter serves is checked when the group commit is written."""
    offering = Offering()
    before = offering.store.state()
    offering.add("late", request("a", offset=5))
    offering.not_ready = stopping = NotReadyError("stopping")
    await asyncio.sleep(0)
    assert offering.answers == [("late", 0, stopping)]
    assert offering.store.state() == before


async def test_what_breaks_the_fast_path_is_left_to_the_next_step() -> None:
    """Each request is then handled by itself, so only the one with the error fails."""
    offering = Offering()
    before = offering.store.state()
    offering.add("good", request("a", offset=5))
    offering.add("strange", cast("Request", SimpleNamespace()))
    await asyncio.sleep(0)
    assert offering.answers == [("good", 0, None), ("strange", 0, None)]
    assert offering.store.state() == before


async def test_an_answer_that_breaks_leaves_those_behind_it() -> None:
    """The later callers still get their replies, also if all are refused."""
    offering = Offering()

    def breaks(*_: object) -> None:
        raise ValueError

    for refusal, count in ((None, 1), (NotReadyError("stopping"), 0)):
        offering.not_ready = refusal
        offering.commits.offer((request("a", offset=5),), breaks)
        offering.add("other", request("b", offset=6))
        await asyncio.sleep(0)
        assert offering.answers.pop() == ("other", count, refusal)


async def test_a_group_that_left_memory_meanwhile_is_left_by_the_fast_path() -> None:
    """Whether the fast path applies is decided at the end of the iteration."""
    offering = Offering()
    offering.add("gone", request("a", offset=5))
    offering.store.store.states.discard(key("a"))
    await asyncio.sleep(0)
    assert offering.answers == [("gone", 0, None)]
    offering.store.store.states._max_keys = 1
    offering.add("pushed out", request("b", offset=5))
    offering.store.store.states.put(GroupKey("default", "other"), {"x": (cast("Any", None), 1, b"x")})
    await asyncio.sleep(0)
    assert offering.answers[1:] == [("pushed out", 0, None)]
    assert offering.store.offsets() == {"a": 1, "b": 1}
