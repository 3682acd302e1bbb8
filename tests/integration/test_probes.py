"""What the metrics port says of the process's health, and a signal that is no reason to end."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry

from adapter.errors import ListenError
from adapter.rpc import offsets_pb
from adapter.runtime.telemetry import metrics_http
from adapter.sidecar.config import AdapterMetricsSection
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from tests.durability.machine import NOWHERE
from tests.integration.helpers import PATIENCE_S, commits, rpc, serving, wait_until
from tests.integration.idle_connections import hung_up

ROOT = Path(__file__).parents[2]
STATES = {
    offsets_pb.StatusReply.DEGRADED: 200,
    offsets_pb.StatusReply.STARTING: 503,
    offsets_pb.StatusReply.RECOVERING: 503,
    offsets_pb.StatusReply.FAILED: 503,
    offsets_pb.StatusReply.STOPPING: 503,
}
ENDLESS_RECOVERY = "[recovery]\ntimeout_ms = 3600000\n"


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def probed(service: ServiceProcess) -> int:
    """Have it serve its metrics; returns the port."""
    port = free_port()
    service.settings = service.settings.replace("[metrics]\nlisten = ''", f"[metrics]\nlisten = '127.0.0.1:{port}'")
    return port


async def test_readiness_is_whether_commits_are_taken(directory: Path) -> None:
    """Also while the Meta Service is away. 404 for what is not there, 405 for what is not asked with GET or HEAD."""
    port = free_port()
    async with serving(directory, metrics={"listen": f"127.0.0.1:{port}"}) as (sidecar, _):

        async def asked(path: str, method: str = "GET") -> tuple[int, str]:
            return await anyio.to_thread.run_sync(ask, port, path, method)

        assert await asked("/livez") == (200, "alive\n")
        assert await asked("/readyz") == (200, "serving\n")
        assert (await asked("/metrics"))[0] == 200
        assert await asked("/readyz?verbose") == (200, "serving\n")
        for path in ("/", "/metrics/", "/health", "/livez2", "//metrics"):
            assert (await asked(path))[0] == 404
        assert await asked("/livez", "HEAD") == (200, "")
        assert (await asked("/metrics", "POST"))[0] == 405
        for state, ready in STATES.items():
            sidecar.state.enter(state, "why")
            status, text = await asked("/readyz")
            assert (status, text.partition(":")[0]) == (ready, offsets_pb.StatusReply.State.Name(state).lower())
            assert "why" in text or state == offsets_pb.StatusReply.RECOVERING
        sidecar.state.enter(offsets_pb.StatusReply.SERVING)


async def test_an_event_loop_that_stands_still_is_neither_alive_nor_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers all the same: it has a loop of its own."""
    monkeypatch.setattr(metrics_http, "DEAD_S", 0.0)
    monkeypatch.setattr(metrics_http, "BEAT_S", PATIENCE_S)
    port = free_port()
    section = AdapterMetricsSection(listen=f"127.0.0.1:{port}")
    with metrics_http.serving(section, CollectorRegistry(), lambda: (True, "serving")):
        for path in ("/livez", "/readyz"):
            status, text = ask(port, path)  # which stands still meanwhile
            assert (status, text.partition(" for")[0]) == (503, "the event loop stands still")


@pytest.mark.parametrize("said", [b"\r\n\r\n", b"\0" * 100 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET /livez SPDY/3\r\n\r\n"])
async def test_what_is_no_request_is_told_so(said: bytes) -> None:
    """And a head that is too long is not read to its end."""
    port = free_port()
    with metrics_http.serving(AdapterMetricsSection(listen=f"127.0.0.1:{port}"), CollectorRegistry(), lambda: (True, "")):
        for head, answer in ((said, b"HTTP/1.1 400 "), (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"")):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
                try:
                    peer.sendall(head)
                    assert peer.recv(65_536).startswith(answer)
                except ConnectionError:
                    assert not answer


async def test_the_server_of_metrics_ends_with_its_context() -> None:
    """Whoever is connected; no thread is left, and the port is free."""
    port = free_port()
    section = AdapterMetricsSection(listen=f"127.0.0.1:{port}")
    before = threading.active_count()
    for _ in range(2):
        with metrics_http.serving(section, CollectorRegistry(), lambda: (True, "")):
            peer = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            with (
                pytest.raises(ListenError, match=r"metrics\.listen"),
                metrics_http.serving(section, CollectorRegistry(), lambda: (True, "")),
            ):
                raise AssertionError
        with peer:
            assert hung_up([peer]) == 1
    assert threading.active_count() == before


def test_both_processes_answer_probes(directory: Path) -> None:
    """From before they are ready until they have ended. SIGHUP ends neither of them, whenever it comes."""
    meta = meta_process(directory)
    meta_port = probed(meta)
    waiting = adapter_process(directory / "2", NOWHERE, extra=ENDLESS_RECOVERY)
    port = probed(waiting)
    adapter = adapter_process(directory, meta.address)
    with ended(meta, waiting, adapter):
        waiting.launch()
        wait_until(lambda: _answers(port), "the port is open")
        assert ask(port, "/livez")[0] == 200
        wait_until(lambda: ask(port, "/readyz")[1].startswith("recovering: commits are taken"), "the store is open")
        assert ask(port, "/readyz")[0] == 503
        waiting.signal(signal.SIGHUP)
        wait_until(partial(_noted, waiting), "it is logged")
        assert ask(port, "/livez")[0] == 200

        meta.start()
        adapter.start()
        assert ask(meta_port, "/readyz") == (200, "serving\n")
        for service in (meta, adapter):
            service.signal(signal.SIGHUP)
            wait_until(partial(_noted, service), "it is logged")
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"s": 1}), timeout=PATIENCE_S)
        assert (adapter.stop(), meta.stop()) == (0, 0)


def test_the_health_check_of_the_image_is_the_readiness(directory: Path) -> None:
    """As the Dockerfile has it: 0 when it is ready, else something else; also where nobody listens."""
    line = next(line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("HEALTHCHECK"))
    command = json.loads(line.partition("CMD ")[2])
    meta = meta_process(directory)
    port, waiting = probed(meta), adapter_process(directory / "2", NOWHERE, extra=ENDLESS_RECOVERY)
    other = probed(waiting)

    def check(port: int) -> int:
        done = subprocess.run(
            command, env={"PATH": os.environ["PATH"], "METRICS_PORT": str(port)}, capture_output=True, check=False
        )
        return done.returncode

    with ended(meta, waiting):
        waiting.launch()
        meta.start()
        wait_until(lambda: _answers(other), "the port is open")
        assert (check(port), check(other), check(free_port())) == (0, 1, 1)


def test_the_manifests_probe_what_is_there() -> None:
    """By path and port; nothing starts the command for a probe."""
    for name in ("broker.yaml", "meta.yaml"):
        text = (ROOT / "deploy/kubernetes" / name).read_text()
        probes = dict(re.findall(r"(\w+)Probe: \{httpGet: \{path: (\S+), port: (?:oa-)?metrics\b", text))
        assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
        assert "offset-adapter, health" not in text


def _noted(service: ServiceProcess) -> bool:
    return "config.reloaded" in service.log


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
