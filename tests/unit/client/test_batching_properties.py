"""What `Batcher` promises, for random callers, failures, cancellations and a close, in virtual time."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.client import batching
from adapter.client.pending import PendingLimit
from adapter.model.records import CommitMode, Member, OffsetKey
from tests.model.loop import VirtualLoop
from tests.unit.links import LONG_S, TIMEOUT_S, Client, Code, FakeAdapter, Fault, codes

GROUPS = ("g", "h", "through", "refused")
SLACK_S = batching.EXPIRY_STEP_S + 0.001
NEVER = 1 << 30


@dataclass(frozen=True)
class Plan:
    """One caller: when it comes, what it commits, when it is cancelled."""

    at_s: float
    group: str
    shards: frozenset[str]
    offset: int
    overwrite: bool
    member: Member | None
    cancelled_s: float | None


PLANS = st.builds(
    Plan,
    st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.3, 1.0]),
    st.sampled_from(GROUPS[:2] * 3 + GROUPS[2:]),
    st.frozensets(st.sampled_from("ab"), min_size=1),
    st.integers(0, 9),
    st.sampled_from([False, False, True]),
    st.sampled_from([None, None, Member(1, "x"), Member(1, "y"), Member(2, "x")]),
    st.sampled_from([None, None, None, None, 0.0, 0.005, 0.5]),
)
FAULTS = st.builds(Fault, st.sampled_from([0.0, 0.001, 0.02, 0.7, LONG_S]), st.booleans(), st.booleans())


class Run:
    """One caller's commit and its result."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.order = -1  # of the calls
        self.began = self.ended = 0  # how much was applied then
        self.seconds = 0.0
        self.outcome: Any = None

    async def commit(self, client: Client, calls: Iterator[int]) -> None:
        """Commit as planned."""
        plan, adapter, loop = self.plan, client.adapter, asyncio.get_running_loop()
        await asyncio.sleep(plan.at_s)
        self.order = next(calls)
        self.began, started = len(adapter.applied), loop.time()
        task = client.start(dict.fromkeys(plan.shards, plan.offset), plan.group, overwrite=plan.overwrite, member=plan.member)
        if plan.cancelled_s is not None:
            loop.call_later(plan.cancelled_s, task.cancel)
        (self.outcome,) = codes(await asyncio.gather(task, return_exceptions=True))
        self.ended, self.seconds = len(adapter.applied), loop.time() - started

    def applied(self, adapter: FakeAdapter) -> list[int]:
        """The time when its value, or a larger one, was applied for all of its shards."""
        mode = CommitMode.OVERWRITE if self.plan.overwrite else CommitMode.INCREASE_ONLY
        return [
            next(
                (
                    at
                    for at, (key, offered, how) in enumerate(adapter.applied)
                    if at >= self.began
                    and key == OffsetKey("default", self.plan.group, shard)
                    and how is mode
                    and (offered.offset == self.plan.offset if self.plan.overwrite else offered.offset >= self.plan.offset)
                ),
                NEVER,
            )
            for shard in self.plan.shards
        ]


def _run(plans: list[Plan], faults: list[Fault], *, resend: bool = True, room: int = 1_000, close_s: float = LONG_S / 2) -> Any:
    """Returns the client, and the runs in the order of their calls. The client is closed at `close_s`, with a limit of 1 s."""
    loop = VirtualLoop()
    client = Client(FakeAdapter(Fault(0.001)), resend=resend)
    client.batcher.limit = PendingLimit(room)
    client.adapter.through.add("through")
    client.adapter.faults.extend(faults)
    runs, calls = [Run(plan) for plan in plans], count()

    async def everybody() -> None:
        loop.call_later(close_s, lambda: closing.append(loop.create_task(client.batcher.close(1.0))))
        await asyncio.gather(*(run.commit(client, calls) for run in runs))

    closing: list[asyncio.Task[None]] = []
    try:
        task = loop.create_task(everybody())
        loop.run_for(LONG_S)
        assert task.done(), "somebody waits for ever"
        task.result()
        closing[0].result()
        assert loop.errors == []
    finally:
        loop.close()
    return client, sorted(runs, key=lambda run: run.order)


