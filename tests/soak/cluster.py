"""The processes of the soak, what clients see of them, and when all of them must agree."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.abc
import anyio.to_thread
import grpc.aio

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import ReadMode
from adapter.rpc import offsets_pb
from adapter.sidecar.config import WalSync
from adapter.testing.history import META, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import positions
from tests import forking
from tests.durability.load import CALL_S, CHANNEL_OPTIONS, LIMIT_S, RETRY_S, Load, Positions, Turn, Watcher, status_when
from tests.durability.proxy import Proxy
from tests.soak.consumers import PAUSE_S, THROUGH, Administrator, SharedLoad, shared_key, turns_of


class Setup(NamedTuple):
    """How an adapter runs. Its name is also that of its place in the history."""

    name: str
    wal_sync: WalSync
    writes_through: bool


# Of the first most commits take the fast path: nothing is written through there, or synced one by one.
SETUPS = (Setup("a", "interval", writes_through=False), Setup("b", "always", writes_through=True))
POLICY = f"[[policy]]\ngroups = '{THROUGH}-*'\nmode = 'write_through'\n"
# Short, so that a fault meets many attempts, and a start without the Meta Service is soon degraded.
SETTINGS = """timeout_ms = 1000
[flush]
interval_ms = 30
backoff_max_ms = 200
[recovery]
timeout_ms = 300
batch_keys = 20
[stop]
grace_ms = 10000
"""


class SoakError(Exception):
    """Something else than the history is wrong."""


@dataclass
class Node:
    """An adapter, the proxy between it and the Meta Service, its consumers, and a client for everything else."""

    name: str
    process: ServiceProcess
    proxy: Proxy
    turns: Sequence[tuple[Load, Turn]]
    channel: grpc.aio.Channel
    client: OffsetClient

    async def rest(self) -> None:
        """No consumer of this adapter commits until `go_on`."""
        for load, _ in self.turns:
            await load.pause()

    def go_on(self) -> None:
        """Commit again."""
        for load, _ in self.turns:
            load.resume()


class Cluster:
    """Two adapters with consumers, an administrator, and one Meta Service that is watched."""

    def __init__(
        self, history: History, meta: ServiceProcess, nodes: Sequence[Node], admin: Administrator, watcher: Watcher
    ) -> None:
        self.history = history
        self.meta = meta
        self.nodes = nodes
        self.admin = admin
        self.watcher = watcher

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        directory: Path,
        history: History,
        rng: random.Random,
        wal_sync: WalSync | None = None,
    ) -> AsyncIterator["Cluster"]:
        """All processes up, under load; killed at the end. `wal_sync`: of both adapters."""
        meta = replace(meta_process(directory / "meta-service"), launched_by=forking.start)
        async with AsyncExitStack() as stack:
            setups = [setup._replace(wal_sync=wal_sync or setup.wal_sync) for setup in SETUPS]
            nodes = [await _node(stack, directory, setup, meta, history) for setup in setups]
            stack.enter_context(ended(meta, *(node.process for node in nodes)))
            remote = await stack.enter_async_context(
                GrpcMetaClient.open(MetaSection(endpoints=(meta.address,), timeout_ms=2_000))
            )
            admin = Administrator({node.name: node.client for node in nodes}, history, rng)
            cluster = cls(history, meta, nodes, admin, Watcher(remote, history))
            for process in (meta, *(node.process for node in nodes)):
                await anyio.to_thread.run_sync(process.start)
            # Innermost: they end before their channels are closed.
            async with anyio.create_task_group() as tasks:
                await cluster._commit(tasks)
                yield cluster
                tasks.cancel_scope.cancel()

    async def _commit(self, tasks: anyio.abc.TaskGroup) -> None:
        await self.admin.prepare()
        tasks.start_soon(self.watcher.run, name="watcher")
        tasks.start_soon(self.admin.take_turns, self.admin.changes(), name="administrator")
        for node in self.nodes:
            for number, (load, turn) in enumerate(node.turns):
                tasks.start_soon(load.take_turns, turn, name=f"load-{node.name}-{number}")

    async def start(self, *processes: ServiceProcess) -> None:
        """Start dead processes at once and wait for them. Then look at all they have, before consumers hide a loss."""
        nodes = [node for node in self.nodes if node.process in processes or self.meta in processes]
        for node in nodes:
            await node.rest()
        for process in processes:
            process.launch()
        for process in processes:
            await anyio.to_thread.run_sync(process.wait_ready)
        if self.meta in processes:
            await self.watcher.fresh()
        for node in nodes:
            if node.process in processes:
                with anyio.fail_after(LIMIT_S):
                    await node.channel.channel_ready()
                await self.look(node)
            node.go_on()

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Meanwhile nobody commits, reads the Meta Service, or changes anything; adapters go on with what they have."""
        await self.admin.pause()
        for node in self.nodes:
            await node.rest()
        async with self.watcher.turn:
            yield
        for node in self.nodes:
            node.go_on()
        self.admin.resume()

    async def look(self, node: Node) -> Positions:
        """Read all that an adapter holds."""
        reading = self.history.reading(node.name)
        found = positions([row async for row in node.client.list()])
        reading.found(found)
        # A killed process loses nothing, so it must not raise the alarm for a loss either.
        if (await status_when(node.process.address)).HasField("loss"):
            raise SoakError(f"adapter {node.name} reports a loss")
        return found

    async def settle(self) -> None:
        """While nobody commits, everything arrives, and all three come to hold the same."""
        await self.admin.pause()
        for node in self.nodes:
            await node.rest()
        for node in self.nodes:
            flush = self.history.carrying(node.name)
            await status_when(node.process.address, _is_clean)
            flush.done()
        live = await self.watcher.fresh()
        for node in self.nodes:
            await self._merge(node, live)
            if await self.look(node) != live:
                raise SoakError(f"adapter {node.name} and the Meta Service differ though nothing is dirty")
        for node in self.nodes:
            node.go_on()
        self.admin.resume()

    async def stop(self) -> None:
        """SIGTERM under load: exit code 0, and the Meta Service has all that was acknowledged (8)."""
        await self.admin.pause()
        for node in self.nodes:
            code = await anyio.to_thread.run_sync(node.process.stop)
            await node.rest()
            if code:
                raise SoakError(f"adapter {node.name} ended with {code}")
            self.history.carrying(node.name).done()
        await self.watcher.fresh()
        code = await anyio.to_thread.run_sync(self.meta.stop)
        if code:
            raise SoakError(f"the Meta Service ended with {code}")

    async def _merge(self, node: Node, live: Positions) -> None:
        """Read every group from the store, through an adapter; also the shared one when all of it is deleted there."""
        groups = dict.fromkeys((shared_key(0).group_key, *(key.group_key for key in live)))
        wanted = [offsets_pb.GroupShards(namespace=namespace, group=group) for namespace, group in groups]
        request = offsets_pb.ReadOffsetsRequest(
            groups=wanted, mode=offsets_pb.ReadMode.ValueType(ReadMode.STORE.value), keep_hold=True
        )
        with anyio.fail_after(LIMIT_S):
            while True:
                reading = self.history.reading(node.name, META)
                try:
                    found = await node.client.store.ReadOffsets(request, timeout=CALL_S)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    await anyio.sleep(RETRY_S)  # its connection to a Meta Service that has just come back is not there yet
                else:
                    reading.found(positions(found.offsets))
                    return


async def _node(stack: AsyncExitStack, directory: Path, setup: Setup, meta: ServiceProcess, history: History) -> Node:
    name = setup.name
    proxy = await stack.enter_async_context(Proxy(meta.address).listening())
    top = POLICY if setup.writes_through else ""
    process = adapter_process(directory / name, proxy.address, wal_sync=setup.wal_sync, top=top, extra=SETTINGS)
    process = replace(process, launched_by=forking.start)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(process.address, CHANNEL_OPTIONS))
    client = OffsetClient(channel, CALL_S, resend=False)
    shared = SharedLoad(client, history, [name], PAUSE_S)
    through = Load(client, history, [name, META], PAUSE_S) if setup.writes_through else None
    return Node(name, process, proxy, turns_of(name, shared, through), channel, client)


def _is_clean(status: offsets_pb.StatusReply) -> bool:
    return status.recovery.done and not status.dirty_keys and not status.refused_keys
