"""The balancer: who holds the lease, which leaders it moves, and what it does after failures."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.metaservice.config import EtcdSection, PlacementSection
from adapter.metaservice.etcd.leader_balancer import Balancer, Leaders
from adapter.metaservice.etcd.leader_metrics import LeaderMetrics, LoggedLeaders, Watcher
from adapter.metaservice.etcd.leader_placement import BEHIND_ENTRIES, apart
from adapter.metaservice.etcd.lease import AGAIN_S, RENEW_S, TTL_S, HeldLease, LeaseLock, LeaseLostError, LeaseTakenError
from tests.model.loop import Process, VirtualLoop
from tests.unit.leader_fakes import COMMITTED, FakeEtcd, Seen, in_virtual_time

NOW_MS = 1_800_000_000_000
COOLDOWN_MS = 30_000
PREFIX = "here/"
MOVED = b"here/moved/offsets-1"
TURN = b"here/balancer"


class Fleet:
    """A metadata Raft group and one of offsets."""

    def __init__(self, metadata: str = "n1", offsets: str = "n1") -> None:
        self.metadata = FakeEtcd("metadata", metadata)
        self.offsets = FakeEtcd("offsets-1", offsets)
        self.now_ms = NOW_MS

    def balancer(self, watchers: Sequence[Watcher] = (), **options: Any) -> Balancer:
        """One of its balancers."""
        section = EtcdSection(prefix=PREFIX, placement=PlacementSection(cooldown_ms=COOLDOWN_MS))
        return Balancer(self.leaders, section, watchers, now_ms=lambda: self.now_ms, **options)

    @property
    def leaders(self) -> Leaders:
        """The leaders that a balancer observes."""
        return Leaders(self.metadata.watched, [self.offsets.watched])


@asynccontextmanager
async def running(balancer: Balancer) -> AsyncIterator[anyio.CancelScope]:
    """A balancer that runs in the background."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(balancer.run)
        yield tasks.cancel_scope
        tasks.cancel_scope.cancel()


@in_virtual_time
async def test_a_leader_is_moved_and_the_time_is_kept() -> None:
    """The time is stored where every process sees it; the lease is released at the end."""
    fleet, seen = Fleet(), Seen()
    situation = await fleet.balancer([seen]).once()
    assert apart(situation)
    assert seen.moves == ["offsets-1 n1-n2"]
    assert json.loads(fleet.metadata.stored[MOVED][0]) == {
        "at_ms": NOW_MS,
        "target": "offsets-1-n2:2379",
        "metadata_node": "n1",
    }
    assert fleet.metadata.live().keys() == {MOVED}
    assert not fleet.metadata.leases


@in_virtual_time
async def test_nothing_is_moved_when_all_is_well() -> None:
    """Not in any of many rounds."""
    fleet, seen = Fleet(offsets="n2"), Seen()
    async with running(fleet.balancer([seen])):
        await seen.looks_more(5)
    assert fleet.offsets.asked == []
    assert seen.moves == []


@in_virtual_time
async def test_a_leader_that_another_meta_moved_lately_stays() -> None:
    """It is moved when the cool-down is over; until then watchers get it as held."""
    fleet, seen = Fleet(), Seen()
    await fleet.balancer().once()
    fleet.offsets.leader = "n1"
    fleet.now_ms += COOLDOWN_MS - 1
    async with running(fleet.balancer([seen])):
        await seen.until(lambda: bool(seen.held))
        assert seen.held == {"offsets-1": 1}
        assert fleet.offsets.leader == "n1"
        fleet.now_ms += 1
        await seen.until(lambda: bool(seen.moves))
    assert fleet.offsets.leader == "n2"


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"at_ms": "x"}'])
@in_virtual_time
async def test_a_time_that_cannot_be_read_holds_nothing(value: bytes) -> None:
    """As if the leader had never been moved."""
    fleet = Fleet()
    fleet.metadata.stored[MOVED] = (value, 0)
    await fleet.balancer().once()
    assert fleet.offsets.leader == "n2"


