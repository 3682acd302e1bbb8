"""The front's listener, and when it takes calls: as long as the process runs.

A RobustMQ broker that cannot connect calls its next address, RobustMQ's own, which has less than was acknowledged here. So reads
wait here until the store is open and compared, or are refused; saves go on to RobustMQ until commits are taken. At a stop no save
is taken any more before the last flush, and connections are ended behind it.
"""

import asyncio
import faulthandler
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import anyio
import structlog

from adapter.errors import ListenError
from adapter.meta.client import MetaClient
from adapter.meta.config import MetaSection
from adapter.meta.labels import ShardLabels
from adapter.runtime.serving.http2.client import Node
from adapter.runtime.serving.http2.handshakes import BACKLOG
from adapter.runtime.serving.http2.relay import Relay
from adapter.runtime.serving.http2.server import Http2Server
from adapter.runtime.serving.request_sizes import Sizes
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.certificates import PemFiles, ServerCertificate, http2_client_context, read_client_files
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.sidecar.api.commits import Commits
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.core import Core
from adapter.sidecar.front.counts import HEARTBEAT, FrontCounts
from adapter.sidecar.front.notices import Notices
from adapter.sidecar.front.own_calls import SAVE_MAX_BYTES, SERVICE, OwnCalls

log = structlog.get_logger(__name__)

# A RobustMQ broker sends its heartbeat to each of its addresses, one after the other, and has three seconds for all of them.
HEARTBEAT_S = 0.5

LEAVE_S = 2.0  # seconds at a stop, behind the last flush

FROZEN_S = 10.0  # seconds without an iteration of the event loop after which the process ends
BEAT_S = 2.0

NOT_ROBUSTMQ = (
    "the Meta Service knows epochs: it is not RobustMQ's, and answers the broker's other calls with UNIMPLEMENTED; "
    'meta.endpoints has to name RobustMQ\'s nodes, or set robustmq.listen = ""'
)


class Front:
    """Where a RobustMQ broker calls. `core` and `committing` give the store, or raise NotReadyError."""

    def __init__(
        self,
        config: AdapterConfig,
        meta: MetaClient,
        commits: Commits,
        core: Callable[[], Awaitable[Core]],
        committing: Callable[[], Core],
    ) -> None:
        """Raise ConfigError for TLS files that cannot be used."""
        self._section = config.robustmq
        self._meta = meta
        self.counts = FrontCounts(listen=config.robustmq.listen, broker=config.robustmq.broker)
        self._notices = Notices(self.counts)
        labels = ShardLabels(config.meta.shard_names, config.meta.topics)
        self._calls = OwnCalls(core, committing, commits, labels, self._notices, self.counts)
        self._certificate = ServerCertificate(config.robustmq.tls, "robustmq.tls") if config.robustmq.tls else None
        self._of = _Nodes.of(config.meta)
        self._relay = Relay(self._of.made(), self.counts.seen, lambda path: HEARTBEAT_S if path == HEARTBEAT else None)
        self._server: Http2Server | None = None

    @asynccontextmanager
    async def listening(self, handed: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Serve, on sockets that were handed over if there are any, and end all calls at the end. Raises ListenError."""
        sizes = Sizes(dict.fromkeys((f"{SERVICE}/SaveOffsetData", f"{SERVICE}/DeleteOffsetData"), 0), SAVE_MAX_BYTES)
        self._server = Http2Server(sizes=sizes, relay=self._relay)
        self._server.methods.update(self._calls.methods)
        certificate = self._certificate
        try:
            for listener in handed or _bound(self._section.listen):
                await self._server.listen(listener, (lambda: certificate.context) if certificate else None)
            log.info("robustmq.listening", address=self._section.listen, tls=certificate is not None, handed_over=len(handed))
            with _watchdog():
                yield
        finally:
            with anyio.CancelScope(shield=True):
                await self.stop(0)

    async def run(self, core: Core) -> None:
        """Tell what cannot work, and the broker of changes, until cancelled."""
        await core.ledger.recovered.settled.wait()
        self.look()
        if self.counts.problem:
            log.error("robustmq.no_robustmq", help=self.counts.problem)
        if self._section.broker:
            await self._notices.run(core, self._section.broker)

    def look(self) -> FrontCounts:
        """The counts as they are now."""
        counts, nodes = self.counts, self._relay.nodes
        counts.open_calls = self._relay.open
        counts.unreachable = [f"{node.name}: {node.problem}" for node in nodes if node.problem]
        counts.lost = sum(node.lost for node in nodes)
        counts.problem = NOT_ROBUSTMQ if self._meta.kind.knows_epochs else ""
        return counts

    def prepare(self, config: AdapterConfig) -> Prepared:
        """Take other nodes, or certificates of both sides. Raises ConfigError. Calls under way end where they are."""
        tls, of = config.robustmq.tls, _Nodes.of(config.meta)
        shown = self._certificate.prepare(tls) if self._certificate and tls else NOTHING_NEW
        if of == self._of:
            return shown
        nodes = of.made()

        def apply() -> None:
            shown.apply()
            self._of = of
            self._relay.replace(nodes)

        return Prepared(apply, [*shown.replaced, *(["meta.tls"] if of.files != self._of.files else [])])

    async def end_saves(self, grace_s: float) -> None:
        """Give saves under way `grace_s` seconds, at a stop; the broker sends the next ones to RobustMQ."""
        await self._calls.end_saves(grace_s)

    async def stop(self, grace_s: float = LEAVE_S) -> None:
        """Ask the broker to leave, give calls under way `grace_s` seconds, then end them: it calls its next address."""
        if self._server:
            await self._server.stop(grace_s)
        self._relay.close()


@contextmanager
def _watchdog() -> Iterator[None]:
    """End the process, with the traceback of each thread, if its event loop stands still inside.

    A broker would wait for its front at each heartbeat, until RobustMQ takes the broker for dead: after 30 seconds.
    """
    loop = asyncio.get_running_loop()
    beat: asyncio.TimerHandle

    def arm() -> None:
        nonlocal beat
        faulthandler.dump_traceback_later(FROZEN_S, exit=True, file=2)
        beat = loop.call_later(BEAT_S, arm)

    arm()
    try:
        yield
    finally:
        beat.cancel()
        faulthandler.cancel_dump_traceback_later()


class _Nodes(NamedTuple):
    """The nodes of RobustMQ's Meta Service, in the order of the settings, and the TLS files for all of them."""

    endpoints: Sequence[str]
    files: PemFiles | None

    @classmethod
    def of(cls, section: MetaSection) -> "_Nodes":
        """Read the files. Raises ConfigError."""
        return cls(section.endpoints, read_client_files(section.tls, "meta.tls") if section.tls else None)

    def made(self) -> list[Node]:
        """New ones, without connections."""
        tls = http2_client_context(self.files) if self.files else None
        return [Node(name, tls) for name in self.endpoints]


def _bound(address: str) -> list[socket.socket]:
    """Sockets that listen at all addresses of the host name. Raises ListenError."""
    host, port = split_address(address)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            listener = socket.socket(family, socket.SOCK_STREAM)
            made.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.setblocking(False)  # noqa: FBT003 - the function has no such keyword
            listener.bind(where)
            listener.listen(BACKLOG)
    except OSError as error:
        for listener in made:
            listener.close()
        raise ListenError(
            f"robustmq.listen = {address!r}: cannot be listened on: choose another port or stop what uses it"
        ) from error
    return made
