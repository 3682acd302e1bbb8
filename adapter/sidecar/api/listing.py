"""Lists of the local offsets, and what watchers are told: for OffsetStore and OffsetAdmin."""

from collections.abc import AsyncGenerator

from adapter.model.codec import decode_key, encode_key, pack_names
from adapter.model.paging import DEFAULT_PAGE, parse_listed, parse_page, parse_page_token
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord
from adapter.rpc import offsets_pb
from adapter.runtime.serving.large_calls import MAX_BYTES, SLICE_ROWS
from adapter.runtime.serving.statuses import Context
from adapter.runtime.slices import others
from adapter.sidecar.api.replies import shard_offset
from adapter.sidecar.engine.core import Core
from adapter.sidecar.ledger.watching import Watcher

PAGE_SPARE = 2**16  # of the bytes of a page, for a slice without a row: a walk over tombstones ends, too


def stored_row(core: Core, key: OffsetKey, record: OffsetRecord) -> offsets_pb.ShardOffset:
    """A row of a record that is stored here."""
    return shard_offset(key, record, dirty=key in core.ledger.dirty, held=core.ledger.holds.stops(record))


def listed_row(core: Core, key: OffsetKey, record: OffsetRecord) -> offsets_pb.ShardOffset:
    """The same, for an answer that compares nothing with the Meta Service: it says whether that was done."""
    row = stored_row(core, key, record)
    row.uncompared = not core.loader.is_compared(key.group_key)
    return row


async def list_page(
    core: Core, request: offsets_pb.ListOffsetsRequest, context: Context | None = None
) -> offsets_pb.ListOffsetsReply:
    """A page of the local offsets, in slices. Raises InvalidInputError, OverloadedError."""
    prefix = pack_names(*parse_page(request.namespace, request.group, request.page_size))
    token = parse_page_token(request.page_token, prefix, len(OffsetKey._fields))
    after = decode_key(token) if token else None
    size = request.page_size or DEFAULT_PAGE
    reply = offsets_pb.ListOffsetsReply()
    room = MAX_BYTES
    async with core.large.one(context=context):
        while size > 0 and room > 0:
            page = core.ledger.store.first(min(size, SLICE_ROWS), prefix=prefix, after=after)
            rows = [listed_row(core, key, record) for key, record, _ in page if record.live or request.deleted]
            reply.offsets.extend(rows)
            if len(page) < min(size, SLICE_ROWS):
                return reply
            size -= len(page)
            room -= sum(map(offsets_pb.ShardOffset.ByteSize, rows)) + PAGE_SPARE * (not rows)
            after = page[-1].key
            await others()
    reply.next_page_token = encode_key(after) if after else b""
    return reply


async def changes(core: Core, request: offsets_pb.WatchOffsetsRequest) -> AsyncGenerator[offsets_pb.WatchOffsetsReply, None]:
    """What a watcher is told, until it goes. Raises InvalidInputError, OverloadedError, and NotReadyError at the end."""
    names = parse_listed(request.namespace, request.group)
    with core.ledger.watches.watcher(names) as watcher:
        while True:
            yield await _next(core, watcher)


async def _next(core: Core, watcher: Watcher) -> offsets_pb.WatchOffsetsReply:
    news = await watcher.next()
    reply = offsets_pb.WatchOffsetsReply(resync=news.resync)
    removed: dict[GroupKey, list[str]] = {}
    for key in news.keys:
        record = core.ledger.store.get(key)
        if record is None:
            removed.setdefault(key.group_key, []).append(key.shard)
        else:
            reply.changed.append(listed_row(core, key, record))
    for group, shards in removed.items():
        reply.removed.add(namespace=group.namespace, group=group.group, shards=shards)
    return reply
