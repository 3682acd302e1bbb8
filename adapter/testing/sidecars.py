"""Sidecars in the process of a test."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from adapter.client.broker_log import BrokerLog, NoBrokerLog
from adapter.meta.client import MetaClient
from adapter.runtime.settings.config import parse
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.process import Sidecar
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import PATIENCE_S


def adapter_config(directory: Path, **sections: Any) -> AdapterConfig:  # noqa: ANN401 - TOML values
    """The configuration for a test: all files and the socket in `directory`, a free port, no metrics by default."""
    values: dict[str, Any] = {"metrics": {"listen": ""}, **sections}
    server = {"listen": "127.0.0.1:0", "unix_socket": str(directory / "a.sock")}
    values["server"] = {**server, **sections.get("server", {})}
    values["store"] = {"path": str(directory / "adapter"), **sections.get("store", {})}
    return parse(values, AdapterConfig, source="test")


@asynccontextmanager
async def running_sidecar(config: AdapterConfig, meta: MetaClient, broker_log: BrokerLog | None = None) -> AsyncIterator[Sidecar]:
    """A sidecar in this process that has recovered, or is degraded; it is stopped and drained at the end."""
    sidecar = Sidecar(config, meta, broker_log or NoBrokerLog())
    task = asyncio.create_task(sidecar.run(), name="sidecar")

    async def settled() -> None:
        await sidecar.ready.wait()
        await sidecar.core().ledger.recovered.settled.wait()

    ready = asyncio.create_task(settled(), name="ready")
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
        if task.done():
            task.result()
        yield sidecar
    finally:
        ready.cancel()
        sidecar.stop()
        await task


@contextmanager
def sidecar_in_thread(directory: Path, meta: MetaClient | None = None) -> Iterator[str]:
    """A sidecar in a thread, for tests of blocking calls; yields its Unix socket, which is the same for the same directory."""
    started: list[str] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with running_sidecar(adapter_config(directory), meta or FakeMeta()) as sidecar:
            started.append(sidecar.addresses[-1])
            ready.set()
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()