@in_virtual_time
async def test_a_member_that_is_behind_is_not_asked() -> None:
    """Another member becomes the target."""
    fleet = Fleet()
    fleet.offsets.applied["n2"] = COMMITTED - BEHIND_ENTRIES - 1
    await fleet.balancer().once()
    assert fleet.offsets.asked == ["n3"]


@in_virtual_time
async def test_a_member_that_does_not_answer_is_not_asked() -> None:
    """Its problem is reported."""
    fleet = Fleet()
    fleet.offsets.down.add("n2")
    situation = await fleet.balancer().once()
    assert fleet.offsets.asked == ["n3"]
    assert situation.offsets[0].members[1].problem == "offsets-1-n2:2379: no answer within 0.5 s"


@in_virtual_time
async def test_when_a_move_is_refused_another_member_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that refused is not tried again during the cool-down; the failed move starts no cool-down."""
    monkeypatch.setattr("adapter.metaservice.etcd.leader_balancer.MOVE_S", 1_000.0)  # what is refused is not waited for
    fleet, seen = Fleet(), Seen()

    async def refuse(node: str) -> None:
        fleet.offsets.on_move = None
        assert MOVED in fleet.metadata.stored, "the time is written before the move"
        raise RefusedError(f"no leader on {node}")

    fleet.offsets.on_move = refuse
    registry = CollectorRegistry()
    async with running(fleet.balancer([LeaderMetrics(registry), seen])):
        await seen.until(lambda: len(seen.moves) == 2)
    assert seen.moves == ["offsets-1 n1-n2: no leader on n2", "offsets-1 n1-n3"]
    assert registry.get_sample_value("offset_meta_leader_moves_total", {"result": "refused"}) == 1
    assert registry.get_sample_value("offset_meta_leader_moves_total", {"result": "moved"}) == 1


@in_virtual_time
async def test_after_a_refusal_nothing_else_is_moved_before_the_next_look() -> None:
    """The other planned moves assumed that it succeeds."""
    fleet = Fleet()
    other = FakeEtcd("offsets-2", "n1")

    async def refuse(node: str) -> None:
        raise RefusedError(node)

    fleet.offsets.on_move = refuse
    leaders = Leaders(fleet.metadata.watched, [fleet.offsets.watched, other.watched])
    await Balancer(leaders, EtcdSection(), []).once()
    assert other.asked == []


@in_virtual_time
async def test_a_leader_that_went_counts_whatever_the_call_was_answered() -> None:
    """The members' status counts, not the reply to the call."""
    fleet, seen = Fleet(), Seen()

    async def go_silently(node: str) -> None:
        fleet.offsets.leader = node
        raise MetaUnavailableError("no answer")

    fleet.offsets.on_move = go_silently
    await fleet.balancer([seen]).once()
    assert seen.moves == ["offsets-1 n1-n2"]


@in_virtual_time
async def test_a_leader_that_did_not_go_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members' status counts, even if the call reported success."""
    monkeypatch.setattr("adapter.metaservice.etcd.leader_balancer.MOVE_S", 0.0)
    fleet, seen = Fleet(), Seen()

    async def stay(_: str) -> None:
        pass

    fleet.offsets.on_move = stay
    await fleet.balancer([seen]).once()
    assert seen.moves == ["offsets-1 n1-n2: offsets-1-n2:2379 does not lead after 0 s"]
    assert MOVED not in fleet.metadata.stored


@in_virtual_time
async def test_of_two_balancers_one_works_and_the_other_stands_by() -> None:
    """When the first stops, it releases the lease, and the second continues."""
    fleet, first, second = Fleet(offsets="n2"), Seen(), Seen()
    async with running(fleet.balancer([first], name="a")) as stop_first:
        await first.until(lambda: bool(first.turns))
        async with running(fleet.balancer([second], name="b")):
            await second.looks_more(3)
            assert first.turns == [None]
            assert {str(error) for error in second.turns} == {"a"}
            assert fleet.metadata.granted == 1, "who stands by makes no leases"
            stop_first.cancel()
            await second.until(lambda: second.turns[-1] is None)


