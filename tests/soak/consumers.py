"""Who commits in the soak: consumers of one adapter alone, groups that several adapters commit to, and an administrator.

What a consumer does not know, it reads, and commits with the epoch that it read.
"""

import random
from collections import Counter
from collections.abc import Sequence

import grpc

from adapter.client.client import OffsetClient
from adapter.model.records import DEFAULT_NAMESPACE, ERA_BITS, FIRST_EPOCH, OffsetKey, ReadMode, taken_up
from adapter.rpc import offsets_pb
from adapter.testing.history import META, History, Write
from tests.durability.load import CALL_S, NOT_ACKNOWLEDGED, SHARDS, Load, Turn

PAUSE_S = 0.01  # between two commits of a consumer: a restart needs the processor, too
ADMIN_PAUSE_S = 0.3
SHARED = "shared"  # the group that all adapters commit to, and that is reset and deleted
TEMPLATE = "template"  # the group that is cloned
THROUGH = "through"  # groups that begin so are written through
REWIND = 4  # offsets

Position = tuple[int, int]


def shared_key(shard: int) -> OffsetKey:
    """A key of the shared group."""
    return OffsetKey(DEFAULT_NAMESPACE, SHARED, str(shard))


class SharedLoad(Load):
    """Consumers of a group that others commit to as well, through other adapters."""

    def shared(self) -> Turn:
        """Commits one shard after the other, goes back now and then, and reads again what it does not know any more."""
        known: dict[OffsetKey, Position] = {}

        async def turn(number: int) -> None:
            key = shared_key(number % SHARDS)
            if key not in known:
                known[key] = await self._read(key, ReadMode.MEMORY_FIRST_THEN_STORE, [self._places[0]])
            epoch, offset = known.pop(key)
            if number % 10 == 0 and epoch and offset > REWIND:
                # Whether it was one, only another read tells: somebody may have gone back meanwhile.
                await self._commit_at(key, (epoch, offset - REWIND), overwrite=True)
            else:
                known[key] = await self._commit_at(key, (epoch, offset + 1), overwrite=False)

        return turn

    def store_reads(self) -> Turn:
        """Reads the shared group from the Meta Service, which this adapter merges into what it has."""

        async def turn(number: int) -> None:
            await self._read(shared_key(number % SHARDS), ReadMode.STORE, [self._places[0], META])

        return turn

    async def _read(self, key: OffsetKey, mode: ReadMode, places: Sequence[str]) -> Position:
        """What stands; epoch 0, which is none, when nothing does."""
        reading = self.history.reading(*places, keys=[key])
        row = (await self._client.read(key.group, [key.shard], mode=mode)).get(key.shard)
        reading.found({key: (row.epoch, row.offset)} if row else {})
        return (row.epoch, row.offset) if row else (0, 0)

    async def _commit_at(self, key: OffsetKey, target: Position, *, overwrite: bool) -> Position:
        """Commit with the epoch of the target; returns what stands then."""
        epoch, offset = target
        # A commit with the epoch of a reset that is held takes it up.
        target = (taken_up(epoch), offset)
        write = self._sending(key, *((target, (target[0] + 1, offset)) if overwrite else (target,)))
        shard = offsets_pb.ShardCommit(shard=key.shard, offset=offset, epoch=epoch)
        request = offsets_pb.CommitOffsetsRequest(
            groups=[offsets_pb.GroupCommits(group=key.group, shards=[shard])],
            mode=offsets_pb.OVERWRITE if overwrite else offsets_pb.INCREASE_ONLY,
        )
        reply = await self._client.store.CommitOffsets(request, timeout=CALL_S)
        self.commits += 1
        if not reply.superseded:
            write.acknowledged()
            return target
        (row,) = reply.superseded
        write.superseded((row.epoch, row.offset, not row.deleted))
        return row.epoch, row.offset


