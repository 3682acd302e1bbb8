"""The groups that have local offsets, in key order: pages of the store, grouped. Holds one row per group, never all keys."""

import struct
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model.codec import group_prefix, head_of, is_live, pack_names, unpack_names
from adapter.model.names import NAME_MAX_BYTES
from adapter.model.paging import parse_page_token
from adapter.model.records import LONG_MAX, GroupKey, OffsetKey
from adapter.runtime.serving.large_calls import SLICE_ROWS, LargeCalls
from adapter.runtime.serving.statuses import Context
from adapter.runtime.slices import others
from adapter.sidecar.engine.reads import RAW_ROWS
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.write_batch import Stored

PAGE_KEYS = 2_000
MAX_VISITED = 50_000  # records that are read for one page of a list
_HALF = b"\0"  # before a token that ends within a group: names begin with their length, which is not 0
_COUNTS = struct.Struct(">cQQQQ")
_NEVER_GIVEN = "page_token: is not the next_page_token of a page of this list"
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
    """A page of groups, which may be empty; `after` is the token of the next one, empty at the end."""

    rows: list[GroupRow]
    after: bytes


class PartialGroup(NamedTuple):
    """A group whose records were counted up to a shard when its page ended, with its counts so far."""

    row: GroupRow
    shard: str

    @classmethod
    def of(cls, token: bytes) -> "PartialGroup | None":
        """Parse a token; None for one that ends with a complete group. Raises InvalidInputError."""
        if not token.startswith(_HALF):
            return None
        try:
            _, *counts = _COUNTS.unpack_from(token)
            namespace, group, shard = unpack_names(token[_COUNTS.size :])
        except (struct.error, ValueError, StoreDamagedError):
            raise InvalidInputError(_NEVER_GIVEN) from None
        row = GroupRow(GroupKey(namespace, group), *counts)
        if max(row.shards, row.dirty, row.tombstones) > LONG_MAX:
            raise InvalidInputError(_NEVER_GIVEN)  # with what is counted further, it would not fit into a reply
        return cls(row, shard)

    @property
    def token(self) -> bytes:
        """The token, as `of` parses it."""
        group, *counts = self.row
        return _COUNTS.pack(_HALF, *counts) + pack_names(*group, self.shard)


class _Counting:
    """The counts of a group while its records are read."""

    def __init__(self, row: GroupRow, dirty: DirtyKeys) -> None:
        self.group, self._shards, self._dirty, self._last_ms, self._tombstones = row
        self._parts = dirty.of(row.group)

    def add(self, stored: Stored) -> None:
        """Count one of its records."""
        key, record, _ = stored
        if record.live:
            self._shards += 1
            self._last_ms = max(self._last_ms, record.committed_at_ms)
        else:
            self._tombstones += 1
        if self._parts and any(key.shard in part for part in self._parts):
            self._dirty += 1

    def row(self) -> GroupRow:
        """The counts so far."""
        return GroupRow(self.group, self._shards, self._dirty, self._last_ms, self._tombstones)


class Groups:
    """Lists groups by reading the store once, a page of keys at a time."""

    def __init__(self, ledger: Ledger, large: LargeCalls) -> None:
        self._store = ledger.store
        self._dirty = ledger.dirty
        self._large = large

    async def rows(self, prefix: bytes = b"", after: OffsetKey | None = None) -> AsyncIterator[GroupRow]:
        """The groups below `prefix` whose keys are behind `after`."""
        row: GroupRow | None = None
        while page := await self._store.page(PAGE_KEYS, prefix=prefix, after=after):
            for at in range(0, len(page), SLICE_ROWS):
                *done, row = self._counted(row, page[at : at + SLICE_ROWS])
                for each in done:
                    yield each
                await others()
            after = page[-1].key
        if row:
            yield row

    async def live(self, prefix: bytes = b"", *, deleted: bool = False) -> AsyncIterator[GroupKey]:
        """The groups below `prefix` that have a live offset: as `rows`, without counts, at a third of the cost.

        With `deleted` also those that have none.
        """
        head, after = b"", b""
        while rows := self._store.raw(RAW_ROWS, prefix, after):
            for key, value in rows:
                if (deleted or is_live(value)) and not (head and key.startswith(head)):
                    head = head_of(key)
                    yield GroupKey(*unpack_names(head))
            after = rows[-1][0]
            await others()

    async def page(self, prefix: bytes, token: bytes, size: int, context: Context | None = None) -> GroupPage:
        """A page of rows. `token` is the `after` of the page before. Raises InvalidInputError, OverloadedError.

        It ends after so many records, too, also in the midst of a group: what was counted of that goes into the token, and so
        into the row, which is on the page on which the group ends.
        """
        part = PartialGroup.of(token)
        if part:
            parse_page_token(group_prefix(part.row.group), prefix, len(GroupKey._fields))
        else:
            parse_page_token(token, prefix, len(GroupKey._fields))
        async with self._large.one(context=context):
            return await self._page(prefix, token, part, size)

    async def _page(self, prefix: bytes, token: bytes, part: PartialGroup | None, size: int) -> GroupPage:
        rows: list[GroupRow] = []
        row, after = (part.row, OffsetKey(*part.row.group, part.shard)) if part else (None, _behind(token))
        for _ in range(MAX_VISITED // SLICE_ROWS):
            found = self._store.first(SLICE_ROWS, prefix=prefix, after=after)
            done = self._counted(row, found)
            if len(rows) + len(done) > size:
                rows += done[: size - len(rows)]
                return GroupPage(rows, group_prefix(rows[-1].group))
            if len(found) < SLICE_ROWS:
                return GroupPage(rows + done, b"")
            rows, row, after = rows + done[:-1], done[-1], found[-1].key
            await others()
        return GroupPage(rows, PartialGroup(row, after.shard).token if row and after else b"")

    def _counted(self, row: GroupRow | None, found: Sequence[Stored]) -> list[GroupRow]:
        """The records after those of a row, if any, by group: the last group may continue on the next page."""
        counting = _Counting(row, self._dirty) if row else None
        rows: list[GroupRow] = []
        for stored in found:
            if counting is None or counting.group != stored.key[:2]:
                rows += [counting.row()] if counting else []
                counting = _Counting(GroupRow(stored.key.group_key), self._dirty)
            counting.add(stored)
        return [*rows, counting.row()] if counting else []

    async def named(self, namespace: str, beginning: str) -> AsyncIterator[Stored]:
        """The records of the groups whose names begin so and go on, group by group.

        Names sort by their length first: there is a look for each length, which takes some microseconds where there is nothing.
        """
        first = beginning.encode()
        length, after = len(first) + 1, None
        while True:
            heads = [pack_names(namespace) + bytes((longer,)) + first for longer in range(length, NAME_MAX_BYTES + 1)]
            page = await self._store.apart(partial(self._first_below, heads, after))
            for stored in page:
                yield stored
            if len(page) < PAGE_KEYS:
                return
            after = page[-1].key
            length = len(after.group.encode())

    def _first_below(self, heads: Sequence[bytes], after: OffsetKey | None) -> list[Stored]:
        """A page of the records below some prefixes; its `after` is below the first prefix."""
        found = (stored for at, head in enumerate(heads) for stored in self._store.scan(head, None if at else after))
        return list(islice(found, PAGE_KEYS))


def _behind(token: bytes) -> OffsetKey | None:
    """A key after every key of the group at which a page ended, also after those that are added meanwhile."""
    names = unpack_names(token)
    return OffsetKey(names[0], names[1], LAST_NAME) if token else None
