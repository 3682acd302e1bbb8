"""The local store: offsets in RocksDB. What was used last is in memory (`ledger.group_state`).

Every write of records is made by `finish`, and comes into memory behind it. A write that returned survives a killed process; one
that was synced survives a power cut. The loss of acknowledged writes is detected at open and reported. Knows no Meta Service.
"""

import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, Self, TypeVar

import anyio
import structlog

from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError
from adapter.model.codec import SEQ_BYTES, decode_record, decode_seq, decode_stored, encode_key, encode_shards, prefix_end
from adapter.model.records import STORE_ID_BYTES, Absent, GroupKey, Held, Member, OffsetKey, OffsetRecord
from adapter.runtime.durable.checkpoint import Checkpoints
from adapter.runtime.durable.watermark import Loss
from adapter.runtime.times import utc
from adapter.sidecar.config import WalSync
from adapter.sidecar.ledger.disk import ADVICE, Batch, Disk, RocksDisk
from adapter.sidecar.ledger.group_state import GroupStates
from adapter.sidecar.ledger.snapshot import Snapshot, Snapshots
from adapter.sidecar.ledger.write_batch import (
    FIRST_KEY,
    LOSS,
    RESTORED,
    STATE,
    STORE_ID,
    UNASKED,
    Bookkeeping,
    Restored,
    Stored,
    Unasked,
    WriteBatch,
    decode_member,
    member_key,
)

log = structlog.get_logger(__name__)
R = TypeVar("R")

WATCH_S = 0.5  # between two looks at the files, and for space on a full disk


class Follower(Protocol):
    """Is told of what it cannot find in memory afterwards. Neither method may raise, nor take long."""

    def evicted(self, records: Collection[Held]) -> None:
        """These records are not in memory any more."""

    def removed(self, key: OffsetKey, seq: int) -> None:
        """The key was removed from the store behind the write `seq`."""


