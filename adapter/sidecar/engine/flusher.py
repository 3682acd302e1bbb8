"""Brings dirty keys to the Meta Service: at most one attempt per interval, only what changed, newest values.

A key becomes clean only by an acknowledgement of at least its value (invariant 3). After any failure, what was not acknowledged
stays dirty (4). A part of the Meta Service that does not answer is tried less and less often, and does not hold up the others.
Never blocks a commit.
"""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass

import anyio
import structlog

from adapter.errors import AdapterError, MetaUnavailableError, RefusedError, TransientError
from adapter.meta.epochless import Saver
from adapter.meta.packed import Chunk, Outcomes, chunks
from adapter.model.records import GroupKey, Held, OffsetKey, OffsetRecord, Run, SaveOutcome, Status
from adapter.runtime.backoff import pause_s
from adapter.runtime.retry import retrying
from adapter.runtime.settings.live import Live
from adapter.runtime.slices import in_slices, others
from adapter.runtime.wording import counted
from adapter.sidecar.config import FlushSection
from adapter.sidecar.engine.flush_spans import FlushSpans
from adapter.sidecar.engine.tombstones import Tombstones
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import FirstEpochs, Reconcile
from adapter.sidecar.metrics import AdapterMetrics

log = structlog.get_logger(__name__)

SLOW_S = 1.0  # from which on it is said how long the Meta Service needs for what is dirty
PROGRESS_S = 5.0  # between two log lines of a long flush

PAGE_KEYS = 2_000  # of the store that are read at once

AT_ONCE = 250  # acknowledged entries, before other work of the event loop: some 2 ms, when their epochs are stored

_Batch = Mapping[GroupKey, Mapping[str, Held]]


@dataclass
class _Outcome:
    """The numbers of acknowledged and refused keys of a flush, and of those without a reply, with the last reasons."""

    acknowledged: int = 0
    refused: int = 0
    why_refused: str = ""
    unanswered: int = 0
    why_unanswered: str = ""
    waited_s: float = 0.0  # for saves with an entry without an answer
    interrupted: bool = False  # what was not sent yet is pending again

    def note_acknowledged(self, keys: int = 1) -> None:
        self.acknowledged += keys

    def note_refused(self, why: str) -> None:
        self.refused += 1
        self.why_refused = why

    def note_unanswered(self, why: str) -> None:
        self.unanswered += 1
        self.why_unanswered = why


