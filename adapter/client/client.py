"""A client of the adapter's local API, for Python brokers and tools. Its concurrent commits share requests (`batching`)."""

import asyncio
import getpass
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

import grpc
import grpc.aio

from adapter.client.batching import Batcher
from adapter.client.pending import rpc_error
from adapter.errors import ConfigError, InvalidInputError
from adapter.model.records import DEFAULT_NAMESPACE, CommitMode, Member, ReadMode
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.addresses import is_loopback
from adapter.runtime.channels import open_channel

if TYPE_CHECKING:  # a command without TLS does without what checks settings
    from adapter.runtime.config import ClientTls

USER_KEY = "x-offset-adapter-user"  # metadata of admin calls: who the client says that it is
# The adapter is trusted, and a reply grows with its group.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # It is on this machine, and back within a second or two of a restart.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
DEFAULT_TIMEOUT_S = 5.0  # Kafka's commit timeout


class OffsetClient:
    """One channel to one adapter, in one event loop. Methods raise `grpc.aio.AioRpcError`.

    Concurrent commits share requests. One whose request was lost (UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED) is sent again for
    `timeout_s` seconds, as Kafka's commitSync does: it outlives a restart of the adapter. Without `resend` that is its end.
    `admin` is open on the Unix socket; on TCP it needs the adapter's `token` (or mTLS, by the channel). Only admin calls show it.
    """

    def __init__(
        self, channel: grpc.aio.Channel, timeout_s: float = DEFAULT_TIMEOUT_S, *, token: str = "", resend: bool = True
    ) -> None:
        self.store = offsets_grpc.OffsetStoreStub(channel)
        self.admin = offsets_grpc.OffsetAdminStub(cast("grpc.aio.Channel", _AdminChannel(channel, token)))
        self._timeout_s = timeout_s
        self._batcher = Batcher(self._send, timeout_s, resend=resend)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        address: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        token: str = "",
        tls: "ClientTls | None" = None,
        resend: bool = True,
    ) -> AsyncIterator[Self]:
        """A client of `host:port` or `unix:path`. Its end waits for the commits under way, see `close`.

        Raises ConfigError for TLS files that cannot be used, and for a token that would leave this machine in plaintext.
        """
        if token and tls is None and not _stays_here(address):
            raise ConfigError(
                f"{address}: the token would go there in plaintext, for everybody on the way to read: "
                "use TLS (--tls-ca), or the adapter's Unix socket"
            )
        async with open_channel(address, tls, CHANNEL_OPTIONS) as channel:
            client = cls(channel, timeout_s, token=token, resend=resend)
            try:
                yield client
            finally:
                await client.close()

    async def commit(
        self,
        group: str,
        offsets: Mapping[str, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: CommitMode = CommitMode.INCREASE_ONLY,
        epochs: Mapping[str, int] = MappingProxyType({}),
        member: Member | None = None,
    ) -> list[offsets_pb.Superseded]:
        """Commit shard -> next offset to read; returns once it is durable, with the shards above whose value a larger one stands.

        Commits that come while another request is under way share the next one. What a commit of the same time went beyond is
        superseded, with epoch 0 where `epochs` does not name one. `epochs` are those that came with the offsets when they were
        read: a commit in flight then cannot undo a reset. `member` fences: one of an older generation than the group's newest
        is refused with FAILED_PRECONDITION. After UNAVAILABLE, CANCELLED or DEADLINE_EXCEEDED it is not known whether it was
        applied. A cancelled commit may be applied all the same. An OVERWRITE goes by itself, after all that was committed to its
        group before it, and is never sent again: repeated, it could undo what others committed since.
        """
        batcher = self._batcher
        try:
            deadline = await batcher.limit.wait(self._timeout_s) if batcher.limit.full else 0.0
            return await batcher.commit((namespace or DEFAULT_NAMESPACE, group), offsets, mode, epochs, member, deadline) or []
        except InvalidInputError as error:
            raise rpc_error(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None

    async def close(self, limit_s: float | None = None) -> None:
        """Refuse new commits, wait for the answers of those under way for `limit_s` seconds (the client's timeout, if not given).

        Does not close the channel; `connect` does both.
        """
        await self._batcher.close(self._timeout_s if limit_s is None else limit_s)

    async def _send(self, request: offsets_pb.CommitOffsetsRequest, timeout_s: float) -> offsets_pb.CommitOffsetsReply:
        try:
            return await self.store.CommitOffsets(request, timeout=timeout_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            raise rpc_error(grpc.StatusCode.CANCELLED, "the channel was closed") from None

    async def read(
        self,
        group: str,
        shards: Sequence[str] = (),
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: ReadMode = ReadMode.MEMORY_FIRST_THEN_STORE,
    ) -> dict[str, offsets_pb.ShardOffset]:
        """The offsets of a group's shards (none named: of all); absent ones are left out."""
        request = offsets_pb.ReadOffsetsRequest(
            groups=[_shards(namespace, group, shards)], mode=offsets_pb.ReadMode.ValueType(mode.value)
        )
        reply = await self.store.ReadOffsets(request, timeout=self._timeout_s)
        return {offset.shard: offset for offset in reply.offsets}

    async def persist(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Return when the Meta Service holds at least the present values."""
        request = offsets_pb.PersistOffsetsRequest(groups=[_shards(namespace, group, shards)])
        await self.store.PersistOffsets(request, timeout=self._timeout_s)

    async def remove(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Persist, then forget locally; returns how many keys were removed."""
        request = offsets_pb.RemoveOffsetsRequest(groups=[_shards(namespace, group, shards)])
        reply = await self.store.RemoveOffsets(request, timeout=self._timeout_s)
        return reply.removed

    async def commit_broadcast(
        self, group: str, client_id: str, offsets: Mapping[str, int], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[offsets_pb.Superseded]:
        """Commit shard -> next offset to read for a client of a broadcasting group; only increases.

        Returns once it is durable, with the shards above whose value a larger one stands. Sent once: what had no answer may be
        sent again. A client counts as gone `[expiry] broadcast_seconds` after its last commit; where nothing moves, it commits
        the same again.
        """
        shards = [offsets_pb.ShardCommit(shard=shard, offset=offset) for shard, offset in offsets.items()]
        request = offsets_pb.CommitBroadcastRequest(namespace=namespace, group=group, client_id=client_id, shards=shards)
        reply = await self.store.CommitBroadcast(request, timeout=self._timeout_s)
        return list(reply.superseded)

    async def read_broadcast(
        self, group: str, shards: Sequence[str] = (), *, client_id: str = "", namespace: str = DEFAULT_NAMESPACE
    ) -> dict[str, offsets_pb.BroadcastOffset]:
        """The lowest offset of a broadcasting group in each shard (none named: in all), and the client's own if one is named.

        Where the client has none (`HasField("own")`), it begins at the lowest, and where nobody ever committed, as it likes.
        """
        request = offsets_pb.ReadBroadcastRequest(namespace=namespace, group=group, client_id=client_id, shards=shards)
        reply = await self.store.ReadBroadcast(request, timeout=self._timeout_s)
        return {row.shard: row for row in reply.offsets}

    async def flush(self) -> int:
        """Send everything dirty to the Meta Service; returns how many keys it acknowledged."""
        reply = await self.admin.Flush(offsets_pb.FlushRequest(), timeout=self._timeout_s)
        return reply.flushed

    async def status(self) -> offsets_pb.StatusReply:
        """What the adapter does at the moment."""
        return await self.admin.Status(offsets_pb.StatusRequest(), timeout=self._timeout_s)

    async def list(self, namespace: str = "", group: str = "") -> AsyncIterator[offsets_pb.ShardOffset]:
        """All local offsets, or those of a namespace or group, in key order."""
        request = offsets_pb.ListOffsetsRequest(namespace=namespace, group=group)
        while True:
            reply = await self.admin.ListOffsets(request, timeout=self._timeout_s)
            for offset in reply.offsets:
                yield offset
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token


def _shards(namespace: str, group: str, shards: Sequence[str]) -> offsets_pb.GroupShards:
    return offsets_pb.GroupShards(namespace=namespace, group=group, shards=shards)


class _AdminChannel:
    """A channel on which every call says who calls, and shows the token."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._channel = channel
        self._metadata = [(USER_KEY, _user())]
        if token:
            self._metadata.append(("authorization", f"Bearer {token}"))

    def unary_unary(self, *method: Any, **options: Any) -> Any:  # noqa: ANN401 - passed through
        return partial(self._channel.unary_unary(*method, **options), metadata=self._metadata)

    def unary_stream(self, *method: Any, **options: Any) -> Any:  # noqa: ANN401
        return partial(self._channel.unary_stream(*method, **options), metadata=self._metadata)


def _stays_here(address: str) -> bool:
    try:
        return address.startswith("unix:") or is_loopback(address)
    except ValueError:  # not host:port; gRPC knows more forms
        return False


def _user() -> str:
    """Who runs this, in printable ASCII, as metadata must be. Only a claim: the adapter logs it and believes nothing."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not be in its passwd
        name = str(os.getuid())
    return "".join(letter if " " < letter <= "~" else "?" for letter in name)
