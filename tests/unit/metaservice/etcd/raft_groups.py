"""Raft groups in the form that the placement of leaders uses."""

from adapter.metaservice.etcd.leader_placement import (
    ClusterState,
    RaftGroup,
    RaftMember,
)

TERM = 7
COMMITTED = 50_000


def member(group: str, node: str, leader: str, **fields: object) -> RaftMember:
    """A member that has caught up and follows the leader on the node `leader`."""
    known = {
        "reachable": True,
        "id": _id(node),
        "leader_id": _id(leader) if leader else 0,
        "term": TERM,
        "committed": COMMITTED,
        "applied": COMMITTED,
    }
    return RaftMember(endpoint=f"{group}.{node}", node=node, **{**known, **fields})  # type: ignore[arg-type]


def _id(node: str) -> int:
    return int(node[1:]) + 1


def raft_group(name: str, leader: str, nodes: str = "n0 n1 n2", **others: RaftMember) -> RaftGroup:
    """A Raft group led on a node, all members caught up, but those given by their node."""
    return RaftGroup(name, tuple(others.get(node) or member(name, node, leader) for node in nodes.split()))


def situation(metadata: str, *leaders: str, nodes: str = "n0 n1 n2") -> ClusterState:
    """Leaders by their nodes: that of the metadata group, and those of offsets-1, offsets-2, and so on."""
    offsets = tuple(raft_group(f"offsets-{number}", leader, nodes) for number, leader in enumerate(leaders, start=1))
    return ClusterState(raft_group("metadata", metadata, nodes), offsets)


def leaders(what: ClusterState) -> list[str]:
    """The nodes that lead offsets."""
    return [group.leader.node for group in what.offsets if group.leader]
