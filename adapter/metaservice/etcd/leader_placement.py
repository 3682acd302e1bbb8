"""Where the leaders of the Raft groups should be, and the fewest moves that get them there: pure.

Promises: only to a member that has caught up, never to the metadata leader's node, never the metadata leader itself; what a plan
makes needs no further plan. Never looks at a clock or a network.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A leader takes no writes while it sends the next one what that lacks: so many entries are well under an election timeout. The
# members are not looked at in one instant, so a good one under load may seem a few hundred behind.
BEHIND_ENTRIES = 1_000
# A leader beside the metadata leader stays at least so long after its last move, whatever happened since. With an election (2 s)
# and a look (2 s) after a node's death this is under 10 s.
FLOOR_MS = 5_000

METADATA = "metadata"  # the name of the metadata Raft group


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftMember:
    """A member of a Raft group as it was last seen. Of one that did not answer only endpoint, node and problem are known."""

    endpoint: str
    node: str
    reachable: bool = False
    learner: bool = False
    id: int = 0
    leader_id: int = 0  # of the member that it follows; 0: none
    term: int = 0
    committed: int = 0  # index of the last entry that it knows to be committed
    applied: int = 0  # index of the last entry that it has applied
    db_bytes: int = 0
    version: str = ""
    problem: str = ""  # why it did not answer; or its alarms


@dataclass(frozen=True, slots=True)
class RaftGroup:
    """A Raft group as it was last seen."""

    name: str
    members: tuple[RaftMember, ...]

    @property
    def leader(self) -> RaftMember | None:
        """The leader: by the highest term in which a member knows one, and only when it answers and says so itself."""
        following = [member for member in self.members if member.reachable and member.leader_id]
        newest = max(following, key=lambda member: member.term, default=None)
        if newest is None:
            return None
        leads = [member for member in following if member.id == member.leader_id and member.term == newest.term]
        return leads[0] if leads else None

    def behind(self, member: RaftMember) -> int:
        """How many committed entries it has not applied yet. The leader has to be known."""
        return max(0, self.leader.committed - member.applied) if self.leader else 0

    def caught_up(self, member: RaftMember) -> bool:
        """True when it can take over at once: it votes, follows the leader and has nearly all that was committed."""
        leader = self.leader
        return (
            leader is not None
            and member.reachable
            and not member.learner
            and (member.leader_id, member.term) == (leader.id, leader.term)
            and self.behind(member) <= BEHIND_ENTRIES
        )


class ClusterState(NamedTuple):
    """All Raft groups as they were last seen."""

    metadata: RaftGroup
    offsets: tuple[RaftGroup, ...]


class Move(NamedTuple):
    """The leader of a Raft group is to go from one member to another."""

    group: str
    source: RaftMember
    target: RaftMember


class Moved(NamedTuple):
    """The last move of a Raft group's leader: when, where to, and the node of the metadata leader then."""

    at_ms: int
    target: str
    metadata_node: str


# A Raft group and the endpoint of a member that did not take its leader.
Refused = tuple[str, str]


def plan(state: ClusterState, held: Collection[str] = (), refused: Collection[Refused] = ()) -> list[Move]:
    """The fewest moves after which no offsets leader is beside the metadata leader, and the nodes lead as evenly as they can.

    Groups that are `held` stay, members that are `refused` are not asked. First come the moves away from the metadata leader.
    Without a metadata leader there are none: nobody knows which node to keep free. While a group has no leader the others are not
    made even: it may be about to have one where they would go.
    """
    if state.metadata.leader is None:
        return []
    taken = state.metadata.leader.node
    groups = {group.name: group for group in state.offsets if group.leader}
    homes = {name: group.leader.node for name, group in groups.items() if group.leader}
    all_led = len(groups) == len(state.offsets)
    stays = {name for name, home in homes.items() if name in held or not (all_led or home == taken)}
    targets = {name: {} if name in stays else _targets(group, refused) for name, group in groups.items()}
    choices = {name: _choices(homes[name], targets[name], taken) for name in groups}
    placed = _placed(homes, choices)
    moves = [
        Move(name, group.leader, targets[name][placed[name]])
        for name, group in groups.items()
        if group.leader and placed[name] != homes[name]
    ]
    return sorted(moves, key=lambda move: (move.source.node != taken, move.group))


def held(state: ClusterState, moved: Mapping[str, Moved], cooldown_ms: int, now_ms: int) -> dict[str, int]:
    """For each group whose leader was moved lately: how many milliseconds longer it stays. See `_stays_ms`.

    The times are of other machines' clocks too: one that lies ahead counts as one that is as long ago.
    """
    stays = {
        group.name: _stays_ms(state, group, moved[group.name], cooldown_ms) - abs(now_ms - moved[group.name].at_ms)
        for group in state.offsets
        if group.name in moved
    }
    return {name: left_ms for name, left_ms in stays.items() if left_ms > 0}


