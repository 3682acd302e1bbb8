"""Whether the process runs. Seen in /proc, without a connection: systemd would start a service at whose socket somebody calls."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc

from adapter.cli.connection import Target
from adapter.cli.doctor.findings import FAIL, OK, WARN, Finding
from adapter.cli.output import enum_name
from adapter.errors import ConfigError
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.channels import open_blocking_channel
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.secret_files import read_token

TIMEOUT_S = 10.0
_LISTEN = "0A"  # the state in /proc/net/tcp
_ACCEPTS = 1 << 16  # the flag of a socket that listens, in /proc/net/unix


class Holder(NamedTuple):
    """Whether a process has a store open, and its pid. `pid` is None where /proc does not tell: another container's, say."""

    runs: bool
    pid: int | None = None


def holder(store: Path) -> Holder:
    """The process that has a store open, by the lock on RocksDB's LOCK file in /proc/locks. The file is not opened."""
    try:
        lock = (store / "db" / "LOCK").stat()
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return Holder(runs=False)
    for line in lines:
        words = [word for word in line.split() if word != "->"]
        # 1: POSIX  ADVISORY  WRITE 32601 fe:00:10012491 0 EOF
        if len(words) > 5 and words[1] == "POSIX" and _is(words[5], lock):  # noqa: PLR2004 - the place of the file
            pid = int(words[4])
            return Holder(runs=True, pid=pid if pid > 0 else None)
    return Holder(runs=False)


def adapter(store: Path, listen: str, unix_socket: str, installed: str) -> Iterator[Finding]:
    """The adapter's state and version, if it runs; if not, whether its address is free."""
    found = holder(store)
    if not found.runs:
        yield from _free("adapter", listen)
        return
    pid = f"process {found.pid}" if found.pid else "a process"
    if not unix_socket:
        yield Finding("adapter", OK, f"{pid} runs; it has no Unix socket to ask it", "offset-adapter status --address asks it")
        return
    try:
        reply = _status(_socket(unix_socket))
    except grpc.RpcError as error:
        yield Finding(
            "adapter",
            WARN,
            f"{pid} runs, and does not answer: {_text(error)}",
            f"is it starting? is {unix_socket} open to this user?",
        )
    else:
        yield from _state(f"{pid} runs", reply, installed)


def asked(store: Path, unix_socket: str) -> offsets_pb.StatusReply | None:
    """What the adapter says that has a store open; None if there is none, or it does not answer at its Unix socket."""
    if not unix_socket or not holder(store).runs:
        return None
    try:
        return _status(_socket(unix_socket))
    except grpc.RpcError:
        return None


def told(target: Target, installed: str) -> Iterator[Finding]:
    """The state and version of the adapter at an address, wherever it runs, and which Meta Service it calls."""
    try:
        reply = _status(target)
    except grpc.RpcError as error:
        advice = "is it running there? does it want TLS or a token? offset-adapter context show"
        yield Finding("adapter", FAIL, f"{target.address}: {_text(error)}", advice)
        return
    yield from _state(target.address, reply, installed)
    seen = f"{target.address} calls {reply.meta_endpoint}"
    if reply.meta_available:
        yield Finding("its Meta Service", OK, f"{seen}, which answers")
    else:
        advice = f"offset-adapter meta status --address {reply.meta_endpoint}"
        yield Finding("its Meta Service", FAIL, f"{seen}, which does not answer", advice)


def _socket(path: str) -> Target:
    return Target(f"unix:{Path(path).absolute()}")


def _status(target: Target) -> offsets_pb.StatusReply:
    """Raises RpcError, and ConfigError for a token or certificate that cannot be read."""
    token = read_token(target.token_file, target.file_option) if target.token_file else ""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with open_blocking_channel(target.address, target.tls) as channel:
        request = offsets_pb.StatusRequest()
        return offsets_grpc.OffsetAdminStub(channel).Status(request, timeout=TIMEOUT_S, metadata=metadata)


def _state(where: str, reply: offsets_pb.StatusReply, installed: str) -> Iterator[Finding]:
    state = enum_name(offsets_pb.StatusReply.State.DESCRIPTOR, reply.state).lower()
    seen = f"{where}: {state}, version {reply.version}" + (f": {reply.reason}" if reply.reason else "")
    if state in {"degraded", "failed", "stopping"}:
        yield Finding("adapter", FAIL if state == "failed" else WARN, seen, "offset-adapter status")
    elif reply.version != installed:
        yield Finding("adapter", WARN, f"{seen}; installed is {installed}", "restart it to run what is installed")
    else:
        yield Finding("adapter", OK, seen)
    if reply.HasField("loss"):
        advice = "docs/broken.md, A damaged local store"
        yield Finding("losses", WARN, f"up to {reply.loss.writes:,} acknowledged writes are missing: {reply.loss.why}", advice)
    yield from _front(reply.robustmq)


