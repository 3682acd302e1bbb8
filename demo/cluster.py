"""The two processes of the demo and their clients. All files are in one temporary directory, which is removed at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc.aio

from adapter.client import OffsetClient
from adapter.meta.channel import CHANNEL_OPTIONS
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.paging import DEFAULT_PAGE
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.broker_log import MemoryLog, serving
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process


class DemoError(Exception):
    """The demo failed. The message says what did not happen as expected."""


@dataclass(frozen=True)
class Cluster:
    """A Meta Service and an adapter, not started, the broker's client of the adapter, and the broker's log."""

    store: Path
    meta: ServiceProcess
    adapter: ServiceProcess
    channel: grpc.aio.Channel
    broker: OffsetClient
    log: MemoryLog

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["Cluster"]:
        """Prepare both; at the end kill the processes that still run and remove the directory."""
        with TemporaryDirectory(prefix="offset-demo-") as name:
            directory = Path(name)
            log = MemoryLog()
            async with serving(log) as log_address:
                meta = meta_process(directory)
                adapter = adapter_process(directory, meta.address, extra=f"[broker_log]\naddress = '{log_address}'\n")
                with ended(adapter, meta):
                    async with grpc.aio.insecure_channel(adapter.address, CHANNEL_OPTIONS) as channel:
                        yield cls(directory / "adapter", meta, adapter, channel, OffsetClient(channel, resend=False), log)

    async def remote_positions(self) -> dict[OffsetKey, tuple[int, int]]:
        """Key -> (epoch, offset) of all offsets in the Meta Service."""
        return {key: record.position for key, record in (await listed(self.meta.address)).items()}

    def stored_positions(self) -> dict[OffsetKey, tuple[int, int]]:
        """Key -> (epoch, offset) of all offsets in the adapter's store. Blocks."""
        return stored_positions(self.store)

    def last_words(self, lines: int = 6) -> str:
        """The ends of both logs, for finding the cause of a failure."""
        logs = {"Meta Service": self.meta, "adapter": self.adapter}
        started = {name: process.log for name, process in logs.items() if process.process}
        return "\n".join(f"{name}:\n" + "\n".join(log.splitlines()[-lines:]) for name, log in started.items())


async def listed(meta: str) -> dict[OffsetKey, OffsetRecord]:
    """All offsets in the Meta Service at this address."""
    found: dict[OffsetKey, OffsetRecord] = {}
    token = b""
    # A new channel in each call, because an old one may still wait to reconnect.
    async with GrpcMetaClient.open(MetaSection(endpoints=(meta,))) as client:
        while True:
            page, token = await client.list_page("", "", DEFAULT_PAGE, token)
            found.update(page)
            if not token:
                return found


def stored_positions(store: Path) -> dict[OffsetKey, tuple[int, int]]:
    """All offsets in an adapter's store, read from its directory. The adapter must have ended. Blocks."""
    opened = LocalStore.open(store, "interval")
    try:
        return {stored.key: stored.record.position for stored in opened.scan()}
    finally:
        opened.close()