def _stays_ms(state: ClusterState, group: RaftGroup, moved: Moved, cooldown_ms: int) -> int:
    """The whole cool-down, but less for a leader beside the metadata leader when that is not for the old reason.

    It came there since its move because a node died: the metadata leader's of then, or the one that it was moved to. When neither
    is so, it went back by itself, and would again: then the cool-down holds.
    """
    metadata, leader = state.metadata.leader, group.leader
    if metadata is None or leader is None or leader.node != metadata.node:
        return cooldown_ms
    target_is_there = any(member.endpoint == moved.target and group.caught_up(member) for member in group.members)
    same_reason = moved.metadata_node == metadata.node and target_is_there
    return cooldown_ms if same_reason else min(cooldown_ms, FLOOR_MS)


def apart(state: ClusterState) -> bool:
    """True when every leader is known, and none of the offsets is beside that of the metadata."""
    metadata = state.metadata.leader
    leaders = [group.leader for group in state.offsets]
    return metadata is not None and all(leader is not None and leader.node != metadata.node for leader in leaders)


def problems(state: ClusterState) -> list[str]:
    """What is wrong with the placement as it is, for a person. Empty: it is good."""
    moves = {move.group: move for move in plan(state)}
    metadata = state.metadata.leader
    found = [] if metadata else [f"{state.metadata.name}: no leader is known"]
    for group in state.offsets:
        leader, move = group.leader, moves.get(group.name)
        if leader is None:
            found.append(f"{group.name}: no leader is known")
        elif metadata and leader.node == metadata.node:
            helped = f"can go to {move.target.node}" if move else "no other node has a member of it that has caught up"
            found.append(f"{group.name}: its leader is on {leader.node}, as the metadata leader; {helped}")
        elif move:
            found.append(f"{group.name}: its leader would be better on {move.target.node} than on {leader.node}, which has more")
    return found


def _targets(group: RaftGroup, refused: Collection[Refused]) -> dict[str, RaftMember]:
    """For each node the member there that can take over, the one that has applied most."""
    able = [member for member in group.members if group.caught_up(member) and (group.name, member.endpoint) not in refused]
    return {member.node: member for member in sorted(able, key=lambda member: member.applied)}


def _choices(home: str, targets: Collection[str], taken: str) -> list[str]:
    """The nodes that may lead a group: where it is led now only when that is not the taken one, or when there is no other."""
    others = {*targets} - {taken, home}
    return sorted(others if others and home == taken else others | {home})


def _placed(homes: Mapping[str, str], choices: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """A node for each group out of its choices: the nodes as even as possible, and then the fewest away from their homes.

    As a flow of least cost: begun anywhere, it is best when no round of exchanges makes it cheaper (Klein's cycle cancelling).
    """
    placed = {name: homes[name] if homes[name] in nodes else nodes[0] for name, nodes in choices.items()}
    while placed and (swap := _cheaper(homes, choices, placed)):
        placed |= swap
    return placed


# Where rounds begin and end: a step from it takes a leader off a node's load, a step to it adds one. No node is named so.
_OUTSIDE = "\0"


class _Step(NamedTuple):
    """A step of a round: what it costs, and the group that goes; none for a step from or to _OUTSIDE."""

    source: str
    target: str
    cost: int
    group: str = ""


def _steps(homes: Mapping[str, str], choices: Mapping[str, Sequence[str]], placed: Mapping[str, str]) -> Iterator[_Step]:
    loads = {node: 0 for nodes in choices.values() for node in nodes}
    for node in placed.values():
        loads[node] += 1
    even = len(placed) + 1  # more than all moves together: first evenness counts, then moves
    for node, load in loads.items():  # evenness is the least sum of squares
        yield _Step(_OUTSIDE, node, even * ((load - 1) ** 2 - load**2))
        yield _Step(node, _OUTSIDE, even * ((load + 1) ** 2 - load**2))
    for name, nodes in choices.items():
        here = placed[name]
        for node in nodes:
            if node != here:
                yield _Step(here, node, (node != homes[name]) - (here != homes[name]), name)


def _cheaper(homes: Mapping[str, str], choices: Mapping[str, Sequence[str]], placed: Mapping[str, str]) -> dict[str, str]:
    """What to place elsewhere so that the whole costs less; empty when nothing does. Bellman and Ford's negative cycle."""
    steps = list(_steps(homes, choices, placed))
    costs = dict.fromkeys((step.target for step in steps), 0)
    came_by: dict[str, _Step] = {}
    at = _OUTSIDE
    for _ in costs:
        if not (changed := _relax(steps, costs, came_by)):
            return {}
        at = changed
    for _ in came_by:  # back until it is surely on the cycle
        at = came_by[at].source
    return {step.group: step.target for step in _cycle(came_by, at) if step.group}


def _relax(steps: Sequence[_Step], costs: dict[str, int], came_by: dict[str, _Step]) -> str:
    """One pass of Bellman and Ford; the last node that became cheaper, empty when none did."""
    changed = ""
    for step in steps:
        cost = costs[step.source] + step.cost
        if cost < costs[step.target]:
            costs[step.target], came_by[step.target], changed = cost, step, step.target
    return changed


def _cycle(came_by: Mapping[str, _Step], first: str) -> Iterator[_Step]:
    step = came_by[first]
    yield step
    while step.source != first:
        step = came_by[step.source]
        yield step
