"""A lock between processes: a key in the metadata Raft group under an etcd lease. Its holder alone may work.

Writes through a `HeldLease` are refused by etcd once the lease has ended. Without answers from etcd the holder stops before its
lease ends. Getting the lock never waits.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio

from adapter.errors import AdapterError, ContendedError, MetaUnavailableError, RefusedError, TransientError
from adapter.metaservice.etcd.client import Call, Metadata, R, Stubs
from adapter.rpc import etcd_pb

# etcd grants no lease shorter than 1.5 election timeouts, 2 s by default. If the holder dies together with the metadata leader,
# the next process gets the lease after at most an election (2 s), this time, and an election timeout (1 s).
TTL_S = 3
RENEW_S = TTL_S / 3
AGAIN_S = 0.1  # pause after a failed renewal
RELEASE_LIMIT_S = 1.0


class Cluster(Protocol):
    """The part of `EtcdCluster` that is used here."""

    async def txn(self, request: etcd_pb.TxnRequest) -> etcd_pb.TxnResponse:
        """Run a transaction; as `EtcdCluster.txn`."""
        ...

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        """Read a range; as `EtcdCluster.range`."""
        ...

    async def call(self, call: Call[R]) -> R:
        """Call a member with failover; as `EtcdCluster.call`."""
        ...

    async def ask(self, endpoint: str, call: Call[R]) -> R:
        """Call one member; as `EtcdCluster.ask`."""
        ...


class LeaseTakenError(ContendedError):
    """Another process holds the lease; the message is its name."""


class LeaseLostError(ContendedError):
    """The lease was lost while it was used: it has ended, or could not be renewed."""


class HeldLease:
    """A lease that this process holds. etcd refuses writes through it once it has ended."""

    def __init__(self, cluster: Cluster, key: bytes, lease: int) -> None:
        self._cluster = cluster
        self._holds = etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.LEASE, key=key, lease=lease)

    async def put(self, key: bytes, value: bytes) -> None:
        """Write a key. Raises LeaseLostError, MetaUnavailableError, DiskFullError, RefusedError."""
        await self._write(etcd_pb.RequestOp(request_put=etcd_pb.PutRequest(key=key, value=value)))

    async def delete(self, key: bytes) -> None:
        """Delete a key. Raises as `put`."""
        await self._write(etcd_pb.RequestOp(request_delete_range=etcd_pb.DeleteRangeRequest(key=key)))

    async def _write(self, write: etcd_pb.RequestOp) -> None:
        if not (await self._cluster.txn(etcd_pb.TxnRequest(compare=[self._holds], success=[write]))).succeeded:
            raise LeaseLostError("the lease has ended")


class LeaseLock:
    """The lock of all processes that use the same key. `name` identifies this process to the others."""

    def __init__(self, cluster: Cluster, key: bytes, name: str) -> None:
        self._cluster = cluster
        self._key = key
        self._name = name
        self._unreleased = 0  # ID of a lease that could not be released yet; 0: none

    async def use(self, work: Callable[[HeldLease], Awaitable[None]]) -> None:
        """Take the lease, run `work`, release the lease. `work` is cancelled if the lease is lost.

        Raises LeaseTakenError at once if another process holds it; LeaseLostError; MetaUnavailableError, DiskFullError,
        RefusedError; and any AdapterError of `work`.
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
        """Read first: otherwise every waiting process would create a lease with each attempt."""
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
        if not reply.succeeded:  # a resent transaction may have met its own write
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
        """Renew the lease until it has ended or may have ended. etcd starts counting later than we do, so this is safe."""
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
        """Revoke the lease, so that the next process need not wait for its end, which a leader election would delay."""
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
    """Renew a lease once. A reply with TTL 0 means that it has ended."""
    requests = iter([etcd_pb.LeaseKeepAliveRequest(ID=lease)])
    async for reply in stubs.lease.LeaseKeepAlive(requests, timeout=within_s, metadata=metadata):
        return reply
    raise MetaUnavailableError("etcd ended the stream of renewals")
