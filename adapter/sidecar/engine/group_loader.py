"""Loads what the Meta Service holds of groups into the local store, when a commit or a read needs one for the first time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

import anyio
import structlog

from adapter.errors import AdapterError, ContendedError, MetaUnavailableError, NotReadyError, TimedOutError
from adapter.meta.client import KEYS_AT_ONCE, LOAD_ROWS, GroupsPage, MetaClient
from adapter.meta.packed import Known
from adapter.model.codec import decode_key, group_prefix
from adapter.model.records import CommitMode, GroupKey, OffsetKey, OffsetRecord, is_deleted
from adapter.runtime.coalescing import Coalescer
from adapter.runtime.retry import retrying
from adapter.runtime.serving.large_calls import SLICE_ROWS
from adapter.runtime.slices import in_slices, others
from adapter.sidecar.engine.tombstones import Tombstones
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Columns, Commit, Forget, Load

R = TypeVar("R")

LOAD_GROUPS = 256  # groups fetched by one call

# After which a load that meets removals again and again is given up: one that a commit waits for, and any other.
LOAD_LIMIT_S, LARGE_LIMIT_S = 1.0, 30.0

log = structlog.get_logger(__name__)

LOAD_KEYS = 2_000  # named ones that are loaded at once

SLOW_PAGES = 4  # tries of a page in the middle of a load, each for half as much


class Wanted(NamedTuple):
    """Shards of a group, and all shards of some topics; nothing named means all of the group. Reads know no topics."""

    group: GroupKey
    shards: Sequence[str]
    topics: Sequence[str] = ()

    @property
    def keys(self) -> list[OffsetKey]:
        """The keys of the named shards."""
        return [OffsetKey(*self.group, shard) for shard in self.shards]


async def until_settled(load: Callable[[], Awaitable[R]], limit_s: float) -> R:
    """Load again from the beginning if keys were removed meanwhile. Raises ContendedError if that goes on too long."""
    return await retrying("load", first_s=0.001, max_s=0.05, limit_s=limit_s, on=ContendedError)(load)


def _in_parts(wanted: Wanted) -> Iterator[Wanted]:
    """Cut named shards into parts of at most LOAD_KEYS."""
    if not wanted.shards:
        yield wanted
    for at in range(0, len(wanted.shards), LOAD_KEYS):
        yield Wanted(wanted.group, wanted.shards[at : at + LOAD_KEYS])


class GroupLoader:
    """Brings groups, or named keys, from the Meta Service into the store. Concurrent loads share calls.

    A group that does not fit into one page is large: for a commit only the keys are loaded that it has. What a load has adopted
    before it failed stays: it is merged.
    """

    def __init__(
        self,
        ledger: Ledger,
        meta: MetaClient,
        tombstones: Tombstones,
    ) -> None:
        self._store = ledger.store
        self._states = ledger.states
        self._dirty = ledger.dirty
        self._ledger = ledger
        self._meta = meta
        self._tombstones = tombstones
        self._recovered = ledger.recovered
        self._for_commits: Coalescer[Wanted, None] = Coalescer(self._load_for_commits, max_items=LOAD_GROUPS)
        self._for_reads: Coalescer[Wanted, bool] = Coalescer(self._load_for_reads, max_items=LOAD_GROUPS)
        self._large_loads: Coalescer[GroupKey, None] = Coalescer(self._load_large, max_items=LOAD_GROUPS)
        self._comparisons: Coalescer[Sequence[OffsetKey], None] = Coalescer(
            self._compare_keys, max_items=LOAD_KEYS, weight=len, max_weight=KEYS_AT_ONCE
        )

    async def run(self) -> None:
        """Make the calls for loads until cancelled; pending loads then fail with NotReadyError."""
        async with anyio.create_task_group() as tasks:
            for coalescer in (self._for_commits, self._for_reads, self._large_loads, self._comparisons):
                tasks.start_soon(coalescer.run)

    def is_loaded(self, group: GroupKey) -> bool:
        """True if all records of the group in the Meta Service are known here."""
        return self._states.is_loaded(group)

    def is_compared(self, group: GroupKey) -> bool:
        """True if the Meta Service had nothing newer of the group, since the store was opened, than is here."""
        return self._recovered.once or self._recovered.has(group) or self.is_loaded(group)

    async def compare(self, wanted: Sequence[Wanted]) -> None:
        """Compare what is here of these with the Meta Service, as the recovery does, unless that has done it.

        Afterwards a key that the Meta Service has not is dirty, also if a former process left it. Raises as `load_wanted` does.
        While the adapter is degraded nothing is compared: all that was not flushed is dirty then.
        """
        keys: list[OffsetKey] = []
        for part in wanted:
            if not (self._recovered.degraded or self._recovered.has(part.group)):
                async for some in self._here(part):
                    keys += some
                    if len(keys) >= LOAD_KEYS:
                        await self._comparisons.submit(keys)
                        keys = []
        if keys:
            await self._comparisons.submit(keys)

    async def _here(self, wanted: Wanted) -> AsyncIterator[list[OffsetKey]]:
        """The stored keys of a part, SLICE_ROWS at a time."""
        async for shards in in_slices(wanted.shards):
            yield [key for shard in shards if self._store.get(key := OffsetKey(*wanted.group, shard))]
        after: OffsetKey | None = None
        while not wanted.shards and (page := self._store.first(SLICE_ROWS, prefix=group_prefix(wanted.group), after=after)):
            yield [stored.key for stored in page]
            after = page[-1].key
            await others()

    async def load(self, group: GroupKey) -> None:
        """Merge the Meta Service's values of the group into the store, for a read. See `load_wanted`."""
        await self.load_wanted([Wanted(group, ())])

    async def load_wanted(self, wanted: Sequence[Wanted]) -> None:
        """Merge the Meta Service's values of whole groups, and of exactly the shards that are named, into the store, for a read.

        Raises MetaUnavailableError, and ContendedError when keys keep being removed meanwhile.
        """
        async for parts in in_slices([part for one in wanted for part in _in_parts(one)]):
            for complete, part in zip(await asyncio.gather(*map(self._for_reads.submit, parts)), parts, strict=True):
                if not complete:
                    await self._large_loads.submit(part.group)

    async def load_patiently(self, *wanted: Wanted) -> None:
        """Load as `load_wanted` does, but in calls of its own, so that no commit and no other read waits for them."""
        for part in (part for one in wanted for part in _in_parts(one) if part.shards):
            await self.load_keys(part.keys)
        groups = sorted(
            {one.group for one in wanted if not one.shards}, key=group_prefix
        )  # the order that the Meta Service reads in
        for at in range(0, len(groups), LOAD_GROUPS):
            await self._load_groups(groups[at : at + LOAD_GROUPS])

    async def load_whole(self, group: GroupKey, most: int) -> bool:
        """Load all of a group in calls of its own; False when it has more than `most` offsets.

        They are counted page by page. The page that exceeds is neither stored nor followed by another.
        """
        return await self._load_groups((group,), most)

    def must_load(self, commit: Commit) -> bool:
        """True when a group of the commit has to be loaded first, see `load_for`."""
        return (
            any(next(self._missing_of(columns), None) is not None for columns in commit.columns)
            or any(self._must_load(key, offered.epoch) for key, offered in commit.entries)
            or any(not (self.is_loaded(group) and self._meta.kind.tells_rewinds) for group in self._rewound(commit))
        )

    async def load_for(self, commit: Commit) -> Commit:
        """Load the groups of keys that are not local, or that their consumer knows in a later epoch, so that epochs are known.

        Returns the commit as it is to be decided now. Of large groups only these keys. What cannot be loaded now is not waited
        for: its keys go in with epoch 0.

        During the first comparison the same is done for all keys of an OVERWRITE: an offset that goes forward here may be a
        rewind of what another adapter had saved, and would be lost if it was stored without the next epoch. Raises NotReadyError
        for one before a server without epochs, during any comparison: there the larger offset stands until the key was compared.
        """
        rewound = self._rewound(commit)
        missing = {group: dict.fromkeys(shards) for group, shards in rewound.items() if not self.is_loaded(group)}
        for key, offered in commit.entries:
            if self._must_load(key, offered.epoch):
                missing.setdefault(key.group_key, {})[key.shard] = None
        for columns in commit.columns:
            missing.setdefault(columns.group, {}).update(dict.fromkeys(self._missing_of(columns)))
        wanted = [Wanted(group, list(shards)) for group, shards in missing.items() if shards]
        if wanted and self._meta.available:
            commit = commit._replace(waited=True)
            await self._load_until_one_fails(wanted)
        # Known for certain only behind a call.
        if rewound and self._meta.available and not self._meta.kind.tells_rewinds:
            raise NotReadyError("the adapter is recovering: with this Meta Service, OVERWRITE is taken when that is done")
        return commit

    async def _load_until_one_fails(self, wanted: Sequence[Wanted]) -> None:
        """Load keys for a commit, those of many groups in a call; after an error, none further."""
        async for parts in in_slices(wanted):
            for part, ended in zip(
                parts, await asyncio.gather(*map(self._for_commits.submit, parts), return_exceptions=True), strict=True
            ):
                if isinstance(ended, AdapterError):
                    log.info("load.failed", namespace=part.group.namespace, group=part.group.group, error=str(ended))
                    return
                if ended is not None:
                    raise ended

    def _rewound(self, commit: Commit) -> dict[GroupKey, list[str]]:
        """The keys of an OVERWRITE during a comparison, which may be rewinds; none otherwise."""
        found: dict[GroupKey, list[str]] = {}
        if commit.mode is not CommitMode.OVERWRITE:
            return found
        compared = self._recovered.once if self._meta.kind.tells_rewinds else self._recovered.now
        if not compared and self._meta.available:
            for key, _ in commit.entries:
                found.setdefault(key.group_key, []).append(key.shard)
            for columns in commit.columns:
                found.setdefault(columns.group, []).extend(columns.shards)
        return found

    def _missing_of(self, columns: Columns) -> Iterator[str]:
        loaded = self.is_loaded(columns.group)
        if not columns.epochs and loaded:
            return
        held = self._store.hold_all(columns.group, columns.shards)
        for shard, epoch in zip(columns.shards, columns.epochs or repeat(0), strict=False):
            found = held[shard][0]
            if found is None:
                if epoch or not (loaded or self._states.knows_absent(OffsetKey(*columns.group, shard))):
                    yield shard
            elif epoch > found[0]:
                yield shard

    def _must_load(self, key: OffsetKey, epoch: int) -> bool:
        if not epoch and self._states.is_loaded(key[:2]):
            return False
        standing = self._store.get(key)
        if standing is None:
            return bool(epoch) or not self._states.knows_absent(key)
        return epoch > standing.epoch

    async def _load_for_commits(self, wanted: Sequence[Wanted]) -> list[None]:
        small, large = self._by_size(part.group for part in wanted)
        large |= await self._load_small(small, patient=False)
        await self._load_parts([part for part in wanted if part.group in large], patient=False)
        return [None] * len(wanted)

    async def _load_for_reads(self, wanted: Sequence[Wanted]) -> list[bool]:
        """Load for reads. Returns for each whether it is loaded; what is not is a large group."""
        await self._load_parts([part for part in wanted if part.shards])
        small, large = self._by_size(part.group for part in wanted if not part.shards)
        large |= await self._load_small(small)
        return [bool(part.shards) or part.group not in large for part in wanted]

    def _by_size(self, groups: Iterable[GroupKey]) -> tuple[list[GroupKey], set[GroupKey]]:
        """The groups that may fit into a page, and the large ones."""
        distinct = dict.fromkeys(groups)
        large = set(filter(self._states.is_large, distinct))
        return [group for group in distinct if group not in large], large

    async def _compare_keys(self, parts: Sequence[Sequence[OffsetKey]]) -> list[AdapterError | None]:
        """Together; if that fails, one after the other, so that one whose part of the server is away fails alone."""
        try:
            await self.load_keys(list(dict.fromkeys(chain.from_iterable(parts))), also_here=True)
        except AdapterError as error:
            return [error] if len(parts) == 1 else [(await self._compare_keys([part]))[0] for part in parts]
        return [None] * len(parts)

    async def _load_large(self, groups: Sequence[GroupKey]) -> list[None]:
        for group in dict.fromkeys(groups):
            await self._load_groups([group])
        return [None] * len(groups)

    async def _load_parts(self, wanted: Sequence[Wanted], *, patient: bool = True) -> None:
        """Load named keys, many in a call."""
        keys: dict[OffsetKey, None] = {}
        for part in wanted:
            keys.update(dict.fromkeys(part.keys))
            if len(keys) >= KEYS_AT_ONCE or part is wanted[-1]:
                await self.load_keys(list(keys), patient=patient)
                keys = {}

    async def load_keys(self, keys: Sequence[OffsetKey], *, patient: bool = True, also_here: bool = False) -> None:
        """Merge what the Meta Service holds under these keys, grouped by group, into the store. Raises as `load_wanted` does.

        That a key which is here is absent there shows nothing: its flush may be under way. With `also_here` it becomes dirty.
        """

        async def load() -> None:
            forgets = self._states.removals
            found = await self._meta.get(keys, patient=patient)
            news: list[tuple[OffsetKey, OffsetRecord | None]] = []
            async for some in in_slices(keys):
                for key in some:
                    here = self._store.get(key)
                    if key in found or here is None or (also_here and self._meta.kind.keeps(here)):
                        news.append((key, found.get(key)))
            await self._adopt((), news, forgets)

        await until_settled(load, LARGE_LIMIT_S if patient else LOAD_LIMIT_S)

    async def _load_groups(self, groups: Sequence[GroupKey], most: int | None = None) -> bool:
        """Load all pages of some groups; False when they have more than `most` offsets."""

        async def load() -> bool:
            forgets = self._states.removals
            left, after, count = groups, b"", 0
            while left:
                page = await self._page(left, after, self._known if most is None else None)
                if most is not None:
                    count += sum(not is_deleted(record) for _, record in page.entries)
                    if count > most:
                        return False
                await self._adopt(left[: len(left) - len(page.left)], page.entries, forgets)
                left, after = page.left, page.after
            return True

        return await until_settled(load, LARGE_LIMIT_S)

    async def _load_small(self, groups: Sequence[GroupKey], *, patient: bool = True) -> set[GroupKey]:
        """Load the groups that are no larger than a page, note the others as large, and return them."""

        async def load() -> set[GroupKey]:
            large: set[GroupKey] = set()
            forgets = self._states.removals
            left, after, of_first = groups, b"", 0
            until = anyio.current_time() + LOAD_LIMIT_S
            while left:
                try:
                    page = await (self._page(left, after) if patient else self._meta.groups_page(left, after, patient=False))
                except TimedOutError:
                    self._states.note_large(left[:1])  # too large for this time
                    raise
                complete = left[: len(left) - len(page.left)]
                await self._adopt(complete, page.entries, forgets)
                if complete:
                    of_first = 0
                left, after = page.left, page.after
                if after:
                    of_first += sum(key.group_key == left[0] for key, _ in page.entries)
                    if of_first >= LOAD_ROWS:
                        self._states.note_large(left[:1])
                        large.add(left[0])
                        left, after, of_first = left[1:], b"", 0
                if left and not patient and anyio.current_time() > until:
                    raise MetaUnavailableError(
                        f"{len(left)} groups are not loaded after {LOAD_LIMIT_S:g} s: no commit waits longer"
                    )
            return large

        return await until_settled(load, LARGE_LIMIT_S if patient else LOAD_LIMIT_S)

    def _known(self, keys: Sequence[bytes], records: Sequence[bytes]) -> list[bool]:
        """Which of these records of the Meta Service stand here, and are clean: to load them would change nothing."""
        same = self._store.stands(keys, records)
        if self._dirty:
            return [stands and decode_key(key) not in self._dirty for stands, key in zip(same, keys, strict=True)]
        return same

    async def _page(self, groups: Sequence[GroupKey], after: bytes, known: Known | None = None) -> GroupsPage:
        """Get a page. In the middle of a load one that times out is asked for again, each time with half as many rows."""
        attempts = SLOW_PAGES if after else 1
        while True:
            try:
                return await (self._meta.news_page(groups, after, known) if known else self._meta.groups_page(groups, after))
            except TimedOutError:
                attempts -= 1
                if not attempts:
                    raise

    async def _adopt(
        self, groups: Sequence[GroupKey], entries: Sequence[tuple[OffsetKey, OffsetRecord | None]], forgets: int
    ) -> None:
        async for some in in_slices(entries):
            if past := self._past(some):
                await self._ledger.submit(Forget(past))
                raise ContendedError("tombstones that the Meta Service has forgotten were removed: their groups are loaded again")
            self._ledger.apply(Load((), some, forgets))
        # Only now: a group is loaded when all its pages are adopted, and nothing of it was removed since the first was asked for.
        await self._ledger.submit(Load(groups, (), forgets))

    def _past(self, entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]) -> list[OffsetKey]:
        """The keys that are past tombstones here, and less in the Meta Service."""
        past = []
        for key, found in entries:
            here = self._store.get(key)
            if here and key not in self._dirty and self._tombstones.outlived(here, found):
                past.append(key)
        return past
