"""Writes what a reset, delete or clone has planned: saves it in the Meta Service, adopts it locally, reads it back and compares.

The Meta Service goes first: killed behind it, the next load or recovery adopts what it holds. The caller keeps flushes from
running meanwhile. Success is only reported after the comparison.
"""

from collections.abc import Mapping, Sequence

from adapter.errors import AdapterError, ContendedError, TransientError
from adapter.meta.client import Telling, failure_of
from adapter.meta.epochless import Saver
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, SaveEntry, Status, as_seen, taken_up
from adapter.runtime.wording import counted
from adapter.sidecar.engine.reset_plans import OffsetChange, some_of
from adapter.sidecar.journal.notes import Moved
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Forget, Reconcile
from adapter.sidecar.metrics import AdapterMetrics

SAVE_ENTRIES = 500  # of one save: under 3 MiB with the longest names and metadata
READ_KEYS = 1_000  # of one call


class ResetWriter:
    """Writes planned changes, and verifies that they stand."""

    def __init__(self, ledger: Ledger, saver: Saver, metrics: AdapterMetrics) -> None:
        self._ledger = ledger
        self._saver = saver
        self._meta = saver.meta
        self._metrics = metrics
        self._journal = ledger.journal

    async def write(self, kind: str, group: GroupKey, changes: Sequence[OffsetChange], *, at_least: bool = False) -> None:
        """Make the changes of one group. Raises MetaUnavailableError, RefusedError or ContendedError, also half way.

        `at_least`: more than was written may stand, as where the change was planned before.
        """
        moved = moved_by(changes)
        writes = {key: after for key, _, after in moved}
        if moved:
            self._metrics.changed(kind)  # before the outcome is known: a call that fails half way has changed something
        try:
            await self._save(kind, group, moved)
            await self.read_back(writes, at_least=at_least)
        except AdapterError as error:
            error.note_attempted(changes)
            raise

    async def _save(self, kind: str, group: GroupKey, writes: Sequence[Moved]) -> None:
        for at in range(0, len(writes), SAVE_ENTRIES):
            part = writes[at : at + SAVE_ENTRIES]
            try:
                await self._save_part(kind, group, part)
            except TransientError as error:
                done = f"{at} of {counted(len(writes), 'offset')} changed, of {len(part)} it is unknown: " if at else ""
                raise type(error)(f"{done}{error}", retry_after_s=error.retry_after_s) from error

    async def _save_part(self, kind: str, group: GroupKey, part: Sequence[Moved]) -> None:
        dead = [key for key, _, after in part if not self._meta.kind.keeps(after)]
        if dead:
            self._saver.forget(dead)
            await self._meta.delete(group, [key.shard for key in dead])
            self._journal.moved(kind, part)
            await self._ledger.submit(Forget(dead, gone=True))
            return
        with self._metrics.save_call("admin", len(part)):
            outcomes = await self._saver.send(Telling(SaveEntry(key, after) for key, _, after in part))
        done = list(zip(part, outcomes, strict=True))
        self._journal.moved(kind, [moved for moved, outcome in done if outcome.status is Status.APPLIED])
        await self._ledger.submit(
            Reconcile([(moved.key, outcome.standing) for moved, outcome in done if outcome.status.acknowledged])
        )
        failed = [(moved.key, outcome) for moved, outcome in done if not outcome.status.acknowledged]
        if failed:
            raise failure_of(*failed[0])

    async def read_back(self, written: Mapping[OffsetKey, OffsetRecord], *, at_least: bool = False) -> None:
        """Compare with what the Meta Service holds now. Raises ContendedError if that differs (or is less, `at_least`)."""
        keys = sorted(written)
        differing = []
        for at in range(0, len(keys), READ_KEYS):
            part = keys[at : at + READ_KEYS]
            found = await self._meta.get(part)
            differing += [key for key in part if not _holds(found.get(key), written[key], at_least=at_least)]
        if differing:
            raise ContendedError(
                f"{some_of(['/'.join(key) for key in differing])}: read back and found with another value: somebody else moved "
                "it at the same time; look at it and try again"
            )


def moved_by(changes: Sequence[OffsetChange]) -> list[Moved]:
    """The changes that write something."""
    return [Moved(change.key, change.before, change.after) for change in changes if change.changes and change.after]


def _holds(found: OffsetRecord | None, written: OffsetRecord, *, at_least: bool) -> bool:
    if found is None:
        return not written.live
    seen = as_seen(found, written)
    if at_least:
        return seen >= written
    # A reader may have taken it up already.
    return seen.live == written.live and seen.offset == written.offset and taken_up(seen.epoch) == taken_up(written.epoch)
