"""Real etcd clusters on this machine, for demos, tests and benchmarks: members that can be killed, frozen and started again.

A member ends with this process, however that ends. Its data stays in the directory. Never for production: all on one machine.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import grpc

from adapter.errors import AdapterError
from adapter.rpc import etcd_grpc, etcd_pb
from adapter.testing.processes import ServiceProcess, free_port
from adapter.testing.waiting import PATIENCE_S

CALL_S = 0.3  # of a question to one member; who is frozen does not answer
# Each question has a connection of its own: a shared one would still wait to reconnect after a failed one.
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
POLL_S = 0.02
# Where demo/install-etcd.sh unpacks it when it is not on PATH.
UNPACKED = Path(sys.prefix) / "tools" / "usr" / "bin" / "etcd"
# What docs/etcd.md recommends. Compaction within seconds keeps the store small under overwrites; pre-vote, the default since 3.5,
# keeps a member that comes back from deposing the leader. Of the Raft log, etcd keeps in memory what is newer than its snapshot.
RECOMMENDED: Mapping[str, str] = {
    "max-txn-ops": "512",
    "auto-compaction-mode": "periodic",
    "auto-compaction-retention": "10s",
    "snapshot-count": "5000",
    "quota-backend-bytes": str(8 * 2**30),
    "pre-vote": "true",
}
DEFAULT_TIMERS = {"heartbeat-interval": "100", "election-timeout": "1000"}  # ms; etcd's own defaults
FAST_TIMERS = {"heartbeat-interval": "50", "election-timeout": "300"}  # ms; for members with less than a few ms between them
LONE_TIMERS = {"heartbeat-interval": "10", "election-timeout": "100"}  # ms; a single member elects itself

# PR_SET_PDEATHSIG counts from the thread that started the process. This one lives as long as the process does.
_launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="etcd-launcher")


class EtcdMissingError(AdapterError):
    """etcd is not installed on this machine."""


def etcd_binary() -> Path:
    """The etcd in PATH, else the one that demo/install-etcd.sh unpacked. Raises EtcdMissingError, which says what to run."""
    found = shutil.which("etcd")
    if found:
        return Path(found)
    if UNPACKED.exists():
        return UNPACKED
    raise EtcdMissingError(f"etcd is neither on PATH nor at {UNPACKED}: run `sh demo/install-etcd.sh`")


@dataclass
class LocalMember(ServiceProcess):
    """One etcd process. After a kill or a stop it can be started again with the same ports and data."""

    peer_port: int = 0
    peer_address: str = ""  # what the other members connect to; its peer port, unless something stands before that
    flags: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Its name in the cluster."""
        return self.command

    @property
    def endpoint(self) -> str:
        """The address for clients, as host:port."""
        return self.tcp_address

    def launch(self) -> None:
        """Start it without waiting. Raises EtcdMissingError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [*self.prefix, "setpriv", "--pdeathsig=KILL", "--", str(etcd_binary()), *self.flags]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            starting = _launcher.submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the process that started it
            )
            self.process = starting.result()

    def healthy(self, service: str = "") -> bool:
        """True if it knows a leader now. etcd has one health status for all of its services."""
        del service
        status = self.status()
        return status is not None and status.leader != 0 and not status.errors

    def status(self, timeout_s: float = CALL_S) -> etcd_pb.StatusResponse | None:
        """The status that the member reports; None if it does not answer."""
        with grpc.insecure_channel(self.endpoint, CHANNEL_OPTIONS) as channel:
            try:
                return etcd_grpc.MaintenanceStub(channel).Status(etcd_pb.StatusRequest(), timeout=timeout_s)
            except grpc.RpcError:
                return None

    def wait_introduced(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until it knows its peers, or ends. A new member asks each other one, which may take a second."""
        deadline = time.monotonic() + timeout_s
        while self.process and self.process.poll() is None and time.monotonic() < deadline:
            connection = HTTPConnection("127.0.0.1", self.peer_port, timeout=CALL_S)
            with contextlib.suppress(OSError), contextlib.closing(connection):
                connection.request("GET", "/members")
                connection.getresponse()
                return
            time.sleep(POLL_S)