class LocalStore:
    """Offsets on a disk, and the bookkeeping that shows what is flushed and whether acknowledged writes were lost."""

    def __init__(self, disk: Disk, wal_sync: WalSync) -> None:
        self._disk = disk
        self.states = GroupStates()
        self._follower: Follower | None = None
        self.snapshots = Snapshots()
        self.failure = ""
        self._disk_full = False
        # A sync found no space: what it was to make durable is not, so no later write or sync may succeed before an open.
        self._sync_without_space = False
        self._batches = self._synced_batches = 0
        self._rested = self._sorted = -1  # `_batches` at the last `rest`, and at the last one that had RocksDB sort
        state = Bookkeeping.decode(disk.get(STATE))
        self._keys, self._digest = state.keys, state.digest
        self.failed = anyio.Event()
        self.wal_sync = wal_sync
        self.seq = self.synced_seq = state.seq
        self.flushed_seq = state.flushed_seq
        self.left_seq = state.seq  # of what is above, it is known here what is not flushed
        loss = disk.get(LOSS)
        self.loss = Loss.decode(loss) if loss else None
        self.loss_at_open = False
        # Made with the store; never changes.
        self.store_id = disk.get(STORE_ID) or b""
        # The newest write when the store was opened first since the Meta Service was asked what it remembers of it.
        self.unasked_seq = self.seq
        # Which open file is not in its place any more; empty while all are.
        self.missing = ""
        self.damaged = False  # a write has met damage; an open may refuse the store

    @classmethod
    def open(cls, path: Path, wal_sync: WalSync, *, only: bytes | None = None) -> Self:
        """Open or create the store at `path`, and verify it; with `only` no other store than the one that has this `store_id`.

        Blocks. Raises what `RocksDisk.open` and `over` raise.
        """
        return cls.over(RocksDisk.open(path, create=only is None), wal_sync, only=only)

    @classmethod
    def over(cls, disk: Disk, wal_sync: WalSync, *, only: bytes | None = None) -> Self:
        """Verify the store on an open disk, which it closes when that fails: reads every record once. Blocks.

        Raises StoreDamagedError, DiskFullError or StorageFailedError; the text says what to do.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(disk.close)
            try:
                store = cls(disk, wal_sync)
            except StoreDamagedError as error:
                raise StoreDamagedError(f"{disk.name}: {error}. {ADVICE}") from error
            if only is not None and store.store_id != only:
                raise StorageFailedError(
                    f"{disk.name}: holds another store ({store.store_id.hex() or 'a new one'}) than the one that was open "
                    f"({only.hex()}); bring that one back, or restart the adapter to go on with this one"
                )
            store._verify()
            store._identify()
            store._begin_unasked()
            disk.begin(wal_sync)
            undo.pop_all()
        log.info("store.opened", path=disk.name, keys=store.keys, seq=store.seq, flushed_seq=store.flushed_seq)
        return store

    def get(self, key: OffsetKey) -> OffsetRecord | None:
        """What stands locally. A tombstone is a record."""
        return self.find(key)[0]

    def seq_of(self, key: OffsetKey) -> int:
        """The write counter of a stored key; 0 when it is absent."""
        return self.find(key)[1]

    def find(self, key: OffsetKey) -> tuple[OffsetRecord | None, int]:
        """What `get` and `seq_of` say, in one read."""
        held = self.hold(key)
        return (OffsetRecord(*held[0]), held[1]) if held else (None, 0)

    def hold(self, key: OffsetKey) -> Held | None:
        """The same as it is held in memory. Reads the disk when it is not there."""
        held = self.states.get(key)
        if held is None:
            encoded = encode_key(key)
            value = self._disk.get(encoded)
            if value is not None:
                held = (decode_record(value), decode_seq(value), encoded)
                self.states.put(key.group_key, {key.shard: held})
        return held

    def follow(self, follower: Follower) -> None:
        """Tell a follower from now on. With it, `used` and `held_of` find all that is written."""
        self._follower = follower
        self.states.evicted = follower.evicted

    def used(self) -> list[GroupKey]:
        """The groups in memory that were used since the last call: see `GroupStates.used`."""
        return self.states.used()

    def held_of(self, groups: Iterable[GroupKey]) -> list[Held]:
        """The records of these groups in memory."""
        return self.states.held(groups)

    def hold_all(self, group: GroupKey, shards: Sequence[str]) -> Mapping[str, Held | Absent]:
        """What stands under some shards of a group, and maybe under others; those that are not in memory are read together."""
        held = self.states.records(group)
        missing = [shard for shard in shards if shard not in held]
        if not missing:
            return held
        keys = encode_shards(group, missing)
        found: dict[str, Held] = {}
        answer: dict[str, Held | Absent] = {shard: held[shard] for shard in shards if shard in held}
        for shard, key, value in zip(missing, keys, self._disk.get_many(keys), strict=True):
            if value is None:
                answer[shard] = (None, 0, key)
            else:
                answer[shard] = found[shard] = (decode_record(value), decode_seq(value), key)
        if found:
            self.states.put(group, found)  # of a large group nothing may stay
        return answer

    def stands(self, keys: Sequence[bytes], records: Sequence[bytes]) -> list[bool]:
        """Whether each of these encoded records stands under its encoded key, whatever its write counter."""
        values = self._disk.get_many(list(keys))
        return [
            value is not None and value[SEQ_BYTES:] == record[SEQ_BYTES:] for value, record in zip(values, records, strict=True)
        ]

    def are_stored(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether something is stored under each of these encoded keys."""
        return [value is not None for value in self._disk.get_many(list(keys))]

    def raw(self, count: int, prefix: bytes, after: bytes = b"") -> list[tuple[bytes, bytes]]:
        """The first `count` encoded keys and records below `prefix`, from behind the key `after`."""
        self.check()
        start = after + b"\0" if after else prefix or FIRST_KEY
        return list(islice(self._disk.scan(start, prefix_end(prefix)), count))

    def member(self, group: GroupKey) -> Member | None:
        """The highest generation that committed for a group, and who first did so in it."""
        value = self._disk.get(member_key(group))
        return decode_member(value) if value else None

    def write(
        self,
        changes: Mapping[OffsetKey, OffsetRecord | None],
        members: Mapping[GroupKey, Member | None] | None = None,
        forward: Mapping[GroupKey, Mapping[str, Held]] | None = None,
        rows: Sequence[tuple[bytes, bytes]] = (),
    ) -> WriteBatch:
        """Store records and members, or forget them (None), as one WriteBatch. Returns the records with their write counters.

        `forward` are plain records of keys that are not in `changes`, and `rows` encoded ones: see `WriteBatch.put_forward` and
        `put_rows`. When this returns, a killed process loses nothing of it.

        All or nothing. Raises DiskFullError or StorageFailedError.
        """
        writing = self.begin()
        for group, records in (forward or {}).items():
            writing.put_forward(group, records)
        if rows:
            writing.put_rows(rows)
        for key, record in changes.items():
            if record is None:
                writing.delete(key, self.seq_of(key))
            else:
                writing.put(key, record, self.seq_of(key))
        for group, member in (members or {}).items():
            writing.put_member(group, member)
        self.finish(writing)
        return writing

    def begin(self) -> WriteBatch:
        """An empty batch, which `finish` writes before anything else is written. Raises StorageFailedError."""
        self.check()
        return WriteBatch(self._disk.batch(), Bookkeeping(self.seq, self.flushed_seq, self._keys, self._digest))

    def finish(self, writing: WriteBatch) -> None:
        """Write a batch to RocksDB, then bring memory to what is stored. Raises what `write` does."""
        state = writing.finish()
        self._write(writing.batch)
        self.seq, _, self._keys, self._digest = state
        writing.publish(self.states)
        if self._follower:
            for key in writing.removed:
                self._follower.removed(key, self.seq)
        # After the batch, before the acknowledgement: a watermark above the store always means a loss. With `always` the batch
        # is not acknowledged before its sync, and a power cut until then takes nothing that counts: `sync` advances it.
        if self.wal_sync != "always":
            self._advance_watermark(self.seq)

    async def sync(self) -> None:
        """Make every write so far survive a power cut.

        Raises StorageFailedError, and so does every later write: a sync is never retried. DiskFullError while the disk is full,
        also when the sync is the first to find that out: the open that has to follow syncs what was written before.
        """
        self._check_syncs()
        seq, batches = self.seq, self._batches
        try:
            await self._disk.sync()
        except Exception as error:
            if self._disk_full or isinstance(error, DiskFullError):
                self._disk_full = self._sync_without_space = True
                raise DiskFullError(f"{self._disk.name}: no space left: {error}") from error
            raise self._fail(f"the sync of the local store failed: {error}") from error
        self._check_syncs()  # one that succeeds behind one that failed proves nothing
        self.synced_seq = max(self.synced_seq, seq)
        self._synced_batches = max(self._synced_batches, batches)
        if self.wal_sync == "always" and seq > self._disk.watermark:
            self._advance_watermark(seq)

    async def run_sync(self, interval: Callable[[], Awaitable[None]]) -> None:
        """Sync WAL and watermark after each `interval` in which something was written. For `never` it does nothing."""
        marked = 0
        while self.wal_sync != "never":
            await interval()
            if self._batches == marked or self._disk_full:
                continue
            marked = self._batches
            try:
                await self.sync()
                await self._disk.sync_watermark()
            except DiskFullError:
                marked = -1
            except OSError as error:
                raise self._fail(f"the sync of the watermark failed: {error}") from error

    async def rest(self) -> None:
        """Give memory back to the system. If nothing was written since the last call, also that of what RocksDB did not sort yet.

        That is in the WAL, and goes into a table. Raises StorageFailedError.
        """
        sort = self._batches == self._rested != self._sorted and not self._disk_full
        self._rested = batches = self._batches
        try:
            await self._disk.apart(partial(self._disk.shrink, sort=sort))
        except DiskFullError:
            return  # nothing is lost by it; the next write says so
        except AdapterError as error:
            raise self._fail(f"the local store could not begin a table: {error}") from error
        if sort:
            self._sorted = batches

    async def watch(self) -> None:
        """Raise StorageFailedError when the store has to be opened again.

        It failed, its full disk has space again, or files are missing. Until missing files are noticed, commits go into files
        that no later open will find.
        """
        while True:
            with anyio.move_on_after(WATCH_S):
                await self.failed.wait()
            self.check()
            await self.look()
            self.check()
            if self._disk_full and self._has_space():
                raise self._fail("the disk was full and has space again")

    async def look(self) -> str:
        """Look whether the open files are in their place, and return which one is not. Then nothing is written any more."""
        self.missing = await self._disk.apart(self._disk.missing)
        if self.missing:
            self._fail(f"the store is gone: {self.missing}; is its disk mounted? Bring the same directory back")
        return self.missing

    async def note_loss(self, writes: int, why: str, reached: int = 0) -> None:
        """Record durably that acknowledged writes are missing here, before anything is done about it.

        `reached`: the highest write counter that was in use: none comes again. Raises DiskFullError, StorageFailedError.
        """
        self._put_loss(writes, why, reached)
        await self.sync()

    def asked(self) -> None:
        """Note that what the Meta Service remembers was compared with `unasked_seq`. Raises DiskFullError, StorageFailedError."""
        self.check()
        batch = self._disk.batch()
        batch.delete(UNASKED)
        self._write(batch)
        self.unasked_seq = self.seq

    def advance_flushed(self, seq: int) -> None:
        """The Meta Service has every write up to `seq`. Stored with the next write: after a kill it may be lower."""
        self.flushed_seq = max(self.flushed_seq, seq)

    def forget_flushed(self) -> None:
        """Let nothing count as flushed any more: the Meta Service holds less than it acknowledged.

        A start after a kill compares all keys in any case. A stop flushes what is dirty, and a start without the Meta Service
        marks dirty what is above `flushed_seq`: both need it.
        """
        self.flushed_seq, self.left_seq = 0, self.seq
        with contextlib.suppress(AdapterError):
            self.write({})

    def check(self) -> None:
        """Raise StorageFailedError once a sync has failed."""
        if self.failure:
            raise StorageFailedError(self.failure)

    def scan(self, prefix: bytes = b"", after: OffsetKey | None = None) -> Iterator[Stored]:
        """The records below `prefix`, in key order, from behind `after`."""
        start = encode_key(after) + b"\0" if after else prefix or FIRST_KEY
        for key, value in self._disk.scan(start, prefix_end(prefix)):
            yield Stored(*decode_stored(key, value))

    def first(self, count: int, *, prefix: bytes = b"", after: OffsetKey | None = None) -> list[Stored]:
        """The first `count` records of such a scan; for a slice, on the event loop. Raises StorageFailedError as well."""
        self.check()  # the store may have failed, and be closed, since the slice before
        return list(islice(self.scan(prefix, after), count))

    async def page(self, count: int, *, prefix: bytes = b"", after: OffsetKey | None = None) -> list[Stored]:
        """The first `count` records of such a scan, read away from the event loop."""
        return await self.apart(lambda: list(islice(self.scan(prefix, after), count)))

    async def rows(self, count: int, after: bytes = b"") -> list[tuple[bytes, bytes]]:
        """The first `count` encoded keys and records from behind the key `after`, read away from the event loop."""
        start = after + b"\0" if after else FIRST_KEY
        return await self.apart(lambda: list(islice(self._disk.scan(start, b""), count)))

    async def written(self, above: int, upto: int, count: int, after: bytes = b"") -> tuple[list[Stored], bytes]:
        """Of the next `count` records those with such write counters, and the last encoded key of all; it is empty at the end."""

        def found() -> tuple[list[Stored], bytes]:
            some: list[Stored] = []
            last = b""
            for key, value in islice(self._disk.scan(after + b"\0" if after else FIRST_KEY, b""), count):
                last = key
                if above < decode_seq(value) <= upto:
                    some.append(Stored(*decode_stored(key, value)))
            return some, last

        return await self.apart(found)

    def snapshot(self) -> Snapshot:
        """All records as they are now, to be read while commits go on. Raises StorageFailedError."""
        self.check()
        return self.snapshots.take(self._disk.scan(FIRST_KEY, b""), self._keys, self.flushed_seq)

    @property
    def disk_full(self) -> bool:
        """True if the last write or sync found no space: commits are refused until there is some."""
        return self._disk_full

    @property
    def unsynced_writes(self) -> int:
        """Acknowledged writes that a power cut could lose now."""
        return self.seq - self.synced_seq

    @property
    def acknowledged_seq(self) -> int:
        """The newest write that may have been acknowledged."""
        return self.synced_seq if self.wal_sync == "always" else self.seq

    @property
    def must_sync(self) -> bool:
        """True when an answer has to wait for a sync: with `always`, while there is a write that none has covered yet."""
        return self.wal_sync == "always" and self._synced_batches < self._batches

    @property
    def keys(self) -> int:
        """How many records there are, tombstones included."""
        return self._keys

    async def apart(self, work: Callable[[], R]) -> R:
        """Do what takes long, as a scan does, away from the event loop."""
        return await self._disk.apart(work)

    @property
    def checkpoints(self) -> Checkpoints:
        """Copies of the files, for a backup."""
        return self._disk.checkpoints

    def rocksdb_properties(self) -> dict[str, int]:
        """RocksDB's own numbers, by our names. Thread-safe. Raises StorageFailedError once it is closed."""
        return self._disk.properties()

    def close(self) -> None:
        """Store the bookkeeping, sync, close. Never raises: what goes wrong here is found at the next open."""
        self.snapshots.close(self.failure or "the store was closed")
        try:
            if not self.failure:
                self.write({})
                self._disk.finish()
        except (AdapterError, OSError) as error:
            log.error("store.close", error=str(error))
        try:
            self._disk.close()
        except (AdapterError, OSError) as error:
            log.error("store.close", error=str(error))

    def _verify(self) -> None:
        """Compare the store with its watermark and its digest; raises StoreDamagedError when it cannot be read to the end."""
        keys = digest = 0
        try:
            # From the first key, for a damaged block of the bookkeeping would stop the first compaction.
            for key, value in self._disk.scan(b"", b""):
                if key >= FIRST_KEY:
                    keys += 1
                    digest += decode_seq(value)
        except StoreDamagedError as error:
            raise StoreDamagedError(f"{self._disk.name}: {error}. {ADVICE}") from error
        missing = max(self._disk.watermark - self.seq, 0)
        if (keys, digest % 2**64) != (self._keys, self._digest):
            missing += max(self._keys - keys, 1)
        self._keys, self._digest = keys, digest % 2**64
        why = [f"{missing} acknowledged writes are not there: damaged files"] if missing else []
        restored = Restored.decode(self._disk.get(RESTORED))
        if restored:
            why.append(f"it was restored from the backup of {utc(restored.taken_at_ms)}: what came since is not there")
        elif not self._disk.watermark_intact and self.seq:
            why.append("the watermark is missing or cannot be read, so nobody knows what was acknowledged")
        if self._disk.machine_went_down():
            why.append("the machine went down, and took acknowledged commits that were not synced yet")
        if why:
            reached = restored.reached if restored else self._disk.watermark
            self._put_loss(max(missing, 1), "; ".join(why), reached)
            self._disk.sync_now()
            self.synced_seq = self.seq

    def _identify(self) -> None:
        """Give a new store its identity, durably."""
        if len(self.store_id) != STORE_ID_BYTES:
            self.store_id = os.urandom(STORE_ID_BYTES)
            batch = self._disk.batch()
            batch.put(STORE_ID, self.store_id)
            self._write(batch)
            self._disk.sync_now()

    def _begin_unasked(self) -> None:
        """Before the first commit: keep how far the store is, until `asked`."""
        unasked = Unasked.decode(self._disk.get(UNASKED))
        if unasked is None or unasked.flushed_seq != self.flushed_seq:
            unasked = Unasked(self.seq, self.flushed_seq)
            batch = self._disk.batch()
            batch.put(UNASKED, unasked.encode())
            self._write(batch)
        self.unasked_seq = unasked.seq

    def _put_loss(self, writes: int, why: str, reached: int) -> None:
        """Store the loss and the new bookkeeping in one batch. Status shows it from then on, also after restarts."""
        self.loss = Loss(writes, time.time_ns() // 1_000_000, why)
        self.loss_at_open = True
        self.seq = max(self.seq, reached)
        batch = self._disk.batch()
        batch.put(LOSS, self.loss.encode())
        batch.delete(RESTORED)  # it is told as this loss from now on
        batch.put(STATE, Bookkeeping(self.seq, self.flushed_seq, self._keys, self._digest).encode())
        self._write(batch)
        log.error(
            "store.acknowledged_writes_lost",
            writes=writes,
            path=self._disk.name,
            why=why,
            help="what is missing is looked up in the Meta Service",
        )

    def _check_syncs(self) -> None:
        """Raise DiskFullError or StorageFailedError if a sync has not done its work since the store was opened."""
        self.check()
        if self._sync_without_space:
            raise DiskFullError(f"{self._disk.name}: a sync found no space, and the store was not opened again since")

    def _write(self, batch: Batch) -> None:
        if self._sync_without_space:
            raise DiskFullError(
                f"{self._disk.name}: no space left; nothing was stored. Free some space there; the store is then opened again"
            )
        try:
            self._disk.write(batch)
        except DiskFullError as error:
            self._disk_full = True
            raise DiskFullError(
                f"{self._disk.name}: no space left; nothing was stored. Free some space there: {error}"
            ) from error
        except AdapterError as error:
            # A compaction that has met damage: RocksDB takes no write behind it.
            self.damaged = isinstance(error, StoreDamagedError)
            raise self._fail(f"a write of the local store failed: {error}") from error
        self._disk_full = False
        self._batches += 1  # not `seq`: a batch may hold no record, but a member

    def _has_space(self) -> bool:
        """True when an open could replay the WAL into a new file, after RocksDB did not resume by itself."""
        try:
            self.write({})
        except DiskFullError:
            return self._disk.has_room()
        return False

    def _advance_watermark(self, seq: int) -> None:
        try:
            self._disk.advance_watermark(seq)
        except OSError as error:
            raise self._fail(f"the watermark could not be written: {error}") from error

    def _fail(self, reason: str) -> StorageFailedError:
        self.failure = self.failure or reason
        self.failed.set()
        return StorageFailedError(self.failure)
