"""A world before a Meta Service that knows no epochs: RobustMQ's, as tests/dialect.py imitates it, in virtual time.

Such a server keeps a number for each key, and a save with an expected number is compare-and-set. What is promised then
(docs/discussion.md): of offsets that nobody moves back on purpose, everything (1 to 6, 8 to 10), on the server as well. Of those
that are rewound, reset, deleted, cloned over, or lowered by a writer of another kind, only what is local: no key goes back here,
and no acknowledged commit is lost from this disk. So such things befall the keys of one group alone, and all others are watched
as strictly as in the other worlds. test_epochless.py shows each weakness in a run of its own.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from adapter.errors import RefusedError, UnknownCallError
from adapter.meta.client import GroupsPage, Page
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import (
    FIRST_EPOCH,
    GroupKey,
    KnownStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreReport,
)
from adapter.sidecar.ledger.operations import Forget
from adapter.sidecar.ledger.write_batch import Stored
from tests.model import choices as st
from tests.model.broker import Broker, Running, Setup
from tests.model.choices import rule
from tests.model.consumers import Offer, Way
from tests.model.invariants import Watch
from tests.model.machines import GROUPS, KEYS
from tests.model.network import LOAD_TIMEOUT_S, TIMEOUT_S, Service, SimMeta
from tests.model.runs import WAITS, Everything
from tests.model.world import World

MOVABLE = frozenset(key for key in KEYS if key.group_key == GROUPS[0])


class Row(NamedTuple):
    """What such a server keeps of a key."""

    offset: int
    topic: str
    partition: int


class Rows:
    """The server's store. A group of a save is one write of Raft: durable when it is done, all of it or nothing."""

    def __init__(self, _: Callable[[], int], sync_s: float) -> None:
        self._sync_s = sync_s
        self.rows: dict[OffsetKey, Row] = {}

    def standing(self, _: str, key: OffsetKey) -> OffsetRecord | None:
        """What it holds, as of the first epoch."""
        row = self.rows.get(key)
        return OffsetRecord(FIRST_EPOCH, row.offset) if row else None

    def crash(self) -> None:
        """What was applied is durable."""

    async def save(self, _: str, entries: Sequence[SaveEntry]) -> bool:
        """Group by group, in the order of their names; False when an entry was not as expected."""
        groups: dict[GroupKey, list[SaveEntry]] = {}
        for entry in entries:
            groups.setdefault(entry.key.group_key, []).append(entry)
        committed = True
        for group in sorted(groups):
            await asyncio.sleep(self._sync_s)
            for key, record, expected in groups[group]:
                row = self.rows.get(key)
                if expected is None or expected == (row.offset if row else 0):
                    self.rows[key] = Row(record.offset, record.topic or key.shard, record.partition)
                else:
                    committed = False
        return committed

    async def get_group(self, group: GroupKey) -> list[tuple[OffsetKey, OffsetRecord]]:
        """As the client makes records of it: the epoch is unknown."""
        return [
            (key, OffsetRecord(0, row.offset, topic="" if row.topic == key.shard else row.topic, partition=row.partition))
            for key, row in sorted(self.rows.items())
            if key.group_key == group
        ]

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        """Nothing is left behind."""
        await asyncio.sleep(self._sync_s)
        for shard in shards:
            self.rows.pop(OffsetKey(*group, shard), None)


class EpochlessService(Service):
    """The service over it. A refused key is one whose save ends with an error, for the whole call."""

    engine_type = Rows  # type: ignore[assignment]
    engine: Rows  # type: ignore[assignment]

    def standing(self, key: OffsetKey) -> OffsetRecord | None:
        """What it holds of a key that nobody moves; of the others nothing is promised."""
        return None if key in MOVABLE else self.engine.standing("", key)

    async def save_or_refuse(self, entries: Sequence[SaveEntry]) -> bool | None:
        """True when all was as expected; None when the call is refused."""
        if self.refusing.intersection(entry.key for entry in entries):
            return None
        return await self.engine.save("", entries)


class EpochlessMeta(SimMeta):
    """The client of such a server: the three calls that it knows. Calls that end without an answer are in doubt."""

    kind = OFFSETS_ONLY
    _service: EpochlessService

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:  # noqa: ARG002
        raise UnknownCallError("unknown by the test")

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        sent = list(entries)
        committed = await self._call(lambda: self._service.save_or_refuse(sent))
        if committed is None:
            raise RefusedError("refused by the test")
        applied = [SaveOutcome(Status.APPLIED, entry.record._replace(epoch=entry.record.epoch or FIRST_EPOCH)) for entry in sent]
        if committed:
            return applied
        # Which one was not as expected is not told.
        conflict = SaveOutcome(Status.CONFLICT, None, "by the test")
        return [one if entry.expected_offset is None else conflict for entry, one in zip(sent, applied, strict=True)]

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        found: dict[OffsetKey, OffsetRecord] = {}
        for group in dict.fromkeys(key.group_key for key in keys) or GROUPS[:1]:
            found |= dict(await self._group(group, patient=patient))
        return {key: found[key] for key in keys if key in found}

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:  # noqa: ARG002
        return GroupsPage(await self._group(groups[0], patient=patient), groups[1:], b"")

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:  # noqa: ARG002
        raise UnknownCallError("unknown by the test")

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:  # noqa: ARG002
        raise UnknownCallError("unknown by the test")

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        await self._call(lambda: self._service.engine.delete(group, shards))

    async def _group(self, group: GroupKey, *, patient: bool) -> list[tuple[OffsetKey, OffsetRecord]]:
        return await self._call(lambda: self._service.engine.get_group(group), TIMEOUT_S if patient else LOAD_TIMEOUT_S)


