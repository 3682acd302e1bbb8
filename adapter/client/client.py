"""OffsetClient: an asyncio client of the adapter's API. Concurrent commits share requests (`batching`)."""

import asyncio
import getpass
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import grpc
import grpc.aio

from adapter import rpc
from adapter.client.batching import FIRST_PAUSE_S, LEAST_TIMEOUT_S, MAX_PAUSE_S, Batcher
from adapter.client.pending import Committed, checked_key, checked_names, rpc_error
from adapter.client.progress import Progress
from adapter.client.superseded import KnownEpochs, SupersededError
from adapter.errors import ConfigError, InvalidInputError
from adapter.model.records import DEFAULT_NAMESPACE, CommitMode, Member, ReadMode
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.backoff import pause_s
from adapter.runtime.channels import known_to_its_scope, open_channel
from adapter.runtime.settings.addresses import is_loopback

if TYPE_CHECKING:
    from adapter.rpc import backup_grpc, lag_grpc, lag_pb
    from adapter.runtime.settings.config import ClientTls  # loads pydantic, which a client without TLS does not need

R = TypeVar("R")

USER_KEY = "x-offset-adapter-user"  # metadata of admin calls: the name of the calling user
# Unlimited: the adapter is trusted, and the size of a reply depends on the group.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # Reconnect fast: an adapter on this machine restarts within a second or two.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
DEFAULT_TIMEOUT_S = 5.0  # Kafka's commit timeout
AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})  # the second at the end of a server


