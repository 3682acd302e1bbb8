"""Reads of groups: pages for BatchGetOffsetData, and the single reply of GetOffsetData. Bounded for any request.

A page ends by rows and by bytes. Every loop yields to the event loop after a few milliseconds.
"""

import asyncio
import struct
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from adapter.errors import InvalidInputError, TooLargeError
from adapter.meta.wire import reply_offset
from adapter.metaservice.bulk_checks import OTHER_CLUSTER, Column
from adapter.metaservice.engine import Engine, GroupPage
from adapter.model.codec import pack_names
from adapter.model.names import check_name, name_problem
from adapter.model.records import DEFAULT_NAMESPACE, GroupKey, OffsetKey, OffsetRecord
from adapter.rpc import meta_pb
from adapter.runtime.slices import SLICE, others

MAX_ROWS = 10_000  # of a page
MAX_NAMED = 50_000  # groups and shards in a request
MAX_BYTES = 3 * 2**20  # of a page; with the last row still below 4 MiB, the default limit of gRPC clients
MAX_GROUP_BYTES = 16 * 2**20  # of a GetOffsetData reply: serializing it blocks the event loop
KEYS_AT_ONCE = 1_000  # named keys in one call of the engine; a recovery may name one in each of thousands of groups
GROUPS_AT_ONCE = 16  # whole groups read concurrently, while they are small
NAMES_AT_ONCE = 2_000  # names checked before the event loop runs other tasks
SMALL_PART = 32  # groups below 1/32 of a page are read concurrently
SIZE_BYTES = 2  # of a size in PackedRows
ROW_OVERHEAD = 4  # bytes that a row takes in a reply besides its own


class _RequestedGroup(NamedTuple):
    """A group of a request; without shards, the whole group."""

    group: GroupKey
    shards: list[str]


async def batch(engine: Engine, cluster: str, request: meta_pb.BatchGetOffsetDataRequest) -> meta_pb.BatchGetOffsetDataReply:
    """Build a page of the groups of a request. Raises InvalidInputError, and the engine's errors."""
    if request.page_size > MAX_ROWS:
        raise InvalidInputError(f"page_size: {request.page_size} is over {MAX_ROWS}")
    if request.HasField("known"):
        return await _differing(engine, cluster, request)
    requested = await _parse(request)
    if request.as_packed and requested and not any(part.shards for part in requested):
        packed = await _packed(engine, cluster, request, requested)
        if packed:
            return packed
    page = _Page(engine, cluster, requested, request.page_size or MAX_ROWS)
    await page.fill(_resume_after(request.page_token, requested))
    return page.reply


async def _packed(
    engine: Engine, cluster: str, request: meta_pb.BatchGetOffsetDataRequest, requested: Sequence[_RequestedGroup]
) -> meta_pb.BatchGetOffsetDataReply | None:
    """The page as columns, where the engine has them."""
    size, after = request.page_size or MAX_ROWS, _resume_after(request.page_token, requested)
    page = await engine.packed_groups(cluster, [part.group for part in requested], size, MAX_BYTES, after)
    if page is None:
        return None
    groups = [meta_pb.BatchGetOffsetDataReply.Group()] * page.groups
    return meta_pb.BatchGetOffsetDataReply(groups=groups, packed=page.packed, next_page_token=page.after.encode())


async def _differing(engine: Engine, cluster: str, request: meta_pb.BatchGetOffsetDataRequest) -> meta_pb.BatchGetOffsetDataReply:
    """What stands where the caller has another record."""
    if request.groups:
        raise InvalidInputError("groups: are named besides `known`; send two requests")
    known = request.known
    if len(known.key_sizes) != len(known.record_sizes) or len(known.key_sizes) > MAX_ROWS * SIZE_BYTES:
        raise InvalidInputError(f"known: has another number of records than of keys, or more than {MAX_ROWS} of them")
    keys = Column.sized(known.keys, known.key_sizes, "key").values()
    records = Column.sized(known.records, known.record_sizes, "record").values()
    prefix = pack_names(cluster)
    if not all(key.startswith(prefix) for key in keys):
        raise InvalidInputError(f"known.keys: {OTHER_CLUSTER.removeprefix('key: ')}")
    found = await engine.differing_rows(keys, records, MAX_BYTES) if keys else None
    if found is None:
        return meta_pb.BatchGetOffsetDataReply()
    rows, compared = found
    standing = [record for _, record in rows]
    packed = meta_pb.PackedRows(records=b"".join(standing), record_sizes=struct.pack(f"<{len(standing)}H", *map(len, standing)))
    return meta_pb.BatchGetOffsetDataReply(packed=packed, compared=compared, differing=[place for place, _ in rows])