class Administrator(Load):
    """Resets, deletes and clones the shared group, and flushes, through one adapter after the other; waits for one that is dead.

    A change that fails may have been made, and so each has one more era in which it may stand.
    """

    # The second: somebody else moved the same offset meanwhile.
    expected = NOT_ACKNOWLEDGED | {grpc.StatusCode.ABORTED}

    def __init__(self, clients: dict[str, OffsetClient], history: History, rng: random.Random) -> None:
        super().__init__(next(iter(clients.values())), history, pause_s=ADMIN_PAUSE_S)
        self._clients = clients
        self._rng = rng
        self._changes: Counter[OffsetKey] = Counter()  # that were ever sent, of each key: each begins an era at most
        self.done: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Commit the group to clone from; nobody moves it later."""
        name, client = next(iter(self._clients.items()))
        offsets = {str(shard): 1_000 + shard for shard in range(SHARDS)}
        writes = [
            self.history.begin(OffsetKey(DEFAULT_NAMESPACE, TEMPLATE, shard), (FIRST_EPOCH, offset), places=[name])
            for shard, offset in offsets.items()
        ]
        await client.commit(TEMPLATE, offsets)
        for write in writes:
            write.acknowledged()
        flush = self.history.carrying(name)
        await client.flush()
        flush.done()

    def changes(self) -> Turn:
        """One change of some shards, or a flush, at a time."""
        kinds = {"reset": self._reset, "delete": self._delete, "clone": self._clone, "flush": self._flush}

        async def turn(_: int) -> None:
            kind, name = self._rng.choice(list(kinds)), self._rng.choice(list(self._clients))
            shards = self._rng.sample(range(SHARDS), self._rng.randint(1, SHARDS))
            await kinds[kind](name, [str(shard) for shard in shards])
            self.done[kind] += 1

        return turn

    async def _reset(self, name: str, shards: Sequence[str]) -> None:
        offset = self._rng.randrange(1, 100)
        writes = {shard: self._changing(name, shard, offset) for shard in shards}
        request = offsets_pb.ResetOffsetsRequest(group=SHARED, shards=shards, to_offset=offset, execute=True, create=True)
        _changed(await self._clients[name].admin.ResetOffsets(request, timeout=CALL_S, wait_for_ready=True), writes)

    async def _delete(self, name: str, shards: Sequence[str]) -> None:
        writes = {shard: self._changing(name, shard, 0, live=False) for shard in shards}
        request = offsets_pb.DeleteOffsetsRequest(group=SHARED, shards=shards, execute=True)
        _changed(await self._clients[name].admin.DeleteOffsets(request, timeout=CALL_S, wait_for_ready=True), writes)

    async def _clone(self, name: str, shards: Sequence[str]) -> None:
        writes = {shard: self._changing(name, shard, 1_000 + int(shard)) for shard in shards}
        request = offsets_pb.CloneGroupRequest(from_group=TEMPLATE, to_group=SHARED, shards=shards, execute=True)
        _changed(await self._clients[name].admin.CloneGroup(request, timeout=CALL_S, wait_for_ready=True), writes)

    async def _flush(self, name: str, _: Sequence[str]) -> None:
        flush = self.history.carrying(name)
        await self._clients[name].flush()
        flush.done()

    def _changing(self, name: str, shard: str, offset: int, *, live: bool = True) -> Write:
        """A change that begins the next era, whichever that is: others may do so at the same time."""
        key = shared_key(int(shard))
        self._changes[key] += 1
        stands = self.history.least(META).get(key, (FIRST_EPOCH, 0))[0] >> ERA_BITS
        eras = range(stands + 1, self._changes[key] + 1)
        # Held, or as a reader has taken it up.
        epochs = (epoch for era in eras for epoch in (era << ERA_BITS, taken_up(era << ERA_BITS)))
        return self.history.begin(key, *((epoch, offset, live) for epoch in epochs), places=[name, META])


def _changed(reply: offsets_pb.ChangeReply, writes: dict[str, Write]) -> None:
    assert reply.executed
    for row in reply.rows:
        if row.changed:
            writes[row.shard].acknowledged((row.after.epoch, row.after.offset, not row.after.deleted))


def turns_of(name: str, shared: SharedLoad, through: Load | None) -> list[tuple[Load, Turn]]:
    """All consumers of one adapter: each with the load that it belongs to. `through`: for groups that are written through."""
    own: list[Turn] = [shared.consumer(f"{name}-{number}") for number in range(3)]
    own += [shared.batches(name), shared.stream(f"{name}-stream"), shared.rewinds(f"{name}-rewinds")]
    own += [shared.shared(), shared.store_reads()]
    turns: list[tuple[Load, Turn]] = [(shared, turn) for turn in own]
    if through:
        turns += [(through, through.consumer(f"{THROUGH}-{name}")), (through, through.rewinds(f"{THROUGH}-{name}-rewinds"))]
    return turns
