"""RobustMQ's real Meta Service, and its broker, as processes, for `make interop` and a benchmark. They are not part of this.

`ROBUSTMQ_META` names an executable that takes the path of a `server.toml` with `roles = ["meta"]`; `ROBUSTMQ_BROKER` one that
takes `--conf` and the path of one with all roles, as RobustMQ's broker-server does.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import free_port
from adapter.testing.waiting import PATIENCE_S

META, BROKER = "ROBUSTMQ_META", "ROBUSTMQ_BROKER"  # the environment variables with their paths
ELECTION_S = 3 * PATIENCE_S  # it elects a leader 10 to 20 s after one died, on an idle machine

_PROBE = "probe-of-the-test"  # a group

_LOGGER = """[server]
kind = "rolling_file"
targets = [{ path = "", level = "info" }]
rotation = "daily"
directory = "logs"
prefix = "server"
suffix = "log"
max_log_files = 5
"""


def missing(variable: str = META) -> str:
    """Why the executable that this variable names cannot be run here; empty if it can."""
    path = os.environ.get(variable, "")
    if not path:
        return f"RobustMQ is not tested: {variable} is not set to the path of its executable; see docs/robustmq.md"
    if not os.access(path, os.X_OK):
        return f"RobustMQ is not tested: {variable}={path} is no executable file; see docs/robustmq.md"
    try:
        done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if "error while loading shared libraries" in done.stderr:
        return f"RobustMQ is not tested: {done.stderr.strip()} (Debian: apt-get install librocksdb7.8)"
    return ""


@dataclass
class RobustNode:
    """One node of a cluster."""

    number: int
    directory: Path
    port: int
    settings: str
    variable: str = META
    arguments: Sequence[str] = ("server.toml",)
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "server.toml").write_text(self.settings)
        (self.directory / "logger.toml").write_text(_LOGGER)
        with (self.directory / "output.log").open("ab") as log:
            self.process = subprocess.Popen(
                [os.environ[self.variable], *self.arguments],
                cwd=self.directory,
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End it with SIGKILL and reap it."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def save(self, group: str, shards: dict[str, int], *, topic: str = "", partition: int = 0) -> None:
        """Save offsets plainly, as RobustMQ's own broker does. Raises grpc.RpcError."""
        request = meta_pb.SaveOffsetDataRequest()
        saved = request.offsets.add(group=group, tenant="default")
        for shard, offset in shards.items():
            saved.offsets.add(shard_name=shard, offset=offset, topic=topic or shard, partition=partition)
        with grpc.insecure_channel(self.address) as channel:
            meta_grpc.MetaServiceServiceStub(channel).SaveOffsetData(request, timeout=PATIENCE_S)

    def offsets(self, group: str) -> dict[str, meta_pb.GetOffsetDataReplyOffset]:
        """What this node has of a group, by shard. Raises grpc.RpcError."""
        request = meta_pb.GetOffsetDataRequest(tenant="default", group=group)
        with grpc.insecure_channel(self.address) as channel:
            reply = meta_grpc.MetaServiceServiceStub(channel).GetOffsetData(request, timeout=PATIENCE_S)
        return {row.shard_name: row for row in reply.offsets}

    def leads(self) -> bool:
        """True if this node writes a group at this moment."""
        try:
            self.save(_PROBE, {"s/0": 1})
        except grpc.RpcError:
            return False
        return True


@contextmanager
def robust_cluster(
    directory: Path, nodes: int = 1, *, raft_groups: int = 1, expire_s: int = 604_800
) -> Iterator[Sequence[RobustNode]]:
    """A running cluster, which writes. Killed at the end."""
    ports = [free_port() for _ in range(nodes)]
    addresses = ", ".join(f'{at} = "127.0.0.1:{port}"' for at, port in enumerate(ports, start=1))
    members = [
        RobustNode(at, directory / f"node-{at}", port, _settings(at, port, addresses, raft_groups, expire_s))
        for at, port in enumerate(ports, start=1)
    ]
    try:
        # One after the other: a node that joins while another one does is refused for good.
        for member in members:
            member.start()
            wait_for_leader(members[:1])
            _wait_until_member(member)
        yield members
    finally:
        for member in members:
            member.kill()


def wait_for_leader(nodes: Sequence[RobustNode], timeout_s: float = ELECTION_S) -> RobustNode:
    """Wait until one of these nodes writes. Raises RuntimeError with their output."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for node in nodes:
            if node.process and node.process.poll() is not None:
                raise RuntimeError(f"node {node.number} ended:\n{(node.directory / 'output.log').read_text()}")
            if node.leads():
                return node
        time.sleep(0.2)
    raise RuntimeError(f"no leader of {', '.join(node.address for node in nodes)} after {timeout_s:g} s")


def _wait_until_member(node: RobustNode) -> None:
    """Wait until a node has what the leader wrote."""
    deadline = time.monotonic() + ELECTION_S
    while not _has_probe(node):
        if time.monotonic() > deadline:
            raise RuntimeError(f"node {node.number} is no member:\n{(node.directory / 'output.log').read_text()}")
        time.sleep(0.1)


def _has_probe(node: RobustNode) -> bool:
    try:
        return bool(node.offsets(_PROBE))
    except grpc.RpcError:
        return False


def _settings(number: int, port: int, addresses: str, raft_groups: int, expire_s: int) -> str:
    return f"""cluster_name = "test"
broker_id = {number}
broker_ip = "127.0.0.1"
roles = ["meta"]
grpc_port = {port}
http_port = {free_port()}
meta_addrs = {{ {addresses} }}
data_path = "data"
[log]
log_config = "logger.toml"
log_path = "logs"
[meta_runtime]
offset_raft_group_num = {raft_groups}
meta_worker_threads = 2
group_offset_expire_sec = {expire_s}
[runtime]
server_worker_threads = 2
"""
