"""What tests, demos and benchmarks share: an in-memory Meta Service, real processes, waiting. Histories are in `history`."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import anyio
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.broker_log import BrokerLog, NoBrokerLog
from adapter.codec import encode_key
from adapter.config import AdapterConfig, Front, parse
from adapter.errors import AdapterError
from adapter.meta_client import GroupsPage, MetaClient, Page
from adapter.meta_told import Told
from adapter.metaservice.engine import keep, settle
from adapter.model import (
    GroupKey,
    KnownStore,
    LocalStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    deleted,
    expired,
    is_deleted,
)
from adapter.sidecar import Sidecar

READY_TIMEOUT_S = 30.0
FRONTS: tuple[Front, ...] = get_args(Front)

_front: dict[str, str] = {}  # what `served_by` adds to [server]


@contextlib.contextmanager
def served_by(front: Front) -> Iterator[None]:
    """Adapters that are configured inside have this front; outside, that of the settings' default."""
    _front["front"] = front
    try:
        yield
    finally:
        del _front["front"]


class FakeMeta:
    """A Meta Service in memory, with the rules of the real one.

    Faults are queued per save: an exception to raise before it is applied, or a function of the entries, which may await,
    raise, or return the outcomes itself. `apply` is what an untroubled save does.
    """

    def __init__(self, records: Mapping[OffsetKey, OffsetRecord] | None = None) -> None:
        self.records: dict[OffsetKey, OffsetRecord] = dict(records or {})
        self.saves: list[list[SaveEntry]] = []
        self.faults: deque[AdapterError | Callable[[Sequence[SaveEntry]], Any]] = deque()
        self.down: AdapterError | None = None
        self.available = True
        self.knows_epochs = True
        self.endpoint = "memory"
        self.page_rows = 10_000  # of groups
        self.told = Told()
        self.stores: dict[tuple[str, str], KnownStore] = {}

    async def report_store(self, store: LocalStore, replaces: bytes = b"") -> KnownStore | None:
        """See `MetaClient.report_store`."""
        self._check()
        at = store.broker, store.path
        known = self.stores.get(at)
        if kept := keep(store, known, replaces, 0):
            self.stores[at] = kept
        return known

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """See `MetaClient.save`."""
        self.saves.append(list(entries))
        self._check()
        if self.faults:
            fault = self.faults.popleft()
            if isinstance(fault, AdapterError):
                raise fault
            outcomes: list[SaveOutcome] = await fault(entries)
            return outcomes
        return self.apply(entries)

    def apply(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries as the real service does."""
        outcomes = []
        for entry in entries:
            outcome = settle(entry, self.records.get(entry.key))
            if outcome.status.acknowledged and outcome.standing:
                self.records[entry.key] = outcome.standing
            outcomes.append(outcome)
        return outcomes

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """See `MetaClient.get`."""
        self._check()
        return {key: self.records[key] for key in keys if key in self.records}

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """See `MetaClient.groups_page`; of `page_rows` at most."""
        self._check()
        entries: list[tuple[OffsetKey, OffsetRecord]] = []
        for at, group in enumerate(groups):
            behind = encode_key(OffsetKey(*group, after.decode())) if after and not at else b""
            keys = [key for key in self.records if key.group_key == group and encode_key(key) > behind]
            for key in sorted(keys, key=encode_key):
                entries.append((key, self.records[key]))
                if len(entries) == self.page_rows:  # as the real one, it does not know then whether that was the last
                    return GroupsPage(entries, groups[at:], key.shard.encode())
        return GroupsPage(entries, (), b"")

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """See `MetaClient.list_page`; always one page."""
        self._check()
        names = tuple(name for name in (namespace, group) if name)
        return sorted((key, record) for key, record in self.records.items() if key[: len(names)] == names), b""

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        """See `MetaClient.expire`."""
        self._check()
        live = {key: record for key, record in self.records.items() if key.group_key == group and record.live}
        newest_ms = max((record.committed_at_ms for record in live.values()), default=0)
        if newest_ms >= before_ms:
            return newest_ms
        self.records.update((key, expired(record, now_ms)) for key, record in live.items())
        return 0

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        """See `MetaClient.delete`."""
        self._check()
        now_ms = time.time_ns() // 1_000_000
        for key, record in self.records.items():
            if key.group_key == group and (not shards or key.shard in shards) and not is_deleted(record):
                self.records[key] = deleted(record, now_ms)

    def _check(self) -> None:
        self.available = self.down is None
        if self.down:
            raise self.down


def adapter_config(directory: Path, **sections: Any) -> AdapterConfig:  # noqa: ANN401 - TOML values
    """A configuration for a test: everything in `directory`, also the socket; a free port, no metrics unless asked for."""
    values: dict[str, Any] = {"metrics": {"listen": ""}, **sections}
    server = {"listen": "127.0.0.1:0", "unix_socket": str(directory / "a.sock"), **_front}
    values["server"] = {**server, **sections.get("server", {})}
    values["cache"] = {"path": str(directory / "adapter"), **sections.get("cache", {})}
    return parse(values, AdapterConfig, source="test")


@asynccontextmanager
async def running_sidecar(config: AdapterConfig, meta: MetaClient, broker_log: BrokerLog | None = None) -> AsyncIterator[Sidecar]:
    """A sidecar in this process, ready to serve; stopped and drained at the end."""
    sidecar = Sidecar(config, meta, broker_log or NoBrokerLog())
    task = asyncio.create_task(sidecar.run(), name="sidecar")
    ready = asyncio.create_task(sidecar.ready.wait(), name="ready")
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED, timeout=READY_TIMEOUT_S)
        if task.done():
            task.result()
        yield sidecar
    finally:
        ready.cancel()
        sidecar.stop()
        await task


def free_port() -> int:
    """A TCP port on loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass
class ServiceProcess:
    """A real `offset-adapter` process with its configuration file, its log, and its signals."""

    command: str
    directory: Path
    settings: str
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()
    socket: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where all of its gRPC is open: an adapter's Unix socket, a Meta Service's port."""
        return f"unix:{self.socket}" if self.socket else self.tcp_address

    @property
    def tcp_address(self) -> str:
        """Its port, where brokers commit. OffsetAdmin is off there."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All that it has logged."""
        return (self.directory / f"{self.command}.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def launch(self) -> None:
        """Start it without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / f"{self.command}.toml"
        config.write_text(self.settings)
        with (self.directory / f"{self.command}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "adapter", self.command, "--config", str(config)],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start it and wait until its health is SERVING. Raises RuntimeError with the log when it ends before."""
        self.launch()
        self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until its health is SERVING."""
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"{self.command} ended:\n{self.log}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.command} is not ready after {timeout_s:g} s:\n{self.log}")
            time.sleep(0.02)

    def healthy(self, service: str = "") -> bool:
        """True when its health service answers SERVING at this moment."""
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=1.0)
            except grpc.RpcError:
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL and reap it."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)


def meta_process(directory: Path, port: int | None = None, extra: str = "") -> ServiceProcess:
    """A Meta Service over a store in `directory`."""
    port = port or free_port()
    settings = f"[server]\nlisten = '127.0.0.1:{port}'\n[metrics]\nlisten = ''\n[store]\npath = '{directory / 'meta'}'\n{extra}"
    return ServiceProcess("meta", directory, settings, port)


def adapter_process(
    directory: Path, meta: str, *, wal_sync: str = "interval", top: str = "", extra: str = "", cache: Path | None = None
) -> ServiceProcess:
    """An adapter over a store in `directory`. `top` goes before all sections, `extra` behind them."""
    port, socket_path = free_port(), directory / "a.sock"
    front = "".join(f"{name} = '{value}'" for name, value in _front.items())
    settings = f"""{top}
[server]
listen = '127.0.0.1:{port}'
unix_socket = '{socket_path}'
{front}
[metrics]
listen = ''
[cache]
path = '{cache or directory / "adapter"}'
wal_sync = '{wal_sync}'
[meta]
endpoints = ['{meta}']
{extra}"""
    return ServiceProcess("serve", directory, settings, port, socket=socket_path)


@contextlib.contextmanager
def ended(*services: ServiceProcess) -> Any:  # noqa: ANN401 - a context manager
    """Kill these services at the end, paused or not."""
    try:
        yield
    finally:
        for service in services:
            service.kill()


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until `condition` holds. Raises TimeoutError."""
    with anyio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another process, or has no event
            await anyio.sleep(0.005)


def positions(rows: Iterable[Any]) -> dict[OffsetKey, tuple[int, int]]:
    """Rows of a read or list reply as key -> (epoch, offset)."""
    return {OffsetKey(row.namespace, row.group, row.shard): (row.epoch, row.offset) for row in rows}
