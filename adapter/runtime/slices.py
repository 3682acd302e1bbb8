"""Yielding to other tasks of the event loop within work on many items."""

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import anyio.lowlevel

SLICE = 200  # entries converted between two yields: well under a millisecond

# Iterations of the event loop between two slices. The server begins one call of those that are tasks in each. Measured with
# grpcio's server, which delivered one call in each, at 200 commits/s during a flush of 60,000 keys: with 1, p50 36 ms instead of
# 2.4, p99 208 ms instead of 62.
ITERATIONS = 8

T = TypeVar("T")


async def in_slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Yield slices of a long batch, and let other tasks run between them, so that a big flush does not delay commits."""
    for at in range(0, len(items), SLICE):
        if at:
            await others()
        yield items[at : at + SLICE]


async def others() -> None:
    """Let other tasks run, after a slice of long work."""
    for _ in range(ITERATIONS):
        await anyio.lowlevel.checkpoint()
