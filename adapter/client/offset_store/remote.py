"""The OffsetStore of clustering consumers: offsets in memory, persisted by each broker's adapter.

RocketMQ: RemoteBrokerOffsetStore.

Only changed offsets are sent, with the epoch that was read, so that a commit in flight cannot undo a reset (invariant 7). An
offset counts as stored when its adapter has answered, not before.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import anyio
import grpc.aio
import structlog

from adapter.client.batching import MAX_REQUEST
from adapter.client.client import OffsetClient
from adapter.client.offset_store.store import OffsetStoreError, ReadOffsetType
from adapter.client.offset_store.table import Entry, OffsetTable, Sent
from adapter.model.names import check_name
from adapter.model.queues import MessageQueue, shard_of
from adapter.model.records import DEFAULT_NAMESPACE, U64_MAX, CommitMode, ReadMode, taken_up
from adapter.rpc import offsets_pb

log = structlog.get_logger(__name__)

OnReset: TypeAlias = Callable[[MessageQueue, int | None], None]
Entries: TypeAlias = dict[MessageQueue, Entry]


@dataclass(frozen=True)
class _Outcome:
    """The results of one call for all queues, over all adapters."""

    failed: dict[MessageQueue, str] = field(default_factory=dict)
    read: dict[MessageQueue, offsets_pb.ShardOffset] = field(default_factory=dict)
    resets: dict[MessageQueue, int | None] = field(default_factory=dict)

    def fail(self, queues: Iterable[MessageQueue], error: grpc.aio.AioRpcError) -> None:
        """Note that a call to an adapter failed for these queues."""
        self.failed.update(dict.fromkeys(queues, f"{error.code().name}: {error.details()}"))


Queues: TypeAlias = Mapping[MessageQueue, str]  # the queues of one adapter -> their shard names
Work: TypeAlias = Callable[[OffsetClient, Queues, _Outcome], Coroutine[Any, Any, None]]


class RemoteOffsetStore(OffsetTable):
    """An `OffsetStore` over one adapter for all queues, or (`clients` as a mapping) over the adapter of each broker by its name.

    A larger stored offset of the same epoch is kept, and the offset in memory is not raised to it: this consumer has not
    processed those messages. If the store has a higher epoch (a reset, a deletion, or a rewind by another consumer), memory is
    frozen at the stored offset, at None for a deletion, and `on_reset(queue, offset | None)` is called at the end of that
    persist. After that, `remove_offset` and a read start anew. Rewinds and frozen offsets are stored with OVERWRITE, all others
    with INCREASE_ONLY. The first commit of a queue that was never read gets the stored epoch, which is known from then on; if a
    reset holds the shard, it is treated as that reset.
    """

    def __init__(
        self,
        clients: OffsetClient | Mapping[str, OffsetClient],
        group: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        on_reset: OnReset | None = None,
    ) -> None:
        super().__init__(group, U64_MAX)
        self._clients = clients
        self._namespace = check_name(namespace or DEFAULT_NAMESPACE, "namespace")
        self._on_reset = on_reset

    async def load(self) -> None:
        """Do nothing: stored offsets are read queue by queue."""

    async def read_offset(
        self, queue: MessageQueue, read_type: ReadOffsetType = ReadOffsetType.MEMORY_FIRST_THEN_STORE
    ) -> int | None:
        """The offset of a queue; from the store means: the Meta Service's, merged with the adapter's. Raises OffsetStoreError."""
        held = self._in_memory(queue)
        if read_type is ReadOffsetType.READ_FROM_MEMORY or (held is not None and read_type is not ReadOffsetType.READ_FROM_STORE):
            return held
        entry = self._entries.get(queue)
        async with entry.lock if entry else nullcontext():
            before = entry and entry.state
            outcome = await self._at_each_adapter([queue], self._read)
            row = outcome.read.get(queue)
            # An update or removal by the consumer during the read is newer than what was read.
            if row and self._entries.get(queue) is entry and (entry and entry.state) == before:
                self._refresh(queue, row.offset, row.epoch)
        _check("reading the offset", outcome)
        return row.offset if row else None

    async def persist(self, queue: MessageQueue) -> None:
        """Commit the offset of a queue; returns when it is durable as the group's policy says. Raises OffsetStoreError."""
        await self._persist([queue], self._commit)

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Commit these queues, and forget all others: a request for each adapter and 2,048 queues, others for rewinds."""
        if queues:
            self._retain(queues)
            await self._persist(queues, self._commit)

    async def force_persist(self, queues: Collection[MessageQueue]) -> None:
        """Commit these queues; returns when the Meta Service has their offsets, earlier commits included."""
        await self._persist(queues, self._commit_and_flush)

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Commit these queues, remove them from the adapter once the Meta Service has them, and forget them in memory."""
        try:
            await self._persist(queues, self._commit_and_remove)
        except OffsetStoreError as error:
            self._forget_stored(set(queues) - error.failed.keys())
            raise
        self._forget_stored(queues)

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Raise an offset in memory and commit it.

        RocketMQ leaves memory alone, so that its next persist restores the old one.
        """
        self.update_offset(queue, offset, increase_only=True)
        await self.persist(queue)

    async def _persist(self, queues: Collection[MessageQueue], work: Work) -> None:
        outcome = await self._at_each_adapter(queues, work)
        for queue, offset in outcome.resets.items():
            log.warning("offset_store.reset", group=self._group, shard=shard_of(queue), offset=offset)
            if self._on_reset:
                self._on_reset(queue, offset)
        _check("storing the offset", outcome)

    async def _at_each_adapter(self, queues: Collection[MessageQueue], work: Work) -> _Outcome:
        outcome = _Outcome()
        parts: dict[OffsetClient, dict[MessageQueue, str]] = {}
        for queue in sorted(set(queues)):  # one order for all calls, so that their locks cannot deadlock
            shard = shard_of(queue)
            client = self._clients.get(queue.broker_name) if isinstance(self._clients, Mapping) else self._clients
            if client:
                parts.setdefault(client, {})[queue] = shard
            else:
                outcome.failed[queue] = f"no adapter is known for the broker {queue.broker_name!r}"
        if len(parts) == 1:  # a task group would double the cost of committing one queue
            await work(*parts.popitem(), outcome)
            return outcome
        async with anyio.create_task_group() as tasks:
            for client, part in parts.items():
                tasks.start_soon(work, client, part, outcome)
        return outcome

    # Calls to one adapter

    async def _read(self, client: OffsetClient, queues: Queues, outcome: _Outcome) -> None:
        try:
            rows = await client.read(self._group, list(queues.values()), namespace=self._namespace, mode=ReadMode.STORE)
        except grpc.aio.AioRpcError as error:
            outcome.fail(queues, error)
        else:
            outcome.read.update((queue, rows[shard]) for queue, shard in queues.items() if shard in rows)

    async def _commit_and_flush(self, client: OffsetClient, queues: Queues, outcome: _Outcome) -> None:
        await self._commit_and(client.persist, client, queues, outcome)

    async def _commit_and_remove(self, client: OffsetClient, queues: Queues, outcome: _Outcome) -> None:
        await self._commit_and(client.remove, client, queues, outcome)

    async def _commit_and(
        self, finish: Callable[..., Awaitable[Any]], client: OffsetClient, queues: Queues, outcome: _Outcome
    ) -> None:
        await self._commit(client, queues, outcome)
        stored = {queue: shard for queue, shard in queues.items() if queue not in outcome.failed}
        try:
            if stored:  # an empty list would mean all shards
                await finish(self._group, list(stored.values()), namespace=self._namespace)
        except grpc.aio.AioRpcError as error:
            outcome.fail(stored, error)

    async def _commit(self, client: OffsetClient, queues: Queues, outcome: _Outcome) -> None:
        async with self._locked(queues) as entries:
            unread = {queue: entry for queue, entry in entries.items() if entry.dirty and not entry.epoch}
            for overwrite in (False, True):
                for part in _cut(_due(entries, overwrite=overwrite)):
                    due = part
                    while due:
                        due = _due(await self._send(client, due, outcome), overwrite=overwrite)
            if unread:
                await self._learn_epochs(client, unread, outcome)

    @asynccontextmanager
    async def _locked(self, queues: Queues) -> AsyncIterator[Entries]:
        """Lock the entries of queues against concurrent sends and reads."""
        found = {queue: entry for queue in queues if (entry := self._entries.get(queue))}
        locked: list[Entry] = []
        try:
            for entry in found.values():
                await entry.lock.acquire()
                locked.append(entry)
            yield {queue: entry for queue, entry in found.items() if self._entries.get(queue) is entry}
        finally:
            for entry in locked:
                entry.lock.release()

    async def _send(self, client: OffsetClient, entries: Entries, outcome: _Outcome) -> Entries:
        """Commit dirty entries, which are all overwrites or none is. Returns those that have to be sent again."""
        sent = {queue: entry.take() for queue, entry in entries.items()}
        overwrite = any(value.overwrite for value in sent.values())
        try:
            rows = await client.commit(
                self._group,
                {entry.shard: sent[queue].offset for queue, entry in entries.items()},
                namespace=self._namespace,
                mode=CommitMode.OVERWRITE if overwrite else CommitMode.INCREASE_ONLY,
                epochs={entry.shard: entry.epoch for entry in entries.values() if entry.epoch},
                check=False,
            )
        except BaseException as error:
            for queue, entry in entries.items():
                entry.put_back(sent[queue])
            if not isinstance(error, grpc.aio.AioRpcError):
                raise
            outcome.fail(entries, error)
            return {}
        for entry in entries.values():
            entry.raise_to(rows.raised.get(entry.shard, 0))
        return self._settle(entries, sent, {row.shard: row for row in rows}, outcome)

    def _settle(
        self,
        entries: Entries,
        sent: Mapping[MessageQueue, Sent],
        stored: Mapping[str, offsets_pb.Superseded],
        outcome: _Outcome,
    ) -> Entries:
        again: Entries = {}
        for queue, entry in entries.items():
            row = stored.get(entry.shard)
            if row is None or not (row.held or 0 < taken_up(sent[queue].epoch) < taken_up(row.epoch)):
                entry.settle(sent[queue])
            elif entry.follow_own_rewind(sent[queue], row.epoch, None if row.deleted else row.offset):
                again[queue] = entry
            else:
                self._freeze(queue, entry, row.epoch, None if row.deleted else row.offset, outcome)
        return again

    async def _learn_epochs(self, client: OffsetClient, entries: Entries, outcome: _Outcome) -> None:
        """Read the epochs of queues whose first offset was just stored, so that a reset is noticed from here on."""
        try:
            shards = [entry.shard for entry in entries.values()]
            rows = await client.read(self._group, shards, namespace=self._namespace, mode=ReadMode.MEMORY)
        except grpc.aio.AioRpcError:
            return  # not an error of the commit; the next one reads again
        for queue, entry in entries.items():
            row = rows.get(entry.shard)
            if row is None or entry.stored is None:
                continue
            if row.offset >= entry.stored:
                entry.epoch = row.epoch
            else:  # only a reset, or a rewind by another consumer, can have lowered it meanwhile
                self._freeze(queue, entry, row.epoch, row.offset, outcome)

    def _freeze(self, queue: MessageQueue, entry: Entry, epoch: int, stored: int | None, outcome: _Outcome) -> None:
        entry.freeze_at(epoch, stored)
        if self._entries.get(queue) is entry:
            outcome.resets[queue] = stored


def _due(entries: Entries, *, overwrite: bool) -> Entries:
    return {queue: entry for queue, entry in entries.items() if entry.dirty and entry.overwrite is overwrite}


def _cut(entries: Entries) -> Iterator[Entries]:
    """The entries in requests: an adapter takes up to 5,000 offsets in one."""
    queues = iter(entries.items())
    while part := dict(islice(queues, MAX_REQUEST)):
        yield part


def _check(what: str, outcome: _Outcome) -> None:
    if outcome.failed:
        raise OffsetStoreError.of(what, outcome.failed)
