"""Reads: from the store, from the Meta Service, and the group loads that teach the store a key's epoch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from adapter.errors import ContendedError, MetaUnavailableError, TooLargeError
from adapter.model.codec import group_prefix
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, ReadMode, is_held
from adapter.runtime.serving.large_calls import MAX_BYTES, MAX_ROWS, SLICE_ROWS, LargeCalls
from adapter.runtime.serving.statuses import Context
from adapter.runtime.slices import others
from adapter.sidecar.engine.group_loader import LARGE_LIMIT_S, GroupLoader, Wanted, until_settled
from adapter.sidecar.engine.tombstones import Tombstones
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import TakeUp

R = TypeVar("R")


NOT_COMPARED = "not compared with the Meta Service since this adapter's start; MEMORY reads work (--mode memory)"

RAW_ROWS = 500  # encoded ones that are read between two yields
GROUP_ROWS = 5  # that looking for a group takes as long as


class OffsetReader:
    """Answers reads in the three modes."""

    def __init__(
        self,
        ledger: Ledger,
        loader: GroupLoader,
        large: LargeCalls,
        tombstones: Tombstones,
    ) -> None:
        self._store = ledger.store
        self._ledger = ledger
        self._loader = loader
        self._large = large
        self._tombstones = tombstones
        self._recovered = ledger.recovered

    async def read(self, wanted: Sequence[Wanted], mode: ReadMode) -> list[tuple[OffsetKey, OffsetRecord]]:
        """The live offsets, in the order asked for; absent ones are left out.

        Raises MetaUnavailableError or NotReadyError when the Meta Service had to be asked and could not: unknown is not absent.
        """
        await self.ask(wanted, mode)
        return [entry for rows in self.slices(wanted) for entry in rows if entry[1].live]

    async def ask(self, wanted: Sequence[Wanted], mode: ReadMode) -> None:
        """Load from the Meta Service what a read in this mode needs. Raises what `read` does.

        What is removed here between the load and the return of this is loaded again: it is in the Meta Service, and not absent.
        """
        if await self._unknown(wanted, mode):
            await until_settled(partial(self._ask, wanted, mode), LARGE_LIMIT_S)

    async def _ask(self, wanted: Sequence[Wanted], mode: ReadMode) -> None:
        forgets = self._store.states.removals
        asked = await self._unknown(wanted, mode)
        if asked:
            try:
                await self._loader.load_wanted(asked)
            except MetaUnavailableError as error:
                if all(self._loader.is_compared(part.group) for part in asked):
                    raise
                raise MetaUnavailableError(f"{'/'.join(asked[0].group)}: {NOT_COMPARED}: {error}") from error
            self._check_still_here(asked, forgets)

    async def _unknown(self, wanted: Sequence[Wanted], mode: ReadMode) -> list[Wanted]:
        """What the Meta Service has to be asked for."""
        asked = []
        for at, part in enumerate(wanted, start=1):
            if await self._must_ask(part, mode):
                asked.append(part)
            if at % SLICE_ROWS == 0:
                await others()
        return asked

    def _check_still_here(self, wanted: Sequence[Wanted], forgets: int) -> None:
        """Raise ContendedError if anything of these groups was removed since the counter of removals had this value."""
        if self._store.states.removed_since((part.group for part in wanted), forgets):
            raise ContendedError("offsets were removed here while they were read: read again")

    async def begin(self, wanted: Sequence[Wanted], mode: ReadMode) -> None:
        """What `ask` does, for a caller that reads where to begin: with STORE, what is held is taken up.

        Not a tombstone that is past: it holds nothing any more, and the Meta Service may have forgotten its own.
        """
        if mode is ReadMode.STORE:
            await until_settled(partial(self._begin, wanted), LARGE_LIMIT_S)
        else:
            await self.ask(wanted, mode)

    async def _begin(self, wanted: Sequence[Wanted]) -> None:
        forgets = self._store.states.removals
        await self._ask(wanted, ReadMode.STORE)
        for rows in self.slices(wanted):
            if held := [key for key, record in rows if is_held(record.epoch) and not self._tombstones.is_past(record)]:
                await self._ledger.submit(TakeUp(held))
            await others()
        self._check_still_here(wanted, forgets)

    async def answer(
        self,
        wanted: Sequence[Wanted],
        make: Callable[[OffsetKey, OffsetRecord], R],
        size: Callable[[R], int],
        context: Context | None = None,
    ) -> list[R]:
        """A row of each live offset that is here, in the order asked for; `size` gives the bytes of one in an answer.

        Raises TooLargeError, OverloadedError when too many ask for much at the same time, and ContendedError when some of much
        was removed meanwhile.
        """
        forgets = self._store.states.removals
        slices = self.slices(wanted)
        found = next(slices, [])
        if next(slices, None) is None:
            return [make(key, record) for key, record in found if record.live]
        del found, slices  # a call that waits holds only its request
        rows: list[R] = []
        left = MAX_BYTES
        async with self._large.one(context=context):
            for some in self.slices(wanted):
                made = [make(key, record) for key, record in some if record.live]
                rows += made
                left -= sum(map(size, made))
                if len(rows) > MAX_ROWS or left < 0:
                    raise TooLargeError(
                        f"groups: have more than the {MAX_ROWS:,} offsets or {MAX_BYTES:,} bytes of one answer: name some of the "
                        "shards in each of several calls, or use ListOffsets, which has pages"
                    )
                await others()
        self._check_still_here(wanted, forgets)
        return rows

    async def _must_ask(self, wanted: Wanted, mode: ReadMode) -> bool:
        if mode is ReadMode.STORE:
            return True
        if mode is ReadMode.MEMORY and self._store.loss is None:
            return False
        if mode is not ReadMode.MEMORY and not (self._recovered.degraded or self._loader.is_compared(wanted.group)):
            return True
        # After a loss even MEMORY asks for what is absent: it may be absent because it was lost.
        if not wanted.shards:
            return not self._loader.is_loaded(wanted.group)
        for at in range(0, len(wanted.shards), SLICE_ROWS):
            if at:
                await others()
            if any(self._store.get(OffsetKey(*wanted.group, shard)) is None for shard in wanted.shards[at : at + SLICE_ROWS]):
                return True
        return False

    def raw_slices(self, groups: Iterable[GroupKey]) -> Iterator[list[tuple[bytes, bytes]]]:
        """As `slices`, of whole groups, encoded."""
        rows: list[tuple[bytes, bytes]] = []
        room = RAW_ROWS
        for group in groups:
            prefix, after, done = group_prefix(group), b"", False
            while not done:
                page = self._store.raw(room, prefix, after)
                rows += page
                done = len(page) < room
                room -= len(page) + GROUP_ROWS
                if room <= 0:
                    after = rows[-1][0] if page else after
                    yield rows
                    rows, room = [], RAW_ROWS
        if rows:
            yield rows

    def slices(self, wanted: Iterable[Wanted]) -> Iterator[list[tuple[OffsetKey, OffsetRecord]]]:
        """What is here, tombstones included, in slices, each of which is read when it is asked for and takes about a millisecond.

        Between two of them anything may happen, also to the store.
        """
        rows: list[tuple[OffsetKey, OffsetRecord]] = []
        room = SLICE_ROWS
        for part in wanted:
            names, after, done = iter(part.shards), None, False
            while not done:
                if part.shards:
                    keys = [OffsetKey(*part.group, shard) for shard in islice(names, room)]
                    rows += [(key, record) for key in keys if (record := self._store.get(key)) is not None]
                    looked_at = len(keys)
                else:
                    page = self._store.first(room, prefix=group_prefix(part.group), after=after)
                    rows += [(key, record) for key, record, _ in page]
                    looked_at = len(page)
                    after = page[-1].key if page else None
                done = looked_at < room
                room -= looked_at + GROUP_ROWS
                if room <= 0:
                    yield rows
                    rows, room = [], SLICE_ROWS
        if rows:
            yield rows
