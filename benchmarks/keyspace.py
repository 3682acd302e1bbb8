"""Numbered keys and records, and the bulk load of both stores with them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from adapter.meta.client import MetaClient
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry
from adapter.sidecar.ledger.store import LocalStore

SHARDS = 10  # of each group
CHUNK = 5_000  # keys of one write or save of a bulk load
COMMITTED_AT_MS = 1_700_000_000_000

Pair = tuple[OffsetKey, OffsetRecord]


def key_of(number: int, suffix: str = "") -> OffsetKey:
    """The key with a number. Keys are ordered as their numbers."""
    return OffsetKey("default", f"group-{number // SHARDS:07}", f"queue-{number % SHARDS}{suffix}")


def record_of(number: int, more: int = 0) -> OffsetRecord:
    """The record with a number. `more` is added to its offset."""
    return OffsetRecord(1, 1_000 + number + more, committed_at_ms=COMMITTED_AT_MS)


def pairs(count: int) -> Iterator[Pair]:
    """The first `count` keys with their records."""
    return ((key_of(number), record_of(number)) for number in range(count))


async def fill_meta(entries: Iterable[Pair], meta: MetaClient, advance: Callable[[int], None]) -> None:
    """Save entries to the Meta Service, with two saves in flight. `advance` is called with the number of saved entries."""
    under_way: deque[asyncio.Task[None]] = deque()
    for chunk in _chunks(entries):
        under_way.append(asyncio.create_task(_save(chunk, meta)))
        await asyncio.sleep(0)
        if len(under_way) == 2:
            await under_way.popleft()
        advance(len(chunk))
    await asyncio.gather(*under_way)


async def _save(chunk: Sequence[Pair], meta: MetaClient) -> None:
    outcomes = await meta.save([SaveEntry(*pair) for pair in chunk])
    assert all(outcome.status.acknowledged for outcome in outcomes)


def fill_local(entries: Iterable[Pair], store: LocalStore, advance: Callable[[int], None]) -> None:
    """Write entries to a local store."""
    for chunk in _chunks(entries):
        store.write(dict(chunk))
        advance(len(chunk))


def _chunks(entries: Iterable[Pair]) -> Iterator[Sequence[Pair]]:
    iterator = iter(entries)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
