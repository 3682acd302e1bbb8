"""The way to the Meta Service: endpoints, failover, deadlines, and its errors in our terms.

Never retries: the flusher and the recovery do, with the values that are newest by then.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Protocol, TypeVar

import grpc
import grpc.aio
import structlog

from adapter.config import ClientTls, MetaSection
from adapter.errors import AdapterError, ConfigError, MetaUnavailableError, RefusedError
from adapter.model import GroupKey, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, as_seen
from adapter.rpc import meta_grpc, meta_pb
from adapter.wire import in_slices, record_of, save_outcome, save_request

log = structlog.get_logger(__name__)

R = TypeVar("R")

Page = tuple[list[tuple[OffsetKey, OffsetRecord]], bytes]

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
    # After a failure the next attempt decides, not a channel that is still waiting to reconnect.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)

# What the same request may not meet again; another endpoint is tried at once.
_UNAVAILABLE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class MetaClient(Protocol):
    """The Meta Service as the adapter needs it. Every method raises MetaUnavailableError when it cannot answer."""

    @property
    def available(self) -> bool:
        """False after a call failed, until one succeeds."""

    @property
    def endpoint(self) -> str:
        """Where the next call goes."""

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries; one outcome each, in their order."""

    async def get(self, keys: Sequence[OffsetKey]) -> dict[OffsetKey, OffsetRecord]:
        """The records of these keys, tombstones included."""

    async def get_groups(self, groups: Sequence[GroupKey], *, patient: bool = False) -> list[dict[OffsetKey, OffsetRecord]]:
        """All records of these groups, tombstones included, in their order. Not `patient`: a commit waits for them."""

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """A page of everything, and the token of the next (empty: the last)."""