class LocalCluster:
    """An etcd cluster, which is one Raft group, of processes on loopback. Its data is in `directory`.

    `fast`: heartbeats each 50 ms and elections after 300 ms, instead of etcd's 100 and 1,000. `options`: flags of etcd without
    their dashes, in addition to the recommended ones.
    """

    def __init__(
        self, name: str, members: int = 3, *, directory: Path, fast: bool = False, options: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        timers = LONE_TIMERS if members == 1 else FAST_TIMERS if fast else DEFAULT_TIMERS
        self._options = {**RECOMMENDED, **timers, **(options or {})}
        ports = iter(_distinct_ports(2 * members))
        self.members = tuple(_member(directory, f"{name}-{number}", next(ports), next(ports)) for number in range(1, members + 1))

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The addresses of the members for clients, in order."""
        return tuple(member.endpoint for member in self.members)

    def start(self, timeout_s: float = PATIENCE_S) -> None:
        """Start all members and wait until each knows a leader. Raises EtcdMissingError; RuntimeError with a log."""
        self.launch()
        for member in self.members:
            member.wait_ready(timeout_s)

    def launch(self) -> None:
        """Start the members that do not run, without waiting for a leader."""
        cluster = ",".join(f"{member.name}=http://{member.peer_address}" for member in self.members)
        for member in self.members:
            if member.process is None or member.process.poll() is not None:
                member.flags = self._flags(member, cluster)
                member.launch()
                member.wait_introduced()

    def start_learner(self, directory: Path) -> LocalMember:
        """Add and start a learner, which copies all and answers for nothing. It is none of `members`; the caller stops it."""
        port, peer_port = _distinct_ports(2)
        learner = _member(directory, f"{self.name}-learner", port, peer_port)
        url = f"http://{learner.peer_address}".encode()
        request = b"\x0a" + bytes([len(url)]) + url + b"\x10\x01"  # MemberAddRequest: peerURLs = 1, isLearner = 2
        with grpc.insecure_channel(self.leader().endpoint, CHANNEL_OPTIONS) as channel:
            add: Any = channel.unary_unary("/etcdserverpb.Cluster/MemberAdd")  # its messages are not in our proto
            add(request, timeout=PATIENCE_S)
        cluster = ",".join(f"{member.name}=http://{member.peer_address}" for member in (*self.members, learner))
        learner.flags = [*self._flags(learner, cluster), "--initial-cluster-state=existing"]
        learner.launch()
        learner.wait_introduced()
        return learner

    def leader(self, timeout_s: float = PATIENCE_S) -> LocalMember:
        """The present leader; waits for an election to end. Raises RuntimeError."""
        deadline = time.monotonic() + timeout_s
        while True:
            leading = self._leading()
            if leading:
                return leading
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} has no leader after {timeout_s:g} s")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Send SIGKILL to all running or frozen members. SIGTERM takes seconds: no member is left to take over the lead."""
        for member in self.members:
            member.kill()

    def __enter__(self) -> Self:
        """Start the cluster."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the cluster."""
        self.stop()

    def _leading(self) -> LocalMember | None:
        # A leader that was cut off may still think that it leads, in an older term.
        with ThreadPoolExecutor(max_workers=len(self.members)) as asking:
            answers = zip(self.members, asking.map(LocalMember.status, self.members), strict=True)
            said = [
                (status.raftTerm, member) for member, status in answers if status and status.leader == status.header.member_id
            ]
        return max(said, key=lambda each: each[0])[1] if said else None

    def _flags(self, member: LocalMember, cluster: str) -> list[str]:
        own: dict[str, Any] = {
            "name": member.name,
            "data-dir": member.directory / "data",
            "listen-client-urls": f"http://{member.endpoint}",
            "advertise-client-urls": f"http://{member.endpoint}",
            "listen-peer-urls": f"http://127.0.0.1:{member.peer_port}",
            "initial-advertise-peer-urls": f"http://{member.peer_address}",
            "initial-cluster": cluster,
            "initial-cluster-token": self.name,
            "logger": "zap",
            "log-outputs": "stderr",
        }
        return [f"--{flag}={value}" for flag, value in {**own, **self._options}.items()]


def _member(directory: Path, name: str, port: int, peer_port: int) -> LocalMember:
    return LocalMember(name, directory / name, "", port, peer_port=peer_port, peer_address=f"127.0.0.1:{peer_port}")


def _distinct_ports(count: int) -> set[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return ports
