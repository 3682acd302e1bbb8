"""The engines that the contract is tested with. A new engine is one more line in ENGINES."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from adapter.metaservice.config import EtcdSection
from adapter.metaservice.engine import Engine, group_pages
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.clocks import wall_ms
from tests.contract.cases import CLUSTER
from tests.contract.etcd import shared_members, shared_section
from tests.embedded_engine import opened as rocksdb
from tests.model.engine import MemoryEngine

Opened = Callable[[], AbstractAsyncContextManager[Engine]]
TRICKY = [
    "g",
    "gg",
    "g/a",
    "a",
    "/",
    "\x02a\x01b".replace("\x02", "\xa0").replace("\x01", " "),
    "ä",
    "\U0001f600",
    "g" * 255,
    "\uffff",
]


@asynccontextmanager
async def memory(directory: Path) -> AsyncIterator[Engine]:
    """The model test's engine: one for each directory; closing it is a kill."""
    engine = _MEMORY.setdefault(directory, MemoryEngine(wall_ms))
    yield engine
    engine.crash()


_MEMORY: dict[Path, MemoryEngine] = {}


@asynccontextmanager
async def etcd(directory: Path) -> AsyncIterator[Engine]:
    """The engine over etcd, with two Raft groups of offsets; a key prefix for each directory."""
    section = _SECTIONS.setdefault(directory, shared_section())
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(EtcdCluster.open("metadata", shared_members(), section))
        groups = [
            await stack.enter_async_context(EtcdCluster.open(name, shared_members(name), section))
            for name in ("contract", "contract-2")
        ]
        engine = EtcdEngine(metadata, groups, section)
        await engine.open()
        running = asyncio.create_task(engine.run())
        try:
            yield engine
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


_SECTIONS: dict[Path, EtcdSection] = {}
ENGINES: dict[str, Callable[[Path], AbstractAsyncContextManager[Engine]]] = {"rocksdb": rocksdb, "memory": memory, "etcd": etcd}


async def standing(engine: Engine, *keys: OffsetKey) -> list[OffsetRecord | None]:
    """The records of these keys; None is absent."""
    found = dict(await engine.get(CLUSTER, keys))
    return [found.get(where) for where in keys]


async def whole_group(engine: Engine, cluster: str, namespace: str, group: str) -> list[tuple[OffsetKey, OffsetRecord]]:
    """All records of a group, tombstones included, in key order."""
    return [entry async for entries in group_pages(engine, cluster, namespace, group) for entry in entries]


async def everything(engine: Engine, *names: str, size: int = 1000) -> list[tuple[OffsetKey, OffsetRecord]]:
    """All pages of a listing."""
    rows: list[tuple[OffsetKey, OffsetRecord]] = []
    after = b""
    while True:
        page = await engine.list_page(CLUSTER, names, size, after)
        assert len(page.entries) <= size
        rows += page.entries
        after = page.after
        if not after:
            return rows
