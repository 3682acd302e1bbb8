"""The client of one etcd cluster, which is one Raft group: members, failover, deadlines, etcd's own authentication.

A call goes to the current member until that fails, then to the next. A call may therefore be sent twice; callers for which that
is not safe pass `resend=False`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
import structlog

from adapter.errors import AdapterError, DiskFullError, MetaUnavailableError
from adapter.meta.store_marks import SeenMarks
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.elections import Elections
from adapter.metaservice.etcd.errors import translate, wants_token
from adapter.model.records import StoreMark
from adapter.rpc import etcd_grpc, etcd_pb
from adapter.runtime.channels import RetiredChannels, close_channels, mark_again, open_channel_with
from adapter.runtime.settings.certificates import PemFiles, read_client_files
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.runtime.settings.secret_files import read_secret

if TYPE_CHECKING:  # exist only in the stubs
    from adapter.rpc.etcd_pb2_grpc import AuthAsyncStub, ClusterAsyncStub, KVAsyncStub, LeaseAsyncStub, MaintenanceAsyncStub

log = structlog.get_logger(__name__)

R = TypeVar("R")

Metadata = tuple[tuple[str, str], ...]

LIMIT_S = 2.0  # for all attempts of a call; well below the 3 s deadline of an adapter
SILENCE_S = 0.1  # after this without a reply, check whether a new leader was elected
STATUS_S = 0.2  # deadline of a status call
PAUSE_S = 0.05  # pause after all members have failed; an election takes a second or two
# With this a member that sees no leader fails the call at once, instead of holding it until there is one.
_NEEDS_LEADER = (("hasleader", "true"),)

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Keep the backoff short, so that a member is used again soon after it is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # gRPC uses this as the connect timeout. With less, a member whose handshake takes half a second would never connect.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)


class User(NamedTuple):
    """A user of etcd's own authentication."""

    name: str
    password: str


