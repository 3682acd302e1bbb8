"""The Meta Service as the adapter sees it: its calls in our terms, whether it knows epochs or only offsets.

Never retries: the flusher and the recovery do, with the values that are newest by then.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from random import Random
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from adapter.channels import open_channel
from adapter.clocks import wall_ms
from adapter.config import MetaSection
from adapter.endpoints import Endpoints, OtherKindError
from adapter.errors import AdapterError, MetaUnavailableError, RefusedError
from adapter.meta_told import Told
from adapter.model import (
    GroupKey,
    KnownStore,
    LocalStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    as_seen,
)
from adapter.rpc import meta_grpc, meta_pb
from adapter.wire import in_slices, record_of, save_outcome, save_request

R = TypeVar("R")

Page = tuple[list[tuple[OffsetKey, OffsetRecord]], bytes]

KIND_CHANGES = 4  # of the server while one read is under way, after which it is given up

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
    # After a failure the next attempt decides, not a channel that is still waiting to reconnect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Behind one name (a load balancer), a machine that dies without a word would be called until TCP gives up: for minutes.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # `keepalive_timeout_ms` alone ends no connection in grpcio 1.85
    ("grpc.keepalive_permit_without_calls", 1),
)

order = Random()  # noqa: S311 - of endpoints, keeps no secret


class MetaClient(Protocol):
    """The Meta Service as the adapter needs it. Every method raises MetaUnavailableError when it cannot answer."""

    @property
    def available(self) -> bool:
        """False after a call was not answered, until one is. An overloaded server did answer."""

    @property
    def endpoint(self) -> str:
        """Where the next call goes."""

    @property
    def knows_epochs(self) -> bool:
        """False once the server showed that it knows only offsets (a real RobustMQ): see docs/discussion.md."""

    @property
    def told(self) -> Told:
        """What both sides tell each other beside offsets."""

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries; one outcome each, in their order."""

    async def report_store(self, store: LocalStore, replaces: bytes = b"") -> KnownStore | None:
        """Tell which local store is open here, in place of the one with the `store_id` `replaces`; what was known before."""

    async def get(self, keys: Sequence[OffsetKey]) -> dict[OffsetKey, OffsetRecord]:
        """The records of these keys, tombstones included."""

    async def get_groups(self, groups: Sequence[GroupKey], *, patient: bool = False) -> list[dict[OffsetKey, OffsetRecord]]:
        """All records of these groups, tombstones included, in their order. Not `patient`: a commit waits for them."""

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """A page of everything, and the token of the next (empty: the last)."""

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        """Take a group away unless it was committed to at or after `before_ms`; then that time, else 0 (Unix ms)."""

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        """Delete shards of a group without saying an epoch: for a server that knows none."""