async def whole(engine: Engine, cluster: str, group: GroupKey) -> meta_pb.GetOffsetDataReply:
    """All live offsets of a group in one reply. Raises TooLargeError with their number, and the engine's errors."""
    reply = meta_pb.GetOffsetDataReply()
    after, count, room = "", 0, MAX_GROUP_BYTES
    while True:
        page = await engine.group_page(cluster, *group, MAX_ROWS, MAX_BYTES, after)
        for at in range(0, len(page.entries), SLICE):
            live = [entry for entry in page.entries[at : at + SLICE] if entry[1].live]
            count += len(live)
            if room >= 0:
                rows = [reply_offset(key, record) for key, record in live]
                room -= sum(row.ByteSize() + ROW_OVERHEAD for row in rows)
                reply.offsets.extend(rows)
            await others()
        if not page.more:
            break
        after = page.entries[-1][0].shard
    if room < 0:
        raise TooLargeError(
            f"{'/'.join(group)}: has {count} offsets, more than the {MAX_GROUP_BYTES} bytes of one reply hold; "
            "BatchGetOffsetData and ListOffsetData have pages"
        )
    return reply


async def _parse(request: meta_pb.BatchGetOffsetDataRequest) -> list[_RequestedGroup]:
    count = len(request.groups)
    if count <= MAX_NAMED:
        count += sum(len(item.shard_names) for item in request.groups)
    if count > MAX_NAMED:
        raise InvalidInputError(f"groups: name {count:,} groups and shards, over {MAX_NAMED:,}; send several requests")
    requested = []
    names = 0  # checked since the last yield to the event loop
    for at, item in enumerate(request.groups):
        if names >= NAMES_AT_ONCE:
            names = 0
            await others()
        namespace = check_name(item.namespace or DEFAULT_NAMESPACE, f"groups[{at}].namespace")
        group = GroupKey(namespace, check_name(item.group, f"groups[{at}].group"))
        shards: dict[str, None] = {}
        for begin in range(0, len(item.shard_names), NAMES_AT_ONCE):
            some = item.shard_names[begin : begin + NAMES_AT_ONCE]
            for index, name in enumerate(some, begin):
                if name_problem(name):
                    check_name(name, f"groups[{at}].shard_names[{index}]")
            shards.update(dict.fromkeys(some))
            names += len(some)
            if names >= NAMES_AT_ONCE:
                names = 0
                await others()
        names += 1
        requested.append(_RequestedGroup(group, list(shards)))
    return requested


def _resume_after(token: bytes, requested: Sequence[_RequestedGroup]) -> str:
    """The shard of the first group after which the page starts; empty: from its start."""
    if not token:
        return ""
    try:
        shard = token.decode()
    except UnicodeDecodeError:
        shard = ""
    first = requested[0] if requested else None
    if first is None or name_problem(shard) or (first.shards and shard not in first.shards):
        raise InvalidInputError("page_token: is not the next_page_token of a page of which the first group was left")
    return shard


