"""Saves to a Meta Service that stores only offsets (RobustMQ), where a plain save overwrites whatever is stored.

So every save expects what was acknowledged last: where another writer has been, it is not written, but read and merged. What
stands is read first where it is not known: after a start, after a save without an answer, and for a key that was never compared.
A tombstone is never sent: such a server would store it as offset 0.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import structlog

from adapter.errors import RefusedError, TransientError
from adapter.meta.client import MetaClient
from adapter.meta.labels import ShardLabels
from adapter.meta.slash_names import name_problem
from adapter.model.records import FIRST_EPOCH, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, as_seen, merge, resolve

log = structlog.get_logger(__name__)

ROUNDS = 5  # attempts to read, compare and set a key that another writer changes meanwhile
MAX_SEEN = 200_000  # keys of which it is remembered what stands; of the others it is read before the next save

CONTENDED = "another writer keeps changing it"


class Seen(NamedTuple):
    """What stands in the Meta Service under a key, as this adapter saved or read it last: the offset and the labels."""

    offset: int
    topic: str = ""
    partition: int = 0


ABSENT = Seen(0)  # on such a server an absent key reads as offset 0


def nothing(_: OffsetKey) -> bool:
    """The default of `save`: every key has been compared by a recovery."""
    return False


def nobody(_: Collection[OffsetKey]) -> None:
    """The default of `lowered`: nobody has read anything."""


class Saver:
    """Saves entries in the way that the server supports. One for each core: what it has seen belongs to the local store."""

    def __init__(
        self,
        meta: MetaClient,
        labels: ShardLabels | None = None,
        lowered: Callable[[Collection[OffsetKey]], None] = nobody,
    ) -> None:
        """`lowered` is called with keys of which the server may hold less from now on: what was read before is out of date."""
        self.meta = meta
        self.lowered = lowered
        self._labels = labels or ShardLabels()
        self._seen: dict[OffsetKey, Seen] = {}

    async def save(
        self, entries: Sequence[SaveEntry], *, uncompared: Callable[[OffsetKey], bool] = nothing
    ) -> Sequence[SaveOutcome]:
        """Save entries of distinct keys in the way that the server supports; one outcome each, in order.

        `uncompared(key)` is True while no recovery has compared the key with the Meta Service. A record of epoch 0 never was: its
        group could not be loaded. Raises MetaUnavailableError, RefusedError.
        """
        if self.meta.kind.merges:
            self._seen.clear()  # of another server
            return await self.meta.save(entries)
        saving = _Saving(self, [entry.key for entry in entries if uncompared(entry.key) or not entry.record.epoch])
        outcomes = await saving.run({key: record for key, record, _ in entries})
        return [outcomes[entry.key] for entry in entries]

    async def confirm(self, records: Mapping[OffsetKey, OffsetRecord]) -> dict[OffsetKey, OffsetRecord | None]:
        """Save records of a server without epochs once more, on condition that they stand there.

        Their groups are then not expired for a whole retention of that server. Returns what it holds (None: nothing) in place of
        those that do not stand as they are here. Raises MetaUnavailableError, RefusedError.
        """
        entries = [SaveEntry(key, record, record.offset) for key, record in records.items()]
        outcomes = await self.send(entries)
        unsure = [entry.key for entry, outcome in zip(entries, outcomes, strict=True) if not outcome.status.acknowledged]
        held = await self.meta.get(sorted(unsure)) if unsure else {}
        differing = [key for key in unsure if key not in held or held[key].offset != records[key].offset]
        self.forget(differing)
        return {key: held.get(key) for key in differing}

    def forget(self, keys: Iterable[OffsetKey]) -> None:
        """Something else was written under these keys, on purpose or by others: what stands is read before the next save."""
        for key in keys:
            self._seen.pop(key, None)

    def seen(self, key: OffsetKey) -> Seen | None:
        """What stands under a key as far as is known."""
        return self._seen.get(key)

    def note(self, key: OffsetKey, seen: Seen) -> None:
        """Note what stands under a key: it was acknowledged, or was read and is no more than the local record."""
        if len(self._seen) >= MAX_SEEN and key not in self._seen:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = seen

    async def send(
        self, entries: Sequence[SaveEntry], stands: Mapping[OffsetKey, Seen] = MappingProxyType({})
    ) -> Sequence[SaveOutcome]:
        """Send entries as they are, with labels, and note what stands then. Raises MetaUnavailableError, RefusedError.

        `stands`: what was read just now, which has the labels; of other keys it is read where it is not remembered.
        """
        if self.meta.kind.merges:
            return await self.meta.save(entries)
        seen = {key: found for key, _, _ in entries if (found := stands.get(key) or self._seen.get(key))}
        unlabelled = sorted(key for key, record, _ in entries if key not in seen and not (record.topic or record.partition))
        if unlabelled:
            held = await self.meta.get(unlabelled)
            seen |= {key: Seen(found.offset, found.topic, found.partition) for key, found in held.items()}
        sent = [SaveEntry(key, self._labelled(key, record, seen.get(key)), expected) for key, record, expected in entries]
        self.forget(entry.key for entry in sent)  # until it is answered: some of it may be applied
        outcomes = await self.meta.save(sent)
        answers = []
        for (key, record, _), (_, labelled, _), outcome in zip(entries, sent, outcomes, strict=True):
            if outcome.status is Status.APPLIED and outcome.standing:
                self.note(key, Seen(labelled.offset, labelled.topic, labelled.partition))
                # Labels that were added for the server are not the local record's.
                standing = outcome.standing._replace(topic=record.topic, partition=record.partition)
                answers.append(outcome._replace(standing=standing))
            else:
                answers.append(outcome)
        return answers

    def _labelled(self, key: OffsetKey, record: OffsetRecord, held: Seen | None) -> OffsetRecord:
        """The record with the labels to save: its own, else those that stand, else what the shard's name says."""
        if record.topic or record.partition:
            return record
        topic, partition = (held.topic, held.partition) if held and held.topic else self._labels.of(key.shard)
        return record._replace(topic=topic, partition=partition)


