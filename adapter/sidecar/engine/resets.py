"""Changes that move offsets anywhere: reset, delete, clone; and the import, which only merges.

The order, for each group: no flush of this adapter under way, load the group, plan (`reset_plans`), then save, adopt locally,
read back and compare (`reset_writer`). A dry run plans on what it loaded first, and writes nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from adapter.client.broker_log import BrokerLog
from adapter.errors import (
    AdapterError,
    ContendedError,
    InvalidInputError,
    RefusedError,
    TooLargeError,
    UnknownBoundsError,
)
from adapter.model.bounds import Bounds, ShardKey
from adapter.model.codec import group_prefix
from adapter.model.queues import topics_of
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, decide, is_deleted
from adapter.runtime.retry import retrying
from adapter.runtime.serving.large_calls import MAX_CHANGES, SLICE_ROWS
from adapter.runtime.slices import in_slices, others
from adapter.sidecar.engine.change_memory import SINCE, ChangeId, ChangeMemory, Planned, is_since
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.engine.group_loader import GroupLoader, Wanted
from adapter.sidecar.engine.policies import WriteThrough
from adapter.sidecar.engine.reset_plans import (
    ACTIVE_MS,
    Known,
    OffsetChange,
    Reset,
    To,
    active_warning,
    check_there,
    no_offset_of,
    outside,
    plan_clone,
    plan_delete,
    plan_reset,
    some_of,
)
from adapter.sidecar.engine.reset_writer import ResetWriter, moved_by
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Commit, Forget
from adapter.sidecar.shard_bounds import ReportedBounds

LIST_PAGE = 1_000
KNOW_LIMIT_S = 1.0  # after which a change whose shards are removed again and again is given up


class Outcome(NamedTuple):
    """The changes that were made, or in a dry run would be, and warnings for the operator.

    `change_id`: the ID under which it is remembered. `planned_ms`: when it was planned, if that was before (Unix time).
    """

    changes: list[OffsetChange]
    warnings: list[str]
    executed: bool
    change_id: str = ""
    planned_ms: int = 0


class OwnTime(NamedTuple):
    """The commit time that a change executed here gave to offsets of a group. Unix times in milliseconds."""

    group: GroupKey
    committed_at_ms: int
    noted_ms: int


_Standing = Mapping[OffsetKey, OffsetRecord]  # by key, what stands

Plan = Callable[[Sequence[OffsetKey], Mapping[OffsetKey, OffsetRecord], int], list[OffsetChange]]


class Resets:
    """Loads, plans and executes. Every method raises MetaUnavailableError when the Meta Service cannot be asked, or half way.

    ContendedError: what was read back is not what was written, because somebody else moved it meanwhile. Without `execute`
    nothing is written.
    """

    def __init__(
        self,
        ledger: Ledger,
        flusher: Flusher,
        loader: GroupLoader,
        write_through: WriteThrough,
        reported: ReportedBounds,
        broker_log: BrokerLog,
    ) -> None:
        self._store = ledger.store
        self._ledger = ledger
        self._flusher = flusher
        self._loader = loader
        self._meta = flusher.saver.meta
        self._write_through = write_through
        self._reported = reported
        self._broker_log = broker_log
        self._now_ms = ledger.clocks.now_ms
        self._holds = ledger.holds.on
        self._metrics = flusher.metrics
        self._writer = ResetWriter(ledger, flusher.saver, flusher.metrics)
        self._memory = ChangeMemory(flusher.saver.meta, ledger.clocks.now_ms)
        self._own: deque[OwnTime] = deque()

    async def reset(self, wanted: Wanted, reset: Reset, *, execute: bool, change: ChangeId | None = None) -> Outcome:
        """Move shards of a group (none named: all). Raises InvalidInputError, UnknownBoundsError or BrokerLogError as well.

        With `change`, what was planned under its ID before is finished, whatever stands now.
        """
        planned = await self._memory.recall(change) if change else None
        if change and planned:
            return await self._again(change, planned, execute=execute)
        group = wanted.group
        standing = await self._known(wanted)
        wanted = _with_topics(wanted, standing)
        shards = list(wanted.shards) or [key.shard for key, record in standing.items() if record.live]
        if not shards:
            raise InvalidInputError(
                f"group: {'/'.join(group)} has no offsets; `groups list` shows the groups that have; to give it some, name the "
                "shards, and create (--create)"
            )
        keys = [OffsetKey(*group, shard) for shard in shards]
        # Before the broker is asked for the bounds of what is not there. The plan looks again, at what stands then.
        check_there(reset, keys, standing)
        bounds, warnings = await self._bounds(group.namespace, shards, reset)
        by_time: Mapping[str, int | None] = {}
        if reset.to is To.TIMESTAMP:
            by_time = await self._broker_log.offsets_for_time(group.namespace, shards, reset.value)

        def plan(keys: Sequence[OffsetKey], standing: Mapping[OffsetKey, OffsetRecord], now_ms: int) -> list[OffsetChange]:
            return plan_reset(reset, keys, Known(standing, bounds, by_time, now_ms, self._holds))

        return await self._change(
            "reset", Wanted(group, shards), plan, warnings, execute=execute, standing=standing, change=change
        )

    async def _again(self, change: ChangeId, planned: Planned, *, execute: bool) -> Outcome:
        """Finish a reset as it was planned. A shard that was reset, deleted or cloned since stays as it is."""
        if not execute:
            return Outcome(planned.changes, [], execute, change.id, planned.planned_ms)
        async with self._flusher.paused():
            changes = await self._finish(planned)
        self._note_own(changes, self._now_ms())
        return Outcome(changes, [], execute, change.id, planned.planned_ms)

    async def _finish(self, planned: Planned) -> list[OffsetChange]:
        """Write what a plan has and does not stand. The caller keeps flushes from running."""
        standing = await self._known(Wanted(planned.group, [row.key.shard for row in planned.changes]))
        changes, left = [], []
        async for some in in_slices(planned.changes):
            for row in some:
                found = standing.get(row.key)
                changes.append(OffsetChange(row.key, found, found, SINCE) if is_since(row, found) else row)
                if changes[-1].changes and (found is None or (row.after and found < row.after)):
                    left.append(row)
        await self._writer.write("reset", planned.group, left, at_least=True)
        return changes

    async def delete(self, wanted: Wanted, *, execute: bool) -> Outcome:
        """Delete shards of a group; none named: all of it, and its generation. Raises InvalidInputError for an unknown topic."""
        standing: _Standing | None = None
        if wanted.topics:
            standing = await self._known(wanted)
            wanted = _with_topics(wanted, standing)

        def plan(keys: Sequence[OffsetKey], standing: Mapping[OffsetKey, OffsetRecord], now_ms: int) -> list[OffsetChange]:
            return plan_delete(keys, Known(standing, now_ms=now_ms, holds=self._holds))

        outcome = await self._change("delete", wanted, plan, [], execute=execute, standing=standing)
        if execute and not wanted.shards:
            await self._ledger.submit(Forget((), [wanted.group], gone=True))
        return outcome

    async def delete_everywhere(self, namespace: str, shards: Sequence[str], *, execute: bool) -> Outcome:
        """Delete shards of every group that has an offset of one: for shards that were made anew."""
        if not self._meta.kind.lists_offsets:
            raise RefusedError(
                f"group: {self._meta.endpoint} cannot list its offsets (it is RobustMQ's Meta Service), so nobody knows which "
                "groups have these shards; name the group, in one call for each; `groups list` shows those of this adapter"
            )
        named: dict[GroupKey, list[str]] = {}
        wanted, count, token = frozenset(shards), 0, b""
        # What only this adapter knows has to be there as well.
        await self._flusher.flush_all()
        while True:
            page, token = await self._meta.list_page(namespace, "", LIST_PAGE, token)
            for key, _ in page:
                if key.shard in wanted:
                    named.setdefault(key.group_key, []).append(key.shard)
                    count += 1
            if count > MAX_CHANGES:
                raise TooLargeError(
                    f"shards: more than {MAX_CHANGES:,} offsets would be deleted, which is what one call may change; name fewer "
                    "shards in each of several calls, or the group"
                )
            if not token:
                break
        changes: list[OffsetChange] = []
        warnings: list[str] = []
        for group, found in named.items():
            try:
                outcome = await self.delete(Wanted(group, found), execute=execute)
            except AdapterError as error:
                error.note_attempted([*changes, *error.attempted])
                raise
            changes += outcome.changes
            warnings += outcome.warnings
        return Outcome(changes, warnings, execute)

    async def clone(self, wanted: Wanted, target: GroupKey, *, execute: bool) -> Outcome:
        """Give `target` the offsets of a group's shards (none named: all). Raises InvalidInputError when there are none."""
        if target == wanted.group:
            raise InvalidInputError(f"to_group: {target.group!r} is the group to clone from")
        standing = await self._known(wanted)
        wanted = _with_topics(wanted, standing)
        sources = {key: record for key, record in standing.items() if record.live}
        missing = [key for key in wanted.keys if key not in sources]
        if missing or not sources:
            what = no_offset_of(missing, sources) if missing else f"{'/'.join(wanted.group)} has no offsets"
            raise InvalidInputError(f"from_group: {what}; nothing was cloned")
        chosen = wanted.keys or list(sources)
        source_of = {OffsetKey(*target, source.shard): source for source in chosen}
        bounds, _ = await self._bounds(target.namespace, [key.shard for key in chosen])

        def plan(keys: Sequence[OffsetKey], standing: Mapping[OffsetKey, OffsetRecord], now_ms: int) -> list[OffsetChange]:
            known = Known(standing, bounds, now_ms=now_ms, holds=self._holds)
            return plan_clone(sources, {source_of[key]: key for key in keys}, known)

        return await self._change("clone", Wanted(target, [key.shard for key in chosen]), plan, [], execute=execute)

    async def merge(self, commit: Commit, *, execute: bool) -> Outcome:
        """Merge offsets, written through. A larger stored offset stays: such a change has `after` equal to `before`.

        A dry run warns of offsets that their log does not have.
        """
        commit = commit._replace(entries=commit.offered(), columns=(), by_operator=True)
        await self._loader.load_patiently(
            *(
                Wanted(group, [key.shard for key, _ in named])
                for group, named in groupby(commit.entries, lambda at: at[0].group_key)
            )
        )
        before: dict[OffsetKey, OffsetRecord | None] = {}
        async for some in in_slices(commit.entries):
            before.update((key, self._store.get(key)) for key, _ in some)
        after = {key: decide(offered, before[key], commit.mode) for key, offered in commit.entries}
        if execute:
            # Most of what is imported once more stands already.
            raising = [entry for entry in commit.entries if not _stood(after[entry[0]], before[entry[0]])]
            for _ in {key.group_key for key, _ in raising}:
                self._metrics.changed("import")
            written = await self._write_through.commit(commit._replace(entries=raising)) if raising else []
            stands_now = {key: record for key, record, _ in written if record}
            await self._writer.read_back(stands_now, at_least=True)
            after |= stands_now
        bounds = {} if execute else await self._bounds_of(key for key, _ in commit.entries)
        changes = []
        for key, offered in commit.entries:
            stands, stood = after[key], before[key]
            same = stood is not None and (stood.position, stood.live) == (stands.position, stands.live)
            kept = stood if same else stands
            warning = "" if stands.offset == offered.offset else f"{stands.offset} stands and is larger"
            if not (same or warning):
                warning = outside(stands.offset, bounds.get(ShardKey(key.namespace, key.shard)))
            changes.append(OffsetChange(key, stood, kept, warning))
        if execute:
            self._ledger.journal.moved("import", moved_by(changes))
            self._note_own(changes, self._now_ms())
        return Outcome(changes, [], execute)

    async def _change(
        self,
        kind: str,
        wanted: Wanted,
        plan: Plan,
        warnings: Sequence[str],
        *,
        execute: bool,
        standing: _Standing | None = None,
        change: ChangeId | None = None,
    ) -> Outcome:
        """Plan and, to execute it, remember it under its ID, if it has one, and write.

        `standing` is what `_known` found for these shards a moment ago, if it was asked: a dry run is planned on it. What is
        executed is planned on what is loaded while no flush is under way.
        """
        now_ms = self._now_ms()
        planned: Planned | None = None
        if not execute:
            changes = await self._planned(wanted, plan, now_ms, await self._known(wanted) if standing is None else standing)
        else:
            async with self._flusher.paused():
                changes = await self._planned(wanted, plan, now_ms, await self._known(wanted))
                planned = await self._memory.keep(change, wanted.group, changes) if change else None
                if planned:
                    changes = await self._finish(planned)
                else:
                    await self._writer.write(kind, wanted.group, changes)
        active = active_warning(changes, now_ms, self._own_ms(wanted.group, now_ms))
        if execute:
            self._note_own(changes, now_ms)
        said = [*warnings, *([active] if active else [])]
        return Outcome(changes, said, execute, change.id if change else "", planned.planned_ms if planned else 0)

    async def _planned(self, wanted: Wanted, plan: Plan, now_ms: int, standing: _Standing) -> list[OffsetChange]:
        """The changes, shard by shard (none named: of all that are not deleted)."""
        changes: list[OffsetChange] = []
        async for keys in in_slices(wanted.keys or [key for key, record in standing.items() if not is_deleted(record)]):
            changes += plan(keys, standing, now_ms)
        return changes

    async def _known(self, wanted: Wanted) -> dict[OffsetKey, OffsetRecord]:
        """What stands under named shards; for topics, or where no shard is named, under the whole group.

        Loaded from the Meta Service first.

        Of shards that are not named, deleted ones are left out. Raises ContendedError when some are removed all the time,
        TooLargeError for more than one call may change.
        """
        attempts = retrying("load", first_s=0.001, max_s=0.05, limit_s=KNOW_LIMIT_S, on=ContendedError)
        return await attempts(self._known_once, wanted)

    async def _known_once(self, wanted: Wanted) -> dict[OffsetKey, OffsetRecord]:
        states = self._store.states
        forgets = states.removals
        standing: dict[OffsetKey, OffsetRecord] = {}
        if wanted.shards and not wanted.topics:
            await self._loader.load_patiently(wanted)
            async for keys in in_slices(wanted.keys):
                standing.update((key, record) for key in keys if (record := self._store.get(key)) is not None)
            if not all(key in standing and standing[key].live for key in wanted.keys):
                standing = await self._some_others(wanted.group) | standing
        else:
            if not await self._loader.load_whole(wanted.group, MAX_CHANGES):
                raise _too_large(wanted.group)
            after: OffsetKey | None = None
            while page := self._store.first(SLICE_ROWS, prefix=group_prefix(wanted.group), after=after):
                standing.update((key, record) for key, record, _ in page if not is_deleted(record))
                if len(standing) > MAX_CHANGES:
                    raise _too_large(wanted.group)
                after = page[-1].key
                await others()
            standing.update((key, record) for key in wanted.keys if (record := self._store.get(key)) is not None)
        if states.removed_since([wanted.group], forgets):
            raise ContendedError(f"{'/'.join(wanted.group)}: shards were removed here meanwhile; try again")
        return standing

    async def _some_others(self, group: GroupKey) -> dict[OffsetKey, OffsetRecord]:
        """Some records of a group, here and in the Meta Service, to suggest in place of a shard without an offset."""
        there = await self._meta.groups_page([group])
        here = self._store.first(SLICE_ROWS, prefix=group_prefix(group))
        return dict(there.entries) | {stored.key: stored.record for stored in here}

    def _note_own(self, changes: Sequence[OffsetChange], now_ms: int) -> None:
        """Record that these offsets were not committed by the group's consumers, as long as they look like it."""
        times = {(key.group_key, after.committed_at_ms) for key, _, after in moved_by(changes)}
        self._own.extend(OwnTime(group, at_ms, now_ms) for group, at_ms in times if now_ms - at_ms < ACTIVE_MS)

    def _own_ms(self, group: GroupKey, now_ms: int) -> set[int]:
        """The times that recent changes here gave to offsets of a group."""
        while self._own and now_ms - self._own[0].noted_ms >= ACTIVE_MS:
            self._own.popleft()
        return {own.committed_at_ms for own in self._own if own.group == group}

    async def _bounds_of(self, keys: Iterable[OffsetKey]) -> dict[ShardKey, Bounds]:
        """What is known of the bounds of these shards."""
        shards = sorted({ShardKey(key.namespace, key.shard) for key in keys})
        found: dict[ShardKey, Bounds] = {}
        for namespace, some in groupby(shards, lambda shard: shard.namespace):
            bounds, _ = await self._bounds(namespace, [shard.shard for shard in some])
            found |= {ShardKey(namespace, shard): each for shard, each in bounds.items()}
        return found

    async def _bounds(
        self, namespace: str, shards: Sequence[str], reset: Reset | None = None
    ) -> tuple[dict[str, Bounds], list[str]]:
        """The bounds of shards: from the broker's log, else as reported with commits; and warnings about them.

        Raises an error where a reset needs bounds that are not known.
        """
        if reset and reset.to is To.TIMESTAMP and not self._broker_log.configured:
            raise UnknownBoundsError(
                "to_timestamp_ms: only the broker knows offsets by time, and no broker_log.address is configured; use to_offset"
            )
        warnings = []
        if self._broker_log.configured:
            try:
                found = await self._broker_log.bounds(namespace, shards)
            except AdapterError as error:
                if reset and reset.needs_bounds:
                    raise
                warnings.append(f"{error}; targets are checked against what commits told, if anything")
            else:
                unknown = [shard for shard in shards if shard not in found]
                return found, [f"the broker does not have {some_of(unknown)}: the target was not checked"] if unknown else []
        found = {shard: bounds for shard in shards if (bounds := self._reported.get(ShardKey(namespace, shard)))}
        unknown = [shard for shard in shards if shard not in found]
        if unknown and reset and reset.needs_bounds:
            raise UnknownBoundsError(
                f"{reset.to.value}: the bounds of {some_of(unknown)} are not known: no broker_log.address is configured, and no "
                "commit since the start told them; use to_offset"
            )
        if unknown:
            warnings.append(f"the bounds of {some_of(unknown)} are not known: the target was not checked")
        if found:
            oldest = min(bounds.seen_at_ms for bounds in found.values())
            warnings.append(f"bounds as commits told them, up to {(self._now_ms() - oldest) / 1000:.0f} s ago")
        return found, warnings