class GrpcMetaClient:
    """Speaks to one endpoint until it fails, then to the next."""

    def __init__(self, section: MetaSection, channels: Mapping[str, grpc.aio.Channel]) -> None:
        self._cluster = section.cluster
        self._timeout_s = section.timeout_ms / 1000
        self._load_timeout_s = section.load_timeout_ms / 1000
        self._endpoints = Endpoints(section.endpoints, channels)
        self._reported_at = -1  # how many calls were unanswered when the local store was reported

    @classmethod
    @asynccontextmanager
    async def open(cls, section: MetaSection, *, spread: bool = False) -> AsyncIterator["GrpcMetaClient"]:
        """A client over new channels. Connects on first use. Raises ConfigError for TLS files that cannot be read.

        With `spread` the endpoints are tried in an order of its own: a fleet with one configuration uses all of them.
        """
        if spread:
            section = section.model_copy(update={"endpoints": tuple(order.sample(section.endpoints, len(section.endpoints)))})
        channels = {name: open_channel(name, section.tls, CHANNEL_OPTIONS, name="meta.tls") for name in section.endpoints}
        try:
            yield cls(section, channels)
        finally:
            for channel in channels.values():
                await channel.close()

    @property
    def available(self) -> bool:
        """False after a call failed, until one succeeds."""
        return self._endpoints.available

    @property
    def endpoint(self) -> str:
        """Where the next call goes."""
        return self._endpoints.current

    @property
    def knows_epochs(self) -> bool:
        """False once the server there showed that it knows only offsets."""
        return self._endpoints.knows_epochs

    @property
    def told(self) -> Told:
        """What both sides tell each other beside offsets."""
        return self._endpoints.told

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries; one outcome each, in their order. A server without epochs writes or, if told, compares and sets.

        The local store is told of with them, except after a call that was not answered: a server that was restarted meanwhile
        shall first say what it remembers of it, in answer to `report_store`.
        Raises MetaUnavailableError, with a time to come back when the server is overloaded; it is unknown then whether the save
        was applied, and sending it again is harmless. OtherKindError, one of these: nothing was sent, because what was asked of
        `knows_epochs` before is not so any more.
        """
        epochs = self.knows_epochs  # before anything is awaited: the caller has just looked
        if not epochs and not all(entry.record.live for entry in entries):
            raise RefusedError(f"{self.endpoint}: knows no epochs and would take a tombstone for the offset 0")
        request = await save_request(self._cluster, entries)
        if epochs:
            self._tell(request)
        reply = await self._call(
            lambda stub: stub.SaveOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s, epochs=epochs
        )
        if entries:
            self._endpoints.learn(epochs=bool(reply.results))
        if not reply.results:
            return [_without_result(entry, committed=reply.committed) for entry in entries]
        if len(reply.results) != len(entries):
            raise MetaUnavailableError(f"{self.endpoint}: answered {len(reply.results)} results to {len(entries)} entries")
        outcomes: list[SaveOutcome] = []
        async for entry_slice in in_slices(entries):
            rows = reply.results[len(outcomes) : len(outcomes) + len(entry_slice)]
            outcomes += [_outcome(entry, row) for entry, row in zip(entry_slice, rows, strict=True)]
        return outcomes

    async def report_store(self, store: LocalStore, replaces: bytes = b"") -> KnownStore | None:
        """Tell which local store is open here, in place of the one with the `store_id` `replaces`; what was known before.

        Raises MetaUnavailableError, RefusedError; UnknownCallError, one of these, where stores are not remembered (RobustMQ).
        """
        request = meta_pb.ReportStoreRequest(
            cluster_name=self._cluster, store=meta_pb.LocalStore(**store._asdict()), replaces=replaces, now_ms=wall_ms()
        )
        unanswered = self._endpoints.unanswered
        reply = await self._call(lambda stub: stub.ReportStore(request, timeout=self._timeout_s), timeout_s=self._timeout_s)
        self._reported_at = unanswered
        if not reply.HasField("known"):
            return None
        known = reply.known
        return KnownStore(LocalStore(known.broker, known.path, known.store_id, known.flushed_seq), reply.known_at_ms)

    async def get(self, keys: Sequence[OffsetKey]) -> dict[OffsetKey, OffsetRecord]:
        """The records of these keys, tombstones included; `keys` come sorted or at least grouped. Without keys it only looks."""
        if not keys:
            await self._endpoints.look(self._timeout_s)
            return {}
        by_group = [(group, [key.shard for key in members]) for group, members in groupby(keys, lambda key: key.group_key)]
        wanted = set(keys)
        found = await self._get_groups(by_group, self._timeout_s)
        return {key: record for records in found for key, record in records.items() if key in wanted}

    async def get_groups(self, groups: Sequence[GroupKey], *, patient: bool = False) -> list[dict[OffsetKey, OffsetRecord]]:
        """All records of these groups, tombstones included, in their order. Not `patient`: a commit waits for them."""
        return await self._get_groups([(group, []) for group in groups], self._timeout_s if patient else self._load_timeout_s)

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """A page of everything, and the token of the next (empty: the last)."""
        request = meta_pb.ListOffsetDataRequest(
            cluster_name=self._cluster, namespace=namespace, group=group, page_size=size, page_token=token
        )
        reply = await self._call(lambda stub: stub.ListOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s)
        entries = [
            (OffsetKey(entry.offset.namespace, entry.group, entry.offset.shard_name), record_of(entry.offset))
            for entry in reply.entries
        ]
        return entries, reply.next_page_token

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        """Take a group away unless it was committed to at or after `before_ms`; then that time, else 0 (Unix ms)."""
        request = meta_pb.ExpireOffsetDataRequest(
            cluster_name=self._cluster, namespace=group.namespace, group=group.group, before_ms=before_ms, now_ms=now_ms
        )
        reply = await self._call(lambda stub: stub.ExpireOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s)
        return reply.newest_ms

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        """Delete shards of a group without saying an epoch: for a server that knows none."""
        request = meta_pb.DeleteOffsetDataRequest(
            tenant=group.namespace, namespace=group.namespace, group=group.group, shard_names=shards, cluster_name=self._cluster
        )
        await self._call(lambda stub: stub.DeleteOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s)

    async def _get_groups(
        self, wanted: Sequence[tuple[GroupKey, list[str]]], timeout_s: float
    ) -> list[dict[OffsetKey, OffsetRecord]]:
        """By the call that the server knows: one of ours does not show tombstones in the one that RobustMQ has."""
        for _ in range(KIND_CHANGES):
            epochs = self.knows_epochs
            with contextlib.suppress(OtherKindError):
                if epochs:
                    return await self._get_batch(wanted, timeout_s)
                found = [await self._get_group(group, timeout_s) for group, _ in wanted]
                if not self.knows_epochs:
                    return found
        raise MetaUnavailableError(f"{self.endpoint}: its servers change all the time between those with and without epochs")

    async def _get_batch(
        self, wanted: Sequence[tuple[GroupKey, list[str]]], timeout_s: float
    ) -> list[dict[OffsetKey, OffsetRecord]]:
        request = meta_pb.BatchGetOffsetDataRequest(cluster_name=self._cluster)
        for group, shards in wanted:
            request.groups.add(namespace=group.namespace, group=group.group, shard_names=shards)
        reply = await self._call(
            lambda stub: stub.BatchGetOffsetData(request, timeout=timeout_s), timeout_s=timeout_s, epochs=True
        )
        return [
            {OffsetKey(*group, item.shard_name): record_of(item) for item in found.offsets}
            for (group, _), found in zip(wanted, reply.groups, strict=True)
        ]

    async def _get_group(self, group: GroupKey, timeout_s: float) -> dict[OffsetKey, OffsetRecord]:
        request = meta_pb.GetOffsetDataRequest(
            tenant=group.namespace, namespace=group.namespace, group=group.group, cluster_name=self._cluster
        )
        reply = await self._call(lambda stub: stub.GetOffsetData(request, timeout=timeout_s), timeout_s=timeout_s, epochs=False)
        if any(item.epoch for item in reply.offsets):
            self._endpoints.learn(epochs=True)
        return {OffsetKey(*group, item.shard_name): record_of(item) for item in reply.offsets}

    def _tell(self, request: meta_pb.SaveOffsetDataRequest) -> None:
        request.now_ms = wall_ms()
        if self.told.store and self._reported_at == self._endpoints.unanswered:
            request.store.CopyFrom(meta_pb.LocalStore(**self.told.store()._asdict()))

    async def _call(
        self,
        call: "Callable[[meta_grpc.MetaServiceServiceAsyncStub], Awaitable[R]]",
        *,
        timeout_s: float,
        epochs: bool | None = None,
    ) -> R:
        return await self._endpoints.call(call, timeout_s=timeout_s, epochs=epochs)


def failure_of(key: OffsetKey, outcome: SaveOutcome) -> AdapterError:
    """Why an entry is not acknowledged: MetaUnavailableError, and it may be saved or not; or RefusedError, and it is not."""
    if outcome.status is Status.UNAVAILABLE:
        return MetaUnavailableError(f"{'/'.join(key)}: the Meta Service did not answer for it: {outcome.message}".rstrip(": "))
    return RefusedError(f"{'/'.join(key)}: the Meta Service refused it: {outcome.status.name} {outcome.message}".rstrip())


def _without_result(entry: SaveEntry, *, committed: bool) -> SaveOutcome:
    """The outcome at a server that answers with `committed` alone: True when every expectation of the request was met."""
    if entry.expected_offset is None or committed:
        return SaveOutcome(Status.APPLIED, as_seen(entry.record, None))
    return SaveOutcome(Status.CONFLICT, None, "this one, or another of the same save, was not as expected")


def _outcome(entry: SaveEntry, row: meta_pb.SaveOffsetResult) -> SaveOutcome:
    try:
        return save_outcome(entry, row)
    except ValueError:
        return SaveOutcome(Status.INVALID, None, f"the Meta Service answered with the unknown status {row.status}")
