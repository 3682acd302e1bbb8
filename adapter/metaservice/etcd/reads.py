"""Reads of offsets in etcd: linearizable, under the current layout only, and bounded in their cost for etcd.

A listing reads all Raft groups concurrently, in key order. For each range etcd counts all keys up to its end, however few it
returns; so each page requests about as much of the key space as it needs, and learns that width from the pages before.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import NamedTuple

from adapter.metaservice.etcd.fences import Fences, LayoutChangedError
from adapter.metaservice.etcd.keys import decode_stored
from adapter.metaservice.etcd.sharding import Layout
from adapter.metaservice.etcd.txn_batcher import TxnBatcher
from adapter.model.codec import prefix_end
from adapter.model.records import OffsetRecord
from adapter.rpc import etcd_pb

PAGE = 10_000  # keys in one range read, without their values
ROWS = 2_000  # the same with them: 8 MB with the longest metadata, which have to come within `etcd.timeout_ms`
COUNTED = 16  # ranges that are counted in one transaction, with about PAGE keys in all of them
_WIDENED_BITS = 3  # a range with few keys grows by this; where none follow, by twice as much each time
_DIGITS = 1_024 + 1  # bytes of the longest key, plus a zero byte
_SPACE = 1 << 8 * _DIGITS
_STEP_BITS = 6  # a width grows by this after a short page, and by twice as much after the next one
_SCALE_BITS = 16  # widths that differ by less belong to one scale
_MAX_WIDTHS = 1_000


class Row(NamedTuple):
    """A key, its value (empty when only keys are read), and the revision that wrote it."""

    where: bytes
    value: bytes
    revision: int

    @property
    def record(self) -> OffsetRecord:
        """The record in the value of an offset's key. Raises StoreDamagedError."""
        return decode_stored(self.where, self.value)


class Found(NamedTuple):
    """Rows in key order, whether more follow, the revision at which they were read, and how many keys are in the range."""

    rows: list[Row]
    more: bool
    revision: int
    keys: int


class Counted(NamedTuple):
    """The first key of a range, and the number of keys in it."""

    first: bytes
    keys: int


