"""Where a case plays: a real Meta Service and adapters, drivers, and the operator's calls."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from adapter.client.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import PATIENCE_S
from tests.conformance.driver import Driver, driving


@dataclass
class World:
    """A Meta Service and an adapter that run, and the client under test."""

    command: Sequence[str]  # of the driver
    directory: Path
    meta: ServiceProcess
    adapter: ServiceProcess
    group: str = field(default_factory=lambda: f"g-{uuid.uuid4().hex}")

    def driver(self, address: str = "", timeout_s: float = PATIENCE_S) -> AbstractAsyncContextManager[Driver]:
        """A driver of this adapter, or of another address."""
        return driving(self.command, address or self.adapter.address, timeout_s)

    def new_adapter(self) -> ServiceProcess:
        """One more adapter, not yet started."""
        return adapter_process(self.directory / uuid.uuid4().hex[:8], self.meta.tcp_address)

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[OffsetClient]:
        """The adapter's administrator."""
        async with OffsetClient.connect(self.adapter.address, PATIENCE_S) as client:
            yield client

    async def reset(self, shard: str, offset: int, group: str = "") -> None:
        """Reset a shard, as `offset-adapter offsets reset` does."""
        request = offsets_pb.ResetOffsetsRequest(group=group or self.group, shards=[shard], to_offset=offset, execute=True)
        async with self.operator() as client:
            reply = await client.admin.ResetOffsets(request, timeout=PATIENCE_S)
        assert [row.after.offset for row in reply.rows] == [offset]

    async def delete(self, shard: str) -> None:
        """Delete the offset of a shard."""
        request = offsets_pb.DeleteOffsetsRequest(group=self.group, shards=[shard], execute=True)
        async with self.operator() as client:
            await client.admin.DeleteOffsets(request, timeout=PATIENCE_S)

    async def stands(self, shard: str, group: str = "") -> offsets_pb.ShardOffset | None:
        """What the adapter has of a shard now."""
        async with self.operator() as client:
            return {row.shard: row async for row in client.list("default", group or self.group)}.get(shard)

    async def offset(self, shard: str, group: str = "") -> int | None:
        """The offset of it."""
        found = await self.stands(shard, group)
        return found.offset if found else None


async def started(service: ServiceProcess) -> None:
    """Start a process while the event loop goes on."""
    await asyncio.to_thread(service.start)


@contextmanager
def world(command: Sequence[str], directory: Path) -> Iterator[World]:
    """A Meta Service and an adapter, which are killed at the end."""
    meta = meta_process(directory / "meta")
    adapter = adapter_process(directory / "adapter", meta.tcp_address)
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        yield World(command, directory, meta, adapter)
