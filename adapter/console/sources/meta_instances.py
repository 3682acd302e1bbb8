"""The instances of the Meta Service, and the Raft groups of etcd behind them, asked again and again.

Each instance is asked by itself, so that one that is away is seen although others answer. What was seen last is kept with its
time; nothing here is retried before its next turn.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.lowlevel
import grpc
import grpc.aio

from adapter.console.config import MetaInstancesSection
from adapter.errors import AdapterError
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import RetiredChannels, close_channels, open_channel_with
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.certificates import PemFiles, read_client_files
from adapter.runtime.settings.renewed_files import renewed_client_files


class MetaInstance(NamedTuple):
    """One instance as it was last asked.

    `status`: its last answer, also when `error` says why there is none now. `asked_at_ms`, `answered_at_ms`: Unix time in
    milliseconds, 0: not yet. `ahead_ms`: how far its clock is ahead of this machine's.
    """

    address: str
    status: meta_pb.GetStoreStatusReply | None = None
    error: str = ""
    asked_at_ms: int = 0
    answered_at_ms: int = 0
    ahead_ms: int = 0

    @property
    def available(self) -> bool:
        """True if it answered when it was last asked."""
        return bool(self.asked_at_ms) and not self.error


class RaftSituation(NamedTuple):
    """The Raft groups of etcd: each as `meta placement show --format json` shows it, and what is wrong with their leaders."""

    groups: Sequence[Mapping[str, Any]] = ()
    problems: Sequence[str] = ()
    error: str = ""
    asked_at_ms: int = 0


class RaftSource(Protocol):
    """What reads the Raft groups."""

    async def look(self) -> RaftSituation:
        """Ask every member of every Raft group. Raises AdapterError."""


RaftOpening = Callable[[], AbstractAsyncContextManager[RaftSource]]


class MetaInstances:
    """What is known of the Meta Service."""

    def __init__(self, section: MetaInstancesSection, files: PemFiles | None, raft: RaftSource | None = None) -> None:
        self._timeout_s = section.timeout_ms / 1000
        self._interval_s = section.interval_ms / 1000
        self._section = section
        self._retired = RetiredChannels(2 * self._timeout_s)
        self._connect(files)
        self._raft_source = raft
        self._seen = {address: MetaInstance(address) for address in section.endpoints}
        self.raft: RaftSituation | None = RaftSituation() if raft else None
        self._changed = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def opened(cls, section: MetaInstancesSection, raft: RaftOpening | None = None) -> AsyncIterator["MetaInstances"]:
        """Open channels to all of them. Raises ConfigError for files that cannot be read."""
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(raft()) if raft else None
            instances = cls(section, read_client_files(section.tls, "meta.tls") if section.tls else None, source)
            try:
                yield instances
            finally:
                await instances._retired.close()
                await close_channels(instances._channels)

    @property
    def instances(self) -> Sequence[MetaInstance]:
        """All instances, in the order of the settings."""
        return list(self._seen.values())

    async def run(self) -> None:
        """Ask all of them once per interval, until cancelled."""
        while True:
            await self.ask()
            await anyio.sleep(self._interval_s)

    async def wait(self) -> None:
        """Wait until an instance comes or goes, or a leader does."""
        await self._changed.wait()

    async def ask(self) -> None:
        """Ask all of them now, at the same time."""
        before = self._gist()
        async with anyio.create_task_group() as tasks:
            for address in self._stubs:
                tasks.start_soon(self._ask, address)
            if self._raft_source:
                tasks.start_soon(self._look, self._raft_source)
        if self._gist() != before:
            self._changed.set()
            self._changed = anyio.Event()

    def _gist(self) -> object:
        """What a person should see at once: not how far a store is, which changes all the time."""
        instances = [
            (one.address, one.error, one.status and (one.status.version, one.status.HasField("loss"))) for one in self.instances
        ]
        return instances, self.raft and (self.raft.error, self.raft.problems, [group["leader"] for group in self.raft.groups])

    def _connect(self, files: PemFiles | None) -> None:
        """Open channels with these TLS files, for the calls from now on."""
        self._files = files
        channels = {address: open_channel_with(address, files, ()) for address in self._section.endpoints}
        self._channels = list(channels.values())
        self._stubs = {address: meta_grpc.MetaServiceServiceStub(channel) for address, channel in channels.items()}

    def _take_new_files(self) -> None:
        """Connect anew if the TLS files have changed: an instance that does not answer may refuse the former ones."""
        files = renewed_client_files(self._section.tls, "meta.tls", self._files) if self._section.tls else None
        if files != self._files:
            self._retired.add(self._channels)
            self._connect(files)

    async def _ask(self, address: str) -> None:
        begun = wall_ms()
        try:
            reply: meta_pb.GetStoreStatusReply | None = await self._stubs[address].GetStoreStatus(
                meta_pb.GetStoreStatusRequest(), timeout=self._timeout_s
            )
        except grpc.aio.AioRpcError as error:
            self._note(address, begun, _why(error))
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._take_new_files()
            return
        except asyncio.CancelledError:
            await anyio.lowlevel.checkpoint_if_cancelled()  # grpc.aio drops the mark of the scope that cancels
            raise
        if reply is None:
            self._note(address, begun, "answered with something that is no message of a Meta Service")
            return
        ended = wall_ms()
        self._seen[address] = MetaInstance(address, reply, "", begun, ended, reply.now_ms - (begun + ended) // 2)

    def _note(self, address: str, at_ms: int, why: str) -> None:
        self._seen[address] = self._seen[address]._replace(error=why, asked_at_ms=at_ms)

    async def _look(self, source: RaftSource) -> None:
        begun = wall_ms()
        try:
            found = await source.look()
        except AdapterError as error:
            before = self.raft or RaftSituation()
            self.raft = before._replace(error=str(error), asked_at_ms=begun)
            return
        self.raft = found._replace(asked_at_ms=begun)


def _why(error: grpc.aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "is no Meta Service of this project: it does not tell its state"
    return f"{error.code().name}: {error.details()}"