class Width:
    """How much of the key space a page requests: as much as full pages covered, at each scale of distances between keys."""

    def __init__(self) -> None:
        self.value = _SPACE
        self._of_full_pages: dict[int, int] = {}
        self._step = _STEP_BITS

    def full(self, width: int) -> None:
        """Call after a page that was cut off after this width."""
        self.value = self._of_full_pages[width.bit_length() // _SCALE_BITS] = max(width, 1)
        self._step = _STEP_BITS

    def short(self) -> None:
        """Call after a page that was not full: request more next time, first a width that has filled a page before."""
        larger = [width for width in self._of_full_pages.values() if width > self.value]
        if larger:
            self.value = min(larger)
        elif self.value < _SPACE:
            self.value = min(self.value << self._step, _SPACE)
            self._step *= 2


class Widths:
    """The widths of listings by their end, so that the next call starts with what the last one learned."""

    def __init__(self) -> None:
        self._known: dict[bytes, Width] = {}

    def get(self, end: bytes) -> Width:
        """The width for listings up to `end`."""
        if len(self._known) >= _MAX_WIDTHS:
            self._known.clear()
        return self._known.setdefault(end, Width())


async def read(batcher: TxnBatcher, layout: Layout, fences: Fences, wanted: Sequence[etcd_pb.RangeRequest]) -> list[Found]:
    """Read ranges at one revision; at most `max_txn_ops`. Raises LayoutChangedError, and the client's errors."""
    request = etcd_pb.TxnRequest(compare=[fences.guard(layout, batcher.cluster.name)])
    for asked in wanted:
        request.success.add().request_range.CopyFrom(asked)
    reply = await batcher.cluster.txn(request)
    if not reply.succeeded:
        raise LayoutChangedError(f"{batcher.cluster.name}: the layout of the offsets has changed")
    return [
        Found([Row(kv.key, kv.value, kv.mod_revision) for kv in found.kvs], found.more, reply.header.revision, found.count)
        for found in (response.response_range for response in reply.responses)
    ]


async def read_all(batcher: TxnBatcher, layout: Layout, fences: Fences, prefix: bytes) -> Found:
    """Read all rows that start with `prefix`, in pages. The revision is that of the first page."""
    rows: list[Row] = []
    start, revision = prefix, 0
    while True:
        (found,) = await read(
            batcher, layout, fences, [etcd_pb.RangeRequest(key=start, range_end=prefix_end(prefix), limit=ROWS)]
        )
        rows += found.rows
        revision = revision or found.revision
        if not found.more:
            return Found(rows, more=False, revision=revision, keys=len(rows))
        start = rows[-1].where + b"\0"


async def walk(
    batchers: Sequence[TxnBatcher],
    layout: Layout,
    fences: Fences,
    start: bytes,
    end: bytes,
    widths: Widths,
    *,
    keys_only: bool = False,
    limit: int = PAGE,
    revisions: dict[str, int] | None = None,
) -> AsyncGenerator[list[Row], None]:
    """Pages of the rows from `start` up to `end` of all Raft groups, in key order; of duplicate keys the largest value.

    With `revisions` (empty at first) all pages are of one revision of each Raft group. Raises LayoutChangedError, and the
    client's errors.
    """
    pages = _Pages(start, end, widths.get(end))
    while pages.start < end:
        until = pages.until
        asked = [
            etcd_pb.RangeRequest(key=pages.start, range_end=until, limit=limit, keys_only=keys_only, revision=revision)
            for revision in ((revisions or {}).get(batcher.cluster.name, 0) for batcher in batchers)
        ]
        reads = (read(batcher, layout, fences, [one]) for batcher, one in zip(batchers, asked, strict=True))
        found = [part for (part,) in await asyncio.gather(*reads)]
        if revisions is not None:
            for batcher, part in zip(batchers, found, strict=True):
                revisions.setdefault(batcher.cluster.name, part.revision)
        # Only up to the last row of each cut-off Raft group are the merged rows complete.
        complete = min((part.rows[-1].where for part in found if part.more), default=b"")
        rows: dict[bytes, Row] = {}
        for part in found:
            for row in part.rows:
                if not complete or row.where <= complete:
                    known = rows.get(row.where)
                    rows[row.where] = row if known is None or row.value > known.value else known
        page = [rows[where] for where in sorted(rows)] if len(batchers) > 1 else list(rows.values())
        pages.advance(page, until, more=bool(complete), short=2 * len(page) < limit)
        if page:
            yield page


async def count_ranges(
    batchers: Sequence[TxnBatcher],
    layout: Layout,
    fences: Fences,
    start: bytes,
    end: bytes,
    widths: Widths,
    at_once: int = COUNTED,
) -> AsyncIterator[Counted]:
    """Ranges that together have all keys from `start` up to `end`, in key order, each with at most PAGE keys.

    etcd counts them in its index, and reads only the first key of each: for a fraction of what reading all keys takes.
    `at_once`: ranges in a transaction. Raises LayoutChangedError, and the client's errors.
    """
    width, size = widths.get(end), max(PAGE // at_once, 1)
    pages = _Pages(start, end, width)
    good, unknown, step = width.value, width.value == _SPACE, _WIDENED_BITS
    while pages.start < end:
        if unknown:  # how far keys are from each other
            async with aclosing(walk(batchers, layout, fences, pages.start, end, widths, keys_only=True, limit=PAGE)) as walked:
                rows: list[Row] = await anext(walked, [])
            for at in range(0, len(rows), size):
                yield Counted(rows[at].where, len(rows[at : at + size]))
            pages.start = rows[-1].where + b"\0" if rows else end
            good, unknown = width.value, False
            continue
        bounds = pages.divided(at_once)
        asked = [etcd_pb.RangeRequest(key=low, range_end=high, limit=1, keys_only=True) for low, high in pairwise(bounds)]
        found = await asyncio.gather(*(read(batcher, layout, fences, asked) for batcher in batchers))
        keys = 0
        for parts in zip(*found, strict=True):
            count = sum(part.keys for part in parts)
            first = min((part.rows[0].where for part in parts if part.rows), default=b"")
            if count > PAGE:
                pages.start = first
                unknown = width.value <= good
                width.value = good
                break
            keys += count
            if count:
                yield Counted(first, count)
        else:
            pages.start = bounds[-1]
            if 2 * keys >= PAGE:
                good = width.value
            elif keys:
                width.value = min(width.value * min(1 << _WIDENED_BITS, PAGE // keys), _SPACE)
            else:
                width.value = min(width.value << step, _SPACE)
                step *= 2
                continue
            step = _WIDENED_BITS


def batchers_of(batchers: Mapping[str, TxnBatcher], layout: Layout) -> list[TxnBatcher]:
    """The batchers of the Raft groups that may hold offsets under a layout."""
    return [batchers[name] for name in layout.fenced]


class _Pages:
    """Where the next page starts and ends. A key counts as a number with as many base-256 digits as the longest key."""

    def __init__(self, start: bytes, end: bytes, width: Width) -> None:
        self.start = start
        self._end = end
        self._cut = len(_common_prefix(start, end))
        self._width = width

    @property
    def until(self) -> bytes:
        """The end of the next range."""
        return self._key(self._number(self.start) + self._width.value)

    def divided(self, parts: int) -> list[bytes]:
        """The start and the end of the next range, and in between where it is divided into parts, if it is that wide."""
        first, step = self._number(self.start), max(self._width.value // parts, 1)
        inner = {self._key(first + step * part) for part in range(1, parts)} - {self.start}
        return [self.start, *sorted(key for key in inner if key < self.until), self.until]

    def advance(self, page: Sequence[Row], until: bytes, *, more: bool, short: bool) -> None:
        """Continue after a page. `more`: it was cut off after its last row. `short`: it had room for much more."""
        if more:
            behind = page[-1].where + b"\0"
            self._width.full(self._number(behind) - self._number(self.start))
            self.start = behind
        else:
            self.start = until
            if short:
                self._width.short()

    def _key(self, number: int) -> bytes:
        if number >= _SPACE:
            return self._end
        return min(self.start[: self._cut] + number.to_bytes(_DIGITS, "big").rstrip(b"\0"), self._end)

    def _number(self, key: bytes) -> int:
        return int.from_bytes(key[self._cut :].ljust(_DIGITS, b"\0"), "big")


def _common_prefix(one: bytes, other: bytes) -> bytes:
    size = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:size]
