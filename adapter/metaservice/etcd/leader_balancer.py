"""Moves the leaders of the Raft groups in etcd to where `leader_placement` wants them.

Of several balancers, the one with the lease works. It moves one leader at a time, and trusts only the members' own status
afterwards. It does not end because members do not answer.
"""

import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import anyio
from prometheus_client import CollectorRegistry

from adapter.errors import AdapterError, ConfigError, RefusedError, TransientError
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd import leader_placement
from adapter.metaservice.etcd.client import EtcdCluster, Join, Metadata, Stubs
from adapter.metaservice.etcd.leader_metrics import LeaderMetrics, LoggedLeaders, Watcher
from adapter.metaservice.etcd.leader_placement import ClusterState, Move, Moved, RaftGroup, RaftMember, Refused
from adapter.metaservice.etcd.lease import Cluster, HeldLease, LeaseLock
from adapter.model.codec import prefix_end
from adapter.rpc import etcd_pb
from adapter.runtime.clocks import wall_ms

MOVE_S = 3.0  # Raft aborts a transfer after one election timeout, 1 s by default
LOOK_AGAIN_S = 0.05  # poll interval while a move is awaited
STAND_BY_S = 1.0  # at most, between two attempts to get the lease: its holder may have died


class NotMovedError(TransientError):
    """A leader did not move to its target, according to the members."""


class Watched(NamedTuple):
    """A Raft group to watch: its client, and the node of each member."""

    name: str
    cluster: Cluster
    members: MembersSection


class Leaders:
    """Reads the state of Raft groups and moves their leaders."""

    def __init__(self, metadata: Watched, offsets: Sequence[Watched]) -> None:
        self._metadata = metadata
        self._offsets = {group.name: group for group in offsets}

    @property
    def metadata_cluster(self) -> Cluster:
        """The client of the metadata Raft group."""
        return self._metadata.cluster

    async def look(self) -> ClusterState:
        """Ask every member of every Raft group concurrently. Takes at most the deadline of a call; never raises."""
        metadata, *offsets = await _poll([self._metadata, *self._offsets.values()])
        return ClusterState(metadata, tuple(offsets))

    async def move(self, move: Move) -> None:
        """Transfer a leadership. Returns once the target leads; raises NotMovedError if it does not within 3 s."""
        watched = self._offsets[move.group]
        give_up_at = anyio.current_time() + MOVE_S
        problem = await self._ask_to_move(watched, move)
        while True:
            [group] = await _poll([watched])
            if group.leader and group.leader.endpoint == move.target.endpoint:
                return
            if isinstance(problem, RefusedError) or anyio.current_time() >= give_up_at:
                raise NotMovedError(str(problem or f"{move.target.endpoint} does not lead after {MOVE_S:g} s"))
            await anyio.sleep(LOOK_AGAIN_S)

    async def _ask_to_move(self, watched: Watched, move: Move) -> AdapterError | None:
        request = etcd_pb.MoveLeaderRequest(targetID=move.target.id)
        try:
            await watched.cluster.ask(
                move.source.endpoint,  # only the leader accepts the call
                lambda stubs, _, metadata: stubs.maintenance.MoveLeader(request, timeout=MOVE_S, metadata=metadata),
            )
        except AdapterError as error:
            return error
        return None


async def _poll(groups: Sequence[Watched]) -> list[RaftGroup]:
    found: dict[str, RaftMember] = {}

    async def look(group: Watched, endpoint: str) -> None:
        found[endpoint] = await _member(group.cluster, endpoint, group.members.node_of(endpoint))

    async with anyio.create_task_group() as tasks:
        for group in groups:
            for endpoint in group.members.endpoints:
                tasks.start_soon(look, group, endpoint)
    return [RaftGroup(group.name, tuple(found[endpoint] for endpoint in group.members.endpoints)) for group in groups]


async def _member(cluster: Cluster, endpoint: str, node: str) -> RaftMember:
    try:
        status = await cluster.ask(endpoint, _status)
    except AdapterError as error:
        return RaftMember(endpoint=endpoint, node=node, problem=str(error))
    return RaftMember(
        endpoint=endpoint,
        node=node,
        reachable=True,
        learner=status.isLearner,
        id=status.header.member_id,
        leader_id=status.leader,
        term=status.raftTerm,
        committed=status.raftIndex,
        applied=status.raftAppliedIndex,
        db_bytes=status.dbSize,
        quota_bytes=status.dbSizeQuota,
        version=status.version,
        problem="; ".join(status.errors),
    )


async def _status(stubs: Stubs, within_s: float, metadata: Metadata) -> etcd_pb.StatusResponse:
    # Without "hasleader", so that a member that sees no leader answers too.
    asked = tuple(pair for pair in metadata if pair[0] != "hasleader")
    return await stubs.maintenance.Status(etcd_pb.StatusRequest(), timeout=within_s, metadata=asked)