def _too_large(group: GroupKey) -> TooLargeError:
    return TooLargeError(
        f"shards: {'/'.join(group)} has more than {MAX_CHANGES:,} offsets, which is what one call may change: "
        "name the shards in several calls; ListOffsets has them in pages"
    )


def _with_topics(wanted: Wanted, standing: Mapping[OffsetKey, OffsetRecord]) -> Wanted:
    """Add every shard of the named topics. Raises InvalidInputError for a topic of which the group has no offset."""
    if not wanted.topics:
        return wanted
    shards, topics, seen = dict.fromkeys(wanted.shards), {*wanted.topics}, set[str]()
    for key, record in standing.items():
        its = topics_of(key.shard, record.topic) if record.live else set()
        seen |= its
        if its & topics:
            shards[key.shard] = None
    missing = sorted(topics - seen)
    if missing:
        has = f"; it has {some_of(sorted(seen))}" if seen else ""
        raise InvalidInputError(f"topics: {'/'.join(wanted.group)} has no offset of topic {missing[0]!r}{has}")
    return Wanted(wanted.group, list(shards))


def _stood(after: OffsetRecord, before: OffsetRecord | None) -> bool:
    """True if a merge changes nothing but the time of the commit, which is no reason to write."""
    return before is not None and after._replace(committed_at_ms=before.committed_at_ms) == before
