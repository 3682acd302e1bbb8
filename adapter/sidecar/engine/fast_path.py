"""The fast path: the commit that a consumer sends after each message, in the fewest steps, since nothing else happens as often.

It takes one plain offset that goes forward, or is confirmed, of a key whose record is in memory, and leaves everything else to
`committer`. It decides by `commit_rules.plainly`, writes, publishes and marks dirty, in the order of `committer`; a later request
of the same write is decided against what the batch has. Reads no disk and awaits nothing, so that no other code runs in between.
"""

import time
from collections.abc import Callable, Sequence

from adapter.model.records import DEFAULT_NAMESPACE
from adapter.rpc import offsets_pb
from adapter.sidecar.engine.commit_rules import plainly
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.recovered import Recovered
from adapter.sidecar.storage.store import LocalStore
from adapter.sidecar.storage.write_batch import WriteBatch

Run = Sequence[offsets_pb.CommitOffsetsRequest]  # applied in this order

MAX_REQUEST_BYTES = 1_024  # of a request that the fast path may take: three names of at most 255 bytes, and numbers
INCREASE_ONLY, OVERWRITE = int(offsets_pb.INCREASE_ONLY), int(offsets_pb.OVERWRITE)
_FRAMING = 9  # bytes of a request with one name each, beside the names and the offset


class FastPath:
    """Decides and writes plain commits. `possible` is False while commits wait for a sync or for the Meta Service."""

    def __init__(
        self,
        store: LocalStore,
        dirty: DirtyKeys,
        recovered: Recovered,
        *,
        possible: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._dirty = dirty
        self._recovered = recovered
        self.possible = possible
        self._clock = clock

    def commit(self, runs: Sequence[Run], now_ms: int) -> list[int]:
        """Commit of each run the requests before the first that the fast path leaves, all in one write, and mark them dirty.

        Returns how many requests of each run are committed. Raises DiskFullError or StorageFailedError: then nothing of any run
        counts as committed. Names are not checked: those of a key that is in memory were.
        """
        if not self.possible:
            return [0] * len(runs)
        writing = self._store.begin()
        counts = [self._decide_run(writing, run, now_ms) for run in runs]
        if writing.plain:
            self._store.finish(writing)
            now = self._clock()
            for name, shard, _, after in writing.plain.values():
                self._dirty.add_one(name, shard, after, now)
        return counts

    def _decide_run(self, writing: WriteBatch, run: Run, now_ms: int) -> int:
        for count, request in enumerate(run):
            if not self._decide(writing, request, now_ms):
                return count
        return len(run)

    def _decide(self, writing: WriteBatch, request: offsets_pb.CommitOffsetsRequest, now_ms: int) -> bool:
        groups = request.groups
        if len(groups) != 1 or len(shards := groups[0].shards) != 1:
            return False
        group, item = groups[0], shards[0]
        name = (group.namespace or DEFAULT_NAMESPACE, group.group)
        shard, offset = item.shard, item.offset
        held = self._store.held(name)
        before = held.get(shard)
        if before is None:
            return False
        if (one := writing.plain.get(before[2])) is not None:
            before = one[3]
        fields = before[0]
        # A missing offset reads as 0, and a deleted key begins anew: the general path tells them apart.
        after = plainly(fields, offset, item.epoch, now_ms) if offset and fields[2] else None
        if after is None:
            return False
        if not _is_plain(request, group, item) and (not self._takes(request.mode) or _has_more(group, item)):
            return False
        if after is not fields:  # else it is stored already, or with this write
            writing.put_plain(name, shard, held, before, after)
        return True

    def _takes(self, mode: int) -> bool:
        """Whether it decides commits of a mode. Before the recovery not OVERWRITE, see `GroupLoader.load_for`."""
        return mode <= (OVERWRITE if self._recovered.once else INCREASE_ONLY)


def _is_plain(request: offsets_pb.CommitOffsetsRequest, group: offsets_pb.GroupCommits, item: offsets_pb.ShardCommit) -> bool:
    """True if the request has only a group, a shard and an offset (not 0), by its length."""
    return request.ByteSize() == _FRAMING + len(group.group) + len(item.shard) + (item.offset.bit_length() + 6) // 7


def _has_more(group: offsets_pb.GroupCommits, item: offsets_pb.ShardCommit) -> bool:
    """True for a commit with more than an offset and its epoch, or with a member."""
    if group.member_id or group.shard_names or group.offsets or group.epochs or group.HasField("generation"):
        return True
    if item.metadata or item.committed_at_ms or item.topic or item.partition:
        return True
    return item.HasField("high_watermark") or item.HasField("low_watermark")
