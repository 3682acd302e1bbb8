"""A directory of backups of one store, one subdirectory for each. A backup appears completely or not at all.

It is written under another name, synced, opened and read as a whole, and then renamed. Files that it shares with the one before
are hard links, so any of them can be deleted alone.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Self

from adapter.cli.output import warn
from adapter.errors import AdapterError, InvalidInputError, StoreDamagedError, StoreVersionError
from adapter.rpc import backup_pb
from adapter.runtime.durable.backups import ADAPTER, DATABASE, META, Backup, backups_in, is_file_name, name_at
from adapter.runtime.durable.checkpoint import File
from adapter.runtime.durable.files import sync_directory

_PARTIAL, _DELETED = ".partial", ".deleted"  # what a killed command left, removed by the next one
_WITHOUT_BACKUPS = {_PARTIAL, _DELETED, "lost+found"}
_NAMES = {ADAPTER: "an adapter", META: "a Meta Service"}


class BackupDirectory:
    """Opened by `opened`. Its methods block, and raise InvalidInputError for what cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path / _PARTIAL
        self._newest: Backup | None = None
        self._made: Path | None = None
        self._store: backup_pb.BackupStoreReply.Store | None = None
        self.sent: list[File] = []  # whose bytes came
        self._shared: list[File] = []  # with the newest backup
        self._file: IO[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path) -> Iterator[Self]:
        """Make or open a directory of backups, for one command at a time. Raises InvalidInputError."""
        try:
            if not path.exists():
                path.mkdir(0o700, parents=True)
                sync_directory(path.absolute().parent)
            others = sorted(entry.name for entry in path.iterdir() if entry.name not in _WITHOUT_BACKUPS)
            if others and not backups_in(path):
                raise InvalidInputError(
                    f"{path}: has no backups, but other files ({others[0]}): name an empty directory, or one with backups"
                )
            with _locked(path):
                found = cls(path)
                found._remove_left()
                try:
                    yield found
                finally:
                    if found._file:
                        found._file.close()
                    with contextlib.suppress(OSError):  # else the next command removes it
                        found._remove_left()
        except OSError as error:
            raise InvalidInputError(f"{error.filename or path}: {error.strerror}; nothing was kept") from error

    def known(self) -> list[File]:
        """The files of the newest backup, but for damaged ones, which it tells of: they have to be sent again."""
        for path in reversed(backups_in(self.path)):
            try:
                self._newest = Backup.load(path)
                break
            except StoreVersionError:
                raise
            except AdapterError as error:
                warn(f"{error}; the next older one is used")
        if self._newest is None:
            return []
        damaged = self._newest.damaged()
        for name, why in damaged.items():
            warn(f"{self._newest.database / name}: {why}; that backup is damaged, and the file is sent again")
        return [file for file in self._newest.files if file.name not in damaged]

    def begin(self, store: backup_pb.BackupStoreReply.Store, kind: str) -> None:
        """Begin a backup of this store. Raises InvalidInputError if it is of another kind, or not that of the others here."""
        if store.kind != kind:
            command = "meta backup" if store.kind == META else "backup"
            raise InvalidInputError(f"--address: is {_NAMES.get(store.kind, store.kind)}: use `offset-adapter {command}`")
        newest = self._newest
        if newest and (newest.kind, newest.store_id) != (store.kind, store.id):
            raise InvalidInputError(
                f"{self.path}: has backups of another store ({newest.kind} {newest.broker} {newest.store_id.hex()}), and this is "
                f"{store.kind} {store.broker} {store.id.hex()}: name another directory"
            )
        self._store = store
        (self._partial / DATABASE).mkdir(0o700, parents=True)

    def add(self, reply: backup_pb.BackupStoreReply) -> None:
        """Take bytes of a file, or its end. Raises StoreDamagedError if they are not what was sent."""
        match reply.WhichOneof("part"):
            case "data":
                self._file = self._file or (self._partial / DATABASE / _PARTIAL).open("xb")
                self._file.write(reply.data)
            case "sent":
                self._end_file(_file_of(reply.sent))
            case "known":
                self._share(_file_of(reply.known))
            case _:
                pass  # of a later version

    def finish(self) -> "Backup":
        """Check the backup, and give it its name. Raises StoreDamagedError if it is not whole."""
        assert self._store  # noqa: S101 - `begin` came before
        store, database = self._store, self._partial / DATABASE
        store_id, seq, rows = _check(store.kind, database, store.seq)
        if store_id != store.id:
            raise StoreDamagedError(f"{self.path}: what was sent is the store {store_id.hex()}, and not {store.id.hex()}")
        files = sorted([*self.sent, *self._shared])
        names = {file.name for file in files}
        for path in database.iterdir():
            if path.name not in names:  # the open has made it
                path.unlink()
        said = (store.taken_at_ms, store.broker, store.version)
        backup = Backup(self._partial, store.kind, store.id, seq, rows, *said, tuple(files))
        backup.write()
        for directory in (database, self._partial):
            sync_directory(directory)
        place = next(place for at in count(store.taken_at_ms) if not (place := self.path / name_at(at)).exists())
        self._partial.rename(place)
        sync_directory(self.path)
        self._made = place
        return backup._replace(path=place)

    def keep(self, most: int) -> list[Path]:
        """Delete all backups but the new one and the newest others, so that this many are left; returns which."""
        others = [path for path in backups_in(self.path) if path != self._made]  # the clock may have gone back
        old = others[: max(len(others) - most + 1, 0)]
        for path in old:
            path.rename(self.path / _DELETED)  # so that half of it is never taken for a backup
            shutil.rmtree(self.path / _DELETED)
        return old

    def _end_file(self, file: File) -> None:
        name = self._partial / DATABASE / _PARTIAL
        opened = self._file or name.open("xb")  # of an empty file no byte comes
        self._file = None
        with opened:
            opened.flush()
            os.fsync(opened.fileno())
        with name.open("rb") as written:
            if hashlib.file_digest(written, "sha256").digest() != file.sha256:
                raise StoreDamagedError(f"{file.name}: was not received as it was sent; take the backup again")
        name.rename(self._partial / DATABASE / file.name)
        self.sent.append(file)

    def _share(self, file: File) -> None:
        if self._newest is None or file not in self._newest.files:
            raise StoreDamagedError(f"{file.name}: was told as known, and is not")
        source, target = self._newest.database / file.name, self._partial / DATABASE / file.name
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)
            with target.open("rb") as opened:
                os.fsync(opened.fileno())
        self._shared.append(file)

    def _remove_left(self) -> None:
        for name in (_PARTIAL, _DELETED):
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a directory. Raises InvalidInputError while another command has it locked."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInputError(f"{path}: another command takes a backup into it") from error
        except OSError:
            pass  # it cannot be locked, as on some network file systems
        yield
    finally:
        os.close(lock)


def _file_of(message: backup_pb.BackupFile) -> File:
    """A file as the server tells of it. Raises StoreDamagedError for a name that would leave the directory."""
    if not is_file_name(message.name):
        raise StoreDamagedError(f"{message.name!r}: is not a name of a file of a store")
    return File(message.name, message.size, message.sha256)


def _check(kind: str, database: Path, seq: int) -> tuple[bytes, int, int]:
    """Open a database and read all of it: the store's identity, its newest write counter, and how many rows it has."""
    try:
        if kind == ADAPTER:
            from adapter.sidecar.ledger import restore as of_adapters  # noqa: PLC0415 - loads RocksDB

            return of_adapters.check(database, seq)
        from adapter.metaservice.rocksdb import restore as of_meta_services  # noqa: PLC0415 - as above

        state = of_meta_services.check(database, seq)
    except StoreDamagedError as error:
        raise StoreDamagedError(f"what was sent cannot be used: {error}; nothing was kept") from error
    return state.store_id, state.seq, state.records