@given(
    st.lists(PLANS, min_size=1, max_size=14),
    st.lists(FAULTS, max_size=8),
    st.booleans(),
    st.sampled_from([2, 1_000]),
    st.sampled_from([0.0, 0.005, 0.4, 6.0, 100.0]),
)
def test_every_commit_gets_its_own_answer_in_time(
    plans: list[Plan], faults: list[Fault], resend: bool, room: int, close_s: float
) -> None:
    """Success: applied between call and return. Refused: only for its own fault. Lost: only if a request was lost."""
    client, runs = _run(plans, faults, resend=resend, room=room, close_s=close_s)
    highest = {
        group: max([run.plan.member.generation for run in runs if run.plan.group == group and run.plan.member] or [0])
        for group in GROUPS
    }
    for run in runs:
        plan = run.plan
        assert run.seconds <= TIMEOUT_S + SLACK_S
        match run.outcome:
            case list():
                assert max(run.applied(client.adapter)) < run.ended
            case Code.FAILED_PRECONDITION:
                assert plan.group == "refused" or (plan.member and plan.member.generation < highest[plan.group])
            case asyncio.CancelledError():
                assert plan.cancelled_s is not None
            case Code.CANCELLED:
                assert plan.at_s + run.seconds >= close_s - SLACK_S
            case _:
                assert run.outcome in batching.TRANSIENT
                assert faults
    assert not client.batcher._requests


@given(st.lists(PLANS, min_size=2, max_size=12), st.lists(FAULTS.filter(lambda fault: fault.seconds < 1), max_size=6))
def test_an_overwrite_is_applied_once_and_in_its_place(plans: list[Plan], faults: list[Fault]) -> None:
    """Each has an offset of its own here. Commits of its group are applied in the order of the calls."""
    plans = [
        replace(plan, shards=frozenset(["a" if plan.overwrite else str(at)]), offset=at, member=None, cancelled_s=None)
        for at, plan in enumerate(plans)
    ]
    client, runs = _run(plans, faults)
    for run in runs:
        own = _times(client, run)
        if not run.plan.overwrite:
            continue
        assert len(own) <= 1
        for other in runs:
            if own and other.plan.group == run.plan.group and isinstance(other.outcome, list):
                when = _times(client, other)
                assert when[0] < own[0] if other.order < run.order else when[0] >= own[0]


def _times(client: Client, run: Run) -> list[int]:
    """The times when a commit with a unique offset was applied."""
    return [at for at, entry in enumerate(client.adapter.applied) if entry.offered.offset == run.plan.offset]


@given(st.lists(st.tuples(st.sampled_from("gh"), st.sampled_from("ab"), st.integers(0, 99)), min_size=1, max_size=60))
def test_without_faults_everything_is_applied_and_in_few_requests(commits: list[tuple[str, str, int]]) -> None:
    """Commits of one loop iteration take one or two requests; a caller that offered less than another learns of it."""
    plans = [
        Plan(0.0, group, frozenset(shard), offset, overwrite=False, member=None, cancelled_s=None)
        for group, shard, offset in commits
    ]
    client, runs = _run(plans, [])
    assert len(client.adapter.requests) <= batching.MAX_SHARED
    highest: dict[OffsetKey, int] = {}
    for group, shard, offset in commits:
        key = OffsetKey("default", group, shard)
        highest[key] = max(offset, highest.get(key, 0))
    assert {key: record.offset for key, record in client.adapter.records.items()} == highest
    for run in runs:
        key = OffsetKey("default", run.plan.group, *run.plan.shards)
        assert run.plan.offset == highest[key] or all(row[2] > run.plan.offset for row in run.outcome)


@pytest.mark.parametrize("resend", [True, False])
def test_a_commit_that_was_told_to_be_superseded_was_nevertheless_applied_or_exceeded(resend: bool) -> None:
    """A case that random runs rarely reach: three losses in a row, each followed by newer values."""
    plans = [Plan(at / 1_000, "g", frozenset("a"), at, overwrite=False, member=None, cancelled_s=None) for at in range(1, 40)]
    _, runs = _run(plans, [Fault(0.01, lost=True, applied=bool(at % 2)) for at in range(3)], resend=resend)
    told = [run.outcome for run in runs if isinstance(run.outcome, list)]
    assert len(told) == 39 if resend else 0 < len(told) < 39
    assert runs[-1].outcome == []