class EpochlessBroker(Broker):
    """A broker whose adapter speaks to it."""

    meta_type = EpochlessMeta


class EpochlessWorld(World):
    """The world. Only the keys of one group are moved on purpose."""

    service_type = EpochlessService
    broker_type = EpochlessBroker
    keeps_times = False
    service: EpochlessService

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        super().__init__(seed, setups)
        self.unsure = set(MOVABLE)

    def commit(self, at: int, offsets: dict[OffsetKey, int], *, overwrite: bool = False, **how: object) -> None:
        """Rewind what may be moved alone."""
        super().commit(at, offsets, overwrite=overwrite and MOVABLE.issuperset(offsets), **how)  # type: ignore[arg-type]

    def commit_together(self, at: int, offers: Sequence[Offer], way: Way, *, apart: bool) -> None:
        """The same."""
        allowed = [offer._replace(overwrite=offer.overwrite and offer.key in MOVABLE) for offer in offers]
        super().commit_together(at, allowed, way, apart=apart)

    def reset(self, at: int, keys: Sequence[OffsetKey], offset: int) -> None:
        """Of what may be moved."""
        if MOVABLE.issuperset(keys):
            super().reset(at, keys, offset)

    def delete(self, at: int, group: GroupKey, shards: Sequence[str] = ()) -> None:
        """Of what may be moved."""
        if group == GROUPS[0]:
            super().delete(at, group, shards)

    def clone(self, at: int, source: GroupKey, target: GroupKey) -> None:
        """Over what may be moved."""
        if target == GROUPS[0]:
            super().clone(at, source, target)

    def a_day_passes(self) -> None:
        """Nothing expires."""
        super().a_day_passes()
        self.expires = False

    def other_writer(self, key: OffsetKey, offset: int) -> None:
        """A broker of RobustMQ's own saves without an expectation."""
        if key in MOVABLE and self.service.up:
            self.service.engine.rows[key] = Row(offset, key.shard, 0)

    def settles(self) -> None:
        """Of what was moved nothing is owed on the server."""
        self.model.here = {at: owed for at, owed in self.model.here.items() if at[1] not in self.unsure}

    def _expect_there(self, promised: dict[OffsetKey, OffsetRecord], why: str) -> None:
        super()._expect_there({key: record for key, record in promised.items() if key not in self.unsure}, why)

    def _forgot(self, broker: Broker, change: Forget) -> None:
        """A deleted key leaves nothing behind here either: what is committed from then on begins anew, however low."""
        super()._forgot(broker, change)
        for key in change.keys if change.gone else ():
            self.model.here.pop((broker.name, key), None)

    async def _move(self, running: Running, to: int, group: GroupKey) -> None:
        if group == GROUPS[0]:  # what is acknowledged there is owed by this disk alone
            for at in [(running.broker.name, key) for key in MOVABLE]:
                self.model.here.pop(at, None)
        await super()._move(running, to, group)


class EpochlessWatch(Watch):
    """All invariants of what nobody moves; of the rest what is local. No reset stands here (7)."""

    _world: EpochlessWorld

    def _what_was_acknowledged_is_here(
        self, name: str, stored: dict[OffsetKey, Stored], there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        here = self._world.model.here
        for at in [at for at in here if at[0] == name and at[1] in self._world.unsure and at[1] not in stored]:
            del here[at]  # deleted, or handed over
        yield from super()._what_was_acknowledged_is_here(name, stored, there)

    def _what_was_written_through_or_moved_stands_there(self, there: dict[OffsetKey, OffsetRecord]) -> Iterator[str]:
        for key in self._world.unsure:
            self._world.model.there.pop(key, None)
        yield from super()._what_was_written_through_or_moved_stands_there(there)

    def _what_is_clean_is_there(
        self, at: int, stored: dict[OffsetKey, Stored], flushed_seq: int, there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        yield from super()._what_is_clean_is_there(at, _bare(stored), flushed_seq, there)

    def _a_stop_leaves_nothing(
        self, at: int, stored: dict[OffsetKey, Stored], there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        yield from super()._a_stop_leaves_nothing(at, _bare(stored), there)

    def _a_reset_is_not_undone(self, name: str, records: dict[OffsetKey, OffsetRecord]) -> Iterator[str]:  # noqa: ARG002
        yield from ()


def _bare(stored: dict[OffsetKey, Stored]) -> dict[OffsetKey, Stored]:
    """What such a server can keep of what nobody moves."""
    return {
        key: found._replace(record=OffsetRecord(found.record.epoch, found.record.offset, found.record.live))
        for key, found in stored.items()
        if key not in MOVABLE
    }


class Epochless(Everything):
    """Two adapters before a server without epochs, and brokers of its own."""

    world_type = EpochlessWorld
    watch_type = EpochlessWatch
    world: EpochlessWorld

    @rule(key=st.sampled_from(sorted(MOVABLE)), offset=st.integers(0, 9), wait=WAITS)
    def other_writer(self, key: OffsetKey, offset: int, wait: float) -> None:
        """A broker of RobustMQ's own saves an offset, lower or not."""
        self.world.other_writer(key, offset)
        self._pass(wait)
