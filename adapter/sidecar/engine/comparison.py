"""What a recovery compares, piece by piece in key order: local keys, and what the Meta Service holds of them or of their groups.

Memory is bounded by a page of each side. After a failure the same piece comes again; what was read and not compared is kept.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

import anyio

from adapter.meta.client import MetaClient
from adapter.meta.packed import PlainRows
from adapter.model.codec import decode_key, decode_record, decode_stored, encode_key, group_prefix
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord
from adapter.runtime.slices import in_slices
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.write_batch import Stored


class Piece(NamedTuple):
    """Some local keys in their order, and what the Meta Service holds there; `last` is the end of the range.

    It was read after there had been `forgets` removals. Of `same` more keys in the range both sides have the same. What is there
    only an offset (`codec.is_plain`) may be in `rows` instead of `remote`: encoded, in key order.
    """

    local: Sequence[Stored]
    remote: dict[OffsetKey, OffsetRecord]
    last: OffsetKey
    forgets: int
    same: int = 0
    rows: Sequence[tuple[bytes, bytes]] = ()

    def found(self, key: OffsetKey) -> OffsetRecord | None:
        """What the Meta Service holds under a key."""
        at = _up_to(encoded := encode_key(key), self.rows) - 1 if self.rows else -1
        return decode_record(self.rows[at][1]) if at >= 0 and self.rows[at][0] == encoded else self.remote.get(key)


class Source(Protocol):
    """Yields the pieces of a comparison, in key order."""

    async def next(self) -> Piece | None:
        """The piece after the last one that was `done`; None at the end. Raises MetaUnavailableError."""

    def done(self, piece: Piece) -> None:
        """The piece is compared: go on behind it."""

    def again(self) -> None:
        """The piece could not be compared: read it anew, since what was read may be out of date."""


class LocalKeys:
    """Compares exactly the local keys, a batch at a time; the read of the next batch overlaps the call for this one.

    The Meta Service compares the bytes, and only what differs becomes objects. One that cannot is asked for the records.
    """

    def __init__(self, store: LocalStore, meta: MetaClient, batch_keys: int, forgets: Callable[[], int]) -> None:
        self._store = store
        self._meta = meta
        self._batch_keys = batch_keys
        self._forgets = forgets
        self._after = b""
        self._compares = True
        self._batch: tuple[list[tuple[bytes, bytes]], int] | None = None
        self._following: tuple[list[tuple[bytes, bytes]], int] | None = None

    async def next(self) -> Piece | None:
        """The next batch of local keys, with what the Meta Service holds under them."""
        batch, forgets = self._batch = self._batch or await self._read(self._after)
        if not batch:
            return None
        last = batch[-1][0]
        async with anyio.create_task_group() as tasks:
            if self._following is None:
                tasks.start_soon(self._read_ahead, last)
            local, remote = await self._compared(batch)
        return Piece(local, remote, decode_key(last), forgets, same=len(batch) - len(local))

    def done(self, piece: Piece) -> None:
        """Go on with the batch that was read ahead."""
        self._after = encode_key(piece.last)
        self._batch, self._following = self._following, None

    def again(self) -> None:
        """Drop what was read."""
        self._batch = self._following = None

    async def _compared(self, batch: Sequence[tuple[bytes, bytes]]) -> tuple[list[Stored], dict[OffsetKey, OffsetRecord]]:
        """The rows of a batch that differ, or all, where the Meta Service does not compare; and what it holds there."""
        differing = await self._meta.differing(batch) if self._compares else None
        self._compares = differing is not None  # else it is not sent to it again for nothing
        local: list[Stored] = []
        if differing != {}:
            async for some in in_slices(batch):
                rows = [Stored(*decode_stored(*row)) for row in some]
                local += rows if differing is None else [row for row in rows if row.key in differing]
        if differing is None:
            return local, await self._meta.get([stored.key for stored in local])
        return local, {key: record for key, record in differing.items() if record}

    async def _read_ahead(self, after: bytes) -> None:
        self._following = await self._read(after)

    async def _read(self, after: bytes) -> tuple[list[tuple[bytes, bytes]], int]:
        forgets = self._forgets()  # before the read: what is removed behind it must not come back
        return await self._store.rows(self._batch_keys, after), forgets


class WholeGroups:
    """After a loss: merges the local keys with all that the Meta Service holds of their groups. Each row there is read once."""

    def __init__(self, store: LocalStore, meta: MetaClient, batch_keys: int, forgets: Callable[[], int]) -> None:
        self._store = store
        self._meta = meta
        self._batch_keys = batch_keys
        self._forgets = forgets
        self._forgets_before = 0  # anything that is in the buffers was read
        self._after: OffsetKey | None = None
        self._local: deque[tuple[bytes, Stored]] = deque()
        self._local_all = False  # there is nothing behind `_local`
        # Groups that are read from the Meta Service; which of them are left behind `_remote`; where its page began.
        self._groups: frozenset[GroupKey] = frozenset()
        self._left: tuple[Sequence[GroupKey], bytes] = ((), b"")
        self._page_from: tuple[Sequence[GroupKey], bytes] = ((), b"")
        self._remote: deque[tuple[bytes, OffsetKey, OffsetRecord]] = deque()
        self._rows: list[tuple[bytes, bytes]] = []  # of the same page

    async def next(self) -> Piece | None:
        """The next local keys and remote rows, up to where both sides are read."""
        while True:
            if not (self._local or self._remote or self._rows):
                self._forgets_before = self._forgets()
            await self._read_local()
            while self._left[0] and not (self._remote or self._rows):
                await self._read_remote()
            if self._remote or self._rows or (self._local and self._local[0][1].key.group_key in self._groups):
                return self._cut()
            if not self._local:
                return None
            groups = list(dict.fromkeys(stored.key.group_key for _, stored in self._local))
            self._groups = frozenset(groups)
            self._left = (groups, b"")

    def done(self, piece: Piece) -> None:
        """Drop the rows of the piece on both sides."""
        self._after = piece.last
        end = encode_key(piece.last)
        while self._local and self._local[0][0] <= end:
            self._local.popleft()
        while self._remote and self._remote[0][0] <= end:
            self._remote.popleft()
        del self._rows[: _up_to(end, self._rows)]

    def again(self) -> None:
        """Drop what was read, and ask for the current page of the Meta Service once more."""
        self._local.clear()
        self._local_all = False
        self._remote.clear()
        self._rows.clear()
        self._left = self._page_from

    async def _read_local(self) -> None:
        after = self._after
        # A group between those that are being read came meanwhile: by a commit, so it is dirty, or by a load, which compared it.
        last = max(map(group_prefix, self._groups), default=b"")
        while not self._local and not self._local_all:
            page = await self._store.page(self._batch_keys, after=after)
            rows = ((encode_key(stored.key), stored) for stored in page)
            self._local.extend(row for row in rows if row[0] > last or row[1].key.group_key in self._groups)
            self._local_all = len(page) < self._batch_keys
            after = page[-1].key if page else after

    async def _read_remote(self) -> None:
        taken = PlainRows(self._groups)
        page = await self._meta.news_page(*self._left, taken)
        self._page_from, self._left = self._left, (page.left, page.after)
        done = encode_key(self._after) if self._after else b""
        async for some in in_slices(page.entries):
            rows = ((encode_key(key), key, record) for key, record in some)
            self._remote.extend(row for row in rows if row[0] > done)
        self._rows = taken.rows[_up_to(done, taken.rows) :]

    def _cut(self) -> Piece:
        """Everything up to the key that both sides have been read to."""
        local = list(takewhile(lambda held: held[1].key.group_key in self._groups, self._local))
        ends = []
        if self._left[0]:
            ends.append(max([*(row[0] for row in list(self._remote)[-1:]), *(row[0] for row in self._rows[-1:])]))
        if len(local) == len(self._local) and not self._local_all:
            ends.append(local[-1][0])  # its group may go on
        remote, rows = list(self._remote), self._rows
        if ends:
            end = min(ends)
            local = list(takewhile(lambda held: held[0] <= end, local))
            remote = list(takewhile(lambda row: row[0] <= end, remote))
            rows = rows[: _up_to(end, rows)]
        last = max([*(row[0] for row in local[-1:]), *(row[0] for row in remote[-1:]), *(row[0] for row in rows[-1:])])
        found = {key: record for _, key, record in remote}
        return Piece([stored for _, stored in local], found, decode_key(last), self._forgets_before, rows=rows)


def _up_to(end: bytes, rows: Sequence[tuple[bytes, bytes]]) -> int:
    """How many rows, in key order, are not behind this key."""
    return bisect_left(rows, (end + b"\0",))
