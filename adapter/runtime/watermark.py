"""The newest acknowledged write, kept outside RocksDB's WAL.

A file of its own, overwritten in place after each WriteBatch and before its acknowledgement. If RocksDB opens with less
than this says, acknowledged writes are missing. It survives a killed process as it is, a power cut as of the last `sync`.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple, Self

from adapter.runtime.files import sync_directory

_MAGIC = b"OFFSETWM"
_BODY = struct.Struct(">8sQ")
_CRC = struct.Struct(">I")
_SLOT = 32  # two slots, written in turn: a torn write leaves the other one


class Watermark:
    """An ever-growing number in a file. Not thread-safe, except `sync`.

    `intact` is False where the file was missing, or held no number that is whole: then a new one stands beside its path until
    `establish`. Beside a store that is not empty this means that nobody knows what was acknowledged.
    """

    def __init__(self, fd: int, slots: tuple[int, int], path: Path, *, intact: bool = True) -> None:
        self._fd = fd
        self._slot = slots.index(min(slots))
        self._path = path
        self._established = self.intact = intact
        self.value = max(slots)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or begin a new one that says 0. Raises OSError."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return cls._fresh(path)
        data = os.pread(fd, 2 * _SLOT, 0)
        slots = (_parse(data[:_SLOT]), _parse(data[_SLOT:]))
        if max(slots) < 0:
            os.close(fd)
            return cls._fresh(path)
        if len(data) < 2 * _SLOT:
            os.pwrite(fd, data.ljust(2 * _SLOT, b"\0"), 0)
            os.fsync(fd)
        return cls(fd, slots, path)

    @classmethod
    def _fresh(cls, path: Path) -> Self:
        fd = os.open(_beside(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        # All blocks are taken now, so that a full disk cannot stop the overwrites later.
        os.pwrite(fd, _pack(0).ljust(_SLOT, b"\0") * 2, 0)
        os.fsync(fd)
        return cls(fd, (0, 0), path, intact=False)

    def establish(self) -> None:
        """Put a new file in its place, durably, with what it says by now. Raises OSError."""
        if not self._established:
            self._established = True
            _beside(self._path).rename(self._path)
            sync_directory(self._path.parent)

    def advance(self, value: int) -> None:
        """Overwrite the older slot. Raises OSError."""
        if not self._established:
            self.establish()
        os.pwrite(self._fd, _pack(value), self._slot * _SLOT)
        self._slot ^= 1
        self.value = value

    def is_in_place(self) -> bool:
        """Whether the file that is open is still the one at its path. Thread-safe. Raises OSError."""
        ours = os.fstat(self._fd)
        try:
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def sync(self) -> None:
        """Make it survive a power cut. Blocks; releases the GIL. Raises OSError."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file without a sync."""
        os.close(self._fd)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _pack(value: int) -> bytes:
    body = _BODY.pack(_MAGIC, value)
    return body + _CRC.pack(zlib.crc32(body))


def _parse(slot: bytes) -> int:
    """The number in a slot; -1 where none is whole."""
    if len(slot) < _BODY.size + _CRC.size:
        return -1
    magic, value = _BODY.unpack_from(slot)
    intact = magic == _MAGIC and _CRC.unpack_from(slot, _BODY.size)[0] == zlib.crc32(slot[: _BODY.size])
    return int(value) if intact else -1


_LOSS_FORM = struct.Struct(">QQ")


class Loss(NamedTuple):
    """Acknowledged writes that were missing: about how many, at least 1; when that was found (Unix ms), and by what."""

    writes: int
    found_at_ms: int
    why: str = ""

    @classmethod
    def decode(cls, value: bytes) -> "Loss":
        """The stored form."""
        writes, found_at_ms = _LOSS_FORM.unpack_from(value)
        return cls(writes, found_at_ms, value[_LOSS_FORM.size :].decode())

    def encode(self) -> bytes:
        """The inverse of `decode`."""
        return _LOSS_FORM.pack(*self[:2]) + self.why.encode()
