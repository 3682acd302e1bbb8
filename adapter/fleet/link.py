"""One adapter of a fleet: its channel, what it says of itself, and its groups, followed.

Its state is asked every `interval_ms`, with a deadline. Its groups come by WatchGroupLag: first all, then what changes. When the
stream ends, it is opened again with growing pauses; until all has come again, what is kept is marked as not live.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Protocol, Self, TypeVar

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.client.client import CHANNEL_OPTIONS, OffsetClient
from adapter.errors import ConfigError, TransientError
from adapter.fleet.discovery import server_name
from adapter.fleet.section import FleetSection
from adapter.fleet.table import GroupTable
from adapter.fleet.views import AdapterView, Health, Key
from adapter.rpc import lag_grpc, lag_pb, offsets_pb
from adapter.runtime.backoff import pause_s
from adapter.runtime.channels import RetiredChannels, close_channels, open_channel_with
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.certificates import PemFiles
from adapter.runtime.slices import in_slices

log = structlog.get_logger(__name__)

NOT_ASKED = "not asked yet"  # the error of an adapter before its first answer or failure

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0  # between attempts to follow the groups
QUIET_S = 2.0  # after which all groups have come, if the adapter does not tell how many it has
LONG_QUIET_S = 10.0  # the same, if it told more than have come: some were removed meanwhile
GROUP_BYTES = 4_096  # of what an adapter says of a group: three names of 255 bytes, and numbers
TOTALS_EACH = 5  # polls: how often the adapter is asked how much it keeps
DENIED_EACH = 30  # polls: how often Status is tried again after it was refused

_State = offsets_pb.StatusReply
_HEALTH = {
    _State.STARTING: Health.STARTING,
    _State.RECOVERING: Health.RECOVERING,
    _State.SERVING: Health.SERVING,
    _State.DEGRADED: Health.DEGRADED,
    _State.FAILED: Health.FAILED,
    _State.STOPPING: Health.STOPPING,
}
_ANSWERING = {Health.SERVING, Health.DEGRADED}  # in which what an adapter says of lag is complete
_REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
_COMMITS = "commits"  # the health service's name for: commits are taken


T = TypeVar("T")


class NotUnderstoodError(TransientError):
    """An answer that is no message of an adapter. The address may be another service's by now."""

    def __init__(self) -> None:
        super().__init__("it answered with something that is no message of an adapter: is another service at this address?")


class Told(Protocol):
    """Called after something changed: the state of an adapter, or else only groups."""

    def __call__(self, *, adapters: bool) -> None: ...  # noqa: D102


