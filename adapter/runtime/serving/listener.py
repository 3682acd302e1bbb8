"""The gRPC server of a process: its addresses, TLS, health per service, reflection.

An address is opened here, or its socket was handed over by a service manager (`activation`). Who connects to one that was handed
over waits until `GrpcServer.accept_waiting`, and after `GrpcServer.drain` for the next process: a restart refuses nobody.
"""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

import anyio
import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection import SERVICE_NAME
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from adapter.errors import ListenError
from adapter.runtime.serving.activation import Inherited, inherited
from adapter.runtime.serving.http2.call import Take
from adapter.runtime.serving.http2.handshakes import BACKLOG, TlsContext
from adapter.runtime.serving.http2.server import Http2Server
from adapter.runtime.serving.request_sizes import NO_LISTS, Sizes
from adapter.runtime.serving.statuses import Context
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.certificates import ServerCertificate
from adapter.runtime.settings.config import ServerSection, gid_of

log = structlog.get_logger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

TELL_S = 0.1  # seconds in which those who watch the health are told that it ends
SERVICE_NAME_MAX = 255
UNIX_PATH_MAX = 107  # bytes; sun_path on Linux


class _Health(HealthServicer):  # type: ignore[misc]  # the package has no types
    """A health service whose Watch calls can be ended: they would delay a stop for the whole grace time."""

    def __init__(self) -> None:
        super().__init__()
        self._watching: set[asyncio.Task[None]] = set()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        if len(request.service) > SERVICE_NAME_MAX:
            # The name is kept for as long as the call lasts.
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"service: is over {SERVICE_NAME_MAX} characters long")
        watching = asyncio.create_task(super().Watch(request, context), name="health.watch")
        self._watching.add(watching)
        try:
            # Not `await watching`: ending it must not raise here.
            await asyncio.wait([watching])
        finally:
            self._watching.discard(watching)
            watching.cancel()

    def end_watches(self) -> None:
        """End every Watch call. The last status that it sent stays valid."""
        for watching in self._watching:
            watching.cancel()


