"""Writes offsets into one Raft group: concurrent saves share transactions, in which etcd itself merges.

An entry is one nested transaction: write this value unless a greater one is stored. What etcd cannot decide (an expected offset;
an unknown or raised epoch over a tombstone) is decided here by `decide_save`, and written only if the record it was decided on is
still stored.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import anyio

from adapter.errors import AdapterError, DiskFullError, MetaUnavailableError, NotReadyError, RefusedError, StoreDamagedError
from adapter.metaservice.engine import decide_save
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.keys import Keys, decode_stored, encode_value
from adapter.model.records import EPOCH_LIMIT, FIRST_EPOCH, SaveEntry, SaveOutcome, Status
from adapter.rpc import etcd_pb

IN_FLIGHT = 4  # concurrent transactions; more would only wait for each other in etcd
MAX_TXN_ENTRIES = 500  # of a transaction; a larger one delays the others too much
MAX_BYTES = 1_000_000  # of a transaction; etcd refuses more than 1.5 MiB
_OVERHEAD = 64  # bytes of tags and lengths of an entry in a transaction

_GREATER, _EQUAL = etcd_pb.Compare.GREATER, etcd_pb.Compare.EQUAL
_VALUE, _MOD = etcd_pb.Compare.VALUE, etcd_pb.Compare.MOD


class Item:
    """An entry on its way to etcd. `outcome` is None until it is known, and stays None if the fence refused the entry.

    `error`: why the outcome is UNAVAILABLE. `cost`: an upper bound of its bytes in a transaction. `once`: must not be sent twice,
    since it would meet its own write. Such entries, and those with very high epochs, read the stored record first.
    `note`: the key that notes a change of its group; empty if adapters are not told of it.
    """

    __slots__ = ("_decided", "_put", "_reads_first", "_revision", "cost", "entry", "error", "note", "once", "outcome", "where")

    def __init__(self, entry: SaveEntry, where: bytes, note: bytes = b"") -> None:
        self.entry = entry
        self.where = where
        self.note = note
        self.outcome: SaveOutcome | None = None
        self.error: AdapterError | None = None
        _, record, expected_offset = entry
        self.once = expected_offset is not None
        epoch, _, _, _, metadata, topic, _ = record
        self._reads_first = self.once or epoch > EPOCH_LIMIT
        self._put = record if epoch else record._replace(epoch=FIRST_EPOCH)
        self.cost = 4 * len(where) + len(note) + 3 * _OVERHEAD + (8 * (len(metadata) + len(topic)) if metadata or topic else 0)
        self._revision = 0  # of what stands, when it was read; 0: nothing
        self._decided: SaveOutcome | None = None

    def add_to(self, request: etcd_pb.TxnRequest, keys: Keys) -> None:
        """Add the entry's next step to a transaction."""
        inner = request.success.add().request_txn
        if self._decided is None and self._reads_first:
            inner.success.add().request_range.key = self.where
            return
        value = encode_value(self._put)
        if self._decided is None:
            inner.compare.add(result=_GREATER, target=_VALUE, key=self.where, value=value)
            inner.success.add().request_range.key = self.where
            self._add_put(inner.failure.add, value, keys)
            return
        # Not by its value, which may have much longer metadata: `cost` would not be an upper bound.
        inner.compare.add(result=_EQUAL, target=_MOD, key=self.where, mod_revision=self._revision)
        self._add_put(inner.success.add, value, keys)
        inner.failure.add().request_range.key = self.where

    def apply(self, reply: etcd_pb.TxnResponse) -> None:
        """Process the reply to that step. If there is no outcome after it, another step follows.

        Raises StoreDamagedError if what stands was not written by a Meta Service.
        """
        found = reply.responses[0]
        if not found.HasField("response_range"):
            self.outcome = self._decided or SaveOutcome(Status.APPLIED, self._put)
            return
        kvs = found.response_range.kvs
        self._revision = kvs[0].mod_revision if kvs else 0
        standing = decode_stored(self.where, kvs[0].value) if kvs else None
        decided = decide_save(self.entry, standing)
        if decided.standing is None or decided.standing == standing:
            self.outcome = decided
        else:
            self._decided = decided
            self._put = decided.standing

    def fail(self, error: AdapterError) -> None:
        """Call when the transaction failed and its outcome is unknown, or what stands cannot be read."""
        self.error = error
        self.outcome = SaveOutcome(Status.UNAVAILABLE, None, str(error))

    def _add_put(self, add: Callable[[], etcd_pb.RequestOp], value: bytes, keys: Keys) -> None:
        put = add().request_put
        put.key, put.value = self.where, value
        if not self._put.live:
            add().request_put.key = keys.tombstone(self.where, self._put)


