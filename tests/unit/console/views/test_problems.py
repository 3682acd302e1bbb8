"""What is wrong: each kind of problem is seen, named once, and what is well is not called wrong."""

import dataclasses
from typing import Any

import pytest

from adapter.console.sources.meta_instances import MetaInstance, RaftSituation
from adapter.console.views.problems import LEVELS, problems
from adapter.fleet.views import AdapterView, Health
from adapter.rpc import meta_pb, offsets_pb
from tests.unit.console.fakes import NOW_MS, adapter_view, instance

State = offsets_pb.StatusReply


def kinds_of(adapter: AdapterView) -> dict[str, str]:
    """Problem kinds of one adapter, with their levels."""
    return {problem.kind: problem.level for problem in problems([adapter], [], [], None)}


def test_what_is_well_is_no_problem() -> None:
    """Nothing is said of a fleet that is well."""
    raft = RaftSituation([{"name": "r", "leader": {"node": "n", "endpoint": "e"}, "members": []}])
    assert problems([adapter_view("a:1"), adapter_view("b:1")], [], [instance("m:1"), instance("m:2")], raft) == []


@pytest.mark.parametrize(
    ("health", "kind", "level"),
    [
        (Health.AWAY, "adapter-away", "bad"),
        (Health.FAILED, "adapter-failed", "bad"),
        (Health.DEGRADED, "adapter-degraded", "bad"),
        (Health.RECOVERING, "adapter-recovering", "poor"),
        (Health.STARTING, "adapter-recovering", "poor"),
        (Health.STOPPING, "adapter-stopping", "poor"),
    ],
)
def test_each_state_but_serving_is_a_problem(health: Health, kind: str, level: str) -> None:
    """With what to do next."""
    [problem] = problems([adapter_view(health=health)], [], [], None)
    assert (problem.kind, problem.level, problem.subject) == (kind, level, "broker-a:1")
    assert problem.text.endswith(".")
    assert problem.todo


NOT_TOLD = offsets_pb.ChangesElsewhereStatus(told_at_ms=NOW_MS, problem="west: does not answer")
NEVER_TOLD = offsets_pb.ChangesElsewhereStatus(problem="this Meta Service does not tell")


@pytest.mark.parametrize(
    ("status", "kind", "level"),
    [
        ({"loss": offsets_pb.LossStatus(writes=3, found_at_ms=NOW_MS, why="watermark")}, "adapter-loss", "bad"),
        ({"meta_losses": 1, "meta_loss": "older", "meta_loss_at_ms": NOW_MS}, "meta-lost", "bad"),
        ({"clock_is_off": True, "clock_skew_seconds": -90.0}, "clock-off", "bad"),
        ({"meta_available": True, "changes_elsewhere": NOT_TOLD}, "changes-not-told", "poor"),
        ({"meta_available": True, "changes_elsewhere": NEVER_TOLD}, "changes-not-told", "note"),
        ({"store": offsets_pb.StoreStatus(disk_full=True)}, "disk-full", "bad"),
        ({"last_flush_error": "UNAVAILABLE"}, "flush-failing", "bad"),
        ({"dirty_keys": 1, "oldest_dirty_seconds": 61.0}, "dirty-old", "bad"),
        ({"refused_keys": 2}, "keys-refused", "poor"),
        ({"config": offsets_pb.ConfigStatus(last_error="x: bad")}, "reload-refused", "poor"),
        ({"config": offsets_pb.ConfigStatus(files_error="x")}, "files-refused", "poor"),
        ({"config": offsets_pb.ConfigStatus(differs=True)}, "config-differs", "poor"),
        ({"config": offsets_pb.ConfigStatus(needs_restart=["store.path"])}, "needs-restart", "poor"),
        ({"journal": offsets_pb.JournalStatus(dropped_rows=1)}, "journal-dropped", "poor"),
        ({"rocketmq": offsets_pb.RocketmqStatus(connected=False)}, "broker-away", "bad"),
        ({"robustmq": offsets_pb.RobustmqStatus(problem="it knows epochs")}, "robustmq-missing", "bad"),
        ({"robustmq": offsets_pb.RobustmqStatus(unreachable=["n:1: refused"])}, "robustmq-nodes-away", "poor"),
        ({"robustmq": offsets_pb.RobustmqStatus(untold_groups=2, broker_error="refused")}, "robustmq-broker-away", "poor"),
        ({"weaker": ["No epochs."]}, "weaker", "note"),
        ({"state": State.SERVING, "recovery": offsets_pb.RecoveryStatus(compared=5, of=9)}, "adapter-comparing", "note"),
    ],
)
def test_what_a_status_tells_is_a_problem(status: dict[str, Any], kind: str, level: str) -> None:
    """Each is seen by itself."""
    assert kinds_of(adapter_view(**status)) == {kind: level}