class AdapterLink:
    """The link to one adapter, whose groups go into the table as those of `slot`."""

    def __init__(
        self,
        address: str,
        configured: str,
        slot: int,
        section: FleetSection,
        table: GroupTable,
        files: Callable[[], PemFiles | None],
        token: str,
        told: Told,
        read_token: Callable[[], str],
    ) -> None:
        self.slot = slot
        self._section = section
        self._timeout_s = section.timeout_ms / 1000
        self._table = table
        self._told = told
        self._address, self._server_name = address, server_name(configured)
        self._newest_files = files
        self._retired = RetiredChannels(2 * self._timeout_s)
        self._token = token
        self._read_token = read_token
        self._connect(files())
        self._poll_now = asyncio.Event()
        self._polls = 0
        self._denied_at = -DENIED_EACH
        self._coming: set[Key] | None = None  # what has come since a resync, until all has
        self._nameless = 0  # how many came beside those, for whose names the table has no room
        self._expected: int | None = None  # how many groups have to come
        self._came_at = 0.0
        now = wall_ms()
        self._table.set_stale(slot, now)
        self.view = AdapterView(address, configured, Health.AWAY, error=NOT_ASKED, away_since_ms=now, lag_since_ms=now)
        self.left = False  # the name does not have this address any more

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        address: str,
        configured: str,
        slot: int,
        section: FleetSection,
        table: GroupTable,
        files: Callable[[], PemFiles | None],
        token: str,
        told: Told,
        read_token: Callable[[], str],
    ) -> AsyncIterator[Self]:
        """A link with a channel of its own.

        `files` gives the newest TLS files that can be used, `read_token` the token anew, or raises ConfigError.
        """
        link = cls(address, configured, slot, section, table, files, token, told, read_token)
        try:
            yield link
        finally:
            await link._retired.close()
            await close_channels([link._channel])

    @property
    def live(self) -> bool:
        """True while all of its lag is here and being followed."""
        return not self._table.stale_since(self.slot)

    async def run(self) -> None:
        """Follow the adapter until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name=f"fleet.groups {self.view.address}")
            tasks.create_task(self._poll(), name=f"fleet.status {self.view.address}")

    async def shards(self, key: Key) -> lag_pb.GetGroupLagReply:
        """The shards of a group; none if the adapter does not have it. Raises AioRpcError or NotUnderstoodError."""
        request = lag_pb.GetGroupLagRequest(namespace=key[0], group=key[1])
        try:
            return understood(await self._lag.GetGroupLag(request, timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return lag_pb.GetGroupLagReply(evaluated_at_ms=wall_ms())
            raise

    def leave(self) -> None:
        """Show it as away: its name does not have this address any more."""
        self.left = True
        self._is_away(f"{self.view.configured} does not have this address any more")

    def come_back(self) -> None:
        """Ask it again: its name has this address again."""
        self.left = False
        self._poll_now.set()

    async def _poll(self) -> None:
        while True:
            self._poll_now.clear()
            if not self.left:
                try:
                    await self._ask()
                except (grpc.aio.AioRpcError, NotUnderstoodError) as error:
                    self._is_away(why(error))
                    self._take_new_files()
                self._polls += 1
            try:
                async with asyncio.timeout(self._section.interval_ms / 1000):
                    await self._poll_now.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(FIRST_PAUSE_S)  # a stream that ends again and again must not ask without a pause

    async def _ask(self) -> None:
        """Ask for the state, and from time to time how much lag is kept.

        Raises AioRpcError if the adapter does not answer, or NotUnderstoodError.
        """
        status = None
        status_error = self.view.status_error
        if self._polls - self._denied_at >= DENIED_EACH:
            try:
                status = understood(await self._client.status())
                status_error = ""
                self._denied_at = -DENIED_EACH - 1
            except grpc.aio.AioRpcError as error:
                if error.code() not in _REFUSED:
                    raise
                status_error = why(error)
                if not self._took_new_token():
                    self._denied_at = self._polls
        if self.left:
            return
        if status is None:
            view = replace(self.view, health=await self._health_of(), status=None, status_error=status_error)
        else:
            view = replace(
                self.view,
                health=_HEALTH.get(status.state, Health.STARTING),
                status=status,
                status_error="",
                version=status.version,
                broker=status.store.broker or self.view.broker,
            )
        self._show(replace(view, error="", seen_at_ms=wall_ms(), away_since_ms=0))
        if self._polls % TOTALS_EACH == 0 or self._coming is not None:
            await self._ask_totals()
        quiet_s = QUIET_S if self._expected is None else LONG_QUIET_S
        if self._coming is not None and monotonic() - self._came_at > quiet_s:
            await self._all_came()

    def _took_new_token(self) -> bool:
        """Take the token from its file; False if that has no other one by now."""
        try:
            token = self._read_token()
        except ConfigError as error:
            log.warning("fleet.token", error=str(error), help="the one before is used")
            return False
        if token == self._token:
            return False
        self._token = token
        self._client = OffsetClient(self._channel, self._timeout_s, token=token, resend=False)
        return True

    def _connect(self, files: PemFiles | None) -> None:
        """Open a channel with these TLS files, for the calls from now on."""
        self._files = files
        self._channel = open_channel_with(self._address, files, CHANNEL_OPTIONS, self._server_name)
        self._client = OffsetClient(self._channel, self._timeout_s, token=self._token, resend=False)
        self._lag = lag_grpc.OffsetLagStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def _take_new_files(self) -> None:
        """Connect anew if the TLS files have changed: an adapter that does not answer may refuse the former ones."""
        files = self._newest_files()
        if files != self._files:
            self._retired.add([self._channel])
            self._connect(files)

    async def _health_of(self) -> Health:
        """The state by the health service, which needs no token, and does not tell whether a serving adapter is degraded."""
        if await self._serves(""):
            return Health.SERVING
        return Health.RECOVERING if await self._serves(_COMMITS) else Health.STARTING

    async def _serves(self, service: str) -> bool:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            reply = understood(await self._health.Check(request, timeout=self._timeout_s))
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return False
            raise
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def _ask_totals(self) -> None:
        try:
            reply = understood(await self._lag.ListGroupLag(lag_pb.ListGroupLagRequest(page_size=1), timeout=self._timeout_s))
        except (grpc.aio.AioRpcError, NotUnderstoodError):
            return  # why there is no lag, the stream tells
        self._show(
            replace(
                self.view,
                shards=reply.shards_kept,
                forgotten_shards=reply.shards_forgotten,
                bounds_error=reply.bounds_error,
            )
        )
        if self._coming is not None:
            self._expected = reply.groups_kept
            await self._finish_if_all()

    async def _follow(self) -> None:
        attempt = 0
        while True:
            began = monotonic()
            try:
                await self._follow_once()
                error = "the adapter ended the stream"
            except (grpc.aio.AioRpcError, NotUnderstoodError) as failed:
                error = _why(failed)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                error = "the TLS files were replaced"  # its channel was closed, which grpc.aio tells by a cancellation
            self._coming = None
            self._unknown(error)
            self._poll_now.set()
            attempt = 1 if monotonic() - began > MAX_PAUSE_S else attempt + 1
            await asyncio.sleep(pause_s(attempt, FIRST_PAUSE_S, MAX_PAUSE_S))

    async def _follow_once(self) -> None:
        call = self._lag.WatchGroupLag(lag_pb.WatchGroupLagRequest())
        try:
            async for reply in call:
                await self._take(understood(reply))
        finally:
            call.cancel()

    async def _take(self, reply: lag_pb.WatchGroupLagReply) -> None:
        if reply.resync:
            self._coming, self._nameless, self._expected = set(), 0, None
            self._poll_now.set()
        table, slot = self._table, self.slot
        async for groups in in_slices(reply.groups):
            for group in groups:
                if group.ByteSize() > GROUP_BYTES:
                    raise NotUnderstoodError
                has_name = table.put(slot, group)
                if self._coming is not None and has_name:
                    self._coming.add((group.namespace, group.group))
                self._nameless += not has_name
        async for removed in in_slices(reply.removed):
            for one in removed:
                table.remove(slot, (one.namespace, one.group))
            if self._coming is not None:
                self._coming.difference_update((one.namespace, one.group) for one in removed)
        self._came_at = monotonic()
        await self._finish_if_all()
        self._told(adapters=False)

    async def _finish_if_all(self) -> None:
        if self._coming is not None and self._expected is not None and len(self._coming) + self._nameless >= self._expected:
            await self._all_came()

    async def _all_came(self) -> None:
        """Remove what did not come again; what is kept is live from here on."""
        coming, self._coming = self._coming or set(), None
        async for keys in in_slices([key for key in self._table.keys_of(self.slot) if key not in coming]):
            for key in keys:
                self._table.remove(self.slot, key)
        self._show(replace(self.view, lag_known=True, lag_seen=True, lag_error="", lag_since_ms=wall_ms()))

    def _unknown(self, error: str) -> None:
        view = self.view
        since = wall_ms() if view.lag_known else view.lag_since_ms
        self._show(replace(view, lag_known=False, lag_error=error, lag_since_ms=since))

    def _is_away(self, error: str) -> None:
        since = self.view.away_since_ms or wall_ms()
        self._show(replace(self.view, health=Health.AWAY, error=error, away_since_ms=since))

    def _show(self, view: AdapterView) -> None:
        before = self.view
        self.view = view
        live = view.lag_known and view.health in _ANSWERING
        if live != self.live:
            self._table.set_stale(self.slot, 0 if live else wall_ms())
            self._remerge()
        if view.health != before.health:
            log.info("fleet.adapter", address=view.address, health=view.health.value, error=view.error)
        if _shown(view) != _shown(before):
            self._told(adapters=True)

    def _remerge(self) -> None:
        for key in self._table.shared_of(self.slot):
            self._table.unmerged[key] = None


def why(error: grpc.aio.AioRpcError | NotUnderstoodError) -> str:
    """The reason of a failed call, for a person."""
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _why(error: grpc.aio.AioRpcError | NotUnderstoodError) -> str:
    if isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return "the adapter tells no lag: its version is older, or [lag] shards = 0"
    return why(error)


def understood(reply: T | None) -> T:
    """The reply of a call, which grpc.aio gives as None if it cannot be parsed. Raises NotUnderstoodError."""
    if reply is None:
        raise NotUnderstoodError
    return reply


def _shown(view: AdapterView) -> tuple[object, ...]:
    """What a change of is worth telling: not the counters of a status, which change all the time."""
    return (
        view.health,
        view.error,
        view.status_error,
        view.lag_known,
        view.lag_error,
        view.broker,
        view.version,
        view.bounds_error,
    )
