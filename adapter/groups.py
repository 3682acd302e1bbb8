"""The groups that have local offsets, in key order: pages of the cache, grouped. Holds one row per group, never all keys."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from adapter.cache import OffsetCache
from adapter.codec import group_prefix, pack_names, unpack_names
from adapter.dirty import DirtyKeys
from adapter.model import NAME_MAX_BYTES, GroupKey, OffsetKey
from adapter.writing import Stored

PAGE_KEYS = 2_000
# Keys are length-prefixed, so a name sorts by its length first: this one is above every other.
LAST_NAME = "\U0010ffff" * (NAME_MAX_BYTES // 4) + "\uffff"


class GroupRow(NamedTuple):
    """A group: live offsets, dirty keys, the newest commit of a live one (Unix ms), and tombstones."""

    group: GroupKey
    shards: int = 0
    dirty: int = 0
    last_commit_at_ms: int = 0
    tombstones: int = 0


class GroupPage(NamedTuple):
    """A page of groups; `after` is the token of the next one, empty at the end."""

    rows: list[GroupRow]
    after: bytes


class Groups:
    """Lists groups by reading the cache once, a page of keys at a time."""

    def __init__(self, cache: OffsetCache, dirty: DirtyKeys) -> None:
        self._cache = cache
        self._dirty = dirty

    async def rows(self, prefix: bytes = b"", after: OffsetKey | None = None) -> AsyncIterator[GroupRow]:
        """The groups below `prefix` whose keys are behind `after`."""
        row: GroupRow | None = None
        while page := await self._cache.page(PAGE_KEYS, prefix=prefix, after=after):
            for stored in page:
                group = stored.key.group_key
                if row and row.group != group:
                    yield row
                    row = None
                row = self._counted(row or GroupRow(group), stored)
            after = page[-1].key
        if row:
            yield row

    async def page(self, prefix: bytes, token: bytes, size: int) -> GroupPage:
        """A page of rows. `token` is the `after` of the page before."""
        names = unpack_names(token)
        # Behind every key of that group, also those that came in meanwhile: no name is above this one.
        after = OffsetKey(names[0], names[1], LAST_NAME) if token else None
        rows: list[GroupRow] = []
        async for row in self.rows(prefix, after):
            if len(rows) == size:
                return GroupPage(rows, group_prefix(rows[-1].group))
            rows.append(row)
        return GroupPage(rows, b"")

    async def named(self, namespace: str, beginning: str) -> AsyncIterator[Stored]:
        """The records of the groups whose names begin so and go on, group by group.

        Names sort by their length first: there is a look for each length, which takes some microseconds where there is nothing.
        """
        first = beginning.encode()
        length, after = len(first) + 1, None
        while True:
            heads = [pack_names(namespace) + bytes((longer,)) + first for longer in range(length, NAME_MAX_BYTES + 1)]
            page = await self._cache.apart(partial(self._first_below, heads, after))
            for stored in page:
                yield stored
            if len(page) < PAGE_KEYS:
                return
            after = page[-1].key
            length = len(after.group.encode())

    def _first_below(self, heads: Sequence[bytes], after: OffsetKey | None) -> list[Stored]:
        """A page of the records below some prefixes, of which `after` is below the first."""
        found = (stored for at, head in enumerate(heads) for stored in self._cache.scan(head, None if at else after))
        return list(islice(found, PAGE_KEYS))

    def _counted(self, row: GroupRow, stored: Stored) -> GroupRow:
        key, record, _ = stored
        return row._replace(
            shards=row.shards + record.live,
            dirty=row.dirty + (key in self._dirty),
            last_commit_at_ms=max(row.last_commit_at_ms, record.committed_at_ms if record.live else 0),
            tombstones=row.tombstones + (not record.live),
        )
