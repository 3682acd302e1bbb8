"""The commit of a consumer after each message, in the fewest steps: nothing else happens as often.

One offset, further on or confirmed, of a key that is in memory. Does with it what `committer` does, and leaves everything else to
the general way. Reads no disk, awaits nothing.
"""

import time
from collections.abc import Callable

from adapter.cache import OffsetCache
from adapter.dirty import DirtyKeys
from adapter.model import DEFAULT_NAMESPACE
from adapter.rpc import offsets_pb


class LoneCommits:
    """`possible` is False where a commit waits for a sync or for the Meta Service."""

    def __init__(
        self, cache: OffsetCache, dirty: DirtyKeys, *, possible: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = cache
        self._dirty = dirty
        self._possible = possible
        self._clock = clock

    def commit(self, request: offsets_pb.CommitOffsetsRequest, now_ms: int) -> bool:
        """Commit the request if it is such a one: stored, and dirty where it is new. Raises DiskFullError or StorageFailedError.

        That its names are good follows from what is in memory.
        """
        groups = request.groups
        if not self._possible or len(groups) != 1 or len(shards := groups[0].shards) != 1:
            return False
        group, item = groups[0], shards[0]
        name = (group.namespace or DEFAULT_NAMESPACE, group.group)
        shard, offset = item.shard, item.offset
        held = self._cache.held(name)
        before = held.get(shard)
        if before is None:
            return False
        epoch, stands, live, when, _, _, _ = before[0]
        knows = item.epoch
        # A missing offset reads as 0.
        if offset < stands or not (offset and live) or (knows and knows != epoch) or request.mode > 1 or _has_more(group, item):
            return False
        if offset == stands and now_ms <= when:
            return True  # again: what stands is stored
        after = self._cache.write_forward(held, shard, (epoch, offset, True, now_ms, "", "", 0))
        self._dirty.add_one(name, shard, after, self._clock())
        return True


def _has_more(group: offsets_pb.GroupCommits, item: offsets_pb.ShardCommit) -> bool:
    """True for a commit that is more than an offset and its epoch, or has a member."""
    if group.member_id or group.shard_names or group.offsets or group.epochs or group.HasField("generation"):
        return True
    if item.metadata or item.committed_at_ms or item.topic or item.partition:
        return True
    return item.HasField("high_watermark") or item.HasField("low_watermark")
