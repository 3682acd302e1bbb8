"""Where leaders should be: single rules, and properties of any plan."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.metaservice.etcd.leader_placement import (
    BEHIND_ENTRIES,
    FLOOR_MS,
    ClusterState,
    Move,
    Moved,
    RaftGroup,
    RaftMember,
    apart,
    held,
    plan,
    problems,
)
from tests.unit.metaservice.etcd.raft_groups import COMMITTED, TERM, leaders, member, raft_group, situation

COOLDOWN_MS = 30_000


def moved(what: ClusterState, moves: list[Move]) -> ClusterState:
    """The state after some moves."""
    targets = {move.group: move.target for move in moves}
    offsets = tuple(_led_by(group, targets[group.name]) if group.name in targets else group for group in what.offsets)
    return what._replace(offsets=offsets)


def _led_by(group: RaftGroup, target: RaftMember) -> RaftGroup:
    old = group.leader
    followers = tuple(
        replace(one, leader_id=target.id, term=TERM + 1) if old and one.leader_id == old.id and one.term == old.term else one
        for one in group.members
    )
    return RaftGroup(group.name, followers)


def shown(moves: list[Move]) -> list[str]:
    """Moves as text."""
    return [f"{move.group} {move.source.node}-{move.target.node}" for move in moves]


def test_nothing_is_moved_when_all_is_well() -> None:
    """Leaders apart and even: no plan, no problem."""
    what = situation("n0", "n1", "n2", "n1")
    assert plan(what) == []
    assert problems(what) == []
    assert apart(what)


def test_a_leader_beside_the_metadata_leader_goes_elsewhere() -> None:
    """To the node that leads less."""
    what = situation("n0", "n0", "n1")
    assert shown(plan(what)) == ["offsets-1 n0-n2"]
    assert not apart(what)
    assert problems(what) == ["offsets-1: its leader is on n0, as the metadata leader; can go to n2"]


def test_leaders_on_one_node_are_spread_by_the_fewest_moves() -> None:
    """With three on one of two nodes, one moves, not two."""
    what = situation("n0", "n1", "n1", "n1")
    assert len(plan(what)) == 1
    assert apart(what)
    assert problems(what) == ["offsets-1: its leader would be better on n2 than on n1, which has more"]


def test_moves_away_from_the_metadata_leader_come_first() -> None:
    """They are the purpose of the placement."""
    what = situation("n0", "n1", "n1", "n1", "n1", "n0")
    assert [move.source.node for move in plan(what)] == ["n0", "n1"]


def test_a_leader_makes_room_for_one_that_has_no_other_place() -> None:
    """A chain: offsets-2 can only go to n1, so offsets-1 goes on to n2."""
    lone = raft_group("offsets-2", "n0", "n0 n1")
    what = ClusterState(raft_group("metadata", "n0"), (raft_group("offsets-1", "n1"), lone))
    assert shown(plan(what)) == ["offsets-2 n0-n1", "offsets-1 n1-n2"]


def test_evenness_is_worth_more_moves_than_one() -> None:
    """No leader of n1 can go to n3, which has none: so one goes to n2, and one of n2 goes to n3."""
    free = raft_group("offsets-1", "n1", "n1 n2"), raft_group("offsets-2", "n2", "n2 n3")
    what = ClusterState(raft_group("metadata", "n0"), (*free, raft_group("offsets-3", "n1", "n0 n1")))
    assert shown(plan(what)) == ["offsets-1 n1-n2", "offsets-2 n2-n3"]


@pytest.mark.parametrize(
    "fields",
    [
        {"reachable": False},
        {"learner": True},
        {"leader_id": 0},
        {"leader_id": 99},
        {"term": TERM - 1},
        {"applied": COMMITTED - BEHIND_ENTRIES - 1},
    ],
    ids=["away", "learner", "without leader", "of another leader", "of an old term", "behind"],
)
def test_a_member_that_could_not_lead_at_once_is_not_asked(fields: dict[str, object]) -> None:
    """Another one is, although its node leads another group already."""
    unfit = member("offsets-1", "n2", "n0", **fields)
    what = ClusterState(raft_group("metadata", "n0"), (raft_group("offsets-1", "n0", n2=unfit), raft_group("offsets-2", "n1")))
    assert shown(plan(what)) == ["offsets-1 n0-n1", "offsets-2 n1-n2"]
    assert shown(plan(what, held=["offsets-2"])) == ["offsets-1 n0-n1"]


def test_a_member_a_little_behind_may_lead() -> None:
    """Members are not read at one instant; entries written in between do not count."""
    close = member("offsets-1", "n1", "n0", applied=COMMITTED - BEHIND_ENTRIES)
    what = ClusterState(raft_group("metadata", "n0"), (raft_group("offsets-1", "n0", "n0 n1", n1=close),))
    assert shown(plan(what)) == ["offsets-1 n0-n1"]


def test_of_two_members_on_a_node_the_one_that_has_more_is_asked() -> None:
    """Both have caught up."""
    first, second = (member("offsets-1", "n1", "n0", applied=COMMITTED - lacks, id=9 - lacks) for lacks in (0, 1))
    group = RaftGroup("offsets-1", (member("offsets-1", "n0", "n0"), first, second))
    assert [move.target for move in plan(ClusterState(raft_group("metadata", "n0"), (group,)))] == [first]


def test_without_a_metadata_leader_nothing_is_moved() -> None:
    """The node to keep free is unknown."""
    what = situation("", "n1", "n1", "n1")
    assert plan(what) == []
    assert problems(what) == ["metadata: no leader is known"]
    assert not apart(what)


def test_a_group_without_a_leader_is_a_problem_that_no_move_helps() -> None:
    """The other groups are not spread either: its next leader may come up where they would go."""
    what = situation("n0", "", "n1", "n1", "n1")
    assert plan(what) == []
    assert problems(what) == ["offsets-1: no leader is known"]
    assert not apart(what)
    assert shown(plan(situation("n0", "", "n1", "n1", "n1", "n0"))) == ["offsets-5 n0-n2"]


def test_a_leader_without_another_place_is_a_problem_that_no_move_helps() -> None:
    """All its members are on the metadata leader's node, or cannot lead."""
    unfit = member("offsets-1", "n1", "n0", learner=True)
    what = ClusterState(raft_group("metadata", "n0"), (raft_group("offsets-1", "n0", "n0 n1", n1=unfit),))
    assert plan(what) == []
    [problem] = problems(what)
    assert problem.endswith("no other node has a member of it that has caught up")


