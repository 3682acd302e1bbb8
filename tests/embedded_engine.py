"""The embedded engine of the Meta Service, running inside a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from adapter.metaservice.rocksdb.engine import RocksDbEngine


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[RocksDbEngine]:
    """Over the store in `directory`, and syncing; closed at the end."""
    engine = RocksDbEngine.open(directory / "meta")
    syncing = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        syncing.cancel()
        with suppress(asyncio.CancelledError):
            await syncing
        engine.close()
