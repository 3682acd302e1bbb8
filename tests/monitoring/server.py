"""A real Prometheus over real processes, for tests."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from adapter.testing.processes import free_port
from adapter.testing.waiting import PATIENCE_S
from deploy.monitoring.source.files import Options, generated
from deploy.monitoring.source.model import Times
from tests.monitoring.programs import MONITORING, program


class Prometheus:
    """The HTTP API of one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def api(self, path: str, **parameters: str | float) -> Any:
        """What a path of the API answers. Raises AssertionError with what it says is wrong."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=PATIENCE_S) as reply:  # noqa: S310
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error

    def values(self, expr: str) -> list[float]:
        """The present values of an expression."""
        return [float(found["value"][1]) for found in self.api("query", query=expr)["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with their health."""
        return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"}


def wait_for(what: str, happened: Callable[[], object], why: Callable[[], object] = str) -> None:
    """Ask until it has happened. Raises AssertionError, with what `why` says, when it does not."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"{what}: {why()}"
        time.sleep(0.1)


@contextmanager
def running_prometheus(directory: Path, jobs: Mapping[str, Sequence[int]], scale: float = 0.03) -> Iterator[Prometheus]:
    """A Prometheus with the rules at scaled times and the example's jobs, with these ports as targets."""
    directory.mkdir(parents=True)
    for name, text in generated(Options(times=Times(scale))).items():
        if "/" not in name:
            (directory / name).write_text(text)
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    del config["alerting"]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in jobs[job["job_name"]]]}]
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={directory / 'prometheus.yaml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(f"ready: {directory / 'prometheus.log'}", lambda: process.poll() is not None or _ready(port))
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