def test_a_member_that_refused_is_not_asked_again() -> None:
    """Another member becomes the target."""
    what = situation("n0", "n0")
    assert shown(plan(what, refused=[("offsets-1", "offsets-1.n1")])) == ["offsets-1 n0-n2"]
    assert plan(what, refused=[("offsets-1", "offsets-1.n1"), ("offsets-1", "offsets-1.n2")]) == []


def test_the_leader_is_the_one_of_the_newest_term() -> None:
    """A member that was cut off still believes to lead; a candidate knows no leader."""
    old = member("metadata", "n0", "n0", term=TERM - 1)
    asking = member("metadata", "n2", "", term=TERM + 5)
    group = raft_group("metadata", "n1", n0=old, n2=asking)
    assert group.leader is not None
    assert group.leader.node == "n1"


def test_a_leader_that_does_not_answer_is_not_known() -> None:
    """Its followers name it until they elect another."""
    away = RaftMember(endpoint="metadata.n0", node="n0")
    assert raft_group("metadata", "n0", n0=away).leader is None


AT_HOME = Moved(at_ms=0, target="offsets-1.n1", metadata_node="n0")


@pytest.mark.parametrize(
    ("what", "last", "stays_ms"),
    [
        (situation("n0", "n1"), AT_HOME, COOLDOWN_MS),
        (situation("n0", "n0"), AT_HOME, COOLDOWN_MS),
        (situation("n1", "n1"), AT_HOME, FLOOR_MS),
        (ClusterState(raft_group("metadata", "n0"), (raft_group("offsets-1", "n0", "n0 n2"),)), AT_HOME, FLOOR_MS),
    ],
    ids=["apart", "went back by itself", "the metadata leader came", "its node died"],
)
def test_a_leader_that_was_moved_stays_for_the_cool_down(what: ClusterState, last: Moved, stays_ms: int) -> None:
    """Shorter only if it is next to the metadata leader since a node died; with any difference between clocks."""
    moves = {"offsets-1": last}
    assert held(what, moves, COOLDOWN_MS, stays_ms - 1) == {"offsets-1": 1}
    assert held(what, moves, COOLDOWN_MS, 1 - stays_ms) == {"offsets-1": 1}
    assert held(what, moves, COOLDOWN_MS, stays_ms) == {}
    assert held(what, moves, 0, 0) == {}


