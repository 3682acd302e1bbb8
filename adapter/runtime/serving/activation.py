"""Listening sockets that a service manager opened before it started this process (sd_listen_fds(3)).

systemd keeps such a socket open across restarts: who connects meanwhile waits in its backlog. A socket is matched with the
settings by its kind and address: TCP belongs to `server.listen` or to another server of the process, a Unix socket to
`server.unix_socket`. Both sides must name the same address.
"""

import grp
import os
import socket
import stat
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from adapter.errors import ListenError
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.config import ServerSection, gid_of

FIRST = 3  # the descriptor of the first socket
NAMES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
AGREE = "make ListenStream= in the socket unit and the setting agree"


@dataclass
class Inherited:
    """The sockets that were handed over; empty in a process that opens its own."""

    tcp: list[socket.socket] = field(default_factory=list)
    unix: list[socket.socket] = field(default_factory=list)  # one at most
    others: list[socket.socket] = field(default_factory=list)  # TCP, of another server of this process

    @property
    def all(self) -> list[socket.socket]:
        """Return them all."""
        return [*self.tcp, *self.unix, *self.others]

    def close(self) -> None:
        """Close this process's copies; the service manager keeps its own."""
        for each in self.all:
            each.close()


def inherited(
    section: ServerSection, environment: MutableMapping[str, str] = os.environ, other: tuple[str, str] = ("", "")
) -> Inherited:
    """Take the sockets over that were handed to this process, and remove the variables that tell of them.

    `other`: a setting and its address, where another server of this process listens; both empty: none does. Raises ListenError
    for anything but listening sockets that agree with the settings.
    """
    found = Inherited()
    try:
        for each in _sockets(environment):
            if each.family == socket.AF_UNIX:
                found.unix.append(each)
            elif other[1] and _agrees(each, other[1]):
                found.others.append(each)
            else:
                found.tcp.append(each)
        _check(found, section, other)
    except ListenError:
        found.close()
        raise
    return found


def _sockets(environment: MutableMapping[str, str]) -> list[socket.socket]:
    pid, count, _ = (environment.pop(name, "") for name in NAMES)
    if not pid or pid != str(os.getpid()):
        return []  # none, or they are for another process, such as the parent of this one
    if not count.isdecimal():
        raise ListenError(f"LISTEN_FDS = {count!r}: is not a number of sockets; the service manager sets it")
    return [_opened(FIRST + at) for at in range(int(count))]


def _opened(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the function has no such keyword
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ListenError(f"descriptor {descriptor} from the service manager: is not a socket: {error.strerror}") from error
    listens = found.type == socket.SOCK_STREAM and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listens or found.family not in {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6}:
        found.close()
        raise ListenError(
            f"descriptor {descriptor} from the service manager: is not a listening TCP or Unix socket: "
            "use ListenStream= and Accept=no"
        )
    found.setblocking(False)  # noqa: FBT003 - as above
    return found


def _check(found: Inherited, section: ServerSection, other: tuple[str, str]) -> None:
    for handed in found.tcp:
        if not _agrees(handed, section.listen):
            host, port = handed.getsockname()[:2]
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            wanted = " and ".join(
                f"{name} = {address!r}" for name, address in (("server.listen", section.listen), other) if address
            )
            raise ListenError(f"{wanted}, and the service manager handed over {shown}: {AGREE}")
    for handed in found.unix:
        _check_unix(handed, section)
    if len(found.unix) > 1:
        raise ListenError(f"server.unix_socket = {section.unix_socket!r}, and the service manager handed it over twice")


def _agrees(handed: socket.socket, listen: str) -> bool:
    """Whether a TCP socket is one of an address in the settings."""
    host, port = split_address(listen)
    address, handed_port = handed.getsockname()[:2]
    wanted: Sequence[object] = ()
    with suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        wanted = [where[0] for _, _, _, _, where in found]
    return address in wanted and port in {0, handed_port}


def _check_unix(handed: socket.socket, section: ServerSection) -> None:
    path = handed.getsockname()
    path = os.fsdecode(path) if isinstance(path, bytes) else str(path)
    same = bool(section.unix_socket) and os.path.realpath(path) == os.path.realpath(section.unix_socket)
    if not same:
        raise ListenError(f"server.unix_socket = {section.unix_socket!r}, and the service manager handed over {path}: {AGREE}")
    try:
        status = Path(path).stat()
    except OSError as error:
        raise ListenError(
            f"server.unix_socket = {section.unix_socket!r}: was handed over by the service manager, and is gone "
            f"({error.strerror}): restart the socket unit"
        ) from error
    mode = stat.S_IMODE(status.st_mode)
    if mode != section.socket_mode:
        raise ListenError(
            f"server.unix_socket_mode = {section.unix_socket_mode!r}, and the service manager's socket has {mode:04o}: "
            "make SocketMode= in the socket unit and the setting agree"
        )
    if section.unix_socket_group and status.st_gid != gid_of(section.unix_socket_group):
        raise ListenError(
            f"server.unix_socket_group = {section.unix_socket_group!r}, and the service manager's socket has the group "
            f"{_group_name(status.st_gid)!r}: make SocketGroup= in the socket unit and the setting agree"
        )


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
