"""Reads of offsets in the embedded store: bounded scans of the column family `data`, which yield to the event loop.

What they return may not be synced yet: the engine waits for that before it replies.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from itertools import accumulate, islice

from rocksdict import Rdict

from adapter.metaservice.engine import Columns, GroupPage, PackedGroups, Page, RawPage, row_bytes
from adapter.model.codec import decode_record, pack_names, prefix_end, unpack_names
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.durable import rocks
from adapter.runtime.slices import others

READ_GROUPS = 50  # that may have no rows, read before the event loop runs other tasks
READ_SLICE = 200  # records read before the event loop runs other tasks
LIST_SLICE = 500  # the same for a listing
SNAPSHOT_PAGE = 10_000  # records, or PAGE_BYTES
SCAN_ROWS = 1_000  # rows of a bulk call read before the event loop runs other tasks: 0.4 ms
SCAN_SLICE = SCAN_ROWS // 4  # rows that are Python objects at the same time: more leave the CPU's cache, and cost a fifth more
PAGE_BYTES = 16 * 2**20  # records of a scanned page; its keys are below 16 MiB, so both fit in a reply


def entry_of(key: bytes, value: bytes) -> tuple[OffsetKey, OffsetRecord]:
    """Decode a row."""
    _, namespace, group, shard = unpack_names(key)
    return OffsetKey(namespace, group, shard), decode_record(value)


async def group_page(data: Rdict, start: bytes, end: bytes, size: int, room: int) -> GroupPage:
    """Up to `size` rows from `start` up to `end`, and about `room` bytes; one at least."""
    rows = rocks.scan(data, start, end)
    entries: list[tuple[OffsetKey, OffsetRecord]] = []
    while room > 0 and (found := list(islice(rows, min(READ_SLICE, size - len(entries))))):
        for key, value in found:
            entries.append(entry_of(key, value))
            room -= row_bytes(key, value)
            if room <= 0:
                break
        await others()
    return GroupPage(entries, more=room <= 0 or len(entries) == size)


async def packed_groups(data: Rdict, prefixes: Sequence[bytes], size: int, room: int, behind: bytes) -> PackedGroups:
    """Rows of the groups with these ascending prefixes, the first from behind a key if one is given; by few iterators."""
    columns = Columns()
    for at in range(0, len(prefixes), READ_GROUPS):
        some = prefixes[at : at + READ_GROUPS]
        end = prefix_end(some[-1])
        rows = rocks.rows_below(data, some, behind if not at else b"", end)
        while found := list(islice(rows, min(SCAN_SLICE, size))):
            sizes = list(accumulate(len(key) + len(value) for key, value in found))
            found = found[: bisect_left(sizes, room) + 1]
            columns.add([key for key, _ in found], [value for _, value in found])
            size -= len(found)
            room -= sizes[len(found) - 1]
            if size <= 0 or room <= 0:
                last = unpack_names(found[-1][0])
                return PackedGroups(columns.packed(), prefixes.index(pack_names(*last[:-1]), at) + 1, last[-1])
            await others()
        size -= len(some)
        if size <= 0:
            break
    return PackedGroups(columns.packed(), at + len(some), "")


async def list_page(data: Rdict, cluster: str, start: bytes, end: bytes, size: int) -> Page:
    """Up to `size` rows of a cluster from `start` up to `end`."""
    rows = rocks.scan(data, start, end)
    listed: list[tuple[OffsetKey, OffsetRecord]] = []
    while some := [entry_of(key, value) for key, value in islice(rows, min(LIST_SLICE, size - len(listed)))]:
        listed += some
        await others()
    return Page(listed, pack_names(cluster, *listed[-1][0]) if len(listed) == size else b"")


async def scan_page(data: Rdict, start: bytes, end: bytes, size: int, until: bytes) -> RawPage:
    """The same as columns, and at most PAGE_BYTES of records; the token `until` is that of the last row, if any."""
    columns, more = Columns(), False
    for rows in rocks.scan_slices(data, start, end, min(SCAN_SLICE, size)):
        some = rows[: size - columns.rows]
        columns.add([key for key, _ in some], [record for _, record in some])
        more = columns.record_bytes >= PAGE_BYTES or columns.rows == size
        if more:
            break
        if columns.rows % SCAN_ROWS == 0:
            await others()
    return columns.page(until=until, more=more)


async def snapshot(data: Rdict, prefix: bytes) -> AsyncGenerator[RawPage, None]:
    """All rows below a prefix as they are now, as pages of up to SNAPSHOT_PAGE, by one iterator."""
    columns = Columns()
    for rows in rocks.scan_slices(data, prefix, prefix_end(prefix), SCAN_SLICE):
        columns.add([key for key, _ in rows], [record for _, record in rows])
        if columns.record_bytes >= PAGE_BYTES or columns.rows >= SNAPSHOT_PAGE:
            yield columns.page()
            columns = Columns()
        if columns.rows % SCAN_ROWS == 0:
            await others()
    if columns.rows:
        yield columns.page()