class Stubs:
    """The gRPC stubs of one member."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.kv: KVAsyncStub = etcd_grpc.KVStub(channel)
        self.lease: LeaseAsyncStub = etcd_grpc.LeaseStub(channel)
        self.cluster: ClusterAsyncStub = etcd_grpc.ClusterStub(channel)
        self.maintenance: MaintenanceAsyncStub = etcd_grpc.MaintenanceStub(channel)
        self.auth: AuthAsyncStub = etcd_grpc.AuthStub(channel)


# Registers a function that prepares new settings, see `Reloading.add`.
Join = Callable[[Callable[[EtcdSection], Prepared]], None]

# A call: takes the member's stubs, the deadline in seconds, and the gRPC metadata.
Call = Callable[[Stubs, float, Metadata], Awaitable[R]]


class EtcdCluster:
    """Calls the current member; if it fails, the next one that answers becomes current."""

    def __init__(self, name: str, channels: Mapping[str, grpc.aio.Channel], timeout_s: float, user: User | None = None) -> None:
        self.name = name
        self.endpoints: Sequence[str] = tuple(channels)
        self.current = self.endpoints[0]
        self.available = True
        self.losses = 0  # times that the cluster was found to hold less than it had acknowledged
        self._marks = SeenMarks()
        self._full = False
        self._channels = channels
        self._stubs = {endpoint: Stubs(channel) for endpoint, channel in channels.items()}
        self._files: PemFiles | None = None
        self._retired = RetiredChannels(max(LIMIT_S, timeout_s))
        self._timeout_s = timeout_s
        self._user = user
        self._token: Metadata = ()
        self._elections = Elections(self._poll_members)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, name: str, members: MembersSection, section: EtcdSection, join: Join = lambda _: None
    ) -> "AsyncIterator[EtcdCluster]":
        """Open a client over new channels. Connects on first use. Raises ConfigError for files that cannot be read.

        `join` gets its `prepare`.
        """
        user = User(section.user, read_secret(section.password_file, "etcd.password_file")) if section.password_file else None
        files = _files_of(section)
        channels = _channels(members.endpoints, files)
        cluster = cls(name, channels, section.timeout_ms / 1000, user)
        cluster._files = files
        join(cluster.prepare)
        try:
            yield cluster
        finally:
            await cluster._retired.close()
            await close_channels(cluster._channels.values())

    def prepare(self, section: EtcdSection) -> Prepared:
        """Read the TLS files again, for new channels to the same members. Raises ConfigError."""
        files = _files_of(section)
        if files == self._files:
            return NOTHING_NEW

        def apply() -> None:
            self._retired.add(self._channels.values())
            self._channels = _channels(self.endpoints, files)
            self._stubs = {endpoint: Stubs(channel) for endpoint, channel in self._channels.items()}
            self._files = files

        return Prepared(apply, ["etcd.tls"])

    async def txn(self, request: etcd_pb.TxnRequest, *, resend: bool = True) -> etcd_pb.TxnResponse:
        """Run a transaction. Raises as `call`."""
        known_before = self._marks.snapshot()
        answer = await self.call(
            lambda stubs, timeout, metadata: stubs.kv.Txn(request, timeout=timeout, metadata=metadata), resend=resend
        )
        self._observe_mark(known_before, answer.header)
        if self._full and any(not done.HasField("response_range") for done in answer.responses):
            self._full = False
            self._set_available(available=True)
        return answer

    @property
    def mark(self) -> StoreMark | None:
        """The revision of the newest transaction; None before the first."""
        return self._marks.newest(self.name)

    def _observe_mark(self, known_before: Mapping[str, StoreMark], header: etcd_pb.ResponseHeader) -> None:
        """Check a reply's revision. Transactions are linearizable: a lower revision than before means lost data."""
        mark = StoreMark(self.name, header.cluster_id.to_bytes(8, "big"), 0, header.revision)
        why = self._marks.take(known_before, mark)
        if why:
            self.losses += 1
            log.error(
                "etcd.holds_less", raft_group=self.name, why=why, help="adapters compare their records and send what is missing"
            )

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        """Read a range, linearizable unless the request says otherwise. Raises as `call`."""
        return await self.call(lambda stubs, timeout, metadata: stubs.kv.Range(request, timeout=timeout, metadata=metadata))

    async def call(self, call: Call[R], *, resend: bool = True) -> R:
        """Call the current member; if it fails, the next ones, for 2 s in total. With `resend=False` only one member, once.

        Raises MetaUnavailableError if the outcome is unknown; DiskFullError or RefusedError if nothing was done.
        """
        # Give up early on a Raft group that is known not to answer: calls to others wait for this one.
        give_up_at = anyio.current_time() + (LIMIT_S if self.available else self._timeout_s)
        problems: dict[str, str] = {}
        while True:
            endpoint = self.current
            try:
                answer = await (self._ask_current_leader(endpoint, call) if resend else self.ask(endpoint, call))
            except MetaUnavailableError as error:
                problems[endpoint] = str(error)
                self._fail_over(endpoint)
                if not resend or anyio.current_time() >= give_up_at:
                    self._set_available(available=False, problem=str(error))
                    raise MetaUnavailableError(f"{self.name}: {'; '.join(problems.values())}") from error
                if endpoint == self.endpoints[-1]:
                    await anyio.sleep(PAUSE_S)
            else:
                if not self._full:  # while the quota is used up, only reads succeed
                    self._set_available(available=True)
                return answer

    async def ask(self, endpoint: str, call: Call[R]) -> R:
        """Call one member, once. Raises as `call`."""
        try:
            return await self._authenticated(self._stubs[endpoint], call)
        except grpc.aio.AioRpcError as error:
            raise self._translated(endpoint, error) from error
        except asyncio.CancelledError:
            await mark_again()
            raise

    async def _ask_current_leader(self, endpoint: str, call: Call[R]) -> R:
        """As `ask`, but gives up when another leader is elected meanwhile, since the call is sent again anyway."""
        term = self._elections.term
        asked = asyncio.create_task(self.ask(endpoint, call), name=f"etcd.{self.name}.call")
        elected = None
        try:
            await asyncio.wait([asked], timeout=SILENCE_S)
            if term and not asked.done():
                elected = asyncio.create_task(self._elections.wait_newer(term), name=f"etcd.{self.name}.elected")
                await asyncio.wait([asked, elected], return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    raise MetaUnavailableError(f"{endpoint}: another leader was elected meanwhile")
            answer = await asked
        finally:
            asked.cancel()
            if elected:
                elected.cancel()
        header: etcd_pb.ResponseHeader | None = getattr(answer, "header", None)  # None if the caller converts the reply
        if header:
            self._elections.observe(header.raft_term)
        return answer

    async def _poll_members(self) -> None:
        """Ask all members which leader they know."""
        await asyncio.gather(*map(self._poll_member, self.endpoints))

    async def _poll_member(self, endpoint: str) -> None:
        with contextlib.suppress(AdapterError):
            status = await self.ask(
                endpoint,
                lambda stubs, _, metadata: stubs.maintenance.Status(etcd_pb.StatusRequest(), timeout=STATUS_S, metadata=metadata),
            )
            if status.leader:
                self._elections.observe(status.raftTerm)

    async def _authenticated(self, stubs: Stubs, call: Call[R]) -> R:
        if self._user and not self._token:
            await self._authenticate(stubs, self._user)
        try:
            return await call(stubs, self._timeout_s, _NEEDS_LEADER + self._token)
        except grpc.aio.AioRpcError as error:
            if not self._user or not wants_token(error):
                raise
        await self._authenticate(stubs, self._user)
        return await call(stubs, self._timeout_s, _NEEDS_LEADER + self._token)

    async def _authenticate(self, stubs: Stubs, user: User) -> None:
        request = etcd_pb.AuthenticateRequest(name=user.name, password=user.password)
        reply = await stubs.auth.Authenticate(request, timeout=self._timeout_s)
        self._token = (("token", reply.token),)

    def _fail_over(self, endpoint: str) -> None:
        """Make the next member current, unless another call has done so."""
        if self.current == endpoint:
            self.current = self.endpoints[(self.endpoints.index(endpoint) + 1) % len(self.endpoints)]

    def _translated(self, endpoint: str, error: grpc.aio.AioRpcError) -> AdapterError:
        found = translate(endpoint, error, self._timeout_s)
        if isinstance(found, DiskFullError):
            self._full = True
            self._set_available(available=False, problem=str(found))
        return found

    def _set_available(self, *, available: bool, problem: str = "") -> None:
        """Set `available`; log each change."""
        if available and not self.available:
            log.info("etcd.available", raft_group=self.name, endpoint=self.current)
        elif self.available and not available:
            log.warning(
                "etcd.unavailable",
                raft_group=self.name,
                error=problem,
                help="adapters keep what is not acknowledged, and send it again",
            )
        self.available = available


def _files_of(section: EtcdSection) -> PemFiles | None:
    """The TLS files, if there are any. Raises ConfigError."""
    return read_client_files(section.tls, "etcd.tls") if section.tls else None


def _channels(endpoints: Sequence[str], files: PemFiles | None) -> Mapping[str, grpc.aio.Channel]:
    return {endpoint: open_channel_with(endpoint, files, OPTIONS) for endpoint in endpoints}