def test_a_group_that_was_never_moved_is_not_held() -> None:
    """Neither is one that no longer exists."""
    assert held(situation("n0", "n1"), {"gone": AT_HOME}, COOLDOWN_MS, 0) == {}


NODES = ("n0", "n1", "n2", "n3")


@st.composite
def situations(draw: st.DrawFn) -> ClusterState:
    """Raft groups over up to four nodes, some members not fit to lead, some groups without a leader."""
    return ClusterState(
        _drawn(draw, "metadata"), tuple(_drawn(draw, f"offsets-{number}") for number in range(draw(st.integers(0, 5))))
    )


def _drawn(draw: st.DrawFn, name: str) -> RaftGroup:
    nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True))
    leader = draw(st.sampled_from([*nodes, *nodes, ""]))
    fields: dict[str, dict[str, object]] = {node: draw(_UNFIT) if node != leader else {} for node in nodes}
    return RaftGroup(name, tuple(member(name, node, leader, **fields[node]) for node in nodes))


_UNFIT: st.SearchStrategy[dict[str, object]] = st.sampled_from(
    [{}, {}, {}, {"reachable": False}, {"learner": True}, {"applied": 0}, {"leader_id": 0}]
)


def choices(what: ClusterState, group: RaftGroup) -> set[str]:
    """The nodes that may lead a group, by the rules."""
    assert what.metadata.leader is not None
    assert group.leader is not None
    home, taken = group.leader.node, what.metadata.leader.node
    if home != taken and not all(other.leader for other in what.offsets):
        return {home}
    return {one.node for one in group.members if group.caught_up(one)} - {taken} or {home}


def cost(what: ClusterState, nodes: tuple[str, ...]) -> tuple[int, int]:
    """How uneven such a placement is, and how many moves it takes."""
    moves = sum(new != old for new, old in zip(nodes, leaders(what), strict=True))
    return sum(count**2 for count in Counter(nodes).values()), moves


@given(situations())
def test_a_plan_is_the_best_there_is(what: ClusterState) -> None:
    """As even as any allowed placement, with the fewest moves; checked against all placements."""
    moves = plan(what)
    if what.metadata.leader is None:
        assert not moves
        return
    known = [group for group in what.offsets if group.leader]
    best = min(cost(what, nodes) for nodes in product(*(choices(what, group) for group in known)))
    after = tuple(leaders(moved(what, moves)))
    assert cost(what, after) == best
    assert len(moves) == best[1]


@given(situations())
def test_a_plan_goes_only_where_it_may(what: ClusterState) -> None:
    """Never to the metadata leader's node or to a member that is behind; each group at most once, metadata never."""
    groups = {group.name: group for group in what.offsets}
    moves = plan(what)
    for move in moves:
        assert what.metadata.leader is not None
        assert move.target.node not in {what.metadata.leader.node, move.source.node}
        assert groups[move.group].caught_up(move.target)
        assert move.source == groups[move.group].leader
    assert len({move.group for move in moves}) == len(moves)


@given(situations(), st.data())
def test_a_plan_done_in_pieces_takes_no_move_more(what: ClusterState, data: st.DataObject) -> None:
    """Interrupted after any move and planned again, also by another process: the same number of moves, then none."""
    wanted = len(plan(what))
    for left in range(wanted, 0, -1):
        moves = plan(what)
        assert len(moves) == left
        what = moved(what, [data.draw(st.sampled_from(moves))])
    assert plan(what) == []


@given(situations(), st.sets(st.sampled_from([f"offsets-{number}" for number in range(5)])))
def test_what_is_held_or_refused_is_left_alone(what: ClusterState, names: set[str]) -> None:
    """Such leaders count at their present node."""
    assert not names & {move.group for move in plan(what, held=names)}
    refused = {(move.group, move.target.endpoint) for move in plan(what)}
    assert not refused & {(move.group, move.target.endpoint) for move in plan(what, refused=refused)}


@given(st.integers(0, 9), st.integers(2, 4), st.randoms(use_true_random=False))
def test_with_every_member_fit_the_leaders_are_apart_and_even(count: int, nodes: int, random: object) -> None:
    """The numbers of leaders on the nodes, except the metadata leader's, differ by at most one."""
    names = NODES[:nodes]
    what = situation("n0", *(random.choice(names) for _ in range(count)), nodes=" ".join(names))  # type: ignore[attr-defined]
    after = moved(what, plan(what))
    loads = [leaders(after).count(node) for node in names]
    assert loads[0] == 0
    assert max(loads[1:]) - min(loads[1:]) <= 1
    assert apart(after)
    assert problems(after) == []
