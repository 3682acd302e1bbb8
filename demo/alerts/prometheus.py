"""A real Prometheus on a free port of loopback, with given rules and targets. Its files are in one directory."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import yaml

from adapter.testing.processes import free_port
from adapter.testing.waiting import PATIENCE_S
from demo.cluster import DemoError

TOOLS = Path(__file__).parents[2] / ".venv" / "tools" / "usr" / "bin"
PENDING, FIRING = "pending", "firing"


@dataclass(frozen=True)
class Alert:
    """An alert that is pending or firing. `active_at`: when its condition began to hold (RFC 3339), as Prometheus tells it."""

    name: str
    state: str
    labels: Mapping[str, str]
    active_at: str


@dataclass(frozen=True)
class Target:
    """A scrape job: its name, and the addresses of its metrics with the label `broker` of each; empty: none."""

    job: str
    addresses: Mapping[str, str]  # host:port -> broker


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    address: str
    log: Path
    http: httpx.AsyncClient

    async def alerts(self) -> list[Alert]:
        """All alerts that are pending or firing now. Raises DemoError if it does not answer."""
        found = await self._get("/api/v1/alerts")
        return [Alert(row["labels"]["alertname"], row["state"], row["labels"], row["activeAt"]) for row in found["alerts"]]

    async def firing(self, name: str, labels: Mapping[str, str]) -> bool:
        """True if an alert of this name fires that has these labels."""
        return any(
            alert.name == name and alert.state == FIRING and labels.items() <= alert.labels.items()
            for alert in await self.alerts()
        )

    async def pending_s(self, name: str) -> float:
        """For how many seconds the condition of an alert has to hold before it fires. Raises DemoError for an unknown alert."""
        for group in (await self._get("/api/v1/rules", type="alert"))["groups"]:
            for rule in group["rules"]:
                if rule["name"] == name:
                    return float(rule["duration"])
        raise DemoError(f"no rule is named {name}")

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query. Raises DemoError if it does not answer."""
        result: list[dict[str, Any]] = (await self._get("/api/v1/query", query=expression))["result"]
        return result

    async def wait_ready(self) -> None:
        """Wait until it has read its rules, and has scraped all of its targets once. Raises DemoError."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                targets = (await self._get("/api/v1/targets"))["activeTargets"]
                if targets and all(target["health"] == "up" for target in targets):
                    return
                why = ", ".join(f"{target['scrapeUrl']}: {target['lastError'] or target['health']}" for target in targets)
            except DemoError as error:
                why = str(error)
            if time.monotonic() > deadline:
                raise DemoError(f"Prometheus is not ready: {why}\n{self.last_words()}")
            await anyio.sleep(0.2)

    def last_words(self, lines: int = 6) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def _get(self, path: str, **query: str) -> Any:  # noqa: ANN401 - JSON
        try:
            reply = await self.http.get(path, params=query)
        except httpx.HTTPError as error:
            raise DemoError(f"Prometheus does not answer: {error or type(error).__name__}") from error
        if reply.status_code != httpx.codes.OK:
            raise DemoError(f"Prometheus answered {reply.status_code}: {reply.text[:200]}")
        return reply.json()["data"]


def program() -> Path:
    """The Prometheus of this machine, or the one that `demo/install-prometheus.sh` unpacked. Raises DemoError."""
    found = shutil.which("prometheus", path=f"{os.environ.get('PATH', '')}:{TOOLS}")
    if not found:
        raise DemoError("there is no prometheus: sh demo/install-prometheus.sh unpacks Debian's")
    return Path(found)


@contextmanager
def running(directory: Path, rules: Sequence[Path], targets: Sequence[Target], interval_s: float) -> Iterator[tuple[str, Path]]:
    """Run it; yields its address (host:port) and its log. It scrapes and evaluates every `interval_s` seconds."""
    directory.mkdir(parents=True, exist_ok=True)
    interval = f"{int(interval_s * 1_000)}ms"
    config = directory / "prometheus.yml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
                "rule_files": [str(path) for path in rules],
                "scrape_configs": [_scraped(target) for target in targets],
            }
        )
    )
    address, log = f"127.0.0.1:{free_port()}", directory / "prometheus.log"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    with log.open("wb") as output:
        process = subprocess.Popen([program(), *arguments], stdout=output, stderr=output, cwd=directory)
    try:
        yield address, log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _scraped(target: Target) -> dict[str, Any]:
    groups = [
        {"targets": [address], "labels": {"broker": broker} if broker else {}} for address, broker in target.addresses.items()
    ]
    return {"job_name": target.job, "static_configs": groups}