def _front(told: offsets_pb.RobustmqStatus) -> Iterator[Finding]:
    """What the adapter says of RobustMQ, if it stands before it."""
    advice = "docs/runbooks/OffsetAdapterFrontDisconnected.md"
    if told.unreachable:
        yield Finding("RobustMQ nodes", WARN, f"the adapter does not reach {', '.join(told.unreachable)}", advice)
    if told.untold_groups and told.broker_error:
        seen = f"the broker is not told of {told.untold_groups:,} groups that others changed: {told.broker_error}"
        yield Finding("RobustMQ notices", WARN, seen, advice)


def meta_service(store: Path | None, listen: str) -> Iterator[Finding]:
    """Whether the Meta Service runs (`store` is None without a store of its own); if not, whether its address is free."""
    found = holder(store) if store else Holder(runs=False)
    if found.runs:
        yield Finding("Meta Service", OK, f"process {found.pid or '?'} runs, and has the store open")
    elif store is None and listeners(split_address(listen)[1]):
        yield Finding(
            "Meta Service", OK, f"something listens at {listen}", f"offset-adapter meta status --address {listen} asks it"
        )
    else:
        yield from _free("Meta Service", listen)


def front(store: Path, listen: str) -> Iterator[Finding]:
    """Whether the adapter, if it runs, listens where a RobustMQ broker calls it; if not, whether that address is free."""
    name, port = "robustmq.listen", split_address(listen)[1]
    if not holder(store).runs:
        yield from _free(name, listen)
    elif listeners(port):
        yield Finding(name, OK, f"{listen}: listens")
    else:
        advice = "is the adapter starting? did it begin before this setting? offset-adapter status"
        yield Finding(name, FAIL, f"{listen}: the adapter runs, and does not listen there", advice)


def unix_socket_directory(path: str) -> Iterator[Finding]:
    """Whether the Unix socket listens, or can be made: the length of its path, and the rights of its directory."""
    from adapter.cli.doctor.disk import nearest  # noqa: PLC0415 - only needed here
    from adapter.runtime.serving.listener import UNIX_PATH_MAX  # noqa: PLC0415 - imports the server

    name, place = "Unix socket", Path(path).absolute()
    parent = nearest(place.parent)
    if len(os.fsencode(path)) > UNIX_PATH_MAX:
        yield Finding(name, FAIL, f"{path} has over {UNIX_PATH_MAX} bytes", "name a shorter path in server.unix_socket")
    elif not parent.is_dir():
        yield Finding(name, FAIL, f"{parent} is not a directory", "name another path in server.unix_socket")
    elif _is_listening(place):
        yield Finding(name, OK, f"{place}: the process listens there, or systemd for it")
    elif not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        advice = "start systemd's unit that holds it; or give the directory to the user of the process, and run this as it"
        yield Finding(name, FAIL, f"{parent} does not let this user make {place.name}", advice)
    else:
        yield Finding(name, OK, str(place))


def listeners(port: int) -> int:
    """How many TCP sockets of this network namespace listen at a port."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            found += words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port
    return found


def _is_listening(path: Path) -> bool:
    """Whether a Unix socket of this network namespace listens at a path."""
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return False
    # 0000000000000000: 00000002 00000000 00010000 0001 01 20811 /run/offset-adapter/adapter.sock
    sockets = (line.split(maxsplit=7) for line in lines)
    return any(words[7:] == [str(path)] and int(words[3], 16) & _ACCEPTS for words in sockets)


def _free(name: str, listen: str) -> Iterator[Finding]:
    port = split_address(listen)[1]
    if port and listeners(port):
        yield Finding(
            name,
            WARN,
            f"it does not run, and something listens at port {port} of {listen}",
            f"systemd's socket may, or the process in another container; another program may not: ss -ltnp 'sport = :{port}'",
        )
    else:
        yield Finding(name, OK, "it does not run")


def _is(place: str, status: os.stat_result) -> bool:
    """True if `major:minor:inode` (hexadecimal, hexadecimal, decimal) of /proc/locks is this file."""
    major, minor, inode = place.split(":")
    return (int(major, 16), int(minor, 16), int(inode)) == (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)


def _text(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def no_configuration(error: ConfigError) -> Iterator[Finding]:
    """A configuration that a process would refuse: one finding for each bad setting."""
    for line in str(error).splitlines():
        yield Finding("configuration", FAIL, line, "the commented file in config/ explains each setting")
