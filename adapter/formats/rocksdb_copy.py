"""Opens a private copy of somebody else's RocksDB store, which may be in use. The store itself is never opened.

No byte of the store's directory changes. The copy shows one moment, including rows that are only in the write-ahead log; memory
is bounded by RocksDB's buffers. The log and the list of files are copied; the tables are symbolic links.
"""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rocksdict import BlockBasedOptions, Cache, DBRecoveryMode, Options, Rdict

from adapter.errors import AdapterError, DiskFullError, StoreDamagedError
from adapter.formats.rows import NotReadableError
from adapter.runtime.durable import rocks

TRIES = 10  # a flush or compaction in between restarts the copy; RocketMQ's stores have about one in an hour
# Every block is read once, so a larger cache would have no use.
BLOCK_CACHE_BYTES = 4 * 2**20
_MANIFEST = re.compile(r"MANIFEST-[0-9]{1,20}")
_OF_THE_STORE = re.compile(r"CURRENT|MANIFEST-.*|.*\.log|.*\.sst", re.DOTALL)
_PLACES = [f"{before}{name}" for before in ("", "config/", "store/config/") for name in ("consumerOffsets", "rdb", "metadata")]
_GONE = "No such file or directory"
_DAMAGED = "restore it from a copy; do not trust rows that were read from it"


class _ChangedError(Exception):
    """The store switched to other files while it was copied."""


class _State(NamedTuple):
    """Stays equal while no file is added to or removed from a store: RocksDB first records such a change in its MANIFEST."""

    current: bytes
    manifest_bytes: int
    logs: tuple[str, ...]

    @property
    def manifest(self) -> str:
        name = self.current.decode(errors="replace").removesuffix("\n")
        if not _MANIFEST.fullmatch(name):  # otherwise it could be a path outside
            raise NotReadableError(f"is damaged: its file CURRENT names {name!r}; {_DAMAGED}")
        return name


@contextmanager
def opened(path: Path) -> Iterator[Rdict]:
    """A copy of the store at `path`; closed and removed at the end. Raises NotReadableError.

    It is made in the directory for temporary files (TMPDIR), and takes as much space as the store's log, which RocketMQ rolls at
    1 GiB.
    """
    with tempfile.TemporaryDirectory(prefix="offset-adapter-rocksdb-") as temporary:
        db = _open(path, Path(temporary))
        try:
            yield db
        finally:
            db.close()


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors of RocksDB and of files to NotReadableError that says what to do."""
    try:
        yield
    except NotReadableError:
        raise
    except StoreDamagedError as error:
        raise NotReadableError(f"is damaged: {error}; {_DAMAGED}") from error
    except DiskFullError as error:
        raise _no_room() from error
    except AdapterError as error:
        raise NotReadableError(f"is not a store that can be read here: {error}") from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _no_room() from error
        raise NotReadableError(f"cannot be read: {error.filename or 'it'}: {error.strerror or error}") from error


def families(db: Rdict) -> list[str]:
    """The names of all column families of the store."""
    return sorted(Rdict.list_cf(db.path(), _options()))


def _open(path: Path, temporary: Path) -> Rdict:
    reason = ""
    for attempt in range(TRIES):
        copy = temporary / str(attempt)
        copy.mkdir()
        try:
            with translated_errors():
                _copy(path, copy)
                return _open_copy(copy)
        except _ChangedError as error:
            reason = str(error)
        except NotReadableError as error:
            if _GONE not in str(error.__cause__):
                raise
            reason = str(error)
        shutil.rmtree(copy)
    raise NotReadableError(reason)


def _open_copy(copy: Path) -> Rdict:
    """Open the copy, replaying its log. Fails if the log is damaged; a torn end is an unfinished write and is accepted."""
    names = rocks.guarded(Rdict.list_cf, str(copy), _options())
    return rocks.guarded(lambda: Rdict(str(copy), options=_options(), column_families={name: _options() for name in names}))


def _options() -> Options:
    options = rocks.options(create=False)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_disable_auto_compactions(True)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    options.set_block_based_table_factory(table)
    return options


def _copy(path: Path, copy: Path) -> None:
    before = _state(path)
    for name in (before.manifest, *before.logs):
        shutil.copyfile(path / name, copy / name)
    whole = path.resolve()
    for table in path.glob("*.sst"):
        (copy / table.name).symlink_to(whole / table.name)
    (copy / "CURRENT").write_bytes(before.current)
    if _state(path) != before:
        raise _ChangedError(f"changed in each of {TRIES} tries to read it; stop its broker, or read a copy of the directory")


def _refuse_links(path: Path) -> None:
    """Raise NotReadableError for a symbolic link: whoever may write to the directory could make us read any file."""
    with os.scandir(path) as entries:
        link = min((entry.name for entry in entries if entry.is_symlink() and _OF_THE_STORE.fullmatch(entry.name)), default="")
    if link:
        raise NotReadableError(
            f"its file {link} is a symbolic link to {(path / link).readlink()}, which is not followed: put the file itself there"
        )


def _state(path: Path) -> _State:
    current = path / "CURRENT"
    if not current.is_file():
        raise NotReadableError(f"is not a RocksDB store: it has no file CURRENT{_hint(path)}")
    _refuse_links(path)
    logs = sorted(log.name for log in path.glob("*.log"))
    state = _State(current.read_bytes(), 0, tuple(logs))
    return state._replace(manifest_bytes=(path / state.manifest).stat().st_size)


def _hint(path: Path) -> str:
    below = [name for name in _PLACES if (path / name / "CURRENT").is_file()]
    if below:
        return f"; {' or '.join(below)} below it is one"
    return "; a broker's are config/consumerOffsets, config/rdb and config/metadata below its storePathRootDir"


def _no_room() -> NotReadableError:
    return NotReadableError(f"needs room for a copy of its log in {tempfile.gettempdir()}; TMPDIR names another place")