@pytest.mark.parametrize(
    "status",
    [
        {"dirty_keys": 5, "oldest_dirty_seconds": 59.0},
        {"dirty_keys": 0, "oldest_dirty_seconds": 100.0},
        {"journal": offsets_pb.JournalStatus(rows=9)},
        {"rocketmq": offsets_pb.RocketmqStatus(connected=True)},
        {"rocketmq": offsets_pb.RocketmqStatus(slave=True)},
        {"robustmq": offsets_pb.RobustmqStatus(untold_groups=2)},
        {"config": offsets_pb.ConfigStatus(sha256="ab")},
        {"clock_skew_seconds": 1.0},
        {"state": State.SERVING, "recovery": offsets_pb.RecoveryStatus(done=True, compared=9, of=9)},
        {"meta_available": True, "changes_elsewhere": offsets_pb.ChangesElsewhereStatus(told_at_ms=NOW_MS, comparing=True)},
    ],
)
def test_what_is_usual_is_no_problem(status: dict[str, Any]) -> None:
    """An alarm that is always on is read by nobody."""
    assert kinds_of(adapter_view(**status)) == {}


def test_an_adapter_that_is_away_is_said_once() -> None:
    """What it told before it left is not news."""
    view = adapter_view(health=Health.AWAY, last_flush_error="UNAVAILABLE", dirty_keys=5, oldest_dirty_seconds=100.0)
    assert kinds_of(view) == {"adapter-away": "bad"}


def test_a_degraded_adapter_is_not_blamed_twice_for_its_flush() -> None:
    """The reason of both is the Meta Service."""
    status: dict[str, Any] = {
        "state": State.DEGRADED,
        "last_flush_error": "UNAVAILABLE",
        "dirty_keys": 9,
        "oldest_dirty_seconds": 100.0,
    }
    assert kinds_of(adapter_view(health=Health.DEGRADED, **status)) == {"adapter-degraded": "bad"}


def test_a_state_that_is_not_told_is_a_problem_of_the_token() -> None:
    """Without a token the page would seem well."""
    view = dataclasses.replace(adapter_view(), status=None, status_error="no token", lag_known=False, lag_error="old")
    assert kinds_of(view) == {"status-unknown": "poor", "lag-unknown": "poor"}


def test_different_versions_are_a_problem() -> None:
    """Also of two adapters; those that are away count no more."""
    old = adapter_view("b:1", version="0.0.9")
    [problem] = problems([adapter_view("a:1"), old], [], [], None)
    assert (problem.kind, "0.0.9: broker-b:1" in problem.text) == ("versions-differ", True)
    gone = adapter_view("b:1", Health.AWAY, version="0.0.9")
    assert [one.kind for one in problems([adapter_view("a:1"), gone], [], [], None)] == ["adapter-away"]


