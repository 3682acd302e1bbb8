"""Group commit: what comes in one turn of the event loop is one write, after which each is told its own."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from adapter.errors import AdapterError, DiskFullError, NotReadyError
from adapter.model.records import GroupKey
from adapter.runtime.clocks import Clocks
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_commit import GroupCommit
from adapter.sidecar.metrics import AdapterMetrics
from tests.unit.helpers import key
from tests.unit.sidecar.engine.fast_requests import Request, request
from tests.unit.sidecar.engine.fast_store import Store
from tests.unit.sidecar.engine.standing import NOW_MS


class Turns:
    """A turn over a simulated disk, and who was refused."""

    def __init__(self) -> None:
        self.store = Store().holds(a=1, b=1)
        self.refused: list[AdapterError] = []
        self.answers: list[tuple[str, int, AdapterError | None]] = []
        self.not_ready: AdapterError | None = None
        self.turn = GroupCommit(self.core, AdapterMetrics(), self.refused.append)

    def core(self) -> Core:
        """As far as a turn needs it."""
        if self.not_ready:
            raise self.not_ready
        return cast("Core", SimpleNamespace(lone=self.store.lone, clocks=Clocks(lambda: 0.0, lambda: NOW_MS)))

    def add(self, name: str, *run: Request) -> None:
        """A run that comes now."""
        self.turn.add(run, lambda count, error: self.answers.append((name, count, error)))


async def test_what_comes_in_a_turn_is_answered_at_its_end_in_the_order_in_which_it_came() -> None:
    """Not before it is written, and that is one write."""
    turns = Turns()
    before = turns.store.platter.unsynced
    turns.add("first", request("a", offset=5))
    turns.add("second", request("b", offset=6), Request())
    turns.add("third", Request())
    assert (turns.answers, turns.store.platter.unsynced) == ([], before)
    written: list[int] = []
    turns.turn.add((request("a", offset=7),), lambda *_: written.append(turns.store.platter.unsynced))
    await asyncio.sleep(0)
    assert turns.answers == [("first", 1, None), ("second", 1, None), ("third", 0, None)]
    assert written == [before + 1] == [turns.store.platter.unsynced]


async def test_a_run_that_comes_during_the_answers_is_of_the_next_turn() -> None:
    """It gets its own answer, once."""
    turns = Turns()
    turns.turn.add((request("a", offset=5),), lambda *_: turns.add("next", request("a", offset=6)))
    await asyncio.sleep(0)
    assert turns.answers == []
    await asyncio.sleep(0)
    assert turns.answers == [("next", 1, None)]
    assert turns.store.offsets() == {"a": 6, "b": 1}


async def test_a_turn_that_cannot_be_written_refuses_all() -> None:
    """Each is told why, and counted; the next turn is as if nothing had been."""
    turns = Turns()
    before = turns.store.state()
    turns.store.disk.refuses = full = DiskFullError("full")
    turns.add("first", request("a", offset=5))
    turns.add("second", request("b", offset=6))
    await asyncio.sleep(0)
    assert [(name, count, type(error)) for name, count, error in turns.answers] == [
        ("first", 0, type(full)),
        ("second", 0, type(full)),
    ]
    assert len(turns.refused) == 2
    assert turns.store.state() == before
    turns.answers.clear()
    turns.add("again", request("a", offset=5))
    await asyncio.sleep(0)
    assert turns.answers == [("again", 1, None)]
    turns.store.again()


async def test_an_adapter_that_stops_within_the_turn_takes_nothing_of_it() -> None:
    """What counts is whether it serves when it is to be written."""
    turns = Turns()
    before = turns.store.state()
    turns.add("late", request("a", offset=5))
    turns.not_ready = stopping = NotReadyError("stopping")
    await asyncio.sleep(0)
    assert turns.answers == [("late", 0, stopping)]
    assert turns.store.state() == before


async def test_what_breaks_the_short_way_goes_the_general_one() -> None:
    """Each by itself: the general way says what it is, to whom it concerns."""
    turns = Turns()
    before = turns.store.state()
    turns.add("good", request("a", offset=5))
    turns.add("strange", cast("Request", SimpleNamespace()))
    await asyncio.sleep(0)
    assert turns.answers == [("good", 0, None), ("strange", 0, None)]
    assert turns.store.state() == before


async def test_an_answer_that_breaks_leaves_those_behind_it() -> None:
    """Also where all are refused."""
    turns = Turns()

    def breaks(*_: object) -> None:
        raise ValueError

    for refusal, count in ((None, 1), (NotReadyError("stopping"), 0)):
        turns.not_ready = refusal
        turns.turn.add((request("a", offset=5),), breaks)
        turns.add("other", request("b", offset=6))
        await asyncio.sleep(0)
        assert turns.answers.pop() == ("other", count, refusal)


async def test_a_group_that_left_memory_meanwhile_goes_the_general_way() -> None:
    """What is decided is decided at the end of the turn."""
    turns = Turns()
    turns.add("gone", request("a", offset=5))
    turns.store.store._cache.discard(key("a"))
    await asyncio.sleep(0)
    assert turns.answers == [("gone", 0, None)]
    turns.store.store._cache._max_keys = 1
    turns.add("pushed out", request("b", offset=5))
    turns.store.store._cache.update(GroupKey("default", "other"), {"x": (cast("Any", None), 1, b"x")})
    await asyncio.sleep(0)
    assert turns.answers[1:] == [("pushed out", 0, None)]
    assert turns.store.offsets() == {"a": 1, "b": 1}