class _Saving:
    """One save to a server without epochs."""

    def __init__(self, saver: Saver, unsure: Sequence[OffsetKey]) -> None:
        self._saver = saver
        # Keys that were never compared, or of which it is known what was saved last: there the larger offset stands. Of all
        # others a larger one may be what this adapter saved before it went back on purpose.
        self._larger_stands = set(unsure)
        self._outcomes: dict[OffsetKey, SaveOutcome] = {}
        self._others: list[str] = []  # what other writers have done

    async def run(self, records: Mapping[OffsetKey, OffsetRecord]) -> Mapping[OffsetKey, SaveOutcome]:
        for key in records:
            if problem := name_problem(key.group_key):
                self._outcomes[key] = SaveOutcome(Status.INVALID, None, problem)
        waiting = {key: record for key, record in records.items() if key not in self._outcomes}
        expected = {
            key: seen
            for key, record in waiting.items()
            if record.live and key not in self._larger_stands and (seen := self._saver.seen(key))
        }
        self._larger_stands |= expected.keys()
        try:
            waiting = await self._push({key: waiting[key] for key in expected}, expected) | {
                key: record for key, record in waiting.items() if key not in expected
            }
            for _ in range(ROUNDS):
                if not waiting:
                    break
                waiting, expected = await self._round(waiting, expected), {}
            self._outcomes |= {key: SaveOutcome(Status.CONFLICT, None, CONTENDED) for key in waiting}
        except (TransientError, RefusedError) as error:
            # What a call before it has saved stands there, and has to be adopted here: else less would be saved over it.
            if not any(outcome.status.acknowledged for outcome in self._outcomes.values()):
                raise
            status = Status.INVALID if isinstance(error, RefusedError) else Status.UNAVAILABLE
            self._outcomes |= {key: SaveOutcome(status, None, str(error)) for key in records if key not in self._outcomes}
        if self._others:
            log.warning("save.other_writer", entries=len(self._others), example=self._others[0], help="the larger offset stands")
        return self._outcomes

    async def _round(
        self, waiting: Mapping[OffsetKey, OffsetRecord], expected: Mapping[OffsetKey, Seen]
    ) -> dict[OffsetKey, OffsetRecord]:
        """Read what stands, and save what is larger here; returns what another writer has changed meanwhile.

        `expected` is what stood there before, as far as is known.
        """
        held = await self._saver.meta.get(sorted(waiting))
        pushes: dict[OffsetKey, Seen] = {}
        for key, record in waiting.items():
            found = held.get(key)
            there = Seen(found.offset, found.topic, found.partition) if found else ABSENT
            outcome = self._compare(key, record, found)
            if key in expected and there.offset not in (expected[key].offset, record.offset):
                self._note_other(key, record, expected[key].offset, found)
            if outcome is None:
                pushes[key] = there
            else:
                self._outcomes[key] = outcome
                if outcome.status is Status.APPLIED and found:
                    self._saver.note(key, there)
        self._larger_stands |= pushes.keys()  # what stands after this read is another writer's
        return await self._push({key: waiting[key] for key in pushes}, pushes)

    async def _push(
        self, records: Mapping[OffsetKey, OffsetRecord], expected: Mapping[OffsetKey, Seen]
    ) -> dict[OffsetKey, OffsetRecord]:
        """Save records over exactly what is expected; returns those of calls in which something else stood."""
        if not records:
            return {}
        pushes = [SaveEntry(key, record, expected[key].offset) for key, record in records.items()]
        try:
            outcomes = dict(zip(records, await self._saver.send(pushes, expected), strict=True))
        finally:
            if lowered := [key for key, record in records.items() if record.offset < expected[key].offset]:
                self._saver.lowered(lowered)
        left = {key: records[key] for key, outcome in outcomes.items() if outcome.status is Status.CONFLICT}
        self._outcomes |= {key: outcome for key, outcome in outcomes.items() if key not in left}
        return left

    def _compare(self, key: OffsetKey, record: OffsetRecord, held: OffsetRecord | None) -> SaveOutcome | None:
        """The outcome of a record that needs no save since the server holds as much; None if it has to be sent."""
        if held is None:
            return None if record.live else SaveOutcome(Status.APPLIED, record)
        seen = as_seen(held, record)
        offered = resolve(record, seen)
        if merge(offered, seen) != seen:
            return None
        if offered.position == seen.position:
            return SaveOutcome(Status.APPLIED, seen)
        if record.live and record.epoch > FIRST_EPOCH and key not in self._larger_stands:
            return None
        return SaveOutcome(Status.SUPERSEDED, seen)

    def _note_other(self, key: OffsetKey, record: OffsetRecord, acknowledged: int, found: OffsetRecord | None) -> None:
        there = "nothing is there now" if found is None else f"{found.offset} is there now"
        self._others.append(f"{'/'.join(key)}: {acknowledged} was acknowledged last, {there}; {record.offset} was to be saved")
