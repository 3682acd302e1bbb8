"""Where the adapter can be reached: the unix socket and the metrics."""

import re
import socket
import stat
import sys
import threading
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import ListenError, MetaUnavailableError
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from adapter.testing.sidecars import adapter_config, running_sidecar
from tests.integration.helpers import PATIENCE_S, commits, key, rpc, serving

METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"


def _documented(prefix: str) -> set[str]:
    """Names in the documents' page of metrics; `*` stands for any end."""
    return set(re.findall(rf"`({prefix}_[a-z0-9_]+\*?)", METRICS.read_text()))


def _served(port: int, prefix: str) -> set[str]:
    """Names in /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        found = set(re.findall(rf"^# TYPE ({prefix}_\S+) \S+$", reply.read().decode(), re.MULTILINE))
    return {name for name in found if not name.endswith("_created")}  # the Prometheus client's own


def _scrape(port: int) -> dict[str, float]:
    """Samples of /metrics by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z]\S*) (\S+)$", text, re.MULTILINE)}


def _differences(documented: set[str], served: set[str]) -> tuple[set[str], set[str]]:
    """Documented and not served, served and not documented."""
    groups = tuple(name.rstrip("*") for name in documented if name.endswith("*"))
    plain = {name for name in documented if not name.endswith("*")}
    assert all(any(name.startswith(group) for name in served) for group in groups)
    return plain - served, {name for name in served - plain if not name.startswith(groups)}


async def test_the_metrics_are_those_of_the_reference(directory: Path) -> None:
    """Commits, results, flush size, latency, failures, dirty keys and their age, recovery, RocksDB: not one more or less."""
    port = free_port()
    sections: dict[str, Any] = {
        "metrics": {"listen": f"127.0.0.1:{port}"},
        "journal": {"path": str(directory / "journal")},
        "rocketmq": {"broker": f"127.0.0.1:{free_port()}"},
        "robustmq": {"listen": f"127.0.0.1:{free_port()}"},
    }
    documented = _documented("offset_adapter")
    if find_spec("opentelemetry"):
        sections["telemetry"] = {"endpoint": f"http://127.0.0.1:{free_port()}"}
    else:
        documented = {name for name in documented if not name.startswith("offset_adapter_telemetry_")}
    async with serving(directory, **sections):
        with anyio.fail_after(PATIENCE_S):
            while True:
                served = await anyio.to_thread.run_sync(_served, port, "offset_adapter")
                if "offset_adapter_lag_shards" in served:  # numpy, which lag needs, is loaded behind the start
                    break
                await anyio.sleep(0.05)
    assert len(documented) > 20
    assert _differences(documented, served) == (set(), set())


def test_the_metrics_of_the_meta_service_are_those_of_the_reference(directory: Path) -> None:
    """As the adapter's."""
    port = free_port()
    meta = meta_process(directory)
    meta.settings = meta.settings.replace("[metrics]\nlisten = ''", f"[metrics]\nlisten = '127.0.0.1:{port}'")
    with ended(meta):
        meta.start()
        served = _served(port, "offset_meta")
    documented = _documented("offset_meta")
    assert len(documented) >= 3
    assert _differences(documented, served) == (set(), set())


async def test_metrics_count_what_happened(directory: Path) -> None:
    """Commits, results, sizes, failures, dirty keys."""
    port = free_port()
    meta = FakeMeta()
    listen = {"listen": f"127.0.0.1:{port}"}
    async with serving(directory, meta, metrics=listen, flush={"interval_ms": 60_000}) as (_, client):
        await client.commit("g", {"a": 2, "b": 2})
        await client.commit("g", {"a": 1})
        found = await anyio.to_thread.run_sync(_scrape, port)
        assert found["offset_adapter_commits_total"] == 3
        assert found["offset_adapter_superseded_total"] == 1
        assert found["offset_adapter_commit_seconds_count"] == 2
        assert found["offset_adapter_dirty_keys"] == 2
        assert found["offset_adapter_oldest_dirty_age_seconds"] > 0
        assert found["offset_adapter_up_state"] == 2
        assert found['offset_adapter_recovery_keys{result="compared"}'] == 0
        meta.down = MetaUnavailableError("gone")
        with pytest.raises(Exception, match="gone"):
            await client.flush()
        meta.down = None
        assert await client.flush() == 2
        found = await anyio.to_thread.run_sync(_scrape, port)
        assert found['offset_adapter_save_calls_total{cause="flush"}'] == 2
        assert found['offset_adapter_save_results_total{status="applied"}'] == 2
        assert found["offset_adapter_flush_failures_total"] == 1
        assert (found["offset_adapter_flush_keys_count"], found["offset_adapter_flush_keys_sum"]) == (1, 2)
        assert found["offset_adapter_flush_seconds_count"] == 1
        assert found["offset_adapter_dirty_keys"] == 0


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns fifty times as often as usual, so that a race between them shows."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 50)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("eager_threads")
async def test_metrics_can_be_scraped_while_keys_become_dirty(directory: Path) -> None:
    """The scrape runs in a thread of its own; what it reads changes meanwhile."""
    port = free_port()
    meta = FakeMeta()
    outcomes: list[Exception | None] = []

    def scrape() -> None:
        try:
            for _ in range(20):
                _scrape(port)
        except Exception as error:  # noqa: BLE001 - any is a finding
            outcomes.append(error)
        else:
            outcomes.append(None)

    async with serving(directory, meta, metrics={"listen": f"127.0.0.1:{port}"}) as (_, client):
        meta.down = MetaUnavailableError("gone")
        # So many that a scrape is interrupted by the commits.
        for at in range(0, 20_000, 5_000):
            await client.store.CommitOffsets(commits({f"{at + shard}": 1 for shard in range(5_000)}), timeout=PATIENCE_S)
        scraper = threading.Thread(target=scrape)
        scraper.start()
        at = 0
        while not outcomes:
            at += 1
            await client.store.CommitOffsets(commits({f"s{at}-{shard}": 1 for shard in range(10)}), timeout=PATIENCE_S)
        scraper.join()
        meta.down = None
    assert outcomes == [None]


