"""Reads: from the cache, from the Meta Service, and the group loads that teach the cache a key's epoch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice, repeat
from typing import NamedTuple, TypeVar

import structlog

from adapter.cache import OffsetCache
from adapter.codec import group_prefix
from adapter.combine import Combiner
from adapter.committer import Columns, Commit, Committer, Load
from adapter.errors import AdapterError, ContendedError, NotReadyError, TooLargeError
from adapter.large import MAX_BYTES, MAX_ROWS, SLICE_ROWS, LargeCalls
from adapter.meta_client import MetaClient
from adapter.model import GroupKey, OffsetKey, OffsetRecord
from adapter.retry import retrying
from adapter.wire import others

R = TypeVar("R")

log = structlog.get_logger(__name__)

LOAD_GROUPS = 256  # groups fetched by one call
GROUP_ROWS = 5  # that looking for a group takes as long as
LOAD_LIMIT_S = 1.0  # after which a load that meets removals again and again is given up


class ReadMode(Enum):
    """Where a read looks, as RocketMQ's ReadOffsetType; the values are the wire's."""

    MEMORY_FIRST_THEN_STORE = 0
    MEMORY = 1
    STORE = 2


class Wanted(NamedTuple):
    """Shards of a group; none named means all of them."""

    group: GroupKey
    shards: Sequence[str]

    @property
    def keys(self) -> list[OffsetKey]:
        """The keys of the named shards."""
        return [OffsetKey(*self.group, shard) for shard in self.shards]


class GroupLoader:
    """Brings groups from the Meta Service into the cache. Concurrent loads share a call."""

    def __init__(self, cache: OffsetCache, committer: Committer, meta: MetaClient) -> None:
        self._cache = cache
        self._committer = committer
        self._meta = meta
        self._combiner: Combiner[GroupKey, None] = Combiner(self._load, max_items=LOAD_GROUPS)
        self.run = self._combiner.run

    def is_loaded(self, group: GroupKey) -> bool:
        """True when all that the Meta Service holds of the group is known here."""
        return group in self._committer.loaded.groups

    async def load(self, group: GroupKey) -> None:
        """Merge the Meta Service's values of the group into the cache.

        Raises MetaUnavailableError, and ContendedError when keys keep being removed meanwhile.
        """
        await self._combiner.submit(group)

    async def load_patiently(self, *groups: GroupKey) -> None:
        """The same for whom no commit waits: with the Meta Service's full timeout, in calls of its own."""
        for at in range(0, len(groups), LOAD_GROUPS):
            await self._load(groups[at : at + LOAD_GROUPS], patient=True)

    def must_load(self, commit: Commit) -> bool:
        """True when a group of the commit has to be loaded first, see `load_for`."""
        return any(map(self._must_load_any, commit.columns)) or any(
            self._must_load(key, offered.epoch) for key, offered in commit.entries
        )

    async def load_for(self, commit: Commit) -> None:
        """Load the groups of keys that are not local, or that their consumer knows in a later epoch, so that epochs are known.

        What cannot be loaded now is not waited for: its keys go in with epoch 0.
        """
        missing = dict.fromkeys(key.group_key for key, offered in commit.entries if self._must_load(key, offered.epoch))
        missing.update((columns.group, None) for columns in commit.columns if self._must_load_any(columns))
        for group in missing if self._meta.available else ():
            try:
                await self.load(group)
            except AdapterError as error:
                log.info("load.failed", namespace=group.namespace, group=group.group, error=str(error))
                break

    def _must_load_any(self, columns: Columns) -> bool:
        if not columns.epochs and columns.group in self._committer.loaded.groups:
            return False
        held = self._cache.hold_all(columns.group, columns.shards)
        loaded = columns.group in self._committer.loaded.groups
        return any(
            (epoch or not loaded) and ((found := held[shard][0]) is None or epoch > found[0])
            for shard, epoch in zip(columns.shards, columns.epochs or repeat(0), strict=False)
        )

    def _must_load(self, key: OffsetKey, epoch: int) -> bool:
        if key.group_key in self._committer.loaded.groups and not epoch:
            return False
        standing = self._cache.get(key)
        return standing is None or epoch > standing.epoch

    async def _load(self, groups: Sequence[GroupKey], *, patient: bool = False) -> list[None]:
        attempts = retrying("load", first_s=0.001, max_s=0.05, limit_s=LOAD_LIMIT_S, on=ContendedError)
        await attempts(self._load_once, list(dict.fromkeys(groups)), patient=patient)
        return [None] * len(groups)

    async def _load_once(self, groups: Sequence[GroupKey], *, patient: bool) -> None:
        forgets = self._committer.loaded.forgets
        found = await self._meta.get_groups(groups, patient=patient)
        await self._committer.submit(Load(groups, [entry for records in found for entry in records.items()], forgets))


class OffsetReader:
    """Answers reads in the three modes."""

    def __init__(self, cache: OffsetCache, loader: GroupLoader, large: LargeCalls) -> None:
        self._cache = cache
        self._loader = loader
        self._large = large
        self.recovered = False

    async def read(self, wanted: Sequence[Wanted], mode: ReadMode) -> list[tuple[OffsetKey, OffsetRecord]]:
        """The live offsets, in the order asked for; absent ones are left out.

        Raises MetaUnavailableError or NotReadyError when the Meta Service had to be asked and could not: unknown is not absent.
        """
        await self.ask(wanted, mode)
        return [entry for rows in self.slices(wanted) for entry in rows if entry[1].live]

    async def ask(self, wanted: Sequence[Wanted], mode: ReadMode) -> None:
        """Bring from the Meta Service what a read in this mode must not miss. Raises what `read` does."""
        for part in wanted:
            if await self._must_ask(part, mode):
                if not self.recovered:
                    raise NotReadyError("reads of the store are refused until the recovery is done; MEMORY reads work")
                await self._loader.load(part.group)

    async def answer(
        self,
        wanted: Sequence[Wanted],
        make: Callable[[OffsetKey, OffsetRecord], R],
        size: Callable[[R], int],
        context: object = None,
    ) -> list[R]:
        """A row of each live offset that is here, in the order asked for; `size` gives the bytes of one in an answer.

        Raises TooLargeError, and OverloadedError when too many ask for much at the same time.
        """
        slices = self.slices(wanted)
        found = next(slices, [])
        if next(slices, None) is None:
            return [make(key, record) for key, record in found if record.live]
        del found, slices  # who waits holds nothing but its request
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
        return rows

    async def _must_ask(self, wanted: Wanted, mode: ReadMode) -> bool:
        if mode is ReadMode.STORE:
            return True
        if mode is ReadMode.MEMORY and self._cache.loss is None:
            return False
        # After a loss even MEMORY asks for what is absent: it may be absent because it was lost.
        if not wanted.shards:
            return not self._loader.is_loaded(wanted.group)
        for at in range(0, len(wanted.shards), SLICE_ROWS):
            if at:
                await others()
            if any(self._cache.get(OffsetKey(*wanted.group, shard)) is None for shard in wanted.shards[at : at + SLICE_ROWS]):
                return True
        return False

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
                    rows += [(key, record) for key in keys if (record := self._cache.get(key)) is not None]
                    looked_at = len(keys)
                else:
                    page = self._cache.first(room, prefix=group_prefix(part.group), after=after)
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
