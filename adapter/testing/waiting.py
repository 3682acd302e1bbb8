"""Waiting for a condition."""

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from adapter.model.records import OffsetKey

# For what comes within seconds on an idle machine: long enough on one with many times its load. Only a hang takes so long.
PATIENCE_S = 60.0


async def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds. Raises TimeoutError."""
    with anyio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another process, or has no event
            await anyio.sleep(0.005)


def positions(rows: Iterable[Any]) -> dict[OffsetKey, tuple[int, int]]:
    """Rows of a read or list reply as key -> (epoch, offset)."""
    return {OffsetKey(row.namespace, row.group, row.shard): (row.epoch, row.offset) for row in rows}
