"""Every change of the store, in one order: decided, written, published, marked dirty; then synced, then answered.

The first four are done without an await, so no other change comes between. `apply` takes any operation. `commit_plain` takes what
most commits are, many in one write, in the fewest steps, since nothing else happens as often. Never talks to the Meta Service.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import anyio

from adapter.errors import AdapterError, NotReadyError
from adapter.model import names
from adapter.model.codec import encode_key
from adapter.model.records import DEFAULT_NAMESPACE, GroupKey, Member
from adapter.rpc import offsets_pb
from adapter.runtime import heap
from adapter.runtime.clocks import REAL, Clocks
from adapter.runtime.coalescing import Coalescer
from adapter.runtime.slices import SLICE, others
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.ledger.decision import Decision
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.operations import Commit, Operation, Standing
from adapter.sidecar.ledger.recovered import Recovered
from adapter.sidecar.ledger.rules import Holds, check_generation, plainly
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.watching import Watches
from adapter.sidecar.ledger.write_batch import Change, WriteBatch

Run = Sequence[offsets_pb.CommitOffsetsRequest]  # applied in this order

MAX_REQUEST_BYTES = 4_096  # of a request that `commit_plain` may take: 64 offsets and their names, of 50 bytes and more
MAX_TOGETHER = 1_024  # offsets of one write, with which it takes no more columns: the event loop is held for some milliseconds
# What nobody used for this long, and up to twice as long, leaves memory. Consumers that commit every 5 or 30 s keep theirs there.
IDLE_S = 60
FEW_KEYS = 10_000  # in memory: with more, a collection would hold the event loop for longer than some milliseconds
INCREASE_ONLY, OVERWRITE = int(offsets_pb.INCREASE_ONLY), int(offsets_pb.OVERWRITE)
_FRAMING = 9  # bytes of a request with one name each, beside the names and the offset


class Taken(NamedTuple):
    """What `commit_plain` committed: how many requests of each run, and how many offsets they have together."""

    counts: list[int]
    offsets: int


class Ledger:
    """The owner of what is known of keys: the store, what of it is in memory (`states`), and what is `dirty`.

    `takes_plain` is False while commits wait for a sync or for the Meta Service.
    """

    def __init__(
        self,
        store: LocalStore,
        clocks: Clocks = REAL,
        journal: Journal = NO_JOURNAL,
        holds: Holds | None = None,
    ) -> None:
        self.store = store
        self.states = store.states
        self.recovered = Recovered()
        self.dirty = DirtyKeys(self.recovered)
        self.holds = holds or Holds()
        self.watches = Watches()
        self.clocks = clocks
        self.journal = journal
        self.takes_plain = False
        self.syncs_each = store.wal_sync == "always"
        self.eras = 0  # how often an era began here, or was taken up, other than by a commit
        self._clock = clocks.monotonic
        self._syncs: Coalescer[None, None] = Coalescer(self._sync, max_items=sys.maxsize)
        self._ended = False

    async def run(self) -> None:
        """Serve the syncs of `always` until cancelled; nothing is applied after that."""
        try:
            await self._syncs.run()
        finally:
            self._ended = True

    async def rest(self) -> None:
        """Let leave memory what nobody uses, until cancelled."""
        while True:
            await anyio.sleep(IDLE_S)
            await self.leave_idle()
            if len(self.states) <= FEW_KEYS:
                heap.collect()

    async def leave_idle(self) -> None:
        """Let leave memory what was not used since the last call. It is stored, and read again by whoever asks for it.

        What is dirty stays: the next flush sends it, and its group is about to be asked for.
        """
        while self.states.leave_idle(SLICE, self.dirty.of):
            await others()
        names.forget_good()
        encode_key.cache_clear()
        await self.store.rest()

    async def submit(self, operation: Operation) -> list[Standing]:
        """Apply an operation, and return what stands once it is as durable as `wal_sync` says.

        Of a commit's columns, and of FirstEpochs, only what did not plainly go forward is in the answer. Raises DiskFullError or
        StorageFailedError: nothing of it counts as committed. NotReadyError for a rewind of a key whose epoch is unknown,
        FencedError, ContendedError for a Forget that is refused; then nothing of this operation was stored.
        """
        standing = self.apply(operation)
        await self._synced()
        return standing

    async def sync(self) -> None:
        """Return once all that was applied is as durable as `wal_sync` says. Raises what `submit` does of any operation."""
        self._check()
        await self._synced()

    def apply(self, operation: Operation) -> list[Standing]:
        """Apply an operation without the sync: written and dirty, but with `always` it must not be acknowledged yet."""
        self._check()
        decision = Decision(self.store, self.dirty, self.holds)
        standing = decision.decide(operation)
        written = None
        if decision.staged or decision.members or decision.forward or decision.rows:
            written = self.store.write(decision.staged, decision.members, decision.forward, decision.rows)
        self._mark(decision, written)
        self.eras += decision.era_began
        if decision.rewinds:
            self.journal.moved("rewind", decision.rewinds)
        if self.watches.any:
            self.watches.note([one.key for one in standing if one.raised] if isinstance(operation, Commit) else decision.changed)
        return standing

    def commit_plain(self, runs: Sequence[Run], now_ms: int) -> Taken:
        """Commit of each run the requests before the first that is not plain, all in one write, and mark them dirty.

        Plain is one offset, or columns of them, that go forward, or are confirmed, of keys whose records are in memory. The other
        requests are for `apply`. Raises DiskFullError or StorageFailedError: then nothing of any run counts as committed. Names
        are not checked: those of a key that is in memory were.
        """
        if not self.takes_plain:
            return Taken([0] * len(runs), 0)
        writing = self.store.begin()
        counts = [self._decide_run(writing, run, now_ms) for run in runs]
        if writing.plain:
            self.store.finish(writing)
            self.dirty.add_plain(writing.plain.values(), self._clock())
        return Taken(counts, writing.decided)

    def check_members(self, members: Mapping[GroupKey, Member]) -> None:
        """Raise FencedError if a later generation has committed for one of the groups."""
        for group, member in members.items():
            check_generation(group, member, self.store.member(group))

    def _check(self) -> None:
        if self._ended:
            raise NotReadyError("stopped before this was taken; nothing of it is stored: send it again")
        self.store.check()  # after a failed sync, not even what changes nothing is acknowledged: what stands may not be durable

    async def _synced(self) -> None:
        # Also behind what changed nothing: what stands may be a write that is not synced yet.
        if self.store.must_sync:
            await self._syncs.submit(None)

    async def _sync(self, waiting: Sequence[None]) -> list[AdapterError | None]:
        await self.store.sync()
        return list(waiting)

    def _mark(self, decision: Decision, written: WriteBatch | None) -> None:
        """Mark keys dirty or clean, and note what is known of groups: true only now that all is written.

        A flush that begins next must see every write up to the newest one (invariant 3). What is clean goes first.
        """
        now = self._clock()
        for key in chain(decision.flushed, decision.clean):
            self.dirty.discard(key)
        if written:
            for group, held in written.forward.items() if not decision.forward_is_clean else ():
                self.dirty.add(group, held, now)
            for key, one in written.held():
                if key not in decision.clean:
                    self.dirty.add(key.group_key, {key.shard: one}, now)
        for key, one in decision.dirty_as_it_is:
            self.dirty.mark(key, one, now)
        if decision.removed:
            self.states.note_removal(decision.removed)
        if decision.raised:
            self.states.note_rewind(decision.raised)
        self.states.note_loaded(decision.loaded)
        self.states.note_absent(decision.absent)

    def _decide_run(self, writing: WriteBatch, run: Run, now_ms: int) -> int:
        for count, request in enumerate(run):
            if not self._decide(writing, request, now_ms):
                return count
        return len(run)

    def _decide(self, writing: WriteBatch, request: offsets_pb.CommitOffsetsRequest, now_ms: int) -> bool:
        groups = request.groups
        if len(groups) != 1 or len(shards := groups[0].shards) != 1:
            return self._decide_columns(writing, request, now_ms)
        group, item = groups[0], shards[0]
        name = (group.namespace or DEFAULT_NAMESPACE, group.group)
        shard, offset = item.shard, item.offset
        held = self.states.records(name)
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
        writing.decided += 1
        return True

    def _decide_columns(self, writing: WriteBatch, request: offsets_pb.CommitOffsetsRequest, now_ms: int) -> bool:
        """As `_decide`, of a request with only columns: all of it is put, or nothing."""
        if request.ByteSize() > MAX_REQUEST_BYTES or writing.decided >= MAX_TOGETHER or not self._takes(request.mode):
            return False
        plain = writing.plain
        keys: list[bytes] = []
        changed: list[Change] = []
        for group in request.groups:
            if not _has_only_columns(group):
                return False
            name = (group.namespace or DEFAULT_NAMESPACE, group.group)
            held = self.states.records(name)
            for shard, offset, knows in zip(group.shard_names, group.offsets, group.epochs or repeat(0), strict=False):
                before = held.get(shard)
                if before is None:
                    return False
                key = before[2]
                if key in plain:
                    before = plain[key][3]
                fields = before[0]
                after = plainly(fields, offset, knows, now_ms) if fields[2] else None
                if after is None:
                    return False
                keys.append(key)
                if after is not fields:
                    changed.append((name, shard, held, before, after))
        if not keys or len(set(keys)) != len(keys):  # a shard that is named twice is refused
            return False
        writing.put_columns(changed)
        writing.decided += len(keys)
        return True

    def _takes(self, mode: int) -> bool:
        """Whether `commit_plain` decides commits of a mode. During a comparison not OVERWRITE, see `GroupLoader.load_for`."""
        return 0 <= mode <= (OVERWRITE if self.recovered.now else INCREASE_ONLY)


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


def _has_only_columns(group: offsets_pb.GroupCommits) -> bool:
    """True for columns of one length, and no member."""
    count = len(group.shard_names)
    if not count or len(group.offsets) != count or len(group.epochs) not in (0, count):
        return False
    return not (group.shards or group.member_id or group.HasField("generation"))
