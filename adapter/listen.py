"""A gRPC server as both processes run it: addresses, TLS, health per service, reflection."""

import asyncio
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from adapter.config import ServerSection, ServerTls
from adapter.errors import ConfigError, ListenError
from adapter.statuses import Context

log = structlog.get_logger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

UNIX_PATH_MAX = 107  # bytes; sun_path on Linux

OPTIONS = (
    # Two processes on one port would each get half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Well below what clients keep alive by: who asks too often is thrown out.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


class _Health(HealthServicer):  # type: ignore[misc]  # the package has no types
    """Health whose watchers can be ended: they would hold up a stop for the whole grace time."""

    def __init__(self) -> None:
        super().__init__()
        self._watching: set[asyncio.Task[None]] = set()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        watching = asyncio.create_task(super().Watch(request, context), name="health.watch")
        self._watching.add(watching)
        try:
            # Not `await watching`: that one was ended is no error of this call.
            await asyncio.wait([watching])
        finally:
            self._watching.discard(watching)
            watching.cancel()

    def end_watches(self) -> None:
        """Let every Watch end, with what it was told last."""
        for watching in self._watching:
            watching.cancel()


class GrpcServer:
    """A server that listens, with the health of its services."""

    def __init__(self, server: grpc.aio.Server, health: _Health, services: Sequence[str], addresses: Sequence[str]) -> None:
        self._server = server
        self._health = health
        self._services = services
        self.addresses = addresses

    async def set_serving(self, *, serving: bool) -> None:
        """Set the health of every service and of the server as a whole."""
        for service in ("", *self._services):
            await self._health.set(service, SERVING if serving else NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls at once; give those in flight `grace_s` seconds. Watchers of the health are not waited for."""
        self._health.end_watches()
        await self._server.stop(grace_s)


@asynccontextmanager
async def listening(
    section: ServerSection,
    services: Sequence[str],
    add: Callable[[grpc.aio.Server], None],
    *,
    options: Sequence[tuple[str, int]] = (),
) -> AsyncIterator[GrpcServer]:
    """Serve on the section's addresses, with health NOT_SERVING at first. Raises ListenError or ConfigError."""
    server = grpc.aio.server(options=[*OPTIONS, *options])
    health = _Health()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    add(server)
    reflection.enable_server_reflection(
        (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), server
    )
    addresses = [_bind_tcp(server, section)]
    unix_path = Path(section.unix_socket) if section.unix_socket else None
    if unix_path:
        addresses.append(_bind_unix(server, unix_path))
    made = GrpcServer(server, health, services, addresses)
    await made.set_serving(serving=False)
    await server.start()
    if unix_path:
        unix_path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    log.info("server.listening", addresses=addresses, tls=section.tls is not None)
    try:
        yield made
    finally:
        await server.stop(None)
        if unix_path:
            unix_path.unlink(missing_ok=True)


def _bind_tcp(server: grpc.aio.Server, section: ServerSection) -> str:
    try:
        if section.tls:
            port = server.add_secure_port(section.listen, _credentials(section.tls))
        else:
            port = server.add_insecure_port(section.listen)
    except RuntimeError as error:
        raise ListenError(
            f"server.listen = {section.listen!r}: cannot be listened on: choose another port or stop what uses it"
        ) from error
    return f"{section.listen.rpartition(':')[0]}:{port}"


def _bind_unix(server: grpc.aio.Server, path: Path) -> str:
    where = f"server.unix_socket = {str(path)!r}"
    if len(os.fsencode(path)) > UNIX_PATH_MAX:
        raise ListenError(f"{where}: is over {UNIX_PATH_MAX} bytes long; choose a shorter path")
    if path.exists() and not path.is_socket():
        raise ListenError(f"{where}: is a file, not a socket; choose another path or move it away")
    if path.exists() and not _remove_stale(path):
        raise ListenError(f"{where}: another process listens on it; choose another path or stop that process")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ListenError(f"{where}: {error.filename or path.parent}: {error.strerror}") from error
    address = f"unix:{path}"
    # Created for its owner only: between bind and chmod nobody else may connect.
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise ListenError(f"{where}: cannot be listened on: its directory must be writable") from error
    finally:
        os.umask(mask)
    return address


def _remove_stale(path: Path) -> bool:
    """Remove what a killed process left; False when somebody still answers."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return True
    return False


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    try:
        key, cert = tls.key.read_bytes(), tls.cert.read_bytes()
        client_ca = tls.client_ca.read_bytes() if tls.client_ca else None
        # gRPC says nothing useful of a bad file: let the standard library look first.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert, tls.key)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
    except ssl.SSLError as error:
        files = ", ".join(str(path) for path in (tls.cert, tls.key, tls.client_ca) if path)
        raise ConfigError(f"server.tls: {files}: not PEM files that belong together: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"server.tls: {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials([(key, cert)], client_ca, require_client_auth=client_ca is not None)