class Flusher:
    """The flush loop, and flushes on demand. One flush at a time."""

    def __init__(
        self,
        ledger: Ledger,
        section: FlushSection,
        saver: Saver,
        metrics: AdapterMetrics,
        tombstones: Tombstones,
        spans: FlushSpans | None = None,
    ) -> None:
        self._live = Live(section)
        self._attempts = retrying("flush", first_s=0.0, max_s=0.0)
        self.take(section)
        self._store = ledger.store
        self._dirty = ledger.dirty
        self._ledger = ledger
        self.saver = saver
        self.metrics = metrics
        self._journal = ledger.journal
        self._recovered = ledger.recovered
        self._tombstones = tombstones
        self._finds_all = False  # what a former process left is dirty
        self._spans = spans
        self._clock = ledger.clocks.monotonic
        self._now_ms = ledger.clocks.now_ms
        self._lock = anyio.Lock()
        self._urgent = 0  # callers that a flush under way lets go first, after the save that it is at
        self._refused_since = 0.0
        # When what is set aside is tried again, 0 when nothing is; and how often in a row that has failed.
        self._aside_until = 0.0
        self._aside_tries = 0
        self.last_error = ""
        self.last_flush_at_ms = 0
        self.last_flush_seconds = 0.0

    @property
    def _section(self) -> FlushSection:
        return self._live.now

    @property
    def pace(self) -> str:
        """How long the Meta Service needs for what is dirty, by what the last saves took; empty if that is short."""
        limits = self.saver.meta.limits
        each_s, what, count = limits.seconds_per_group, "group", self._dirty.groups if limits.seconds_per_group else 0
        if not each_s:
            each_s, what, count = limits.seconds_per_offset, "offset", len(self._dirty)
        if count * each_s < SLOW_S:
            return ""
        return (
            f"the Meta Service takes {each_s * 1000:.3g} ms for each {what}, one after the other: "
            f"{counted(count, f'dirty {what}')} take about {count * each_s:,.0f} s"
        )

    def take(self, section: FlushSection) -> None:
        """Flush and retry at the times of these settings from now on."""
        interval_s = section.interval_ms / 1000
        self._live.take(section)
        self._attempts.set_pauses(interval_s, max(section.backoff_max_ms / 1000, interval_s))

    async def interval(self) -> None:
        """Sleep for one flush interval."""
        await self._live.pause(lambda section: section.interval_ms / 1000)

    async def _until_tick(self, passed_s: float) -> None:
        """Sleep until the next tick; the last one was so many seconds ago."""
        await self._live.pause(lambda section: section.interval_ms / 1000 - passed_s)

    def try_now(self) -> None:
        """End the pause after a failed flush: the endpoints are others now."""
        self._attempts.try_now()

    async def run(self) -> None:
        """Flush once per interval; after a failure back off. Each attempt sends the values that are newest then."""
        ticked_at = self._clock()
        while True:
            await self._until_tick(self._clock() - ticked_at)
            # At most one a tick (5): a flush that is slower than the interval, or was retried, skips the ticks it missed.
            now = self._clock()
            interval_s = self._section.interval_ms / 1000
            ticked_at = max(ticked_at + interval_s, now - interval_s)
            refused_too = self._dirty.refused > 0 and now >= self._refused_since + self._section.refused_retry_ms / 1000
            aside_too = 0 < self._aside_until <= now
            if self._dirty.pending or refused_too or aside_too:
                await self._attempts(self.flush_once, refused_too=refused_too, aside_too=aside_too)

    async def flush_once(self, *, refused_too: bool = False, aside_too: bool = False) -> int:
        """Send what is dirty now, and what was refused or set aside before if asked for; returns how many keys were acknowledged.

        Lets a caller of `flush_groups` or `paused` go first, and goes on behind it. Raises MetaUnavailableError when some of it
        could not be sent; all that was not acknowledged is dirty again. It is no error when only a part of the Meta Service gives
        no answer: its groups are set aside, see `dirty`.
        """
        acknowledged = 0
        while True:
            async with self._lock:
                self._retry(refused_too=refused_too, aside_too=aside_too)
                if not self._dirty.pending:
                    return acknowledged
                outcome = await self._flush()
            acknowledged += outcome.acknowledged
            if not outcome.interrupted:
                return acknowledged
            refused_too = aside_too = False

    async def flush_groups(self, groups: Collection[GroupKey]) -> None:
        """Send what is dirty of these groups, also what was refused or set aside, ahead of all else. Raises as `flush_once`."""
        self._urgent += 1
        try:
            async with self._lock:
                self._retry(refused_too=True, aside_too=True)
                if any(self._dirty.any_of(group) for group in groups):
                    await self._flush(groups)
        finally:
            self._urgent -= 1

    def _retry(self, *, refused_too: bool, aside_too: bool) -> None:
        if refused_too:
            self._dirty.retry_refused()
        if aside_too:
            self._dirty.take_up()
            self._aside_until = 0.0

    async def _flush(self, only: Collection[GroupKey] | None = None) -> _Outcome:
        """Send what is pending, or what is pending of some groups."""
        batch = self._dirty.take(self._store.seq, only)
        outcome = _Outcome()
        started = self._clock()
        try:
            with self._spans.flush(batch, self._dirty, outcome) if self._spans else nullcontext():
                await self._send(batch, outcome, yielding=only is None)
        except TransientError as error:
            self.last_error = str(error)
            self.metrics.flush_failed()
            raise
        finally:
            self._settle(outcome)
        self._finish(started, outcome)
        return outcome

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep flushes of this adapter from running: none can then undo what is done inside (invariant 7)."""
        self._urgent += 1
        try:
            async with self._lock:
                yield
        finally:
            self._urgent -= 1

    async def flush_all(self) -> int:
        """Send what is dirty and what was refused or set aside before; returns how many keys were acknowledged.

        Before the recovery has ended also what a former process left. Raises MetaUnavailableError, also when a part has no
        answer; RefusedError when the Meta Service refuses something again.
        """
        if not (self._recovered.once or self._finds_all):
            await self.mark_unflushed()
        flushed = await self.flush_once(refused_too=True, aside_too=True)
        if self._dirty.some_aside:
            raise MetaUnavailableError(f"{counted(self._dirty.aside, 'offset')} without an answer: {self.last_error}")
        if self._dirty.refused:
            raise RefusedError(f"{counted(self._dirty.refused, 'offset')} refused: {self.last_error}")
        return flushed

    async def mark_unflushed(self) -> None:
        """Mark dirty what a former process left unflushed, for a caller that cannot wait for the comparison.

        A page at a time, since commits go on. Nothing is read where it left nothing: as behind an orderly stop.
        """
        flushed_seq, left_seq = self._store.flushed_seq, self._store.left_seq
        if flushed_seq < left_seq:
            some, last = await self._store.written(flushed_seq, left_seq, PAGE_KEYS)
            while last:
                async for left in in_slices(some):
                    for key, record, seq in left:
                        held = None if self._tombstones.is_past(record) else self._store.hold(key)
                        # Not what was committed, flushed or adopted since the page was read.
                        if key not in self._dirty and held and held[1] == seq:
                            self._dirty.mark(key, held, self._clock())
                some, last = await self._store.written(flushed_seq, left_seq, PAGE_KEYS, last)
            log.info("recovery.unflushed", dirty=len(self._dirty))
        self._finds_all = True

    async def drain(self, deadline_s: float) -> int:
        """Flush until nothing is dirty or `deadline_s` seconds have passed; returns the number of keys left."""
        interval_s = self._section.interval_ms / 1000
        with anyio.move_on_after(deadline_s):
            while len(self._dirty):
                try:
                    await retrying("drain", first_s=interval_s, max_s=1.0, limit_s=deadline_s)(self.flush_all)
                except AdapterError as error:
                    self.last_error = str(error)
                    break
        return len(self._dirty)

    async def rescue(self) -> int:
        """Send all that is dirty while nothing can be written here; returns how many keys are left.

        For a store whose files are missing: only memory still has what was acknowledged. Raises MetaUnavailableError.
        """
        async with self._lock:
            self._dirty.retry_refused()
            self._dirty.take_up()
            outcome = _Outcome()
            try:
                await self._send(self._dirty.take(), outcome, adopt=False)
            finally:
                self._dirty.settle()
        return len(self._dirty)

    async def _send(self, batch: _Batch, outcome: _Outcome, *, adopt: bool = True, yielding: bool = False) -> None:
        """Send a batch in chunks. With `yielding` it ends early when somebody waits who goes first."""
        unsent = sum(map(len, batch.values()))
        told_at = self._clock()
        async with aclosing(chunks(batch, self._section.max_batch_bytes, lambda: self.saver.meta.limits)) as parts:
            async for chunk in parts:
                unsent -= len(chunk)
                if not unsent:
                    self._dirty.send_last()
                await self._send_chunk(chunk, outcome, adopt=adopt)
                if yielding and unsent and self._urgent:
                    outcome.interrupted = True
                    return
                if unsent and self._clock() - told_at > PROGRESS_S:
                    told_at = self._clock()
                    log.info("flush.progress", acknowledged=outcome.acknowledged, left=unsent, pace=self.pace)

    async def _send_chunk(self, chunk: Chunk, outcome: _Outcome, *, adopt: bool) -> None:
        started, unanswered = self._clock(), outcome.unanswered
        try:
            with self.metrics.save_call("flush", len(chunk)):
                results = await self.saver.save(chunk, uncompared=self._dirty.is_uncompared)
        except RefusedError as error:
            async for entries in in_slices(chunk):
                for entry in entries:
                    self._refuse(entry.key, str(error), outcome)
            return
        took_s = self._clock() - started
        self._journal.flushed(chunk, results)
        await self._take_in(chunk, await Outcomes.of(chunk, results), outcome, adopt=adopt)
        if outcome.unanswered > unanswered:
            outcome.waited_s += took_s

    async def _take_in(self, chunk: Chunk, results: Outcomes, outcome: _Outcome, *, adopt: bool) -> None:
        """Take each answer in.

        A record of the Meta Service that is not stored here is brought into the store first, and only then its key is
        acknowledged.
        """
        self.metrics.results[Status.APPLIED].inc(len(chunk) - len(results.differing))
        for runs in chunk.without(results.differing, AT_ONCE):
            await self._acknowledge_runs(runs, outcome, adopt=adopt)
            await others()
        standing: list[tuple[OffsetKey, OffsetRecord | None]] = []
        async for answers in in_slices(list(results.differing.items())):
            for status, count in Counter(result.status for _, result in answers).items():
                self.metrics.results[status].inc(count)
            for at, result in answers:
                key, record, _ = chunk[at]
                if not result.status.acknowledged:
                    self._leave(key, result, outcome)
                elif result.standing is None or result.standing == record or not adopt:
                    self._acknowledge(key, outcome)
                else:
                    standing.append((key, result.standing))
                    if result.status is Status.SUPERSEDED:
                        log.info("flush.superseded", key="/".join(key), sent=record.position, stands=result.standing.position)
        async for adopted in in_slices(standing):
            await self._ledger.submit(Reconcile(adopted))
            for key, _ in adopted:
                self._acknowledge(key, outcome)

    async def _acknowledge_runs(self, runs: Sequence[Run], outcome: _Outcome, *, adopt: bool) -> None:
        """Acknowledge records that stand in the Meta Service as they were sent, and store the epochs that were unknown."""
        known_now = [found for run in runs if (found := _unknown(run)).shards] if adopt else []
        if known_now:
            await self._ledger.submit(FirstEpochs(known_now))
        for group, shards, _ in runs:
            self._dirty.acknowledge_all(group, shards)
            outcome.note_acknowledged(len(shards))

    def _acknowledge(self, key: OffsetKey, outcome: _Outcome) -> None:
        self._dirty.acknowledge(key)
        outcome.note_acknowledged()

    def _leave(self, key: OffsetKey, result: SaveOutcome, outcome: _Outcome) -> None:
        why = f"{'/'.join(key)}: {result.status.name} {result.message}".rstrip()
        if result.status is not Status.UNAVAILABLE:
            self._refuse(key, why, outcome)
            return
        self._dirty.set_aside(key.group_key)
        outcome.note_unanswered(why)

    def _refuse(self, key: OffsetKey, why: str, outcome: _Outcome) -> None:
        self._dirty.refuse(key)
        outcome.note_refused(why)

    def _settle(self, outcome: _Outcome) -> None:
        self._dirty.settle(first=outcome.interrupted)
        if outcome.refused:
            self._refused_since = self._clock()
            self.last_error = outcome.why_refused
            log.warning("flush.refused", entries=outcome.refused, example=outcome.why_refused)
        if outcome.unanswered:
            self.last_error = outcome.why_unanswered
            log.warning("flush.unanswered", entries=outcome.unanswered, example=outcome.why_unanswered)
        self._pace(outcome)

    def _pace(self, outcome: _Outcome) -> None:
        """Decide when what is set aside is sent again. The time stands until then, whatever other groups are set aside meanwhile.

        A try may take as long as a call may: at least half of the time is left to the other groups.
        """
        if self._aside_until:
            return
        self._aside_tries = self._aside_tries + 1 if outcome.unanswered else 0
        if outcome.unanswered:
            interval_s = self._section.interval_ms / 1000
            pause = pause_s(self._aside_tries, interval_s, self._section.backoff_max_ms / 1000)
            self._aside_until = self._clock() + max(pause, outcome.waited_s)

    def _finish(self, started: float, outcome: _Outcome) -> None:
        """Advance the flushed watermark."""
        if outcome.unanswered:
            self.metrics.flush_failed()
        self._store.advance_flushed(self._dirty.covers())
        self.last_flush_seconds = self._clock() - started
        self.last_flush_at_ms = self._now_ms()
        self.metrics.flushed(outcome.acknowledged + outcome.refused + outcome.unanswered, self.last_flush_seconds)
        if not (outcome.refused or self._dirty.some_aside):
            self.last_error = ""


def _unknown(run: Run) -> Run:
    """The records of a run whose epoch is unknown."""
    places = [at for at, (fields, _, _) in enumerate(run.held) if not fields[0]]
    return Run(run.group, [run.shards[at] for at in places], [run.held[at] for at in places])