@in_virtual_time
async def test_one_round_is_refused_while_another_has_the_turn() -> None:
    """The error names the holder."""
    fleet = Fleet()
    fleet.metadata.stored[TURN] = (b"a Meta Service", 0)
    with pytest.raises(LeaseTakenError, match="a Meta Service"):
        await fleet.balancer().once()
    assert fleet.offsets.asked == []


@in_virtual_time
async def test_when_the_lease_has_ended_the_work_stops_at_once() -> None:
    """Even in the middle of a move; it is tried again later."""
    fleet, seen = Fleet(), Seen()

    async def last_for_ever(_: str) -> None:
        fleet.offsets.on_move = None
        fleet.metadata.end_leases()
        await anyio.sleep_forever()

    fleet.offsets.on_move = last_for_ever
    async with running(fleet.balancer([seen])):
        await seen.until(lambda: any(isinstance(error, LeaseLostError) for error in seen.turns))
        assert seen.moves == []
        await seen.until(lambda: seen.turns[-1] is None)


@in_virtual_time
async def test_without_an_answer_the_turn_ends_before_the_lease() -> None:
    """It is unknown whether the renewal succeeded, and another process may get the lease."""
    fleet, over = Fleet(), []

    async def work(_: HeldLease) -> None:
        await anyio.sleep(10 * TTL_S)
        fleet.metadata.lost = True
        try:
            await anyio.sleep_forever()
        finally:
            over.append(TURN in fleet.metadata.live())

    with pytest.raises(LeaseLostError, match="in time"):
        await LeaseLock(fleet.metadata, TURN, "a").use(work)
    assert over == [True]


@in_virtual_time
async def test_a_turn_outlives_an_election() -> None:
    """A failed renewal is repeated until the lease would end."""
    fleet = Fleet()

    async def work(turn: HeldLease) -> None:
        await anyio.sleep(10 * TTL_S)
        fleet.metadata.lost = True
        await anyio.sleep(TTL_S - RENEW_S - AGAIN_S)
        fleet.metadata.lost = False
        await anyio.sleep(10 * TTL_S)
        await turn.put(b"key", b"value")

    await LeaseLock(fleet.metadata, TURN, "a").use(work)
    assert fleet.metadata.live() == {b"key": (b"value", 0)}


@in_virtual_time
async def test_a_turn_that_could_not_be_given_back_is_given_back_later() -> None:
    """Otherwise a process would wait for its own lease: a new leader restarts the time of leases."""
    fleet, seen = Fleet(offsets="n2"), Seen()
    async with running(fleet.balancer([seen])):
        await seen.until(lambda: bool(seen.turns))
        fleet.metadata.lost = True
        await seen.until(lambda: isinstance(seen.turns[-1], MetaUnavailableError))
        fleet.metadata.leases[1] = float("inf")
        fleet.metadata.lost = False
        await seen.until(lambda: seen.turns[-1] is None)
    assert not any(isinstance(error, LeaseTakenError) for error in seen.turns)


@in_virtual_time
async def test_who_lost_the_turn_without_noticing_moves_nothing() -> None:
    """The write before the move is refused by etcd."""
    fleet, seen = Fleet(), Seen()

    class EndsIt(Seen):
        def looked(self, *_: Any) -> None:
            fleet.metadata.end_leases()

    with pytest.raises(LeaseLostError):
        await fleet.balancer([EndsIt(), seen]).once()
    assert fleet.offsets.asked == []
    assert fleet.metadata.live() == {}


