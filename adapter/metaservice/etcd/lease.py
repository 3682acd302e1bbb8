"""One of several processes at a time: whose turn it is says a key in the metadata Raft group, under a lease of etcd.

Promises that what is written during a turn is refused once it is over. Without an answer a turn ends before its lease does. Never
waits for a turn.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio

from adapter.errors import AdapterError, ContendedError, MetaUnavailableError, RefusedError, TransientError
from adapter.metaservice.etcd.client import Call, Metadata, R, Stubs
from adapter.rpc import etcd_pb

# etcd gives no lease that is shorter than 1.5 election timeouts: 2 s by default. When a process dies together with the metadata
# leader, the next one has its turn at most an election (2 s), this, and an election timeout (1 s) later.
TTL_S = 3
RENEW_S = TTL_S / 3
AGAIN_S = 0.1  # after a renewal that failed
RELEASE_LIMIT_S = 1.0


class Cluster(Protocol):
    """What is needed of an `EtcdCluster`."""

    async def txn(self, request: etcd_pb.TxnRequest) -> etcd_pb.TxnResponse:
        """See `EtcdCluster.txn`."""
        ...

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        """See `EtcdCluster.range`."""
        ...

    async def call(self, call: Call[R]) -> R:
        """See `EtcdCluster.call`."""
        ...

    async def ask(self, endpoint: str, call: Call[R]) -> R:
        """See `EtcdCluster.ask`."""
        ...


class LeaseTakenError(ContendedError):
    """Another process has the turn; the text is its name."""


class LeaseLostError(ContendedError):
    """The turn was lost while it was used: the lease has ended, or could not be renewed."""


class HeldLease:
    """A turn that this process has. Writes are refused by etcd once it is over."""

    def __init__(self, cluster: Cluster, key: bytes, lease: int) -> None:
        self._cluster = cluster
        self._holds = etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.LEASE, key=key, lease=lease)

    async def put(self, key: bytes, value: bytes) -> None:
        """Write a key. Raises TurnOverError, MetaUnavailableError, DiskFullError, RefusedError."""
        await self._write(etcd_pb.RequestOp(request_put=etcd_pb.PutRequest(key=key, value=value)))

    async def delete(self, key: bytes) -> None:
        """Delete a key. Errors as of `put`."""
        await self._write(etcd_pb.RequestOp(request_delete_range=etcd_pb.DeleteRangeRequest(key=key)))

    async def _write(self, write: etcd_pb.RequestOp) -> None:
        if not (await self._cluster.txn(etcd_pb.TxnRequest(compare=[self._holds], success=[write]))).succeeded:
            raise LeaseLostError("the turn is over")


class LeaseLock:
    """Takes turns with the other processes that use the same key. `name` is how they are told who has it."""

    def __init__(self, cluster: Cluster, key: bytes, name: str) -> None:
        self._cluster = cluster
        self._key = key
        self._name = name
        self._unreleased = 0  # a lease that could not be given back

    async def use(self, work: Callable[[HeldLease], Awaitable[None]]) -> None:
        """Take the turn, do the work, give the turn back. The work is cancelled when the turn is lost.

        Raises OthersTurnError at once; TurnOverError; MetaUnavailableError, DiskFullError, RefusedError; and what the work raises
        that is an AdapterError.
        """
        if self._unreleased:
            await self._release(self._unreleased)
        await self._check_free()
        asked_at = anyio.current_time()
        granted = await self._cluster.call(
            lambda stubs, timeout, metadata: stubs.lease.LeaseGrant(
                etcd_pb.LeaseGrantRequest(TTL=TTL_S), timeout=timeout, metadata=metadata
            )
        )
        try:
            await self._acquire(granted.ID)
            await self._work(work, granted.ID, asked_at)
        finally:
            await self._release(granted.ID)

    async def _check_free(self) -> None:
        """Ask before a lease is made: those who wait would else make one with every look."""
        _check_holder((await self._cluster.range(etcd_pb.RangeRequest(key=self._key))).kvs, 0)

    async def _acquire(self, lease: int) -> None:
        request = etcd_pb.TxnRequest(
            compare=[
                etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.CREATE, key=self._key, create_revision=0)
            ],
            success=[
                etcd_pb.RequestOp(request_put=etcd_pb.PutRequest(key=self._key, value=self._name.encode(), lease=lease)),
            ],
            failure=[etcd_pb.RequestOp(request_range=etcd_pb.RangeRequest(key=self._key))],
        )
        reply = await self._cluster.txn(request)
        if not reply.succeeded:  # sent again after an unknown outcome it may have met itself
            _check_holder(reply.responses[0].response_range.kvs, lease)

    async def _work(self, work: Callable[[HeldLease], Awaitable[None]], lease: int, asked_at: float) -> None:
        lost = False
        failure: AdapterError | None = None

        async def renew() -> None:
            nonlocal lost
            await self._until_lost(lease, asked_at)
            lost = True
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew, name="etcd.lease")
            try:
                await work(HeldLease(self._cluster, self._key, lease))
            except AdapterError as error:  # as it is, not in a group
                failure = error
            tasks.cancel_scope.cancel()
        if lost:
            raise LeaseLostError("the lease could not be renewed in time")
        if failure:
            raise failure

    async def _until_lost(self, lease: int, asked_at: float) -> None:
        """Renew the lease until it has ended, or could have: etcd counts from later than this."""
        ends_at, pause_s = asked_at + TTL_S, RENEW_S
        while True:
            with anyio.CancelScope(deadline=ends_at) as scope:
                await anyio.sleep(pause_s)
                asked_at = anyio.current_time()
                try:
                    if not (await self._cluster.call(partial(_renew, lease))).TTL:
                        return
                except AdapterError:
                    pause_s = AGAIN_S
                else:
                    ends_at, pause_s = asked_at + TTL_S, RENEW_S
            if scope.cancelled_caught:
                return

    async def _release(self, lease: int) -> None:
        """So that the next one need not wait until the lease ends. An election would let it begin anew."""
        self._unreleased = lease
        with anyio.move_on_after(RELEASE_LIMIT_S, shield=True), suppress(TransientError):
            with suppress(RefusedError):  # it has ended
                await self._cluster.call(
                    lambda stubs, timeout, metadata: stubs.lease.LeaseRevoke(
                        etcd_pb.LeaseRevokeRequest(ID=lease), timeout=timeout, metadata=metadata
                    )
                )
            self._unreleased = 0


def _check_holder(found: Iterable[etcd_pb.KeyValue], lease: int) -> None:
    for row in found:
        if row.lease != lease:
            raise LeaseTakenError(row.value.decode(errors="replace"))


async def _renew(lease: int, stubs: Stubs, within_s: float, metadata: Metadata) -> etcd_pb.LeaseKeepAliveResponse:
    """Renew a lease once. It has ended when 0 s are left."""
    requests = iter([etcd_pb.LeaseKeepAliveRequest(ID=lease)])
    async for reply in stubs.lease.LeaseKeepAlive(requests, timeout=within_s, metadata=metadata):
        return reply
    raise MetaUnavailableError("etcd ended the stream of renewals")
