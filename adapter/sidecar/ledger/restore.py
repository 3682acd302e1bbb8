"""Checks a backup of a local store, and puts one back. What was acknowledged since the backup is missing in it.

So the first open counts it as a store that has lost writes (`LocalStore.over`): whole groups are compared with the Meta Service.
"""

import contextlib
from pathlib import Path
from typing import NamedTuple

import structlog
from rocksdict import AccessType, Rdict

from adapter.errors import StoreDamagedError
from adapter.model.codec import decode_seq
from adapter.runtime.durable import backups, format_mark, rocks
from adapter.runtime.durable.backups import Backup
from adapter.runtime.durable.format_mark import ADAPTER_STORE
from adapter.runtime.wording import counted
from adapter.sidecar.ledger.disk import ADVICE, FORMAT, one_at_a_time
from adapter.sidecar.ledger.write_batch import FIRST_KEY, RESTORED, STATE, STORE_ID, Bookkeeping, Restored

log = structlog.get_logger(__name__)


class Checked(NamedTuple):
    """What a backup has: the store's identity, the newest write counter, and how many records."""

    store_id: bytes
    seq: int
    records: int


def check(database: Path, seq: int) -> Checked:
    """Read the whole database of a backup. `seq`: a write counter that it has reached at least.

    Blocks. Raises StoreDamagedError if it holds less than it should; StoreVersionError, StorageFailedError.
    """
    families = {"default": rocks.options(create=False)}
    with contextlib.closing(
        rocks.guarded(lambda: Rdict(str(database), rocks.options(create=False), families, access_type=AccessType.read_only()))
    ) as db:
        mark, state, store_id = (rocks.guarded(db.get, key) for key in (FORMAT, STATE, STORE_ID))
        if mark is None or store_id is None:
            raise StoreDamagedError("its bookkeeping is missing")
        format_mark.check(ADAPTER_STORE, mark, str(database), "Take another backup.")
        kept = Bookkeeping.decode(state)
        keys = digest = 0
        for rows in rocks.scan_slices(db, b"", b"", 1_000):
            seqs = [decode_seq(value) for key, value in rows if key >= FIRST_KEY]
            keys += len(seqs)
            digest += sum(seqs)
    if kept.seq < seq:
        raise StoreDamagedError(f"{seq - kept.seq:,} writes are missing: it ends at {kept.seq:,}, and should end at {seq:,}")
    if keys != kept.keys:
        raise StoreDamagedError(f"{keys:,} records are there, and {kept.keys:,} should be")
    if digest % 2**64 != kept.digest:
        raise StoreDamagedError("some of its records are older than they should be")
    return Checked(store_id, kept.seq, keys)


def restore(backup: Backup, path: Path) -> str:
    """Make the store at `path`, where there is none, of a backup. Blocks. Returns a report. If it is killed, it can be repeated.

    Raises StoreLockedError if another process is making or opening a store there, and what `backups.make_directory`,
    `backups.putting_back` and `check` raise.
    """
    try:
        backups.make_directory(path)
    except OSError as error:
        raise rocks.unusable(error, path) from error
    with one_at_a_time(path), backups.putting_back(backup, path) as database:
        found = check(database, backup.seq)
        opened = rocks.open_store(database, ("default",), ADVICE)
        try:
            row = Restored(backup.taken_at_ms, backup.unused_seq(found.seq))
            rocks.guarded(opened.db.put, RESTORED, row.encode())
            rocks.sync(opened.db)
        finally:
            opened.close()
    log.info("store.restored", path=str(path), records=found.records, taken_at_ms=backup.taken_at_ms)
    return (
        f"{path}: restored {counted(found.records, 'record')} from the backup of {backup.taken_at}. When the adapter starts, it "
        "looks up in the Meta Service what was acknowledged since; status and metrics show that writes were lost."
    )