def test_configurations_differ_only_where_some_agree() -> None:
    """A file with the broker's name differs on each machine; that is no drift."""

    def with_hash(address: str, sha256: str) -> AdapterView:
        return adapter_view(address, config=offsets_pb.ConfigStatus(sha256=sha256))

    each = [with_hash(f"{number}:1", str(number) * 64) for number in range(3)]
    assert problems(each, [], [], None) == []
    same = [with_hash(f"{number}:1", "a" * 64) for number in range(5, 8)]
    [problem] = problems([*same, each[0]], [], [], None)
    assert (problem.kind, "broker-0:1" in problem.text, "broker-5:1" in problem.text) == ("configs-differ", True, False)


def test_no_adapter_at_all_is_a_problem() -> None:
    """And so is a name that leads nowhere."""
    assert [(one.kind, one.level) for one in problems([], ["dns:x:1: no address"], [], None)] == [
        ("not-found", "bad"),
        ("no-adapters", "bad"),
    ]


def test_an_instance_of_the_meta_service_that_is_away_is_a_problem() -> None:
    """One that was not asked yet is none."""
    gone = instance("m:2")._replace(error="UNAVAILABLE")
    found = problems([adapter_view()], [], [instance("m:1"), gone, MetaInstance("m:3")], None)
    assert [(one.kind, one.subject) for one in found] == [("meta-away", "m:2")]


@pytest.mark.parametrize(
    ("second", "kinds"),
    [
        (instance("m:2", version="0.2.0"), ["meta-versions-differ"]),
        (instance("m:2", loss=meta_pb.GetStoreStatusReply.Loss(writes=2, found_at_ms=NOW_MS)), ["meta-loss"]),
        (instance("m:2")._replace(ahead_ms=-31_000), ["meta-clock"]),
        (instance("m:2", marks=[meta_pb.StoreMark(store_id=b"2" * 16)]), ["meta-stores-differ"]),
        (instance("m:2", marks=[meta_pb.StoreMark(name="other", store_id=b"2" * 16)]), []),
    ],
)
def test_what_instances_tell_is_a_problem(second: MetaInstance, kinds: list[str]) -> None:
    """Of one of them, or of the two together."""
    assert [one.kind for one in problems([adapter_view()], [], [instance("m:1"), second], None)] == kinds


def test_raft_groups_without_a_leader_come_before_those_that_are_misplaced() -> None:
    """Alarms of members and members that are away are seen as well."""
    member = {"endpoint": "e:1", "state": "follower", "problem": "NOSPACE"}
    away = {"endpoint": "e:2", "state": "unreachable", "problem": "refused"}
    raft = RaftSituation(
        [{"name": "offsets-1", "members": [member, away]}], ["offsets-2: its leader is on n1", "offsets-1: no leader is known"]
    )
    found = problems([adapter_view()], [], [], raft)
    assert [one.kind for one in found] == ["raft-leaderless", "raft-alarm", "raft-misplaced", "raft-member-away"]
    assert [one.kind for one in problems([adapter_view()], [], [], RaftSituation(error="x"))] == ["raft-unknown"]


def test_groups_without_progress_are_a_problem() -> None:
    """A page that calls everything fine while a group has stopped would not be believed again."""
    (problem,) = problems([adapter_view("a:1")], [], [], None, {"ok": 7, "warn": 2, "stall": 1, "stop": 2})
    assert (problem.level, problem.kind) == ("poor", "groups-stuck")
    assert problem.text == "3 groups with messages to read and no progress: 2 STOP, 1 STALL."
    assert problems([adapter_view("a:1")], [], [], None, {"ok": 7, "warn": 2, "stall": 0, "stop": 0}) == []


def test_the_worst_comes_first() -> None:
    """Whatever the order of the adapters is."""
    found = problems(
        [adapter_view("a:1", weaker=["x"]), adapter_view("b:1", refused_keys=1), adapter_view("c:1", Health.FAILED)], [], [], None
    )
    assert [one.level for one in found] == ["bad", "poor", "note"] == [*LEVELS]
