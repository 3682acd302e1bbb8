"""The console process: reach the fleet, serve the pages, stop.

uvicorn answers; signals, the service manager and reloads are as in the other processes. SIGTERM ends the live streams, answers
what is under way, and takes no more connections.
"""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import anyio
import structlog
import uvicorn
from starlette.types import ASGIApp

from adapter.console.additions import parts_of
from adapter.console.app import make_app
from adapter.console.config import LIVE, ConsoleConfig, ConsoleServerSection
from adapter.console.connections import Connections
from adapter.console.metrics import PREFIX, ConsoleMetrics
from adapter.console.parts import Part
from adapter.console.sources.admin_calls import AdminCalls
from adapter.console.sources.meta_instances import MetaInstances, RaftOpening
from adapter.errors import ListenError
from adapter.fleet.fleet import Fleet
from adapter.runtime import descriptors
from adapter.runtime.notify import manager
from adapter.runtime.process import Until
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.certificates import load_chain, read_server_files, server_context
from adapter.runtime.settings.config import Loaded, ServerTls, StopSection
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.runtime.settings.reloading import Reloading, ReloadingCollector
from adapter.runtime.telemetry import logs, metrics_http
from adapter.runtime.telemetry.metrics import GaugesCollector

log = structlog.get_logger(__name__)

HEAD_MAX = 16_384  # bytes of a request's head
KEEP_ALIVE_S = 20
BACKLOG = 128
UNTAKEN_MS = 30_000  # after which the kernel gives up a connection whose peer takes nothing
TLS_NAME = "server.tls"


class _Server(uvicorn.Server):
    """uvicorn without signals of its own, which says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = anyio.Event()
        self.ended = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        self.serving.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, answer what is under way, and end."""
        await super().shutdown(sockets)
        self.ended.set()


class _Certificate:
    """The certificate of the pages: replaced files are taken for new connections."""

    def __init__(self, tls: ServerTls) -> None:
        """Raise ConfigError for files that cannot be used."""
        self._files = read_server_files(tls, TLS_NAME)
        self.context = server_context(self._files)

    def prepare(self, tls: ServerTls) -> Prepared:
        """Read the files again. Raises ConfigError. The CA of clients stays as it is until a restart."""
        files = read_server_files(tls, TLS_NAME)
        if files == self._files:
            return NOTHING_NEW

        def apply() -> None:
            self._files = files
            load_chain(self.context, files)

        return Prepared(apply, [TLS_NAME])


class _Told(logging.Handler):
    """Passes what uvicorn says on to this process's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log an error of the server."""
        log.error("console.server", error=record.getMessage(), exc_info=record.exc_info)


async def run(
    config: ConsoleConfig,
    until: Until,
    raft: RaftOpening | None = None,
    ready: Callable[[str], None] = lambda _: None,
    loaded: Loaded[ConsoleConfig] | None = None,
) -> int:
    """Serve until asked to stop; calls `ready` with the address. Returns the exit code.

    `raft` opens what reads the Raft groups of etcd; `loaded` says what the settings were read from. Raises ListenError and
    ConfigError.
    """
    stopped = anyio.Event()
    reloading = Reloading(config, LIVE, loaded, around=lambda: manager().reloading())
    tls = config.server.tls
    certificate = _Certificate(tls) if tls else None
    if certificate:
        reloading.add(lambda config: certificate.prepare(config.server.tls) if config.server.tls else NOTHING_NEW)
    reloading.add(lambda config: Prepared(lambda: logs.set_level(config.log)))
    metrics = ConsoleMetrics()
    metrics.registry.register(GaugesCollector(PREFIX, descriptors.gauges))
    metrics.registry.register(ReloadingCollector(PREFIX, reloading))
    with contextlib.closing(_listener(config.server)) as listener:
        address = _address(listener, tls=tls is not None)
        async with (
            Fleet.open(config.fleet) as fleet,
            AdminCalls.open(config.fleet, lambda: fleet.adapters) as calls,
            MetaInstances.opened(config.meta, raft) as meta,
            anyio.create_task_group() as tasks,
        ):
            parts = parts_of(config, fleet, calls)
            for part in parts:
                reloading.add(partial(_prepared, part))
            app = make_app(config, fleet, meta, calls, parts, metrics)
            server = _Server(_uvicorn(config.server, config.stop, app, certificate))
            tasks.start_soon(until, stopped.set, name="signals")
            tasks.start_soon(reloading.run, name="reloading")
            tasks.start_soon(meta.run, name="meta")
            tasks.start_soon(app.state.background.run, name="background")
            tasks.start_soon(server.serve, [listener], name="pages")
            with metrics_http.serving(config.metrics, metrics.registry, lambda: (not stopped.is_set(), "serving")):
                await server.serving.wait()
                log.info("console.serving", address=address)
                manager().ready()
                manager().status(f"serving at {address}")
                ready(address)
                await stopped.wait()
                manager().stopping()
                app.state.background.stop()
                server.should_exit = True
                await server.ended.wait()
            tasks.cancel_scope.cancel()
    log.info("console.stopped")
    return 0


def _prepared(part: Part, _: ConsoleConfig) -> Prepared:
    return part.prepare()


def _uvicorn(section: ConsoleServerSection, stop: StopSection, app: ASGIApp, certificate: _Certificate | None) -> uvicorn.Config:
    server_log = logging.getLogger("uvicorn.error")
    server_log.handlers, server_log.propagate = [_Told(logging.ERROR)], False
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", Connections(section.connections).protocol),
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=section.root_path,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, math.ceil(stop.grace_ms / 1000)),
        h11_max_incomplete_event_size=HEAD_MAX,
        ssl_context_factory=(lambda _config, _default: certificate.context) if certificate else None,
    )


def _listener(section: ConsoleServerSection) -> socket.socket:
    host, port = split_address(section.listen)
    try:
        [(family, _, _, _, (address, *_)), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        both = family == socket.AF_INET6 and address == "::"
        listener = socket.create_server((str(address), port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise ListenError(
            f"server.listen = {section.listen!r}: {error.strerror}: choose another port or stop what uses it"
        ) from error
    # Of each connection that is accepted: what a reader that was dropped never took is not kept for longer.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MS)
    return listener


def _address(listener: socket.socket, *, tls: bool) -> str:
    """The address of the pages, as a person types it."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"
