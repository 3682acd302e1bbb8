"""Damage to the files of a store."""

import shutil
from collections.abc import Callable
from pathlib import Path


def _newest(database: Path, pattern: str) -> Path:
    return max(database.glob(pattern), key=lambda file: file.name)


def _truncate(file: Path, size: int) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


def _overwrite(file: Path, at: int, change: Callable[[bytes], bytes], length: int = 1) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        before = opened.read(length)
        opened.seek(at)
        opened.write(change(before))


def _flip(file: Path, at: int) -> None:
    _overwrite(file, at, lambda byte: bytes([byte[0] ^ 1]))


def _wal(database: Path) -> Path:
    return _newest(database, "*.log")


def _zero_page(file: Path) -> None:
    middle = file.stat().st_size // 2 // 4096 * 4096
    _overwrite(file, middle, lambda page: bytes(len(page)), 4096)


def _size(file: Path) -> int:
    return file.stat().st_size


def _remove_all(database: Path) -> None:
    shutil.rmtree(database)
    database.mkdir()


# Each takes <cache>/db. Those of the first table certainly lose acknowledged commits; what the others do is RocksDB's matter.
WAL_DAMAGE: dict[str, Callable[[Path], None]] = {
    "wal truncated to half": lambda db: _truncate(_wal(db), _size(_wal(db)) // 2),
    "last 7 bytes of the wal cut": lambda db: _truncate(_wal(db), _size(_wal(db)) - 7),
    "bit flipped in the middle of the wal": lambda db: _flip(_wal(db), _size(_wal(db)) // 2),
    "bit flipped in the last record of the wal": lambda db: _flip(_wal(db), _size(_wal(db)) - 20),
    "wal missing": lambda db: _wal(db).unlink(),
    "zeroed page in the middle of the wal": lambda db: _zero_page(_wal(db)),
}
OTHER_DAMAGE: dict[str, Callable[[Path], None]] = {
    "CURRENT missing": lambda db: (db / "CURRENT").unlink(),
    "bit flipped in the MANIFEST": lambda db: _flip(_newest(db, "MANIFEST-*"), _size(_newest(db, "MANIFEST-*")) // 2),
    "MANIFEST truncated to half": lambda db: _truncate(_newest(db, "MANIFEST-*"), _size(_newest(db, "MANIFEST-*")) // 2),
    "bit flipped in an SST block": lambda db: _flip(_newest(db, "*.sst"), _size(_newest(db, "*.sst")) // 3),
    "SST missing": lambda db: _newest(db, "*.sst").unlink(),
    "every file missing": _remove_all,
    "directory missing": shutil.rmtree,
}
DAMAGE = WAL_DAMAGE | OTHER_DAMAGE
