"""Which groups were changed other than by commits: a key for each in its Raft group, put by the transaction of the change.

The revision of that key is its place in the order. A reader that is up to date reads one other key, which each such transaction
puts too. A reader that finds more than MAX_NOTES keys drops all: whoever had not read them compares everything.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from adapter.errors import MetaUnavailableError
from adapter.metaservice.engine import MAX_NOTES
from adapter.metaservice.etcd.fences import Fences
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.reads import Found, batchers_of, read
from adapter.metaservice.etcd.sharding import Layout
from adapter.metaservice.etcd.txn_batcher import TxnBatcher
from adapter.model.codec import pack_names, prefix_end, unpack_names
from adapter.model.records import ChangedGroups, GroupKey, StoreMark
from adapter.rpc import etcd_pb

log = structlog.get_logger(__name__)


class _Told(NamedTuple):
    """What a Raft group tells."""

    groups: Sequence[GroupKey]
    place: StoreMark
    gap: bool = False


class ChangeNotes:
    """Reads the notes of all Raft groups."""

    def __init__(self, batchers: Mapping[str, TxnBatcher], fences: Fences, keys: Keys) -> None:
        self._batchers = batchers
        self._fences = fences
        self._keys = keys

    async def read(self, layout: Layout, cluster: str, after: Sequence[StoreMark]) -> ChangedGroups:
        """Implements `Engine.changed_groups`. A Raft group that does not answer stays at its place.

        One that holds offsets since the last call is read from its beginning; that one holds none any more is a gap. Raises
        MetaUnavailableError if none answers, LayoutChangedError.
        """
        places = {place.name: place for place in after}
        batchers = batchers_of(self._batchers, layout)
        answers = await asyncio.gather(
            *(self._read(batcher, layout, cluster, places.get(batcher.cluster.name), first=not after) for batcher in batchers),
            return_exceptions=True,
        )
        told: list[_Told] = []
        silent: dict[str, MetaUnavailableError] = {}
        for batcher, answer in zip(batchers, answers, strict=True):
            if isinstance(answer, MetaUnavailableError):
                silent[batcher.cluster.name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                told.append(answer)
        if not told:
            raise MetaUnavailableError("; ".join(map(str, silent.values())))
        groups = dict.fromkeys(group for one in told for group in one.groups)
        gone = places.keys() - {batcher.cluster.name for batcher in batchers}
        return ChangedGroups(
            list(groups),
            [*(one.place for one in told), *(places[name] for name in silent if name in places)],
            gap=not after or bool(gone) or any(one.gap for one in told),
            unanswered="; ".join(map(str, silent.values())),
        )

    async def _read(self, batcher: TxnBatcher, layout: Layout, cluster: str, place: StoreMark | None, *, first: bool) -> _Told:
        keys = self._keys
        (noted,) = await read(batcher, layout, self._fences, [etcd_pb.RangeRequest(key=keys.noted)])
        now = self._place(batcher, noted.revision)
        since = place.revision if place else 0
        if first or (place and (place[:3] != now[:3] or since > now.revision)):
            return _Told((), now, gap=not first)
        if _revision(noted) <= since:
            return _Told((), now)
        wanted = etcd_pb.RangeRequest(
            key=keys.notes, range_end=prefix_end(keys.notes), keys_only=True, min_mod_revision=since + 1, limit=MAX_NOTES
        )
        notes, dropped = await read(batcher, layout, self._fences, [wanted, etcd_pb.RangeRequest(key=keys.dropped)])
        now = self._place(batcher, notes.revision)
        if _revision(dropped) > since:
            return _Told((), now, gap=True)
        if notes.keys > MAX_NOTES:
            await self._drop(batcher, layout)
        return _Told(self._groups(cluster, (row.where for row in notes.rows)), now, gap=notes.more)

    async def _drop(self, batcher: TxnBatcher, layout: Layout) -> None:
        """Delete all notes of a Raft group. Sent twice it drops those that came in between, too."""
        request = etcd_pb.TxnRequest(compare=[self._fences.guard(layout, batcher.cluster.name)])
        request.success.add().request_put.key = self._keys.dropped
        deletion = request.success.add().request_delete_range
        deletion.key, deletion.range_end = self._keys.notes, prefix_end(self._keys.notes)
        await batcher.cluster.txn(request)
        log.info("changes.dropped", raft_group=batcher.cluster.name, help="adapters compare what they have, once")

    def _groups(self, cluster: str, keys: Iterable[bytes]) -> list[GroupKey]:
        prefix = self._keys.notes + pack_names(cluster)
        return [GroupKey(*unpack_names(key[len(prefix) :])) for key in keys if key.startswith(prefix)]

    @staticmethod
    def _place(batcher: TxnBatcher, revision: int) -> StoreMark:
        mark = batcher.cluster.mark
        return StoreMark(batcher.cluster.name, mark.store_id if mark else b"", 0, revision)


def _revision(found: Found) -> int:
    """The revision of the last write of a key that was read alone; 0 if there is none."""
    return found.rows[0].revision if found.rows else 0