class Balancer:
    """Keeps leaders apart while it holds the lease that all balancers of a prefix share."""

    def __init__(
        self,
        leaders: Leaders,
        section: EtcdSection,
        watchers: Sequence[Watcher],
        *,
        name: str = "",
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._leaders = leaders
        self._metadata = leaders.metadata_cluster
        self._moved = f"{section.prefix}moved/".encode()
        self._interval_s = section.placement.interval_ms / 1000
        self._cooldown_ms = section.placement.cooldown_ms
        self._watchers = watchers
        self._now_ms = now_ms
        self._lease_lock = LeaseLock(self._metadata, f"{section.prefix}balancer".encode(), name or _name())
        self._refused: dict[Refused, float] = {}  # until when this target is not tried again

    async def run(self) -> None:
        """Balance once per interval while holding the lease, otherwise only watch. Errors are reported and retried."""
        while True:
            try:
                self._notify_state(await self._leaders.look(), {})
                await self._lease_lock.use(self._balance_repeatedly)
            except AdapterError as error:
                self._notify_lease(error)
            await anyio.sleep(min(self._interval_s, STAND_BY_S))

    async def once(self) -> ClusterState:
        """Balance once; returns the state after it. Raises as `LeaseLock.use`."""
        await self._lease_lock.use(self._balance)
        return await self._leaders.look()

    async def _balance_repeatedly(self, lease: HeldLease) -> None:
        self._notify_lease(None)
        while True:
            await self._balance(lease)
            await anyio.sleep(self._interval_s)

    async def _balance(self, lease: HeldLease) -> None:
        """Make the moves that are needed now. The next call, or the next balancer, plans anew."""
        state = await self._leaders.look()
        now = anyio.current_time()
        self._refused = {refused: until for refused, until in self._refused.items() if until > now}
        wanted = {move.group for move in leader_placement.plan(state, refused=self._refused)}
        held = await self._held(state) if wanted else {}
        self._notify_state(state, {name: left_ms for name, left_ms in held.items() if name in wanted})
        moves = leader_placement.plan(state, held, self._refused)
        for move in moves:
            if not await self._move(lease, move, state):
                return  # the other planned moves assumed that this one succeeds
        if moves:
            self._notify_state(await self._leaders.look(), {})

    async def _held(self, state: ClusterState) -> dict[str, int]:
        request = etcd_pb.RangeRequest(key=self._moved, range_end=prefix_end(self._moved))
        rows = (await self._metadata.range(request)).kvs
        moved = {row.key[len(self._moved) :].decode(errors="replace"): _decoded(row.value) for row in rows}
        return leader_placement.held(state, moved, self._cooldown_ms, self._now_ms())

    async def _move(self, lease: HeldLease, move: Move, state: ClusterState) -> bool:
        """Make one move; True if it succeeded. Its time is written first, so that no other balancer moves this leader soon."""
        key = self._moved + move.group.encode()
        metadata_node = state.metadata.leader.node if state.metadata.leader else ""
        moved = Moved(self._now_ms(), move.target.endpoint, metadata_node)
        await lease.put(key, json.dumps(moved._asdict()).encode())
        try:
            await self._leaders.move(move)
        except NotMovedError as error:
            self._refused[move.group, move.target.endpoint] = anyio.current_time() + self._cooldown_ms / 1000
            self._notify_move(move, str(error))
            await lease.delete(key)  # the leader stayed: the next round may try another member
            return False
        self._notify_move(move, "")
        return True

    def _notify_state(self, state: ClusterState, held: Mapping[str, int]) -> None:
        for watcher in self._watchers:
            watcher.looked(state, held)

    def _notify_move(self, move: Move, problem: str) -> None:
        for watcher in self._watchers:
            watcher.moved(move, problem)

    def _notify_lease(self, error: AdapterError | None) -> None:
        for watcher in self._watchers:
            watcher.lease_changed(error)


async def run(section: EtcdSection, registry: CollectorRegistry, join: Join = lambda _: None) -> None:
    """Balance until cancelled, over channels of its own. Raises ConfigError for files that cannot be read."""
    async with opened(section, join) as leaders:
        watchers = (LeaderMetrics(registry), LoggedLeaders())
        await Balancer(leaders, section, watchers).run()


@asynccontextmanager
async def opened(section: EtcdSection, join: Join = lambda _: None) -> AsyncIterator[Leaders]:
    """Open the clients of all configured Raft groups. Raises ConfigError."""
    if section.metadata is None:
        raise ConfigError("etcd.metadata: no endpoints are configured; leaders are those of Raft groups in etcd")
    async with AsyncExitStack() as stack:

        async def reached(name: str, members: MembersSection) -> Watched:
            return Watched(name, await stack.enter_async_context(EtcdCluster.open(name, members, section, join)), members)

        metadata = await reached(leader_placement.METADATA, section.metadata)
        yield Leaders(metadata, [await reached(group.name, group) for group in section.offsets])


def _decoded(value: bytes) -> Moved:
    try:
        found = json.loads(value)
        return Moved(int(found["at_ms"]), str(found["target"]), str(found["metadata_node"]))
    except (ValueError, KeyError, TypeError):
        return Moved(0, "", "")  # not in our form: treat it as long ago


def _name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
