"""RabbitMQ Streams: a stream for each group, in it a tracked offset for each shard."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapter.testing.processes import free_port
from benchmarks.peers.peer import PAGE_CACHE, UNANSWERED, Batch, Facts, absent, library, program
from benchmarks.peers.server import Hosted, Server

PLACES = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"
EPMD_PLACES = "/usr/lib/erlang/erts-*/bin"
# "Runtime tuning" of its manual: schedulers that wait need not spin.
ERL_ARGS = "+sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
FRAME_MAX = 2**20  # bytes: the client's own default
HEARTBEAT_S = 60
EXISTS = "StreamAlreadyExists"


class RabbitStreams(Hosted):
    """`store_offset` has no answer. `confirmed`: a `query_offset` behind it on the same connection is waited for."""

    def __init__(self, *, confirmed: bool) -> None:
        super().__init__()
        self._confirmed = confirmed
        if confirmed:
            self.facts = Facts(
                "RabbitMQ, confirmed",
                PAGE_CACHE,
                "store_offset has no answer, so a query_offset behind it shows the stored value; the stream's log is not synced",
                "lone: store_offset, query_offset; together: store_offsets, one query_offset for each group (rstream)",
            )
        else:
            self.facts = Facts(
                "RabbitMQ, unconfirmed",
                UNANSWERED,
                "never: store_offset is fire-and-forget, and this counts what the client could write to its socket",
                "store_offset, one after the other (rstream)",
            )

    def missing(self) -> list[str]:
        """The programs and libraries that are missing."""
        return absent({"rabbitmq-server": program("rabbitmq-server", PLACES), "epmd": program("epmd", EPMD_PLACES)}, "rstream")

    def start(self, directory: Path) -> str:
        """A node of its own with its own port mapper, away from the machine's."""
        port, epmd_port = free_port(), free_port()
        (directory / "enabled_plugins").write_text("[rabbitmq_stream].\n", encoding="utf-8")
        (directory / "rabbitmq.conf").write_text(_settings(port), encoding="utf-8")
        (directory / "rabbitmq-env.conf").touch()
        epmd = [program("epmd", EPMD_PLACES) or "epmd", "-address", "127.0.0.1", "-port", str(epmd_port)]
        self.servers.append(Server(directory, epmd))
        self.servers[-1].wait_listening(epmd_port)
        # Debian's command changes to the user `rabbitmq` and its directories; the script behind it does not.
        script = max(Path("/").glob(f"{PLACES[1:]}/rabbitmq-server"))
        self.servers.append(Server(directory, [str(script)], environment=_environment(directory, epmd_port), end=signal.SIGTERM))
        self.servers[-1].wait_listening(port)
        return str(port)

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "RabbitConnection":
        """One connection for each stream, as the client's own pool has them at most."""
        del consumers
        clients = dict(zip(groups, await asyncio.gather(*(_client(int(address), group) for group in groups)), strict=True))
        return RabbitConnection(clients, confirmed=self._confirmed)


class RabbitConnection:
    """A client of RabbitMQ."""

    def __init__(self, clients: Mapping[str, Any], *, confirmed: bool) -> None:
        self._clients = clients
        self._confirmed = confirmed

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Store one offset."""
        await self._clients[group].store_offset(group, shard, offset)
        if self._confirmed:
            await self._confirm(group, shard, offset)
        else:
            await asyncio.sleep(0)  # to write lets no other task run, and it is all that the client does

    async def commit_many(self, batch: Batch) -> None:
        """Store all; what was stored last on a connection speaks for what went before it."""
        for group, offsets in batch.items():
            store = self._clients[group].store_offset
            for shard, offset in offsets.items():
                await store(group, shard, offset)
        if self._confirmed:
            await asyncio.gather(*(self._confirm(group, *list(offsets.items())[-1]) for group, offsets in batch.items()))
        else:
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def _confirm(self, group: str, shard: str, offset: int) -> None:
        stored = await self._clients[group].query_offset(group, shard)
        if stored < offset:
            raise RuntimeError(f"RabbitMQ has {stored} of {group}/{shard} after {offset} was stored")


async def _client(port: int, stream: str) -> Any:  # noqa: ANN401
    client = library("rstream.client").Client(host="127.0.0.1", port=port, frame_max=FRAME_MAX, heartbeat=HEARTBEAT_S)
    await client.start()
    await client.authenticate(vhost="/", username="guest", password="guest")  # noqa: S106 - a new node's, only from loopback
    await client.create_stream(stream)
    return client


def _settings(port: int) -> str:
    lines = {
        "listeners.tcp": "none",
        "stream.listeners.tcp.1": f"127.0.0.1:{port}",
        "stream.advertised_host": "127.0.0.1",
        "stream.advertised_port": str(port),
        "log.console": "true",
        "log.console.level": "error",
        "log.file": "false",
    }
    return "".join(f"{name} = {value}\n" for name, value in lines.items())


def _environment(directory: Path, epmd_port: int) -> dict[str, str]:
    return {
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERL_ARGS,
    }