class _Caller:
    """The items of one `merge` call, and the future that ends it."""

    __slots__ = ("future", "guard", "left")

    def __init__(self, guard: etcd_pb.Compare, left: int) -> None:
        self.guard = guard
        self.left = left
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> None:
        """One item is finished."""
        self.left -= 1
        if not self.left:
            # A caller that was cancelled meanwhile has a finished future.
            with contextlib.suppress(asyncio.InvalidStateError):
                self.future.set_result(None)


class TxnBatcher:
    """Merges entries into one Raft group. `run` must be running."""

    def __init__(self, cluster: EtcdCluster, keys: Keys, writer: str, max_txn_ops: int) -> None:
        self.cluster = cluster
        self._keys = keys
        self._writer = keys.writers + writer.encode()
        # etcd adds the operations of a nested transaction to those of the outer one; one of these is the put of `_writer`.
        self._max_entries = min(MAX_TXN_ENTRIES, max_txn_ops - 3)
        self._waiting: deque[tuple[_Caller, Item]] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        self._sent = 0

    @property
    def waiting(self) -> int:
        """The number of entries that are not in a transaction yet."""
        return len(self._waiting)

    async def merge(self, guard: etcd_pb.Compare, items: Sequence[Item]) -> None:
        """Merge items with different keys. Items without an outcome afterwards were refused by the fence; nothing was done.

        If the caller is cancelled, items in a transaction may still be written. Raises NotReadyError if `run` has ended.
        """
        if self._ended:
            raise NotReadyError("stopped before this was taken; send it again")
        if items:
            caller = _Caller(guard, len(items))
            self._waiting.extend((caller, item) for item in items)
            self._arrived.set()
            await caller.future

    async def run(self) -> None:
        """Send transactions until cancelled. Callers that still wait then get a NotReadyError."""
        try:
            async with anyio.create_task_group() as tasks:
                for number in range(IN_FLIGHT):
                    tasks.start_soon(self._work, name=f"etcd.{self.cluster.name}.{number}")
        finally:
            self._ended = True
            self._abandon(self._waiting)

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if batch:
                try:
                    await self._send(batch)
                except BaseException:
                    self._abandon(batch)
                    raise

    def _next_batch(self) -> list[tuple[_Caller, Item]]:
        """The items of the next transaction: no key twice, and all for the same layout."""
        batch: list[tuple[_Caller, Item]] = []
        seen: set[bytes] = set()
        notes: set[bytes] = set()
        room = MAX_BYTES
        while self._waiting and len(batch) + len(notes) < self._max_entries:
            caller, item = self._waiting[0]
            if caller.future.done():  # its caller was cancelled
                self._waiting.popleft()
                continue
            room -= item.cost
            if batch and (room < 0 or item.where in seen or not _can_share_txn((caller, item), batch[0])):
                break
            if item.note and item.note not in notes:
                # With the key that each transaction with notes puts.
                if batch and len(batch) + len(notes) + 1 + (not notes) >= self._max_entries:
                    break
                notes |= {item.note, self._keys.noted}
            seen.add(item.where)
            batch.append(self._waiting.popleft())
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _send(self, batch: Sequence[tuple[_Caller, Item]]) -> None:
        request = etcd_pb.TxnRequest(compare=[batch[0][0].guard])
        # etcd checks its quota only for puts outside of nested transactions; so make one.
        self._sent += 1
        put = request.success.add().request_put
        put.key, put.value = self._writer, b"%d" % self._sent
        for _, item in batch:
            item.add_to(request, self._keys)
        add_notes(request, {item.note for _, item in batch if item.note}, self._keys)
        try:
            reply = await self.cluster.txn(request, resend=not batch[0][1].once)
        except (MetaUnavailableError, DiskFullError, RefusedError) as error:
            for caller, item in batch:
                item.fail(error)
                caller.done()
            return
        if not reply.succeeded:
            for caller, _ in batch:
                caller.done()
            return
        for (caller, item), found in zip(batch, reply.responses[1 : 1 + len(batch)], strict=True):
            try:
                item.apply(found.response_txn)
            except StoreDamagedError as error:
                item.fail(error)
            if item.outcome is None:
                self._waiting.appendleft((caller, item))
                self._arrived.set()
            else:
                caller.done()

    @staticmethod
    def _abandon(waiting: Iterable[tuple[_Caller, Item]]) -> None:
        stopped = "stopped before this was answered; it may or may not be stored: send it again"
        for caller, _ in waiting:
            with contextlib.suppress(asyncio.InvalidStateError):
                caller.future.set_exception(NotReadyError(stopped))


def add_notes(request: etcd_pb.TxnRequest, notes: Collection[bytes], keys: Keys) -> None:
    """Add the puts that note changes of groups to a transaction: one for each, and one more if there are any."""
    for note in (*notes, keys.noted) if notes else ():
        request.success.add().request_put.key = note


def _can_share_txn(one: tuple[_Caller, Item], other: tuple[_Caller, Item]) -> bool:
    """Whether two items may share a transaction: same layout, and both or neither may be resent."""
    return one[0].guard is other[0].guard and one[1].once == other[1].once