class _Page:
    """Fills a reply until it is full or complete."""

    def __init__(self, engine: Engine, cluster: str, requested: Sequence[_RequestedGroup], rows: int) -> None:
        self._engine = engine
        self._cluster = cluster
        self._requested = requested
        self._rows = self._page_rows = rows  # rows that still fit, and rows of a full page
        self._room = MAX_BYTES
        self._concurrency = 1
        self._done_groups: set[GroupKey] = set()
        self._done_keys: set[OffsetKey] = set()
        self.reply = meta_pb.BatchGetOffsetDataReply()

    async def fill(self, after: str) -> None:
        """Fill the page, starting in the first group after the shard `after`."""
        at = 0
        while at < len(self._requested) and not self._full:
            add = self._add_named if self._requested[at].shards else self._add_whole
            at, after = await add(at, after)
        self.reply.next_page_token = after.encode()

    @property
    def _full(self) -> bool:
        return self._rows <= 0 or self._room <= 0

    async def _add_named(self, at: int, after: str) -> tuple[int, str]:
        """Add named shards of one or more groups. Returns where to continue: the index of the group, and after which shard."""
        parts: list[list[OffsetKey]] = []
        left = min(KEYS_AT_ONCE, self._rows)
        cut = False
        for group, shards in islice(self._requested, at, None):
            if not shards or left <= 0:
                break
            begin = shards.index(after) + 1 if after and not parts else 0
            keys = [OffsetKey(*group, shard) for shard in shards[begin : begin + left]]
            left -= max(len(keys), 1)
            parts.append(keys)
            cut = begin + len(keys) < len(shards)
        asked = [key for keys in parts for key in keys if key not in self._done_keys]
        found = dict(await self._engine.get(self._cluster, asked))
        for place, keys in enumerate(parts, at):
            into = self._reply_group(place)
            for number, key in enumerate(keys):
                self._rows -= 1
                if key not in self._done_keys:
                    self._done_keys.add(key)
                    if key in found:
                        self._append(into, key, found[key])
                if self._full and (number + 1 < len(keys) or (cut and place == at + len(parts) - 1)):
                    return place, key.shard
            if self._full:
                return place + 1, ""
            await others()
        return (at + len(parts) - 1, parts[-1][-1].shard) if cut else (at + len(parts), "")

    async def _add_whole(self, at: int, after: str) -> tuple[int, str]:
        """Add whole groups, several at once while they are small. Returns as `_add_named`."""
        places = [at]
        while (
            len(places) < self._concurrency
            and places[-1] + 1 < len(self._requested)
            and not self._requested[places[-1] + 1].shards
        ):
            places.append(places[-1] + 1)
        size, room = max(self._rows // len(places), 1), max(self._room // len(places), 1)
        pages = await asyncio.gather(
            *(self._whole_page(self._requested[place].group, size, room, after if place == at else "") for place in places)
        )
        self._concurrency = min(2 * self._concurrency, GROUPS_AT_ONCE)
        for place, page in zip(places, pages, strict=True):
            into, group = self._reply_group(place), self._requested[place].group
            entries = page.entries if group not in self._done_groups else []
            for begin in range(0, len(entries), SLICE):
                for number, (key, record) in enumerate(entries[begin : begin + SLICE], begin):
                    self._rows -= 1
                    self._append(into, key, record)
                    if self._full and (number + 1 < len(entries) or page.more):
                        return place, key.shard
                await others()
            if page.more and entries:
                self._concurrency = 1
                return place, entries[-1][0].shard
            self._rows -= not entries
            self._done_groups.add(group)
            if len(entries) * SMALL_PART > self._page_rows:
                self._concurrency = 1
            if self._full:
                return place + 1, ""
        return places[-1] + 1, ""

    async def _whole_page(self, group: GroupKey, size: int, room: int, after: str) -> GroupPage:
        if group in self._done_groups:
            return GroupPage([], more=False)
        return await self._engine.group_page(self._cluster, *group, size, room, after)

    def _reply_group(self, place: int) -> meta_pb.BatchGetOffsetDataReply.Group:
        groups = self.reply.groups
        return groups[place] if place < len(groups) else groups.add()

    def _append(self, into: meta_pb.BatchGetOffsetDataReply.Group, key: OffsetKey, record: OffsetRecord) -> None:
        row = reply_offset(key, record)
        self._room -= row.ByteSize() + ROW_OVERHEAD
        into.offsets.append(row)
