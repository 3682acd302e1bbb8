"""The commit of a consumer after each message, in the fewest steps: nothing else happens as often.

One offset, further on or confirmed, of a key that is in memory. Does with it what `committer` does, and leaves everything else to
the general way. Reads no disk, awaits nothing. Those that come together are one write.
"""

import time
from collections.abc import Callable, Sequence

from adapter.model.records import DEFAULT_NAMESPACE, Held
from adapter.rpc import offsets_pb
from adapter.sidecar.engine.dirty import DirtyKeys
from adapter.sidecar.storage.store import LocalStore
from adapter.sidecar.storage.write_batch import FastWriteBatch

Run = Sequence[offsets_pb.CommitOffsetsRequest]  # in the order in which they count
_FRAMING = 9  # bytes of a request with one name each, beside the names and the offset

Staged = tuple[tuple[str, str], str, Held]


class FastPath:
    """`possible` is False where a commit waits for a sync or for the Meta Service."""

    def __init__(
        self, store: LocalStore, dirty: DirtyKeys, *, possible: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._dirty = dirty
        self._possible = possible
        self._clock = clock

    def commit(self, runs: Sequence[Run], now_ms: int) -> list[int]:
        """Commit of each run what comes before the first that is no such commit: stored, and dirty where it is new.

        Returns how many requests of each run that are. Raises DiskFullError or StorageFailedError: then nothing of any run counts
        as committed. That their names are good follows from what is in memory.
        """
        if not self._possible:
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
        epoch, stands, live, when, _, _, _ = before[0]
        knows = item.epoch
        # A missing offset reads as 0.
        if offset < stands or not (offset and live) or (knows and knows != epoch):
            return False
        if not _is_plain(request, group, item) and (request.mode > 1 or _has_more(group, item)):
            return False
        if offset == stands and now_ms <= when:
            return True  # again: what stands is stored, or is in this write
        staged.append((name, shard, forward.stage(held, shard, (epoch, offset, True, now_ms, "", "", 0))))
        return True


def _is_plain(request: offsets_pb.CommitOffsetsRequest, group: offsets_pb.GroupCommits, item: offsets_pb.ShardCommit) -> bool:
    """True only for a group, a shard and an offset that is not 0: whatever else there is makes it longer than these can be."""
    return request.ByteSize() == _FRAMING + len(group.group) + len(item.shard) + (item.offset.bit_length() + 6) // 7


def _has_more(group: offsets_pb.GroupCommits, item: offsets_pb.ShardCommit) -> bool:
    """True for a commit that is more than an offset and its epoch, or has a member."""
    if group.member_id or group.shard_names or group.offsets or group.epochs or group.HasField("generation"):
        return True
    if item.metadata or item.committed_at_ms or item.topic or item.partition:
        return True
    return item.HasField("high_watermark") or item.HasField("low_watermark")