class GrpcServer:
    """The built-in server of a process, with the health of its services."""

    def __init__(self, server: Http2Server, health: _Health, services: Sequence[str]) -> None:
        self._server = server
        self._health = health
        self._services = services
        self._waiting: list[tuple[socket.socket, TlsContext | None]] = []  # handed over, and not accepted on so far
        self.others: Sequence[socket.socket] = ()  # handed over, for another server of this process
        self.addresses: list[str] = []

    def hold(self, handed: Inherited, tls: TlsContext | None) -> None:
        """Accept on these sockets once `accept_waiting` is called, on TCP with TLS if there is a context for it."""
        self._waiting += [(each, tls) for each in handed.tcp] + [(each, None) for each in handed.unix]
        self.others = handed.others

    async def accept_waiting(self) -> None:
        """Accept on the sockets that were handed over. Before, those who connect wait; call it when calls can be served."""
        while self._waiting:
            await self._server.listen(*self._waiting.pop(0))

    async def set_serving(self, *, serving: bool, only: str | None = None) -> None:
        """Set the health of every service and part, and of the server as a whole; or of `only` one of them."""
        for service in ("", *self._services) if only is None else (only,):
            await self._health.set(service, SERVING if serving else NOT_SERVING)

    def drain(self) -> None:
        """Ask the clients to leave, and accept no more; what they send before they know is served."""
        self._server.drain()

    async def drained(self, grace_s: float) -> None:
        """Wait until the clients have left, for at most `grace_s` seconds.

        Watch calls of the health service end when they have been told.
        """
        telling = asyncio.get_running_loop().call_later(TELL_S, self._health.end_watches)
        await self._server.drained(grace_s)
        telling.cancel()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls at once; give those in flight `grace_s` seconds. Watch calls of the health service end at once."""
        self._health.end_watches()
        await self._server.stop(grace_s)
        for listener in (*(each for each, _ in self._waiting), *self.others):
            listener.close()


@asynccontextmanager
async def listening(
    section: ServerSection,
    services: Sequence[str],
    add: Callable[[grpc.aio.Server], None],
    *,
    together: Mapping[str, Take] | None = None,
    parts: Sequence[str] = (),
    refused: Callable[[], None] = lambda: None,
    sizes: Sizes = NO_LISTS,
    certificate: ServerCertificate | None = None,
    other: tuple[str, str] = ("", ""),
) -> AsyncIterator[GrpcServer]:
    """Serve on the section's addresses, with health NOT_SERVING at first. Raises ListenError or ConfigError.

    `parts` are further names with a health of their own, which are no gRPC services. `together` names the methods whose requests
    are handled in groups, see `Take`. `refused` is called for each connection that is closed because file descriptors are short.
    `sizes` bounds the requests of each method. `certificate` is the one of `section.tls`, where it may be exchanged while the
    server runs. `other`: a setting and its address, where another server of this process listens.
    """
    unix_path = Path(section.unix_socket) if section.unix_socket else None
    if section.tls and not certificate:
        certificate = ServerCertificate(section.tls)
    tls = _context_of(certificate)
    handed = inherited(section, other=other)
    server = Http2Server(refused, sizes=sizes)
    health = _Health()
    names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, SERVICE_NAME)
    target = cast("grpc.aio.Server", server)  # it has the methods that generated code calls
    add_HealthServicer_to_server(health, target)
    add_ServerReflectionServicer_to_server(ReflectionServicer(names), target)
    add(target)
    server.take_together(together or {})
    made = GrpcServer(server, health, (*services, *parts))
    made.hold(handed, tls)
    await made.set_serving(serving=False)
    own: _File | None = None
    try:
        port = handed.tcp[0].getsockname()[1] if handed.tcp else await _serve_tcp(server, section, tls)
        made.addresses.append(f"{section.listen.rpartition(':')[0]}:{port}")
        if unix_path:
            if not handed.unix:
                own = await _serve_unix(server, unix_path, section)
            made.addresses.append(f"unix:{unix_path}")
        log.info("server.listening", addresses=made.addresses, tls=section.tls is not None, handed_over=len(handed.all))
        yield made
    finally:
        # Shielded: a cancelled task has to stop the server, too. Else handlers would use a store that is being closed.
        with anyio.CancelScope(shield=True):
            await made.stop(0)
        # The next process may have made its own socket there by now.
        if unix_path and own and own == _file_at(unix_path):
            unix_path.unlink(missing_ok=True)


def _context_of(certificate: ServerCertificate | None) -> TlsContext | None:
    """What tells the context for a new connection; None without TLS."""
    return (lambda: certificate.context) if certificate else None


_File = tuple[int, int, int]  # its device, its inode, which the next file may have as well, and when it was made (ns)


def _file_at(path: Path) -> _File | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


async def _serve_tcp(server: Http2Server, section: ServerSection, tls: TlsContext | None) -> int:
    """Listen on all addresses of the host name; return their port. Raises ListenError."""
    host, port = split_address(section.listen)
    try:
        for family, _, _, _, (address, *_) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            both = family == socket.AF_INET6 and address == "::"
            listener = socket.create_server((address, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
            port = listener.getsockname()[1]
            await server.listen(listener, tls)
    except OSError as error:
        raise ListenError(
            f"server.listen = {section.listen!r}: cannot be listened on: choose another port or stop what uses it"
        ) from error
    return port


async def _serve_unix(server: Http2Server, path: Path, section: ServerSection) -> _File | None:
    """Listen on a Unix socket; return which file it is. Raises ListenError."""
    with _made_unix(path, section):
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
        except OSError:
            listener.close()
            raise
        await server.listen(listener)
    return _file_at(path)


@contextmanager
def _made_unix(path: Path, section: ServerSection) -> Iterator[None]:
    """Prepare `path` for a Unix socket that is bound inside, and open it to whom the section says.

    Raises ListenError if it is in use. A directory that does not exist is made for its owner only.
    """
    where = f"server.unix_socket = {str(path)!r}"
    if len(os.fsencode(path)) > UNIX_PATH_MAX:
        raise ListenError(f"{where}: is over {UNIX_PATH_MAX} bytes long; choose a shorter path")
    if path.exists() and not path.is_socket():
        raise ListenError(f"{where}: is a file, not a socket; choose another path or move it away")
    try:
        free = not path.exists() or _remove_stale(path)
    except OSError as error:
        raise ListenError(
            f"{where}: may be in use by another process ({error.strerror}); choose another path, or remove it if it is not"
        ) from error
    if not free:
        raise ListenError(f"{where}: another process listens on it; choose another path or stop that process")
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ListenError(f"{where}: {error.filename or path.parent}: {error.strerror}") from error
    # Created for its owner only: between bind and chmod nobody else may connect.
    mask = os.umask(0o077)
    try:
        yield
    except OSError as error:
        raise ListenError(f"{where}: cannot be listened on: its directory must be writable") from error
    finally:
        os.umask(mask)
    if section.unix_socket_group:
        try:
            os.chown(path, -1, gid_of(section.unix_socket_group))
        except PermissionError as error:
            path.unlink(missing_ok=True)
            raise ListenError(
                f"server.unix_socket_group = {section.unix_socket_group!r}: the adapter's user is not in this group; add it "
                "(usermod -aG), or choose another group"
            ) from error
    path.chmod(section.socket_mode)
    _warn_of_closed_directory(path)


def _warn_of_closed_directory(path: Path) -> None:
    """Say so when the directory of a socket keeps those out for whom the socket is open."""
    socket_mode, directory = path.stat().st_mode, path.absolute().parent.stat()
    same_group = directory.st_gid == path.stat().st_gid
    group_in = bool(directory.st_mode & stat.S_IXOTH) or (same_group and bool(directory.st_mode & stat.S_IXGRP))
    closed = (socket_mode & stat.S_IWGRP and not group_in) or (
        socket_mode & stat.S_IWOTH and not directory.st_mode & stat.S_IXOTH
    )
    if closed:
        log.warning(
            "server.socket_unreachable",
            unix_socket=str(path),
            help=f"the directory {path.absolute().parent} is closed to those for whom the socket is open: chgrp and chmod g+x it",
        )


def _remove_stale(path: Path) -> bool:
    """Remove the socket of a killed process; return False if a process still listens on it.

    Raises OSError for one of which that cannot be told: of another user (EACCES), or of another kind (EPROTOTYPE).
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # noqa: FBT003 - the function has no such keyword
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return True
        except BlockingIOError:
            return False  # its backlog is full
    return False
