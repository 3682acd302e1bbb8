"""Connections, however many, leave the store the file descriptors that it needs."""

import resource
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from adapter.runtime.telemetry.metrics_http import CONNECTIONS_MAX
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from tests.http2_client import opening
from tests.integration.helpers import PATIENCE_S, commits, rpc, wait_until
from tests.integration.idle_connections import hung_up

FILES = 400  # that each process may have
MANY = 450  # connections
WRITES, SHARDS, METADATA = 9, 500, "m" * 4_000  # 18 MB: more than RocksDB keeps in one log
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: a\r\n"


def limited(service: ServiceProcess, soft: int, hard: int) -> ServiceProcess:
    """The same with limits of open files."""
    service.prefix = ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh"]
    return service


def with_metrics(service: ServiceProcess) -> int:
    """Have it serve its metrics; returns the port."""
    port = free_port()
    service.settings = service.settings.replace("[metrics]\nlisten = ''", f"[metrics]\nlisten = '127.0.0.1:{port}'")
    return port


@contextmanager
def held(ports: Sequence[int], said: bytes, many: int = MANY) -> Iterator[list[socket.socket]]:
    """Many connections that have said this and nothing more."""
    with ExitStack() as peers:
        made = []
        for port in ports:
            for _ in range(many):
                peer = peers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
                with suppress(ConnectionError):
                    peer.sendall(said)
                made.append(peer)
        yield made


def metric(port: int, name: str) -> float:
    """A sample of /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as reply:
        lines = reply.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


@pytest.fixture(autouse=True)
def enough_here() -> Iterator[None]:
    """The attacking side, which is this process, may have more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_leave_the_stores_their_files(directory: Path) -> None:
    """Both processes open new logs and tables meanwhile; who is too many is closed at once; who goes makes room."""
    meta = limited(meta_process(directory), FILES, FILES)
    meta_metrics = with_metrics(meta)
    adapter = limited(adapter_process(directory, meta.address), FILES, FILES)
    metrics = with_metrics(adapter)
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"first": 1}), timeout=PATIENCE_S)
            with held([meta.port, adapter.port], opening()) as idle, held([meta_metrics, metrics], HALF_A_REQUEST):
                for at in range(WRITES):
                    request = commits({f"{at}-{shard}": 1 for shard in range(SHARDS)}, metadata=METADATA)
                    stubs.store.CommitOffsets(request, timeout=PATIENCE_S)
                wait_until(lambda: metric(metrics, "offset_adapter_dirty_keys") == 0, "everything is in the Meta Service")
                assert metric(metrics, "offset_adapter_open_files") < FILES - 20
                assert metric(meta_metrics, "offset_meta_open_files") < FILES - 20
                assert hung_up(idle) >= 2 * (MANY - 3 * FILES // 5)
                assert metric(metrics, "offset_adapter_refused_connections_total") > 0
            wait_until(lambda: _commits_over(adapter.tcp_address), "new connections are served again")
        assert len(list(Path(f"/proc/{adapter.pid}/task").iterdir())) < 60
        assert "store.failed" not in adapter.log
        assert "connections.refused" in adapter.log
        assert (adapter.stop(), meta.stop()) == (0, 0)


def _commits_over(address: str) -> bool:
    with rpc(address) as stubs:
        try:
            stubs.store.CommitOffsets(commits({"late": 1}), timeout=1.0)
        except grpc.RpcError:
            return False
    return True


def test_a_process_takes_as_many_files_as_it_may_have(directory: Path) -> None:
    """Where only the soft limit is low; and says so where the hard one is, too."""
    high, low = limited(meta_process(directory / "1"), 256, 2_048), limited(meta_process(directory / "2"), 256, 512)
    with ended(high, low):
        for service, files in ((high, 2_048), (low, 512)):
            service.start()
            limits = Path(f"/proc/{service.pid}/limits").read_text()
            assert f"{files} " in next(line for line in limits.splitlines() if line.startswith("Max open files"))
        assert "files.few" not in high.log
        assert "files.few" in low.log


def test_slow_scrapers_are_bounded_and_hold_up_nobody(directory: Path) -> None:
    """However many there are: a few connections in one thread, each for some seconds, the oldest of too many goes."""
    meta = meta_process(directory)
    port = with_metrics(meta)
    with ended(meta):
        meta.start()
        threads = len(list(Path(f"/proc/{meta.pid}/task").iterdir()))
        with held([port], HALF_A_REQUEST, 3 * CONNECTIONS_MAX) as slow:
            assert metric(port, "offset_meta_open_files") < 3 * CONNECTIONS_MAX
            assert len(list(Path(f"/proc/{meta.pid}/task").iterdir())) <= threads + 8  # of gRPC's own some come and go
            wait_until(lambda: hung_up(slow) == len(slow), "the last of them was closed")
        assert meta.stop() == 0