@in_virtual_time
async def test_who_was_stopped_for_longer_than_the_lease_moves_nothing() -> None:
    """As by SIGSTOP, before the write that precedes a move. Another process has the lease by then, and keeps it."""
    fleet, first, second = Fleet(), Seen(), Seen()
    loop, process = asyncio.get_running_loop(), Process()
    assert isinstance(loop, VirtualLoop)
    before_write = anyio.Event()

    async def stopped(turn: HeldLease) -> None:
        before_write.set()
        await anyio.lowlevel.checkpoint()
        await turn.put(MOVED, b"late")
        first.moves.append("late")

    stopping = asyncio.create_task(LeaseLock(fleet.metadata, TURN, "first").use(stopped), context=process.context())
    await before_write.wait()
    loop.pause(process)
    async with running(fleet.balancer([second], name="second")):
        await second.until(lambda: bool(second.moves))
        loop.resume(process)
        with pytest.raises(LeaseLostError):
            await stopping
        await second.looks_more(3)
        assert second.turns[-1] is None
    assert first.moves == []
    assert json.loads(fleet.metadata.stored[MOVED][0])["target"] == "offsets-1-n2:2379"


@in_virtual_time
async def test_a_turn_taken_twice_by_one_request_is_ones_own() -> None:
    """A request resent after a lost reply finds its own key."""
    fleet = Fleet()
    turns = LeaseLock(fleet.metadata, TURN, "a")
    fleet.metadata.stored[TURN] = (b"a", 7)
    fleet.metadata.leases[7] = float("inf")
    await turns._acquire(7)
    with pytest.raises(LeaseTakenError):
        await turns._acquire(8)


@in_virtual_time
async def test_a_balancer_goes_on_when_nobody_answers_and_when_they_are_back() -> None:
    """It logs one event for each change."""
    fleet, seen = Fleet(), Seen()
    fleet.metadata.lost = True
    fleet.metadata.down |= {"n1", "n2", "n3"}
    fleet.offsets.down.add("n1")
    with capture_logs() as logs:
        async with running(fleet.balancer([LoggedLeaders(), seen])):
            await seen.looks_more(3)
            assert len(seen.turns) > 1
            assert seen.situation is not None
            assert not apart(seen.situation)
            fleet.metadata.down.clear()
            fleet.offsets.down.clear()
            await seen.looks_more(2)
            fleet.metadata.lost = False
            await seen.until(lambda: bool(seen.moves))
            await seen.looks_more(2)
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("leaders.members", "warning"),
        ("leaders.placement", "warning"),
        ("leaders.not_balanced", "warning"),
        ("leaders.members", "info"),
        ("leaders.placement", "warning"),
        ("leaders.balancing", "info"),
        ("leaders.moved", "info"),
        ("leaders.placement", "info"),
    ]


@in_virtual_time
async def test_who_stands_by_and_what_failed_is_logged_once() -> None:
    """With the name of the active balancer."""
    fleet, seen = Fleet(offsets="n2"), Seen()
    fleet.metadata.stored[TURN] = (b"another", 0)
    with capture_logs() as logs:
        async with running(fleet.balancer([LoggedLeaders(), seen])):
            await seen.looks_more(3)
    assert [(line["event"], line["balancer"]) for line in logs] == [("leaders.standing_by", "another")]


@in_virtual_time
async def test_a_refused_move_is_logged_with_its_reason() -> None:
    """As a warning."""
    fleet = Fleet()

    async def refuse(_: str) -> None:
        raise RefusedError("permission denied")

    fleet.offsets.on_move = refuse
    with capture_logs() as logs:
        await fleet.balancer([LoggedLeaders()]).once()
    assert [line["error"] for line in logs if line["event"] == "leaders.not_moved"] == ["permission denied"]


@in_virtual_time
async def test_metrics_tell_whether_the_leaders_are_apart() -> None:
    """Also the number of unreachable members, and whether this process holds the lease."""
    fleet, seen, registry = Fleet(), Seen(), CollectorRegistry()
    fleet.metadata.down.add("n3")

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"offset_meta_{name}")

    async with running(fleet.balancer([LeaderMetrics(registry), seen])):
        await seen.looks_more(1)
        assert (value("leaders_apart"), value("raft_members_unreachable")) == (0, 1)
        await seen.until(lambda: seen.situation is not None and apart(seen.situation))
        assert (value("leaders_apart"), value("leaders_balancing")) == (1, 1)
