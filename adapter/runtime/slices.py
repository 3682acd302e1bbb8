"""Yielding to other tasks of the event loop within work on many items."""

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import anyio.lowlevel

SLICE = 200  # entries converted between two yields: well under a millisecond

TURNS = 8  # grpc.aio brings one call in each turn of the loop: with one turn a slice, calls would pile up

T = TypeVar("T")


async def in_slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Yield slices of a long batch, and let other tasks run between them, so that a big flush does not delay commits."""
    for at in range(0, len(items), SLICE):
        if at:
            await others()
        yield items[at : at + SLICE]


async def others() -> None:
    """Let other tasks run, after a slice of long work."""
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()
