"""What can be done about a local store that does not open. Nothing is deleted: the damaged store stays beside the new one."""

import contextlib
import fcntl
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import structlog
from rocksdict import Rdict

from adapter.errors import StorageFailedError, StoreDamagedError, StoreLockedError
from adapter.runtime.durable import format_mark, rocks
from adapter.runtime.durable.backups import refuse_unfinished
from adapter.runtime.durable.files import refuse_root_for
from adapter.runtime.durable.format_mark import ADAPTER_STORE
from adapter.runtime.wording import counted
from adapter.sidecar.config import StoreSection
from adapter.sidecar.ledger.disk import refuse_later_version
from adapter.sidecar.ledger.store import LocalStore

log = structlog.get_logger(__name__)

LOCK = "LOCK"  # RocksDB's, in its directory


def repair(section: StoreSection) -> str:
    """Copy the store aside, let RocksDB rebuild it from the files that are intact, and open it; says what is left.

    Raises StoreLockedError while an adapter runs, StoreDamagedError when nothing could be rebuilt, StoreVersionError for a store
    of a later version, StorageFailedError for root if it belongs to another user.
    """
    database = section.path / "db"
    with _kept_free(section.path):
        refuse_unfinished(section.path)
        refuse_root_for(section.path)
        if not format_mark.is_marked(ADAPTER_STORE, section.path):
            with contextlib.suppress(StoreDamagedError):  # what is to be repaired; the open at the end looks again
                refuse_later_version(section.path)
        aside = _aside(section.path)
        _copy(section.path, aside)
    log.info("repair.copied", to=str(aside))
    database.mkdir(0o700, exist_ok=True)
    rocks.guarded(Rdict.repair, str(database), rocks.options())
    store = LocalStore.open(section.path, section.wal_sync)
    try:
        keys = sum(1 for _ in store.scan())
        loss = store.loss
    finally:
        store.close()
    lost = (
        f" Up to {counted(loss.writes, 'acknowledged write')} missing; the start asks the Meta Service for them." if loss else ""
    )
    return f"Repaired: {counted(keys, 'key')} readable.{lost} The damaged store is kept in {aside}."


def start_from_meta(section: StoreSection) -> str:
    """Set the store aside, so that the next start begins empty and loads from the Meta Service on demand."""
    aside = _aside(section.path)
    with _kept_free(section.path):
        try:
            section.path.rename(aside)
        except OSError as error:
            raise StorageFailedError(f"{section.path}: cannot be renamed to {aside}: {error.strerror}") from error
    return f"The store is set aside in {aside}. The next start begins empty; what the Meta Service never got is only in there."


@contextlib.contextmanager
def _kept_free(path: Path) -> Iterator[None]:
    """Keep adapters from opening the store. OSErrors in the context become StorageFailedError or DiskFullError.

    Raises StoreDamagedError without a store, StoreLockedError if a process has it open.
    """
    lock = path / "db" / LOCK
    try:
        if not path.exists():
            raise StoreDamagedError(f"{path}: does not exist; store.path in the configuration names it")
        with lock.open("ab") if lock.exists() else contextlib.nullcontext() as file:
            if file and not _is_taken(file):
                raise StoreLockedError(f"{path}: another process has this store open; stop it first")
            yield
    except OSError as error:
        raise rocks.unusable(error, path) from error


def _is_taken(file: IO[bytes]) -> bool:
    """Take RocksDB's own lock, which goes with its process, until the file is closed; False if another process has it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _copy(path: Path, aside: Path) -> None:
    """Copy the store, or leave nothing. Raises StorageFailedError."""
    try:
        aside.mkdir(0o700)
    except OSError as error:
        raise StorageFailedError(f"{aside}: cannot be made: {error.strerror}. Nothing was changed.") from error
    try:
        # Who closes a file gives up its locks: the one that is held is not read.
        shutil.copytree(path, aside, ignore=shutil.ignore_patterns("*.sock", LOCK), dirs_exist_ok=True)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise StorageFailedError(f"{path}: cannot be copied to {aside}: {why}. Nothing was changed.") from error


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
