"""Checks a backup of an embedded store, and puts one back. A restored store holds less than the one that it was taken of.

Adapters are told of that as of a repaired store: by a higher incarnation. They send again what they hold.
"""

import os
from pathlib import Path

import structlog

from adapter.errors import StoreDamagedError
from adapter.metaservice.rocksdb import store
from adapter.metaservice.rocksdb.metadata import LAST_REVISION, REVISION_FORM
from adapter.metaservice.rocksdb.store import ADVICE, FAMILIES, META, State
from adapter.model.codec import decode_seq, encode_seq
from adapter.runtime.clocks import wall_ms
from adapter.runtime.durable import backups, rocks
from adapter.runtime.durable.backups import Backup
from adapter.runtime.durable.watermark import Loss, Watermark
from adapter.runtime.wording import counted

log = structlog.get_logger(__name__)


def check(database: Path, seq: int) -> State:
    """Read the whole database of a backup; returns its bookkeeping. `seq`: a sequence number that it has reached at least.

    Blocks. Raises StoreDamagedError if it holds less than it should; StoreVersionError, StorageFailedError.
    """
    state, _, wrong = store.look(database, seq)
    if wrong:
        raise StoreDamagedError(wrong)
    return state


def restore(backup: Backup, path: Path) -> str:
    """Make the store at `path`, where there is none, of a backup. Blocks. Returns a report. If it is killed, it can be repeated.

    Raises StoreLockedError while a Meta Service runs there, and what `backups.make_directory`, `backups.putting_back` and `check`
    raise.
    """
    try:
        backups.make_directory(path)
        lock = store.lock_directory(path)
    except OSError as error:
        raise rocks.unusable(error, path) from error
    try:
        with backups.putting_back(backup, path) as database:
            check(database, backup.seq)
            state = _renew(backup, database)
            # First: a store without one has lost it. With it alone, the restore can be repeated.
            watermark = Watermark.open(path / backups.WATERMARK)
            try:
                watermark.advance(state.seq)
                watermark.sync()
            finally:
                watermark.close()
    finally:
        os.close(lock)
    return (
        f"{path}: restored {counted(state.records, 'row')} from the backup of {backup.taken_at}. When the Meta Service starts, "
        "adapters that run send again all that they hold, and others at their start; what no adapter has is as old as the backup."
    )


def _renew(backup: Backup, database: Path) -> State:
    """Let the database count as another one, which has lost writes; returns its bookkeeping.

    No sequence number, and no revision of metadata, that the store gave after the backup is given again: a writer that compares
    revisions would take one entry for another.
    """
    opened = rocks.open_store(database, FAMILIES, ADVICE)
    try:
        meta = opened.db.get_column_family(META)
        before, lost = store.bookkeeping(opened.db, database)
        state = before._replace(incarnation=before.incarnation + 1, seq=backup.unused_seq(before.seq))
        standing = rocks.guarded(meta.get, LAST_REVISION)
        if standing is not None:
            state = state.without(decode_seq(standing))
        state = state.with_one()
        state = state._replace(digest=state.digest % 2**64)
        # As in a repair: each revision took a sequence number.
        meta.put(LAST_REVISION, encode_seq(state.seq) + REVISION_FORM.pack(state.seq))
        loss = Loss(1 + (lost.writes if lost else 0), wall_ms(), f"it was restored from the backup of {backup.taken_at}")
        store.write_bookkeeping(opened.db, state, loss)
        rocks.sync(opened.db)
        rocks.close(meta)
    finally:
        opened.close()
    log.info("store.restored", seq=state.seq, incarnation=state.incarnation, taken_at_ms=backup.taken_at_ms)
    return state
