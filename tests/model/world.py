"""Who calls the brokers: consumers, brokers that hand over, admins. Checks what each of them is answered.

Every method is one step: it starts a call, which `pass_time` lets happen.
"""

from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from adapter.errors import InvalidInputError
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, ReadMode
from adapter.rpc import offsets_pb
from adapter.sidecar.api.state import TAKES_COMMITS
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.engine.resets import Outcome
from tests.model.broker import Running, Setup
from tests.model.consumers import Consumers
from tests.model.machines import KEYS
from tests.model.model import Moved, Sent, known

BIG = "m" * 4_000  # a few of these are a chunk each, so that a flush can fail in its middle

BAD: list[tuple[offsets_pb.ShardCommit, str]] = [
    (offsets_pb.ShardCommit(shard="bad"), "groups[0].shards[1].offset"),
    (offsets_pb.ShardCommit(shard="", offset=1), "groups[0].shards[1].shard"),
    (offsets_pb.ShardCommit(shard="a\n", offset=1), "groups[0].shards[1].shard"),
    (offsets_pb.ShardCommit(shard="good", offset=1), "groups[0].shards[1].shard"),
    (offsets_pb.ShardCommit(shard="bad", offset=1, metadata="m" * 4097), "groups[0].shards[1].metadata"),
    (offsets_pb.ShardCommit(shard="bad", offset=1, epoch=2**63), "groups[0].shards[1].epoch"),
]