class GrpcMetaClient:
    """Speaks to one endpoint until it fails, then to the next."""

    def __init__(self, section: MetaSection, channels: Mapping[str, grpc.aio.Channel]) -> None:
        self._cluster = section.cluster
        self._timeout_s = section.timeout_ms / 1000
        self._load_timeout_s = section.load_timeout_ms / 1000
        self._stubs = {name: meta_grpc.MetaServiceServiceStub(channel) for name, channel in channels.items()}
        self._endpoints = section.endpoints
        self.endpoint = section.endpoints[0]
        self._batch_get = True
        self.available = True

    @classmethod
    @asynccontextmanager
    async def open(cls, section: MetaSection) -> AsyncIterator["GrpcMetaClient"]:
        """A client over new channels. Connects on first use. Raises ConfigError for TLS files that cannot be read."""
        credentials = _credentials(section.tls) if section.tls else None
        channels = {
            name: grpc.aio.secure_channel(name, credentials, CHANNEL_OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(name, CHANNEL_OPTIONS)
            for name in section.endpoints
        }
        try:
            yield cls(section, channels)
        finally:
            for channel in channels.values():
                await channel.close()

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries; one outcome each, in their order.

        Raises MetaUnavailableError; it is unknown then whether the save was applied, and sending it again is harmless.
        """
        request = await save_request(self._cluster, entries)
        reply = await self._call(lambda stub: stub.SaveOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s)
        if not reply.results and entries:
            log.debug("meta.no_results", help="this server knows no epochs: its reply is taken as applied")
            return [SaveOutcome(Status.APPLIED, as_seen(entry.record, None)) for entry in entries]
        if len(reply.results) != len(entries):
            raise MetaUnavailableError(f"{self.endpoint}: answered {len(reply.results)} results to {len(entries)} entries")
        outcomes: list[SaveOutcome] = []
        async for entry_slice in in_slices(entries):
            rows = reply.results[len(outcomes) : len(outcomes) + len(entry_slice)]
            outcomes += [_outcome(entry, row) for entry, row in zip(entry_slice, rows, strict=True)]
        return outcomes

    async def get(self, keys: Sequence[OffsetKey]) -> dict[OffsetKey, OffsetRecord]:
        """The records of these keys, tombstones included; `keys` come sorted or at least grouped."""
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

    async def _get_groups(
        self, wanted: Sequence[tuple[GroupKey, list[str]]], timeout_s: float
    ) -> list[dict[OffsetKey, OffsetRecord]]:
        if not self._batch_get:
            return [await self._get_group(group, timeout_s) for group, _ in wanted]
        request = meta_pb.BatchGetOffsetDataRequest(cluster_name=self._cluster)
        for group, shards in wanted:
            request.groups.add(namespace=group.namespace, group=group.group, shard_names=shards)
        try:
            reply = await self._call(lambda stub: stub.BatchGetOffsetData(request, timeout=timeout_s), timeout_s=timeout_s)
        except _UnimplementedError:
            log.info("meta.no_batch_get", endpoint=self.endpoint, help="groups are fetched one by one")
            self._batch_get = False
            return await self._get_groups(wanted, timeout_s)
        return [
            {OffsetKey(*group, item.shard_name): record_of(item) for item in found.offsets}
            for (group, _), found in zip(wanted, reply.groups, strict=True)
        ]

    async def _get_group(self, group: GroupKey, timeout_s: float) -> dict[OffsetKey, OffsetRecord]:
        request = meta_pb.GetOffsetDataRequest(
            tenant=group.namespace, namespace=group.namespace, group=group.group, cluster_name=self._cluster
        )
        reply = await self._call(lambda stub: stub.GetOffsetData(request, timeout=timeout_s), timeout_s=timeout_s)
        return {OffsetKey(*group, item.shard_name): record_of(item) for item in reply.offsets}

    async def _call(self, call: "Callable[[meta_grpc.MetaServiceServiceAsyncStub], Awaitable[R]]", *, timeout_s: float) -> R:
        """Call the current endpoint; when it is unavailable, each other one once. The one that answered stays current."""
        problems = []
        first = self._endpoints.index(self.endpoint)
        for endpoint in (*self._endpoints[first:], *self._endpoints[:first]):
            try:
                answer = await call(self._stubs[endpoint])
            except grpc.aio.AioRpcError as error:
                found = _translate(endpoint, error, timeout_s)
                if not isinstance(found, MetaUnavailableError):
                    self.available = True
                    raise found from error
                problems.append(str(found))
                continue
            self.available = True
            self.endpoint = endpoint
            return answer
        self.available = False
        raise MetaUnavailableError("; ".join(problems))


class _UnimplementedError(RefusedError):
    """The server does not know this RPC."""


def _outcome(entry: SaveEntry, row: meta_pb.SaveOffsetResult) -> SaveOutcome:
    try:
        return save_outcome(entry, row)
    except ValueError:
        return SaveOutcome(Status.INVALID, None, f"the Meta Service answered with the unknown status {row.status}")


def _translate(endpoint: str, error: grpc.aio.AioRpcError, timeout_s: float) -> AdapterError:
    code = error.code()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return _UnimplementedError(f"{endpoint}: UNIMPLEMENTED: {error.details()}; is this a Meta Service?")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return MetaUnavailableError(f"{endpoint}: no answer within {timeout_s:g} s")
    text = f"{endpoint}: {code.name}: {error.details()}"
    return MetaUnavailableError(text) if code in _UNAVAILABLE else RefusedError(text)


def _credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    try:
        ca, key, cert = (path.read_bytes() if path else None for path in (tls.ca, tls.key, tls.cert))
        # gRPC would fail each call without saying why: let the standard library look first.
        context = ssl.create_default_context(cafile=str(tls.ca))
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    except ssl.SSLError as error:
        files = ", ".join(str(path) for path in (tls.ca, tls.cert, tls.key) if path)
        raise ConfigError(f"meta.tls: {files}: not PEM files that belong together: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"meta.tls: {error.filename}: {error.strerror}") from error
    return grpc.ssl_channel_credentials(ca, key, cert)
