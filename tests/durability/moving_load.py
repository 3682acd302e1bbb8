"""Saves, resets, deletes, reads and reports while offsets move, and a history that decides if all was well (2, 3)."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from adapter.errors import MetaUnavailableError
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.model.records import STORE_ID_BYTES, OffsetKey, OffsetRecord, SaveEntry, Status, StoreReport, next_era
from adapter.runtime.clocks import wall_ms
from adapter.testing.history import META, History
from adapter.testing.waiting import eventually
from tests.contract.engines import whole_group
from tests.durability.moving import CLUSTER

PAUSE_S = 0.02  # of a writer or reader
OLD_MS = 1  # when tombstones are from: long ago
RUNNING, DOWN = 4, 8  # adapters that report their stores all the time, and others that have done so once


class Load:
    """Saves, resets, deletes, compare-and-sets and reads of groups by several Meta Services, and what they were told."""

    def __init__(self, metas: Sequence[EtcdEngine], *, groups: int = 12, shards: int = 4) -> None:
        self.history = History()
        self.compared = 0  # compare-and-sets that met what they expected
        self._metas = metas
        self._random = random.Random(6)
        self._keys = [[OffsetKey("default", f"group-{group}", f"s{shard}") for shard in range(shards)] for group in range(groups)]
        # The last one was begun; each is above all before it.
        self._last = {key: OffsetRecord(1, 0) for group in self._keys for key in group}
        self._reported = [StoreReport(f"broker-{number}", "/store", bytes(STORE_ID_BYTES), 1) for number in range(RUNNING + DOWN)]

    @property
    def keys(self) -> list[OffsetKey]:
        """All keys."""
        return list(self._last)

    async def acknowledged_more(self, more: int = 50) -> None:
        """Wait until so many more writes are acknowledged."""
        self.history.check()
        enough = self.history.acknowledged + more

        def reached() -> bool:
            self.history.check()
            return self.history.acknowledged >= enough

        await eventually(reached, 30.0)

    async def fill(self) -> None:
        """Save every key, and report every store, once."""
        for number, group in enumerate(self._keys):
            await self._save(self._metas[number % len(self._metas)], group)
        for store in self._reported:
            await self._metas[0].report_store(CLUSTER, store, b"", wall_ms())

    async def run(self) -> None:
        """Write, read and drop tombstones until cancelled. A group has two writers, a key one, which knows its last write."""
        writers = [self._write(half) for group in self._keys for half in (group[::2], group[1::2])]
        reporters = [self._report_on(number) for number in range(RUNNING)]
        await asyncio.gather(
            *writers, *reporters, *(self._read_on(each) for each in self._metas), *(map(self._drop, self._metas))
        )

    async def check(self, *metas: EtcdEngine) -> None:
        """All that was acknowledged is at these Meta Services, whichever way they are asked, and no read before was wrong."""
        for each in metas:
            for way in (self._get, self._get_groups, self._list):
                await way(each)
            for number in range(len(self._reported)):
                await self._check_reported(each, number)
        assert self.history.check() == []

    async def _write(self, keys: Sequence[OffsetKey]) -> None:
        while True:
            chosen = self._random.sample(keys, self._random.randint(1, len(keys)))
            with contextlib.suppress(MetaUnavailableError):
                await self._save(self._random.choice(self._metas), chosen)
            await asyncio.sleep(PAUSE_S)

    async def _save(self, each: EtcdEngine, keys: Sequence[OffsetKey]) -> None:
        entries, writes = [], []
        for key in keys:
            before = self._last[key]
            record = self._last[key] = self._next(before)
            expected = before.offset if self._random.random() < 0.1 and before.live else None
            entries.append(SaveEntry(key, record, expected))
            writes.append(self.history.begin(key, _value(record), places=[META]))
        for entry, write, outcome in zip(entries, writes, await each.save(CLUSTER, entries), strict=True):
            if outcome.status is Status.APPLIED:
                write.acknowledged()
                self.compared += entry.expected_offset is not None
            elif outcome.status is Status.SUPERSEDED and outcome.standing:
                write.superseded(_value(outcome.standing))

    def _next(self, before: OffsetRecord) -> OffsetRecord:
        """A commit, a reset, or a delete."""
        dice = self._random.random()
        if dice < 0.1:
            return OffsetRecord(next_era(before.epoch), 0, live=False, committed_at_ms=OLD_MS)
        if dice < 0.2:
            return OffsetRecord(before.epoch + 1, self._random.randint(0, before.offset))
        return OffsetRecord(before.epoch, before.offset + 1)

    async def _read_on(self, each: EtcdEngine) -> None:
        while True:
            for way in (self._get, self._get_groups, self._list):
                with contextlib.suppress(MetaUnavailableError):
                    await way(each)
                await asyncio.sleep(PAUSE_S)

    async def _get(self, each: EtcdEngine) -> None:
        reading = self.history.reading(META, keys=self.keys)
        reading.found({key: _value(record) for key, record in await each.get(CLUSTER, self.keys)})

    async def _get_groups(self, each: EtcdEngine) -> None:
        group = self._random.choice(self._keys)
        reading = self.history.reading(META, keys=group)
        found = await whole_group(each, CLUSTER, group[0].namespace, group[0].group)
        reading.found({key: _value(record) for key, record in found})

    async def _list(self, each: EtcdEngine) -> None:
        reading = self.history.reading(META, keys=self.keys)
        found, after = await each.list_page(CLUSTER, [], 10_000, b"")
        assert not after
        reading.found({key: _value(record) for key, record in found if key in self._last})

    async def _report_on(self, number: int) -> None:
        """As an adapter: ask first, then report progress."""
        while True:
            with contextlib.suppress(MetaUnavailableError):
                await self._check_reported(self._random.choice(self._metas), number)
                store = self._reported[number]
                store = store._replace(flushed_seq=store.flushed_seq + 1)
                await self._random.choice(self._metas).report_store(CLUSTER, store, b"", wall_ms())
                self._reported[number] = store
            await asyncio.sleep(PAUSE_S)

    async def _check_reported(self, each: EtcdEngine, number: int) -> None:
        store = self._reported[number]
        known = await each.report_store(CLUSTER, store._replace(flushed_seq=0), b"", wall_ms())
        assert known, store
        assert known.store.flushed_seq >= store.flushed_seq

    async def _drop(self, each: EtcdEngine) -> None:
        while True:
            with contextlib.suppress(MetaUnavailableError):
                await each.drop_tombstones(OLD_MS + 1)
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def under(load: Load) -> AsyncIterator[None]:
    """Meanwhile the load goes on."""
    running = asyncio.ensure_future(load.run())
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _value(record: OffsetRecord) -> tuple[int, int, bool]:
    return record.epoch, record.offset, record.live
