"""Compares every local key with the Meta Service: pushes what is larger here, adopts what is larger there.

Streams: a piece at a time, in key order, see `comparing`. What it compares it takes from the store on disk, never from an
in-memory set, which is empty after a restart. A tombstone that the Meta Service has forgotten by now is not pushed, but forgotten
here as well: it would hide what was committed since.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from adapter.errors import AdapterError, TransientError, leaves
from adapter.meta.client import MetaClient
from adapter.meta.epochless import Seen
from adapter.model.codec import decode_record, encode_key
from adapter.model.records import OffsetKey, OffsetRecord, as_seen, meet
from adapter.runtime.slices import in_slices
from adapter.sidecar.engine.comparison import LocalKeys, Piece, Source, WholeGroups
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.engine.tombstones import Tombstones
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Adopt, Forget, Load

log = structlog.get_logger(__name__)

PROGRESS_S = 2.0  # between two log lines of a long recovery


@dataclass
class RecoveryReport:
    """How many keys, of about `of`, were compared so far, and the results.

    `failed` keys could not be pushed; they are dirty.
    """

    compared: int = 0
    pushed: int = 0
    adopted: int = 0
    equal: int = 0
    failed: int = 0
    seconds: float = 0.0
    of: int = 0


class Recovery:
    """A comparison of all local keys; after a failure it continues at the same place."""

    def __init__(
        self,
        ledger: Ledger,
        flusher: Flusher,
        meta: MetaClient,
        tombstones: Tombstones,
        *,
        batch_keys: int,
    ) -> None:
        self._store = ledger.store
        self._dirty = ledger.dirty
        self._ledger = ledger
        self._flusher = flusher
        self._meta = meta
        self._clock = ledger.clocks.monotonic
        self._tombstones = tombstones
        self._recovered = ledger.recovered
        self._batch_keys = batch_keys
        self._source: Source | None = None
        self._push_from = 0.0
        self.report = RecoveryReport(of=ledger.store.keys)

    def again(self) -> None:
        """Start over with all keys: the Meta Service holds less than it acknowledged.

        Nothing counts as flushed then (invariant 3).
        """
        self._source = None
        self._push_from = 0.0
        self.report = RecoveryReport(of=self._store.keys)
        self._recovered.begin_again()
        self._store.forget_flushed()

    async def run(self) -> RecoveryReport:
        """Compare from the last finished batch to the end.

        Raises MetaUnavailableError, or ContendedError when keys were removed meanwhile; call it again to go on.
        """
        started = self._clock() - self.report.seconds
        failure: AdapterError | None = None
        try:
            await self._meta.get([])  # with an empty store, too: recovered means that the Meta Service was there
            await self._compare_all()
        except* AdapterError as group:
            failure = leaves(group)[0]
        finally:
            self.report.seconds = self._clock() - started
        if failure:
            # Not from within `except*`: Python 3.11.2 wraps in a group what is raised there.
            raise failure
        await self._dirty.note_uncompared()
        self._recovered.finish()
        log.info("recovery.done", **vars(self.report))
        return self.report

    def _beginning(self) -> Source:
        source = WholeGroups if self._store.loss_at_open else LocalKeys
        return source(self._store, self._meta, self._batch_keys, lambda: self._store.states.removals)

    async def _compare_all(self) -> None:
        told_at = self._clock()
        self._source = source = self._source or self._beginning()
        while piece := await source.next():
            try:
                if await self._forget_tombstones(piece):
                    source.again()
                    continue
                await self._compare(piece)
            except AdapterError:
                source.again()
                raise
            source.done(piece)
            self._recovered.advance(piece.last)
            if self._clock() - told_at > PROGRESS_S:
                told_at = self._clock()
                log.info("recovery.progress", compared=self.report.compared, of=self.report.of)

    async def _forget_tombstones(self, piece: Piece) -> bool:
        """Remove old tombstones that the Meta Service has no more; True if there were any, and the piece is out of date."""
        past: dict[OffsetKey, OffsetRecord] = {}
        async for some in in_slices(piece.local):
            past |= {key: local for key, local, _ in some if self._tombstones.outlived(local, piece.found(key))}
        keys = [key for key, local in past.items() if key not in self._dirty and self._store.get(key) == local]
        if keys:
            log.info("recovery.old_tombstones", keys=len(keys), help="the Meta Service has forgotten them; so does this adapter")
            await self._ledger.submit(Forget(keys))
        return bool(keys)

    async def _compare(self, piece: Piece) -> None:
        remote, rows = dict(piece.remote), dict(piece.rows)
        differing: list[tuple[OffsetKey, OffsetRecord | None]] = []
        stands: list[tuple[OffsetKey, OffsetRecord]] = []  # there, of a server without epochs, and not less than here
        pushed: dict[OffsetKey, OffsetRecord] = {}
        async for some in in_slices(piece.local):
            for key, local, _ in some:
                row = rows.pop(encode_key(key), None) if rows else None
                held = decode_record(row) if row else remote.pop(key, None)
                found = as_seen(held, local) if held else None
                if held and found and not held.epoch and meet(local, found) == found:
                    stands.append((key, held))
                if found != local and (found or self._meta.kind.keeps(local)):
                    differing.append((key, found))
                    if found is None or meet(local, found) != found:
                        pushed[key] = local
        # What is left of whole groups was lost here, unless it came back meanwhile.
        # Refused when a key was removed meanwhile: what was fetched may be older than what was flushed and forgotten.
        lost = 0
        async for entries in in_slices([*differing, *remote.items()]):
            keys = self._store.keys  # commits and removals come between two slices
            self._ledger.apply(Load((), entries, piece.forgets))
            lost += self._store.keys - keys
        async for absent in in_slices(list(rows.items())):
            keys = self._store.keys
            self._ledger.apply(Adopt(absent, piece.forgets))
            lost += self._store.keys - keys
        await self._ledger.sync()
        for key, held in stands:
            self._flusher.saver.note(key, Seen(held.offset, held.topic, held.partition))
        self.report.compared += len(piece.local) + piece.same
        self.report.of = max(self._store.keys, self.report.compared)
        self.report.equal += len(piece.local) + piece.same - len(differing)
        self.report.adopted += len(differing) - len(pushed) + lost
        if pushed:
            await self._push(pushed)

    async def _push(self, pushed: Mapping[OffsetKey, OffsetRecord]) -> None:
        unacknowledged: Callable[[OffsetKey], bool] = self._is_left
        try:
            # An overloaded Meta Service is left alone for as long as it asked for.
            if self._clock() >= self._push_from:
                await self._flusher.flush_once()
            else:
                unacknowledged = self._dirty.__contains__
        except TransientError as error:
            log.warning("recovery.push_failed", error=str(error), help="what is dirty stays so: the flusher goes on with it")
            self._push_from = self._clock() + error.retry_after_s
            unacknowledged = self._dirty.__contains__
        left = {key for key in pushed if unacknowledged(key)} if self._dirty else set()
        failed = len(left)
        # Somebody else was faster: what stands there came back with the answer.
        adopted = sum(self._went_on(key, record) for key, record in pushed.items() if key not in left)
        self.report.failed += failed
        self.report.adopted += adopted
        self.report.pushed += len(pushed) - failed - adopted

    def _is_left(self, key: OffsetKey) -> bool:
        return self._dirty.is_refused(key) or self._dirty.is_aside(key)

    def _went_on(self, key: OffsetKey, record: OffsetRecord) -> bool:
        now = self._store.get(key)
        return now is not None and now.position > (record.epoch or now.epoch, record.offset)
