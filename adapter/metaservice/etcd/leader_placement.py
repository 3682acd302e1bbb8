"""Where the leaders of the Raft groups should run, and the fewest moves to get them there. Pure: no clock, no network.

A plan moves leaders only to members that have caught up, never to the metadata leader's node, and never moves the metadata leader
itself. After the planned moves, the next plan is empty.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# A leader accepts no writes while it brings its successor up to date; so many entries take well under an election timeout. The
# members are not read at one instant, so a healthy one under load may seem a few hundred entries behind.
BEHIND_ENTRIES = 1_000
# The minimum cool-down, also for a leader next to the metadata leader. With an election (2 s) and one interval (2 s) the leaders
# are apart again within 10 s after a node died.
FLOOR_MS = 5_000

METADATA = "metadata"  # the name of the metadata Raft group


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftMember:
    """A member of a Raft group as it was last seen. If it did not answer, only endpoint, node and problem are set."""

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
    quota_bytes: int = 0  # at which it refuses writes; 0: it does not say, as etcd before 3.6
    version: str = ""
    problem: str = ""  # why it did not answer; or its alarms


@dataclass(frozen=True, slots=True)
class RaftGroup:
    """A Raft group as it was last seen."""

    name: str
    members: tuple[RaftMember, ...]

    @property
    def leader(self) -> RaftMember | None:
        """The leader in the highest term known to a member, if it answers and itself reports to lead; otherwise None."""
        following = [member for member in self.members if member.reachable and member.leader_id]
        newest = max(following, key=lambda member: member.term, default=None)
        if newest is None:
            return None
        leads = [member for member in following if member.id == member.leader_id and member.term == newest.term]
        return leads[0] if leads else None

    def behind(self, member: RaftMember) -> int:
        """How many committed entries a member has not applied. 0 if the leader is unknown."""
        return max(0, self.leader.committed - member.applied) if self.leader else 0

    def caught_up(self, member: RaftMember) -> bool:
        """True if the member can lead at once: it votes, follows the leader, and has nearly all committed entries."""
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
    """The transfer of a Raft group's leadership from one member to another."""

    group: str
    source: RaftMember
    target: RaftMember


class Moved(NamedTuple):
    """The last move of a Raft group's leader: its time (Unix ms), its target, and the metadata leader's node at that time."""

    at_ms: int
    target: str
    metadata_node: str


# A Raft group, and the endpoint of a member that did not become its leader.
Refused = tuple[str, str]


def plan(state: ClusterState, held: Collection[str] = (), refused: Collection[Refused] = ()) -> list[Move]:
    """The fewest moves after which no offsets leader is on the metadata leader's node, and leaders are spread most evenly.

    Groups in `held` stay; targets in `refused` are not used. The moves away from the metadata leader come first. Without a
    metadata leader there are no moves, since the node to keep free is unknown. While a group has no leader, the others are not
    spread: its next leader may come up where they would go.
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
    """For each group whose leader was moved recently: the milliseconds that it has to stay; see `_stays_ms`.

    The times may come from other machines' clocks: a time in the future counts as equally long ago.
    """
    stays = {
        group.name: _stays_ms(state, group, moved[group.name], cooldown_ms) - abs(now_ms - moved[group.name].at_ms)
        for group in state.offsets
        if group.name in moved
    }
    return {name: left_ms for name, left_ms in stays.items() if left_ms > 0}


def _stays_ms(state: ClusterState, group: RaftGroup, moved: Moved, cooldown_ms: int) -> int:
    """The length of the cool-down: shorter for a leader next to the metadata leader if that has a new cause.

    The cause is new if a node died since the move: the metadata leader's node of that time, or the target's. Otherwise the leader
    went back by itself and would do so again; then the whole cool-down applies.
    """
    metadata, leader = state.metadata.leader, group.leader
    if metadata is None or leader is None or leader.node != metadata.node:
        return cooldown_ms
    target_is_there = any(member.endpoint == moved.target and group.caught_up(member) for member in group.members)
    same_reason = moved.metadata_node == metadata.node and target_is_there
    return cooldown_ms if same_reason else min(cooldown_ms, FLOOR_MS)


def apart(state: ClusterState) -> bool:
    """True if every leader is known, and no offsets leader is on the metadata leader's node."""
    metadata = state.metadata.leader
    leaders = [group.leader for group in state.offsets]
    return metadata is not None and all(leader is not None and leader.node != metadata.node for leader in leaders)


def problems(state: ClusterState) -> list[str]:
    """What is wrong with the current placement, for a person. Empty if nothing is."""
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
    """For each node the member that can take over; of several on one node the one that has applied most."""
    able = [member for member in group.members if group.caught_up(member) and (group.name, member.endpoint) not in refused]
    return {member.node: member for member in sorted(able, key=lambda member: member.applied)}


def _choices(home: str, targets: Collection[str], taken: str) -> list[str]:
    """The nodes that may lead a group. Its current node counts, unless it is the taken one and there are others."""
    others = {*targets} - {taken, home}
    return sorted(others if others and home == taken else others | {home})


def _placed(homes: Mapping[str, str], choices: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Choose a node for each group: as evenly as possible, then with the fewest groups moved.

    This is a minimum-cost flow: a placement is optimal if no cycle of exchanges makes it cheaper (Klein's cycle cancelling).
    """
    placed = {name: homes[name] if homes[name] in nodes else nodes[0] for name, nodes in choices.items()}
    while placed and (swap := _cheaper(homes, choices, placed)):
        placed |= swap
    return placed


# The source and sink of the flow: a step from it removes a leader from a node's load, a step to it adds one. Not a node.
_OUTSIDE = "\0"


class _Step(NamedTuple):
    """A step of a cycle: its cost, and the group that moves; empty for a step from or to _OUTSIDE."""

    source: str
    target: str
    cost: int
    group: str = ""


def _steps(homes: Mapping[str, str], choices: Mapping[str, Sequence[str]], placed: Mapping[str, str]) -> Iterator[_Step]:
    loads = {node: 0 for nodes in choices.values() for node in nodes}
    for node in placed.values():
        loads[node] += 1
    even = len(placed) + 1  # weighs more than all moves together
    for node, load in loads.items():  # the sum of squared loads measures evenness
        yield _Step(_OUTSIDE, node, even * ((load - 1) ** 2 - load**2))
        yield _Step(node, _OUTSIDE, even * ((load + 1) ** 2 - load**2))
    for name, nodes in choices.items():
        here = placed[name]
        for node in nodes:
            if node != here:
                yield _Step(here, node, (node != homes[name]) - (here != homes[name]), name)


def _cheaper(homes: Mapping[str, str], choices: Mapping[str, Sequence[str]], placed: Mapping[str, str]) -> dict[str, str]:
    """Changes that make the placement cheaper; empty if there are none. Finds a negative cycle by Bellman-Ford."""
    steps = list(_steps(homes, choices, placed))
    costs = dict.fromkeys((step.target for step in steps), 0)
    came_by: dict[str, _Step] = {}
    at = _OUTSIDE
    for _ in costs:
        if not (changed := _relax(steps, costs, came_by)):
            return {}
        at = changed
    for _ in came_by:  # walk back until the node is certainly on the cycle
        at = came_by[at].source
    return {step.group: step.target for step in _cycle(came_by, at) if step.group}


def _relax(steps: Sequence[_Step], costs: dict[str, int], came_by: dict[str, _Step]) -> str:
    """One pass of Bellman-Ford; returns the last node that became cheaper, empty if none did."""
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
