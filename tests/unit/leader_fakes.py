"""A Raft group in memory with etcd's leader and lease calls, a watcher that tests can wait for, and virtual time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel

from adapter.errors import AdapterError, MetaUnavailableError, RefusedError
from adapter.metaservice.config import MembersSection
from adapter.metaservice.etcd.leader_balancer import Watched
from adapter.metaservice.etcd.leader_placement import ClusterState, Move
from adapter.rpc import etcd_pb
from tests.model.loop import VirtualLoop

PATIENCE_S = 1_000.0  # of virtual time
COMMITTED = 50_000
NODES = ("n1", "n2", "n3")


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test whose clock jumps to the next timer instead of waiting."""

    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        loop = VirtualLoop()
        task = loop.create_task(test(*args, **named))
        loop.run_for(PATIENCE_S)
        ended = task.done()
        task.cancel()
        loop.run_for(PATIENCE_S)
        loop.close()
        assert ended, "it waits for what does not come"
        task.result()

    return run


@dataclass
class FakeEtcd:
    """A cluster with a member on each of three nodes. Leases end by the time of the event loop, or when a test says so."""

    name: str
    leader: str  # its node
    down: set[str] = field(default_factory=set)  # nodes that do not answer
    lost: bool = False  # nobody answers to what needs a majority
    applied: dict[str, int] = field(default_factory=dict)
    stored: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)  # value and lease
    leases: dict[int, float] = field(default_factory=dict)  # when they end
    asked: list[str] = field(default_factory=list)  # nodes to which the leader was to be moved
    on_move: Callable[[str], Awaitable[None]] | None = None  # in place of the move, with the node
    granted: int = 0
    ttl_s: int = 0  # of the last lease

    @property
    def watched(self) -> Watched:
        """The client for a balancer."""
        return Watched(self.name, self, MembersSection(endpoints=tuple(map(self.endpoint, NODES)), nodes=NODES))

    def endpoint(self, node: str) -> str:
        """The endpoint of the member on a node."""
        return f"{self.name}-{node}:2379"

    def end_leases(self) -> None:
        """End every lease now."""
        self.leases.clear()

    def live(self) -> dict[bytes, tuple[bytes, int]]:
        """The stored keys, without those of ended leases."""
        now = anyio.current_time()
        self.leases = {lease: ends_at for lease, ends_at in self.leases.items() if ends_at >= now}
        self.stored = {key: found for key, found in self.stored.items() if not found[1] or found[1] in self.leases}
        return self.stored

    async def txn(self, request: etcd_pb.TxnRequest) -> etcd_pb.TxnResponse:
        """One compare, and one operation for each case, as the balancer uses it."""
        await self._majority()
        [compare] = request.compare
        lease = self.live().get(compare.key, (b"", 0))[1]
        succeeded = compare.key not in self.stored if compare.target == etcd_pb.Compare.CREATE else lease == compare.lease
        responses = [self._done(operation) for operation in (request.success if succeeded else request.failure)]
        return etcd_pb.TxnResponse(succeeded=succeeded, responses=responses)

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        """Keys, linearizable."""
        await self._majority()
        return self._range(request)

    async def call(self, call: Callable[..., Awaitable[Any]]) -> Any:
        """A call to any member."""
        await self._majority()
        return await call(SimpleNamespace(lease=_Lease(self)), 0.5, ())

    async def ask(self, endpoint: str, call: Callable[..., Awaitable[Any]]) -> Any:
        """A call to one member."""
        await anyio.lowlevel.checkpoint()
        node = endpoint.removeprefix(f"{self.name}-").removesuffix(":2379")
        if node in self.down:
            raise MetaUnavailableError(f"{endpoint}: no answer within 0.5 s")
        return await call(SimpleNamespace(maintenance=_Member(self, node)), 0.5, (("hasleader", "true"),))

    async def _majority(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.lost:
            raise MetaUnavailableError(f"{self.name}: no leader")

    def _done(self, operation: etcd_pb.RequestOp) -> etcd_pb.ResponseOp:
        put, delete = operation.request_put, operation.request_delete_range
        if operation.HasField("request_put"):
            self.stored[put.key] = (put.value, put.lease)
        elif operation.HasField("request_delete_range"):
            del self.stored[delete.key]
        return etcd_pb.ResponseOp(response_range=self._range(operation.request_range))

    def _range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        end = request.range_end or request.key + b"\0"
        found = sorted((key, *stored) for key, stored in self.live().items() if request.key <= key < end)
        return etcd_pb.RangeResponse(kvs=[etcd_pb.KeyValue(key=key, value=value, lease=lease) for key, value, lease in found])


class _Member:
    """The maintenance service of one member."""

    def __init__(self, etcd: FakeEtcd, node: str) -> None:
        self._etcd = etcd
        self._node = node

    async def Status(self, _: etcd_pb.StatusRequest, *, metadata: object, **__: object) -> etcd_pb.StatusResponse:
        """The status as this member sees it."""
        assert not metadata, "a member without a leader answers only who does not insist on one"
        return etcd_pb.StatusResponse(
            header=etcd_pb.ResponseHeader(member_id=NODES.index(self._node) + 1),
            version="3.4.23",
            leader=NODES.index(self._etcd.leader) + 1 if self._etcd.leader else 0,
            raftTerm=7,
            raftIndex=COMMITTED,
            raftAppliedIndex=self._etcd.applied.get(self._node, COMMITTED),
        )

    async def MoveLeader(self, request: etcd_pb.MoveLeaderRequest, **_: object) -> etcd_pb.MoveLeaderResponse:
        """Accepted only by the leader."""
        assert self._node == self._etcd.leader
        target = NODES[request.targetID - 1]
        self._etcd.asked.append(target)
        if self._etcd.on_move:
            await self._etcd.on_move(target)
        else:
            self._etcd.leader = target
        return etcd_pb.MoveLeaderResponse()


class _Lease:
    """The lease service of a cluster."""

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd

    async def LeaseGrant(self, request: etcd_pb.LeaseGrantRequest, **_: object) -> etcd_pb.LeaseGrantResponse:
        """Grant a new lease."""
        self._etcd.granted += 1
        self._etcd.ttl_s = request.TTL
        self._etcd.leases[self._etcd.granted] = anyio.current_time() + request.TTL
        return etcd_pb.LeaseGrantResponse(ID=self._etcd.granted, TTL=request.TTL)

    async def LeaseRevoke(self, request: etcd_pb.LeaseRevokeRequest, **_: object) -> etcd_pb.LeaseRevokeResponse:
        """End a lease now."""
        if request.ID not in self._etcd.leases:
            raise RefusedError("NOT_FOUND: etcdserver: requested lease not found")
        del self._etcd.leases[request.ID]
        return etcd_pb.LeaseRevokeResponse()

    def LeaseKeepAlive(
        self, requests: Iterator[etcd_pb.LeaseKeepAliveRequest], **_: object
    ) -> AsyncIterator[etcd_pb.LeaseKeepAliveResponse]:
        """One reply for each request: 0 s for a lease that has ended."""

        async def answers() -> AsyncIterator[etcd_pb.LeaseKeepAliveResponse]:
            self._etcd.live()
            for request in requests:
                left = self._etcd.ttl_s if request.ID in self._etcd.leases else 0
                if left:
                    self._etcd.leases[request.ID] = anyio.current_time() + left
                yield etcd_pb.LeaseKeepAliveResponse(ID=request.ID, TTL=left)

        return answers()


class Seen:
    """A watcher that remembers events and can be waited for."""

    def __init__(self) -> None:
        self.situation: ClusterState | None = None
        self.held: Mapping[str, int] = {}
        self.looks = 0
        self.moves: list[str] = []
        self.turns: list[AdapterError | None] = []
        self._changed = anyio.Event()

    def looked(self, situation: ClusterState, held: Mapping[str, int]) -> None:
        """Remember the state and the leaders that are held; count the round."""
        self.situation, self.held = situation, held
        self.looks += 1
        self._change()

    def moved(self, move: Move, problem: str) -> None:
        """Remember the move and its problem."""
        self.moves.append(f"{move.group} {move.source.node}-{move.target.node}{f': {problem}' if problem else ''}")
        self._change()

    def lease_changed(self, error: AdapterError | None) -> None:
        """Remember whether the lease was taken, or the error."""
        self.turns.append(error)
        self._change()

    async def until(self, condition: Callable[[], bool], within_s: float = 20.0) -> None:
        """Wait until the condition holds. Raises TimeoutError."""
        with anyio.fail_after(within_s):
            while not condition():
                await self._changed.wait()

    async def looks_more(self, count: int) -> None:
        """Wait for some more rounds."""
        wanted = self.looks + count
        await self.until(lambda: self.looks >= wanted)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