async def test_the_socket_of_the_next_process_is_left_alone(directory: Path) -> None:
    """It may serve while this one still ends: its store is closed, its journal is not."""
    path = directory / "x.sock"
    async with running_sidecar(adapter_config(directory, server={"unix_socket": str(path)}), FakeMeta()):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as next_one:
            next_one.bind(str(path))
    assert path.is_socket()


async def test_the_unix_socket_serves_and_is_open_to_its_user_only(directory: Path) -> None:
    """Mode 0600 from the moment it exists; it is removed at the end."""
    path = directory / "x.sock"
    meta = FakeMeta()
    async with running_sidecar(adapter_config(directory, server={"unix_socket": str(path)}), meta) as sidecar:
        assert sidecar.addresses[1] == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with OffsetClient.connect(f"unix:{path}", PATIENCE_S) as client:
            await client.commit("g", {"s": 1})
    assert not path.exists()
    assert meta.records[key()].offset == 1


def test_the_socket_of_a_killed_process_is_replaced(directory: Path, meta: ServiceProcess) -> None:
    """It would refuse every connection for ever."""
    adapter = adapter_process(directory, meta.address)
    path = directory / "a.sock"
    with ended(adapter):
        adapter.start()
        adapter.kill()
        assert path.is_socket()
        adapter.start()
        with rpc(f"unix:{path}") as stubs:
            stubs.store.CommitOffsets(commits({"s": 1}), timeout=30)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert adapter.stop() == 0


async def test_the_socket_of_a_live_process_is_left_alone(directory: Path) -> None:
    """The second one does not start, and says why; the first goes on."""
    path = directory / "x.sock"
    server = {"unix_socket": str(path)}
    async with running_sidecar(adapter_config(directory, server=server), FakeMeta()):
        second = adapter_config(directory / "2", server=server)
        with pytest.raises(ListenError, match="another process listens on it"):
            async with running_sidecar(second, FakeMeta()):
                pass
        async with OffsetClient.connect(f"unix:{path}", PATIENCE_S) as client:
            await client.commit("g", {"s": 1})


async def test_the_socket_of_a_process_that_hangs_is_left_alone(directory: Path) -> None:
    """Its backlog is full, so that another connection would wait for ever."""
    path = directory / "x.sock"
    with socket.socket(socket.AF_UNIX) as hanging, socket.socket(socket.AF_UNIX) as waiting:
        hanging.bind(str(path))
        hanging.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ListenError, match="another process listens on it"):
            async with running_sidecar(adapter_config(directory, server={"unix_socket": str(path)}), FakeMeta()):
                pass
        assert path.is_socket()


async def test_a_socket_that_cannot_be_connected_to_is_left_alone(directory: Path) -> None:
    """As one of another user, or one that is no stream, which a connection does not tell from one of a killed process."""
    path = directory / "x.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        with pytest.raises(ListenError, match=r"may be in use by another process \(.*\); choose another path"):
            async with running_sidecar(adapter_config(directory, server={"unix_socket": str(path)}), FakeMeta()):
                pass
        assert path.is_socket()


async def test_a_file_in_the_place_of_the_socket_is_left_alone(directory: Path) -> None:
    """It is somebody's data."""
    path = directory / "x.sock"
    path.write_text("data")
    with pytest.raises(ListenError, match="unix_socket") as caught:
        async with running_sidecar(adapter_config(directory, server={"unix_socket": str(path)}), FakeMeta()):
            pass
    assert "another process" not in str(caught.value)
    assert path.read_text() == "data"


async def test_a_socket_that_nobody_listens_on_is_replaced(directory: Path) -> None:
    """Bound once, and never listened on."""
    path = directory / "x.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    config = adapter_config(directory, server={"unix_socket": str(path)})
    async with running_sidecar(config, FakeMeta()), OffsetClient.connect(f"unix:{path}", PATIENCE_S) as client:
        await client.commit("g", {"s": 1})
