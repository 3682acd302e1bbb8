"""The files of an open database as they are at one instant, read while writes go on: RocksDB's checkpoint.

It has hard links to the tables, which never change, and copies of what still grows. It is beside the database for as long as it
is read, and there is one at a time. What a killed process left of one is removed by the next open.
"""

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread
from rocksdict import Checkpoint, Rdict

from adapter.errors import DiskFullError, OverloadedError, StorageFailedError
from adapter.runtime.durable import rocks

DIRECTORY = "db.backup"
CHUNK_BYTES = 512 * 1024
# rocksdict's own, written anew at any open, and not read where options are given, as all of ours are.
_LEFT_OUT = "rocksdict-config.json"
AGAIN_S = 5.0
SPARE_BYTES = 4 * 2**20


class File(NamedTuple):
    """A file of a checkpoint: its name, its bytes, and the SHA-256 of these."""

    name: str
    size: int
    sha256: bytes


class Sent(NamedTuple):
    """The end of a file whose bytes came before."""

    file: File


class Known(NamedTuple):
    """A file that was known already: no byte of it comes."""

    file: File


Part = bytes | Sent | Known


class Checkpoints:
    """The checkpoints of an open database in the directory `path`. `finish` before the database is closed."""

    def __init__(self, db: Rdict, path: Path) -> None:
        self._db: Rdict | None = db
        self._place = path / DIRECTORY
        self._under_way = False
        self._working = threading.Lock()
        self._remove()

    async def read(self, known: Collection[File]) -> AsyncGenerator[Part, None]:
        """The files of a new checkpoint, in the order of their names. The work is done apart from the event loop.

        Raises OverloadedError while there is another one, DiskFullError, StorageFailedError or StoreDamagedError.
        """
        if self._under_way:
            raise OverloadedError("a backup is being taken already; come back when it is done", retry_after_s=AGAIN_S)
        self._under_way = True
        waited_for = [True]  # empty once its caller has gone: the thread may come to it only then
        try:
            await anyio.to_thread.run_sync(self._make, waited_for)
            parts = _parts(self._place, known)
            while part := await anyio.to_thread.run_sync(next, parts, None):
                yield part
        finally:
            waited_for.clear()
            try:
                await anyio.to_thread.run_sync(self._remove)
            finally:
                self._under_way = False

    def finish(self) -> None:
        """Take no more of them, and wait for one that is being made: it would keep the database open. Blocks."""
        with self._working:
            self._db = None

    def _make(self, waited_for: Sequence[bool]) -> None:
        with self._working:
            if self._db is None:
                raise StorageFailedError("the store was closed")
            if not waited_for:
                return
            self._clear()
            self._check_room()
            # Writes what is in memory into tables, without the GIL. The rows of all column families are from one instant.
            rocks.guarded(Checkpoint(self._db).create_checkpoint, str(self._place))

    def _check_room(self) -> None:
        """Raise DiskFullError where the tables, and a copy of the newest log, could fill the disk: writes would fail first."""
        store, needed = self._place.parent, SPARE_BYTES
        for log in (store / "db").glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # RocksDB has removed it since
                needed += 2 * log.stat().st_size
        try:
            free = shutil.disk_usage(store).free
        except OSError as error:
            raise StorageFailedError(f"{store}: {error.strerror}") from error
        if free < needed:
            raise DiskFullError(f"{store}: a backup needs up to {needed:,} bytes there for a while, and {free:,} are free")

    def _remove(self) -> None:
        with self._working:  # behind a `_make` whose caller was cancelled
            self._clear()

    def _clear(self) -> None:
        for left in (self._place, self._place.with_name(f"{DIRECTORY}.tmp")):
            shutil.rmtree(left, ignore_errors=True)


def _parts(place: Path, known: Collection[File]) -> Iterator[Part]:
    """Read all files of a checkpoint. Raises StorageFailedError if one cannot be read."""
    offered = {(file.name, file.size): file for file in known}
    try:
        for path in sorted(place.iterdir()):
            if path.name == _LEFT_OUT:
                continue
            with path.open("rb") as file:
                had = offered.get((path.name, os.fstat(file.fileno()).st_size))
                # Numbers of files come again where a store was put back: only the content says that one is the same.
                if had and hashlib.file_digest(file, "sha256").digest() == had.sha256:
                    yield Known(had)
                    continue
                file.seek(0)
                digest, size = hashlib.sha256(), 0
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    yield chunk
                yield Sent(File(path.name, size, digest.digest()))
    except OSError as error:
        raise StorageFailedError(
            f"{error.filename or place}: {error.strerror}; if the store was opened again meanwhile, take the backup again"
        ) from error
