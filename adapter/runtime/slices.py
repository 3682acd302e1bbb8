"""Turns of the event loop for others, within work on many items."""

from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import anyio.lowlevel

SLICE = 200  # entries converted before others have their turns: well under a millisecond

TURNS = 8  # grpc.aio brings one call in each turn of the loop: with one turn a slice, calls would pile up

T = TypeVar("T")


async def in_slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Slices of a long batch, with a turn for other tasks between them, so that a big flush does not stall commits."""
    for at in range(0, len(items), SLICE):
        if at:
            await others()
        yield items[at : at + SLICE]


async def others() -> None:
    """Let others have their turns, after a slice of something long."""
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()