class OffsetClient:
    """A client of one adapter over one channel, for one event loop.

    Methods raise `grpc.aio.AioRpcError`, and `commit` also SupersededError.
    Concurrent commits share requests. A commit whose request was lost (UNAVAILABLE, CANCELLED, DEADLINE_EXCEEDED) is sent again
    for `timeout_s` seconds, as Kafka's commitSync does, so it survives a restart of the adapter; so is the read with STORE by
    which a consumer begins. Without `resend` they fail at once. `admin` calls need no credentials on the Unix socket; on TCP
    they need the adapter's `token`, or mTLS. Other calls send no token.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        token: str = "",
        resend: bool = True,
        user: str = "",
    ) -> None:
        self.store = offsets_grpc.OffsetStoreStub(channel)
        self._admin_channel = cast("grpc.aio.Channel", _AdminChannel(channel, token, user or _user()))
        self.admin = offsets_grpc.OffsetAdminStub(self._admin_channel)
        self._channel = channel
        self._timeout_s = timeout_s
        self._resend = resend
        self._batcher = Batcher(self._send, timeout_s, resend=resend)
        self._known = KnownEpochs()

    @cached_property
    def lag(self) -> "lag_grpc.OffsetLagAsyncStub":
        """The stub of `offsets.v1.OffsetLag`. Its messages are loaded on first use."""
        return rpc.lag_grpc.OffsetLagStub(self._channel)

    @cached_property
    def backup(self) -> "backup_grpc.StoreBackupAsyncStub":
        """The stub of `offsets.v1.StoreBackup`, for those who may call `admin`. Its messages are loaded on first use."""
        return rpc.backup_grpc.StoreBackupStub(self._admin_channel)

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
        user: str = "",
        server_name: str = "",
    ) -> AsyncIterator[Self]:
        """Open a client of `host:port` or `unix:path`. Leaving the context waits for pending commits, see `close`.

        `user` is the name that `admin` calls bring for the audit log; by default that of this process's user. `server_name` is
        the name that the server's certificate has to have, if it is not that of the address.
        Raises ConfigError for unusable TLS files, and for a token that would leave this machine in plaintext.
        """
        if token and tls is None and not _is_local(address):
            raise ConfigError(
                f"{address}: the token would go there in plaintext, for everybody on the way to read: "
                "use TLS (--tls-ca), or the adapter's Unix socket"
            )
        async with open_channel(address, tls, CHANNEL_OPTIONS, server_name=server_name) as channel:
            client = cls(channel, timeout_s, token=token, resend=resend, user=user)
            try:
                yield client
            finally:
                await client.close()

    async def commit(
        self,
        group: str,
        offsets: Mapping[str, int | Progress],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: CommitMode = CommitMode.INCREASE_ONLY,
        epochs: Mapping[str, int] = MappingProxyType({}),
        member: Member | None = None,
        check: bool = True,
    ) -> Committed:
        """Commit shard -> next offset to read; a Progress tells more, such as the end of the log, by which lag is counted.

        Returns, once the commit is durable, the shards for which a larger offset is stored, and in `raised` the epochs of those
        that were stored in a new one. Raises SupersededError for shards that were reset, deleted, cloned or rewound, and that
        this client has not read since: nothing is stored of them. Without `check` their rows are returned like others; one with
        `held` is taken again after a read with STORE, or with the epoch of the row.

        Commits that arrive while requests are in flight share the next request. An offset below that of a concurrent commit is
        returned as superseded, with epoch 0 if `epochs` names none. `epochs` are the epochs that were read with the offsets; with
        them, a commit in flight cannot undo a reset. `member` fences: the commit of a generation older than the group's newest is
        refused with FAILED_PRECONDITION. After UNAVAILABLE, CANCELLED or DEADLINE_EXCEEDED the commit may have been applied; the
        same holds if the task is cancelled. An OVERWRITE is sent alone, after all earlier commits of its group, and never sent
        again: repeated, it could undo later commits of others.
        """
        batcher = self._batcher
        try:
            deadline = await batcher.limit.wait(self._timeout_s) if batcher.limit.full else 0.0
            answer = await batcher.commit((namespace or DEFAULT_NAMESPACE, group), offsets, mode, epochs, member, deadline)
        except InvalidInputError as error:
            raise rpc_error(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        if answer is None:
            return Committed()
        if (moved := self._known.answered(namespace or DEFAULT_NAMESPACE, group, answer, epochs)) and check:
            raise SupersededError(group, moved, offsets, answer)
        return answer

    async def close(self, limit_s: float | None = None) -> None:
        """Refuse new commits, and wait up to `limit_s` seconds (default: the client's timeout) for the pending ones.

        Does not close the channel; the context of `connect` does both.
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
        keep_hold: bool = False,
    ) -> dict[str, offsets_pb.ShardOffset]:
        """The offsets of a group's shards (of all if none is named). Shards without an offset are left out.

        A consumer reads where to begin with STORE. That also ends the hold that a reset, delete or clone puts on a shard, and
        waits for an adapter that is away, as `commit` does; with `keep_hold`, for who only looks, it does neither.
        """
        request = offsets_pb.ReadOffsetsRequest(
            groups=[_shards(namespace, group, shards)],
            mode=offsets_pb.ReadMode.ValueType(mode.value),
            keep_hold=keep_hold,
        )
        if mode is ReadMode.STORE and not keep_hold:
            reply = await self._repeating(self.store.ReadOffsets, request)
        else:
            reply = await known_to_its_scope(self.store.ReadOffsets(request, timeout=self._timeout_s))
        if not keep_hold:
            self._known.read(namespace or DEFAULT_NAMESPACE, group, reply.offsets)
        return {offset.shard: offset for offset in reply.offsets}

    async def persist(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Return when the Meta Service has at least the present offsets of these shards (of all if none is named)."""
        request = offsets_pb.PersistOffsetsRequest(groups=[_shards(namespace, group, shards)])
        await known_to_its_scope(self.store.PersistOffsets(request, timeout=self._timeout_s))

    async def remove(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Persist offsets, then remove them from the adapter; returns how many were removed. The Meta Service keeps them."""
        request = offsets_pb.RemoveOffsetsRequest(groups=[_shards(namespace, group, shards)])
        reply = await known_to_its_scope(self.store.RemoveOffsets(request, timeout=self._timeout_s))
        return reply.removed

    async def _repeating(self, call: Callable[..., Awaitable[R]], request: object) -> R:
        """Make a call that may be repeated, and repeat it while the adapter is away, for `timeout_s` seconds in all."""
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + self._timeout_s, 0
        while True:
            try:
                return await known_to_its_scope(call(request, timeout=max(deadline - loop.time(), LEAST_TIMEOUT_S)))
            except grpc.aio.AioRpcError as error:
                attempt += 1
                pause = pause_s(attempt, FIRST_PAUSE_S, MAX_PAUSE_S)
                if error.code() not in AWAY or not self._resend or pause >= deadline - loop.time():
                    raise
            await asyncio.sleep(pause)

    async def commit_broadcast(
        self, group: str, client_id: str, offsets: Mapping[str, int], *, namespace: str = DEFAULT_NAMESPACE
    ) -> list[offsets_pb.Superseded]:
        """Commit shard -> next offset to read for a client of a broadcasting group; only increases.

        Returns, once the commit is durable, the shards for which a larger offset is stored. It is sent once; the caller may send
        it again after an error. A client counts as gone `[expiry] broadcast_seconds` after its last commit, so an idle client
        commits its offsets again.
        """
        shards = [offsets_pb.ShardCommit(shard=shard, offset=offset) for shard, offset in offsets.items()]
        request = offsets_pb.CommitBroadcastRequest(namespace=namespace, group=group, client_id=client_id, shards=shards)
        reply = await known_to_its_scope(self.store.CommitBroadcast(request, timeout=self._timeout_s))
        return list(reply.superseded)

    async def read_broadcast(
        self, group: str, shards: Sequence[str] = (), *, client_id: str = "", namespace: str = DEFAULT_NAMESPACE
    ) -> dict[str, offsets_pb.BroadcastOffset]:
        """The lowest offset of a broadcasting group in each shard (in all if none is named), and the client's own.

        `client_id` names the client. A client without an offset of its own (`HasField("own")` is False) should begin at the
        lowest one, if there is one.
        """
        asked = _shards(namespace, group, shards)
        request = offsets_pb.ReadBroadcastRequest(
            namespace=asked.namespace, group=asked.group, client_id=client_id, shards=asked.shards
        )
        reply = await known_to_its_scope(self.store.ReadBroadcast(request, timeout=self._timeout_s))
        return {row.shard: row for row in reply.offsets}

    async def flush(self) -> int:
        """Send all dirty offsets to the Meta Service; returns how many it acknowledged."""
        reply = await known_to_its_scope(self.admin.Flush(offsets_pb.FlushRequest(), timeout=self._timeout_s))
        return reply.flushed

    async def status(self) -> offsets_pb.StatusReply:
        """The adapter's status."""
        return await known_to_its_scope(self.admin.Status(offsets_pb.StatusRequest(), timeout=self._timeout_s))

    async def reload(self, *, allow_defaults: bool = False) -> offsets_pb.ReloadReply:
        """Have the adapter read its configuration file again."""
        return await known_to_its_scope(
            self.admin.Reload(offsets_pb.ReloadRequest(allow_defaults=allow_defaults), timeout=self._timeout_s)
        )

    async def list(self, namespace: str = "", group: str = "", *, deleted: bool = False) -> AsyncIterator[offsets_pb.ShardOffset]:
        """Yield all local offsets, or those of a namespace or group, in key order; with `deleted` also tombstones."""
        request = offsets_pb.ListOffsetsRequest(namespace=namespace, group=group, deleted=deleted)
        while True:
            reply = await known_to_its_scope(self.store.ListOffsets(request, timeout=self._timeout_s))
            for offset in reply.offsets:
                yield offset
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token

    async def watch(self, namespace: str = "", group: str = "") -> AsyncGenerator[offsets_pb.WatchOffsetsReply, None]:
        """Yield changes that did not come as ordinary commits (resets, deletes, adopted values), as soon as they are stored.

        After a reply with `resync`, as the first one is, call `list` with `deleted`: what the adapter stores then and all replies
        from then on have no gap. Of two values of a shard the one with the larger (epoch, offset) counts. Raises AioRpcError with
        UNAVAILABLE when the adapter stops, is not there, or opens its store again: begin another watch.
        """
        async for reply in self.store.WatchOffsets(offsets_pb.WatchOffsetsRequest(namespace=namespace, group=group)):
            yield reply

    async def group_lag(self, group: str, *, namespace: str = DEFAULT_NAMESPACE) -> "lag_pb.GetGroupLagReply":
        """How far a group is behind: its sums, and each of its shards, as of the adapter's last evaluation.

        Raises AioRpcError: NOT_FOUND if the adapter keeps no lag of the group, FAILED_PRECONDITION if it keeps none at all.
        """
        return await known_to_its_scope(
            self.lag.GetGroupLag(rpc.lag_pb.GetGroupLagRequest(namespace=namespace, group=group), timeout=self._timeout_s)
        )

    async def group_lag_page(
        self,
        lag_filter: "lag_pb.LagFilter | None" = None,
        order: "lag_pb.LagOrder.ValueType" = 0,  # type: ignore[assignment]  # WORST, without loading its messages here
        *,
        page_size: int = 0,
        offset: int = 0,
    ) -> "lag_pb.ListGroupLagReply":
        """A page of the groups that match, in this order (the worst first), from the `offset`-th on. Raises as `group_lag`."""
        request = rpc.lag_pb.ListGroupLagRequest(filter=lag_filter, order=order, page_size=page_size, offset=offset)
        return await known_to_its_scope(self.lag.ListGroupLag(request, timeout=self._timeout_s))

    async def list_group_lag(
        self,
        lag_filter: "lag_pb.LagFilter | None" = None,
        order: "lag_pb.LagOrder.ValueType" = 0,  # type: ignore[assignment]  # as above
    ) -> AsyncIterator["lag_pb.GroupLag"]:
        """Yield all groups that match, in this order, page by page.

        Between two pages the order may change: a group may then come twice, or not at all. `watch_group_lag` misses none.
        """
        at = 0
        while True:
            reply = await self.group_lag_page(lag_filter, order, offset=at)
            for found in reply.groups:
                yield found
            at += len(reply.groups)
            if not reply.groups or at >= reply.matching:
                return

    async def watch_group_lag(
        self, lag_filter: "lag_pb.LagFilter | None" = None
    ) -> AsyncGenerator["lag_pb.WatchGroupLagReply", None]:
        """Yield the groups that match, and then what changes of them, at most once per evaluation of the adapter.

        A reply with `resync`, as the first one is, begins anew: forget what came before. Raises AioRpcError: UNAVAILABLE when the
        adapter stops, is not there, or opens its store again, RESOURCE_EXHAUSTED if it has too many watchers.
        """
        async for reply in self.lag.WatchGroupLag(rpc.lag_pb.WatchGroupLagRequest(filter=lag_filter)):
            yield reply


def _shards(namespace: str, group: str, shards: Iterable[str]) -> offsets_pb.GroupShards:
    """A group, and some of its shards. Raises AioRpcError with INVALID_ARGUMENT that names the field."""
    try:
        key = checked_key(namespace or DEFAULT_NAMESPACE, group)
        return offsets_pb.GroupShards(namespace=key.namespace, group=key.group, shards=checked_names(shards, "shards"))
    except InvalidInputError as error:
        raise rpc_error(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


class _AdminChannel:
    """A channel that adds the calling user and the token to the metadata of every call."""

    def __init__(self, channel: grpc.aio.Channel, token: str, user: str) -> None:
        self._channel = channel
        self._metadata = [(USER_KEY, _printable(user))]
        if token:
            self._metadata.append(("authorization", f"Bearer {token}"))

    def unary_unary(self, *method: Any, **options: Any) -> Any:  # noqa: ANN401 - passed through
        return partial(self._channel.unary_unary(*method, **options), metadata=self._metadata)

    def unary_stream(self, *method: Any, **options: Any) -> Any:  # noqa: ANN401
        return partial(self._channel.unary_stream(*method, **options), metadata=self._metadata)


def _is_local(address: str) -> bool:
    try:
        return address.startswith("unix:") or is_loopback(address)
    except ValueError:  # not host:port, but another form of address that gRPC knows
        return False


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id of a container may have no name
        return str(os.getuid())


def _printable(name: str) -> str:
    """The name of a user in printable ASCII, as gRPC metadata requires. The adapter logs it, and grants nothing by it."""
    return "".join(letter if " " < letter <= "~" else "?" for letter in name)
