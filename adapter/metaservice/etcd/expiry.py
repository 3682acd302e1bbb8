"""Removal from etcd: expiry of consumer groups, and old tombstones.

An expiry is applied only while the whole group is as it was read, which etcd compares in each transaction. If a later one of its
transactions meets a commit, the earlier ones are undone by a merge: a live record wins over the tombstone of its expiry.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from adapter.errors import MetaUnavailableError, StoreDamagedError
from adapter.metaservice.engine import Expiry
from adapter.metaservice.etcd.fences import Fences, LayoutChangedError
from adapter.metaservice.etcd.keys import Keys, encode_value
from adapter.metaservice.etcd.reads import Row, read, read_all
from adapter.metaservice.etcd.sharding import Layout
from adapter.metaservice.etcd.txn_batcher import MAX_TXN_ENTRIES, Item, TxnBatcher, add_notes
from adapter.model.codec import prefix_end
from adapter.model.records import OffsetKey, SaveEntry, expired, is_old_tombstone, taken_up
from adapter.rpc import etcd_pb

log = structlog.get_logger(__name__)

PAGE = 1_000  # tombstones read at once
CHANGES = 5  # attempts while the group keeps changing


class Expirer:
    """Expires groups and removes old tombstones. `merge` merges items under whichever layout there is then."""

    def __init__(self, fences: Fences, keys: Keys, max_txn_ops: int, merge: Callable[[Sequence[Item]], Awaitable[None]]) -> None:
        self._fences = fences
        self._keys = keys
        self._merge = merge
        # Two operations for each tombstone, and two for the note. Where etcd allows very many, the bytes are the limit.
        self._max_puts = min(MAX_TXN_ENTRIES, (max_txn_ops - 2) // 2)

    async def expire(self, batcher: TxnBatcher, layout: Layout, packed: bytes, before_ms: int, now_ms: int) -> Expiry:
        """Implements `Engine.expire`; `packed` is the packed cluster, namespace and group."""
        for _ in range(CHANGES):
            found = await read_all(batcher, layout, self._fences, self._keys.offsets + packed)
            live = [row for row in found.rows if row.record.live]
            newest_ms = max((row.record.committed_at_ms for row in live), default=0)
            if newest_ms >= before_ms:
                return Expiry(0, newest_ms)
            if await self._bury(batcher, layout, self._keys.offsets + packed, live, found.revision, now_ms):
                return Expiry(len(live))
        raise MetaUnavailableError("the group keeps changing; the next sweep tries again")

    async def drop(self, batcher: TxnBatcher, layout: Layout, before_ms: int) -> int:
        """Remove the tombstones from before `before_ms` in one Raft group; returns how many."""
        dropped = 0
        end = self._keys.tombstones_before(before_ms)
        while True:
            asked = etcd_pb.RangeRequest(key=self._keys.tombstones, range_end=end, limit=PAGE, keys_only=True)
            (found,) = await read(batcher, layout, self._fences, [asked])
            entries = [row.where for row in found.rows]
            for at in range(0, len(entries), self._max_puts):
                dropped += await self._drop(batcher, layout, entries[at : at + self._max_puts], before_ms)
            if not found.more:
                return dropped

    async def _bury(
        self, batcher: TxnBatcher, layout: Layout, prefix: bytes, live: Sequence[Row], revision: int, now_ms: int
    ) -> bool:
        """Put tombstones over a group as it was at `revision`. Returns False if it has changed; then it is live as before."""
        done = revision
        for at in range(0, len(live), self._max_puts):
            part = live[at : at + self._max_puts]
            request = etcd_pb.TxnRequest(
                compare=[
                    self._fences.guard(layout, batcher.cluster.name),
                    _unchanged(prefix, part[0].where, done),
                    _unchanged(part[0].where, prefix_end(prefix), revision),
                ]
            )
            for row in part:
                self._add_tombstone(request, row, now_ms)
            add_notes(request, [self._note(part[0].where)], self._keys)
            reply = await batcher.cluster.txn(request)
            if not reply.succeeded:
                await self._take_back(live[: at + len(part)])
                return False
            done = reply.header.revision
        return True

    def _add_tombstone(self, request: etcd_pb.TxnRequest, row: Row, now_ms: int) -> None:
        tombstone = expired(row.record, now_ms)
        put = request.success.add().request_put
        put.key, put.value = row.where, encode_value(tombstone)
        request.success.add().request_put.key = self._keys.tombstone(row.where, tombstone)

    async def _take_back(self, rows: Sequence[Row]) -> None:
        """Undo the tombstones by merging the live records. Also after a resent transaction that met its own writes.

        Under the layout of now: what refused a transaction in the middle may have been a change of it. What was held is taken up,
        since its tombstone is.
        """
        records = [row.record for row in rows]
        live = [record._replace(epoch=taken_up(record.epoch)) for record in records]
        note = self._note(rows[0].where)  # who was told of the tombstones has to learn of this, too
        items = [Item(SaveEntry(_ANY, record), row.where, note) for record, row in zip(live, rows, strict=True)]
        await self._merge(items)
        error = next((item.error for item in items if item.error), None)
        if error:
            raise error

    def _note(self, where: bytes) -> bytes:
        return self._keys.note(self._keys.group_of(where))

    async def _drop(self, batcher: TxnBatcher, layout: Layout, entries: Sequence[bytes], before_ms: int) -> int:
        """Delete tombstones together with their index entries; only the entry if the record is live or newer.

        Neither if the record has changed since it was read, as by the same tombstone once more: the next run finds the entry.
        """
        asked = [etcd_pb.RangeRequest(key=self._keys.buried(entry)) for entry in entries]
        standing = await read(batcher, layout, self._fences, asked)
        request = etcd_pb.TxnRequest(compare=[self._fences.guard(layout, batcher.cluster.name)])
        tombstones: list[bool] = []
        for entry, asking, found in zip(entries, asked, standing, strict=True):
            row = next(iter(found.rows), None)
            inner = request.success.add().request_txn
            inner.compare.add(
                result=etcd_pb.Compare.EQUAL,
                target=etcd_pb.Compare.MOD,
                key=asking.key,
                mod_revision=row.revision if row else 0,  # 0: absent
            )
            inner.success.add().request_delete_range.key = entry
            tombstones.append(row is not None and _is_old_tombstone(row, before_ms))
            if tombstones[-1]:
                inner.success.add().request_delete_range.key = asking.key
        reply = await batcher.cluster.txn(request)
        if not reply.succeeded:
            raise LayoutChangedError("the layout of the offsets has changed")
        return sum(old and done.response_txn.succeeded for old, done in zip(tombstones, reply.responses, strict=True))


def _is_old_tombstone(row: Row, before_ms: int) -> bool:
    """Whether a row may be removed; not if another program has written it, which ends no run."""
    try:
        return is_old_tombstone(row.record, before_ms)
    except StoreDamagedError as error:
        log.error("tombstones.foreign", error=str(error))
        return False


_ANY = OffsetKey("", "", "")  # the rules do not use the key


def _unchanged(start: bytes, end: bytes, revision: int) -> etcd_pb.Compare:
    """All keys from `start` up to `end` are as they were at a revision, and no others have come."""
    return etcd_pb.Compare(
        result=etcd_pb.Compare.LESS, target=etcd_pb.Compare.MOD, key=start, range_end=end, mod_revision=revision + 1
    )
