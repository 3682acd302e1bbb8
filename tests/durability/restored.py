"""What the tests of a Meta Service that was put back from a backup share."""

import asyncio
from collections.abc import Mapping

from adapter.model.records import OffsetKey
from adapter.testing.history import ADAPTER, History
from adapter.testing.processes import ServiceProcess
from tests.durability.callers import WAIT_S, remote_positions

NOTICED = "meta.holds_less"


async def at_least_in(meta: ServiceProcess, history: History) -> None:
    """Wait until a Meta Service holds all that adapters acknowledged."""
    least = history.least(ADAPTER)
    async with asyncio.timeout(WAIT_S):
        while not _at_least(await remote_positions(meta, least), least):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


def _at_least(found: Mapping[OffsetKey, tuple[int, int]], least: Mapping[OffsetKey, tuple[int, int]]) -> bool:
    return all(found.get(key, (0, 0)) >= position for key, position in least.items())
