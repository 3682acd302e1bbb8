"""The processes of the fleet: a Meta Service with the embedded engine, and adapters with metrics and a token.

All files are below one directory, all ports are free ones of loopback.
"""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from adapter.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing.broker_log import serving
from adapter.testing.processes import ServiceProcess, ended, free_port
from demo.fleet.load import BrokerLoad, Load
from demo.fleet.scenario import SHOP, Group, Scenario

BROKERS = 3
RESET_BY_S = 60.0
ADMIN_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Adapter:
    """An adapter: its process, its store and where Prometheus scrapes it."""

    name: str
    process: ServiceProcess
    store: Path
    metrics: str  # host:port


@dataclass(frozen=True)
class Fleet:
    """All processes, not started, and the load. Every adapter takes the token in `token_file` for administration."""

    directory: Path
    token_file: Path
    meta: ServiceProcess
    meta_metrics: str  # host:port
    adapters: Sequence[Adapter]
    load: Load

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        directory: Path,
        scenario: Scenario = SHOP,
        *,
        brokers: int = BROKERS,
        stores: Mapping[str, Path] | None = None,
        extra: str = "",
    ) -> AsyncIterator["Fleet"]:
        """Prepare all; at the end kill the processes that still run.

        `stores`: directories for the stores of some adapters, by name. `extra` follows the settings of every adapter.
        """
        token_file = directory / "admin.token"
        new_token(token_file)
        async with AsyncExitStack() as stack:
            metrics = free_port()
            meta = _meta(directory / "meta", metrics)
            stack.enter_context(ended(meta))
            adapters, clients = [], {}
            names = [f"broker-{number}" for number in range(1, brokers + 1)]
            ports = {name: free_port() for name in names}
            for name in names:
                store = (stores or {}).get(name, directory / name / "store")
                adapter = _adapter(directory / name, name, meta.address, store, ports[name], token_file, extra)
                stack.enter_context(ended(adapter.process))
                clients[name] = await stack.enter_async_context(OffsetClient.connect(adapter.process.address, resend=False))
                adapters.append(adapter)
            load = Load(scenario, clients)
            for broker in load.brokers:
                await stack.enter_async_context(serving(broker.logs, ports[broker.name]))
            yield cls(directory, token_file, meta, f"127.0.0.1:{metrics}", adapters, load)

    @property
    def addresses(self) -> list[str]:
        """The adapters' addresses (TCP)."""
        return [adapter.process.tcp_address for adapter in self.adapters]

    async def start(self) -> None:
        """Start all processes, and wait until each serves."""
        await anyio.to_thread.run_sync(self.meta.start)
        for adapter in self.adapters:
            adapter.process.launch()
        for adapter in self.adapters:
            await anyio.to_thread.run_sync(adapter.process.wait_ready)

    async def reset(self, group: Group, seconds: float = RESET_BY_S) -> int:
        """Set a group back by the messages of so many seconds, as an operator does; returns the number of shards."""
        moved = 0
        for broker in self.load.brokers_of(group):
            moved += await _set_back(broker, group, seconds)
        return moved

    def last_words(self, lines: int = 4) -> str:
        """The ends of the logs of all processes, for finding the cause of a failure."""
        logs = {"Meta Service": self.meta} | {adapter.name: adapter.process for adapter in self.adapters}
        started = {name: process.log for name, process in logs.items() if process.process}
        return "\n".join(f"{name}:\n" + "\n".join(log.splitlines()[-lines:]) for name, log in started.items())


def new_token(path: Path, person: str = "") -> str:
    """Write a new random token to a file that only its owner may read, behind a person's name if there is one; returns it."""
    token = secrets.token_urlsafe(24)
    path.touch(mode=0o600)
    path.write_text(f"{person} {token}\n".lstrip())
    return token


def _meta(directory: Path, metrics: int) -> ServiceProcess:
    port = free_port()
    settings = f"""[server]
listen = '127.0.0.1:{port}'
[metrics]
listen = '127.0.0.1:{metrics}'
[store]
path = '{directory / "store"}'
"""
    return ServiceProcess("meta", directory, settings, port)


def _adapter(directory: Path, name: str, meta: str, store: Path, log: int, token_file: Path, extra: str) -> Adapter:
    port, metrics = free_port(), f"127.0.0.1:{free_port()}"
    socket = directory / "a.sock"
    settings = f"""broker = '{name}'
[server]
listen = '127.0.0.1:{port}'
unix_socket = '{socket}'
[metrics]
listen = '{metrics}'
[store]
path = '{store}'
[meta]
endpoints = ['{meta}']
[broker_log]
address = '127.0.0.1:{log}'
[admin]
token_file = '{token_file}'
[recovery]
timeout_ms = 500
{extra}"""
    return Adapter(name, ServiceProcess("serve", directory, settings, port, socket=socket), store, metrics)


async def _set_back(broker: BrokerLoad, group: Group, seconds: float) -> int:
    request = offsets_pb.ResetOffsetsRequest(namespace=group.namespace, group=group.name, execute=True)
    for consumer in broker.consumers:
        if consumer.group.key == group.key:
            offset = max(consumer.log.low, consumer.offset - int(consumer.log.rate * seconds))
            request.to_targets.targets.add(shard=consumer.key.shard, offset=offset)
    await broker.client.admin.ResetOffsets(request, timeout=ADMIN_TIMEOUT_S)
    return len(request.to_targets.targets)
