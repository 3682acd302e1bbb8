"""The fast path: the commit that a consumer sends after each message, in the fewest steps, since nothing else happens as often.

It takes one plain offset that goes forward, or is confirmed, of a key whose record is in memory, and leaves everything else to
`committer`. It decides as `commit_rules` does, writes to the store and marks keys dirty itself. The records stand in memory
before they are written to RocksDB, so that a later request of the same write is decided against them; a write that fails takes
them out again. Reads no disk and awaits nothing, so that no other code runs in between.
"""

import time
from collections.abc import Callable, Sequence

from adapter.model.records import DEFAULT_NAMESPACE, LOWER_HALF, Held
from adapter.rpc import offsets_pb
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.recovered import Recovered
from adapter.sidecar.storage.store import LocalStore
from adapter.sidecar.storage.write_batch import FastWriteBatch

Run = Sequence[offsets_pb.CommitOffsetsRequest]  # applied in this order

MAX_REQUEST_BYTES = 1_024  # of a request that the fast path may take: three names of at most 255 bytes, and numbers
INCREASE_ONLY, OVERWRITE = int(offsets_pb.INCREASE_ONLY), int(offsets_pb.OVERWRITE)
_FRAMING = 9  # bytes of a request with one name each, beside the names and the offset

Staged = tuple[tuple[str, str], str, Held]


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
        forward = self._store.forward()
        staged: list[Staged] = []
        try:
            counts = [self._stage_run(forward, staged, run, now_ms) for run in runs]
            if staged:
                self._store.write_forward(forward)
        except BaseException:
            forward.undo()
            raise
        now = self._clock()
        for name, shard, after in staged:
            self._dirty.add_one(name, shard, after, now)
        return counts

    def _stage_run(self, forward: FastWriteBatch, staged: list[Staged], run: Run, now_ms: int) -> int:
        for count, request in enumerate(run):
            if not self._stage(forward, staged, request, now_ms):
                return count
        return len(run)

    def _stage(
        self, forward: FastWriteBatch, staged: list[Staged], request: offsets_pb.CommitOffsetsRequest, now_ms: int
    ) -> bool:
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
        epoch, stands, live, when, _, topic, partition = before[0]
        knows = item.epoch
        # A missing offset reads as 0: the general path tells both apart.
        # A held record, in the first epoch of an era, is left to the rules.
        if offset < stands or not (offset and live) or (knows and knows != epoch) or not (epoch & LOWER_HALF or not epoch):
            return False
        if not _is_plain(request, group, item) and (not self._takes(request.mode) or _has_more(group, item)):
            return False
        if offset == stands and now_ms <= when:
            return True  # a repeated commit: what stands is stored already, or with this write
        staged.append((name, shard, forward.stage(held, shard, (epoch, offset, True, now_ms, "", topic, partition))))
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