class World(Consumers):
    """Everything at once."""

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        super().__init__(seed, setups)
        self._tags = 0

    def commit(
        self,
        at: int,
        offsets: dict[OffsetKey, int],
        *,
        overwrite: bool = False,
        generation: int | None = None,
        knowing: bool = False,
        age_ms: int = 0,
        big: bool = False,
        columns: bool = False,
    ) -> None:
        """A consumer commits at a broker: with the epoch that it read, of a generation, something that is some time old.

        In `columns`, as the Python client does: without metadata and times.
        """
        running = self._running(at)
        if not running:
            return
        self._tags += 1
        came_ms = self.now_ms()
        sent = {
            f"{self._tags}{key.group}{key.shard}{BIG if big else ''}": Sent(
                key, self._epochs.get(key, 0) if knowing else 0, came_ms - age_ms
            )
            for key in offsets
        }
        self.model.sent |= sent
        for one in sent.values():
            self.model.carried(one.key, one.epoch)
        request = offsets_pb.CommitOffsetsRequest(mode=offsets_pb.OVERWRITE if overwrite else offsets_pb.INCREASE_ONLY)
        for group in dict.fromkeys(key.group_key for key in offsets):
            made = request.groups.add(namespace=group.namespace, group=group.group, generation=generation, member_id="m")
            here = {tag: one for tag, one in sent.items() if one.key.group_key == group}
            if columns:
                made.shard_names.extend(one.key.shard for one in here.values())
                made.offsets.extend(offsets[one.key] for one in here.values())
                made.epochs.extend(one.epoch for one in here.values())
                continue
            for tag, one in here.items():
                made.shards.add(
                    shard=one.key.shard,
                    offset=offsets[one.key],
                    epoch=one.epoch,
                    metadata=tag,
                    committed_at_ms=came_ms - age_ms if age_ms else 0,
                )

        async def send() -> None:
            await self._commit(running, request, list(sent.values()), overwrite=overwrite)

        running.call(send)

    async def _commit(
        self, running: Running, request: offsets_pb.CommitOffsetsRequest, sent: list[Sent], *, overwrite: bool
    ) -> None:
        assert running.sidecar
        name, through = running.broker.name, running.broker.writes_through
        before, forgotten = dict(self.model.generations), self.model.forgotten.copy()
        commits = running.sidecar.offsets.commits
        checked = commits.check(request)
        checked = await commits.prepare(checked)
        commit = checked.parsed.commit
        answers = await checked.core.router.commit(commit)
        if running.dead:
            return
        for one in sent:
            one.at_ms = min(one.at_ms, self.now_ms())
        offered = dict(commit.offered())
        for group, member in commit.members.items():
            at = (name, group)
            if self.model.forgotten[at] != forgotten[at]:
                continue  # a delete or an expiry: whether this was decided before it or after it is not known
            if member.generation < before.get(at, 0):
                self._violation(f"fencing: {name} acknowledged generation {member.generation} after {before[at]}")
            self.model.generations[at] = max(self.model.generations.get(at, 0), member.generation)
        for key, record, _ in answers:
            if record is None:
                self._violation(f"1: {name} acknowledged {key} with nothing")
                continue
            self.model.decided(key, record, self.now_ms())
            # Written through, it may have met what another broker had written through.
            self._check_answer(name, offered[key], record, overwrite=overwrite and not through(key))
            self.model.committed(name, key, record, self.loop.now, through=through(key))

    def _check_answer(self, name: str, offered: OffsetRecord, record: OffsetRecord, *, overwrite: bool) -> None:
        """What is answered is what was offered, or something that stands above it."""
        if offered.epoch and offered.epoch < record.epoch:
            return
        fine = record.offset == offered.offset if overwrite else record.offset >= offered.offset
        if not fine and record.epoch <= 1:
            self._violation(f"1: {name} answered {record} to {offered}")

    def bad_commit(self, at: int, which: int) -> None:
        """Invariant 10: bad input names its field and stores nothing, not even the good entries beside it."""
        running = self._running(at)
        core = running.core if running else None
        if running is None or running.sidecar is None or core is None or running.state not in TAKES_COMMITS:
            return
        shard, field = BAD[which]
        good = offsets_pb.ShardCommit(shard="good", offset=99)
        request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=[good, shard])])
        before = (dict(running.broker.platter.contents), len(core.ledger.dirty))
        try:
            running.sidecar.offsets.commits.check(request)
        except InvalidInputError as error:
            if field not in str(error):
                self._violation(f"10: {error} does not name {field}")
        else:
            self._violation(f"10: {shard} was accepted")
        if before != (running.broker.platter.contents, len(core.ledger.dirty)):
            self._violation(f"10: {shard} changed something")

    def read(self, at: int, group: GroupKey, mode: ReadMode) -> None:
        """A consumer reads its offsets, and with them their epochs."""
        running = self._running(at)
        if running:
            running.call(lambda: self._read(running, group, mode))

    async def _read(self, running: Running, group: GroupKey, mode: ReadMode) -> None:
        core = running.serving()
        waits = running.asked  # else it is degraded: what is here is read as it is
        there = {key: self.service.standing(key) for key in KEYS if key.group_key == group}
        if mode is ReadMode.STORE:
            await self._read_store(core, group)
        rows = await core.reader.read([Wanted(group, [])], ReadMode.MEMORY if mode is ReadMode.STORE else mode)
        if running.dead:
            return
        found = dict(rows)
        for key, record in found.items():
            self._epochs[key] = max(self._epochs.get(key, 0), record.epoch)
            stood = running.before.get(key)
            if mode is not ReadMode.MEMORY and waits and stood and record.position < stood.position:
                self._violation(f"9: {running.broker.name} read {record} of {key} in mode {mode.name}, though {stood} stood")
        if mode is not ReadMode.STORE:
            return
        for key, stood in there.items():
            here = core.ledger.store.get(key)
            if stood and stood.live and here is None and running.demanding == 0 and not self.expires:
                self._violation(f"STORE read: {running.broker.name} does not know {key}, where {stood} stands")
            if stood and here and here.position < stood.position:
                self._violation(f"STORE read: {running.broker.name} has {here} of {key}, where {stood} stands")

    async def _read_store(self, core: Core, group: GroupKey) -> None:
        with self._taking_up([group]):
            await core.reader.begin([Wanted(group, [])], ReadMode.STORE)

    @contextmanager
    def _taking_up(self, groups: Collection[GroupKey]) -> Iterator[None]:
        """What is held may be taken up as long as this runs."""
        self.model.reading.update(groups)
        try:
            yield
        finally:
            self.model.reading.subtract(groups)
            for group in groups:
                self.model.read_from_store(group, self.now_ms())

    # Brokers hand over

    def persist(self, at: int, group: GroupKey) -> None:
        """A broker persists a group."""
        running = self._running(at)
        if running:
            running.call(lambda: self._persist(running, group))

    async def _persist(self, running: Running, group: GroupKey) -> None:
        core = running.serving()
        promised = {key: record for key in KEYS if key.group_key == group and (record := core.ledger.store.get(key))}
        await running.demand(core.handover.persist([Wanted(group, [])]))
        if not running.dead:
            self._expect_there(promised, f"persisted by {running.broker.name}")

    def move(self, at: int, to: int, group: GroupKey) -> None:
        """A group's shards move: one broker removes them, the other one reads them from the store."""
        running = self._running(at)
        if running:
            running.call(lambda: self._move(running, to, group))

    async def _move(self, running: Running, to: int, group: GroupKey) -> None:
        core = running.serving()
        name = running.broker.name
        keys = [key for key in KEYS if key.group_key == group]
        promised = {key: known(self.model.here[name, key].record) for key in keys if (name, key) in self.model.here}
        await running.demand(core.handover.remove([Wanted(group, [])]))
        if running.dead:
            return
        for key, position in promised.items():
            there = self.service.standing(key)
            if there is None or there.position < position:
                self._violation(f"hand-over: {name} removed {key}, of which {position} was acknowledged; {there} is there")
        other = self._running(to)
        if other and other is not running:
            other.call(lambda: self._read(other, group, ReadMode.STORE))

    # Admins

    def reset(self, at: int, keys: Sequence[OffsetKey], offset: int) -> None:
        """An admin resets shards of a group."""
        wanted = Wanted(keys[0].group_key, [key.shard for key in keys])
        self._admin(at, lambda core: core.resets.reset(wanted, Reset(To.OFFSET, offset), execute=True))

    def delete(self, at: int, group: GroupKey, shards: Sequence[str] = ()) -> None:
        """An admin deletes shards, or a whole group with its generation."""
        self._admin(at, lambda core: core.resets.delete(Wanted(group, shards), execute=True))

    def clone(self, at: int, source: GroupKey, target: GroupKey) -> None:
        """An admin gives a group the offsets of another one."""
        self._admin(at, lambda core: core.resets.clone(Wanted(source, []), target, execute=True))

    def _admin(self, at: int, change: Callable[[Core], Coroutine[Any, Any, Outcome]]) -> None:
        running = self._running(at)
        if running:
            running.call(lambda: self._change(running, change))

    async def _change(self, running: Running, change: Callable[[Core], Coroutine[Any, Any, Outcome]]) -> None:
        core = running.serving()
        begun_ms = self.now_ms()
        outcome = await running.demand(change(core))
        if running.dead:
            return
        for made in outcome.changes:
            if made.after and made.changes:
                self._expect_there({made.key: made.after}, "changed by an admin")
                self.model.was_moved(made.key, Moved(begun_ms, made.after))

    def flush(self, at: int) -> None:
        """An admin flushes."""
        running = self._running(at)
        if running:
            running.call(lambda: self._flush(running))

    async def _flush(self, running: Running) -> None:
        core = running.serving()
        store, compared = core.ledger.store, core.ledger.recovered.once
        unflushed = [key for key in KEYS if store.seq_of(key) > store.flushed_seq and not compared]
        promised = {key: record for key in unflushed if (record := store.get(key)) and record.live}
        await running.demand(core.flusher.flush_all())
        if not running.dead:
            self._expect_there(promised, f"flushed by {running.broker.name}")

    def owes(self, key: OffsetKey, record: OffsetRecord) -> bool:  # noqa: ARG002 - for a world that forgets
        """Whether the Meta Service has to have what was acknowledged."""
        return True

    def _expect_there(self, promised: dict[OffsetKey, OffsetRecord], why: str) -> None:
        for key, record in promised.items():
            there = self.service.standing(key)
            if self.owes(key, record) and (there is None or there.position < known(record)):
                self._violation(f"3, 7: {key} was {why} as {record}; {there} is there")
