"""The number of the newest acknowledged write, kept outside RocksDB's WAL.

Its file is overwritten in place after each WriteBatch and before its acknowledgement. If RocksDB opens with an older write,
acknowledged writes are missing. The file survives a killed process; after a power cut it is at least as new as the last `sync`.
A slot of it that is damaged, as no kill and no power cut leaves it, counts as one write more than the other one: what it said may
have been that, and a store that has the write lost nothing.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple, Self

from adapter.runtime.durable.files import sync_directory

_MAGIC = b"OFFSETWM"
_BODY = struct.Struct(">8sQ")
_CRC = struct.Struct(">I")
_SLOT = 32  # bytes; two slots are written alternately, each after the WriteBatch that follows that of the other one


class Watermark:
    """An ever-growing number in a file. Not thread-safe, except `sync`.

    `intact` is False if the file was missing, or neither slot was intact: then a new file is kept beside its path until
    `establish`. With a store that is not empty this means that the newest acknowledged write is unknown.
    """

    def __init__(self, fd: int, slots: tuple[int, int], path: Path, *, intact: bool = True) -> None:
        self._fd = fd
        self._slot = slots.index(min(slots))
        self._path = path
        self._established = self.intact = intact
        self.value = max(slots) + (min(slots) < 0)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or create one with the value 0. Raises OSError."""
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
        # All blocks are allocated now, so that a full disk cannot stop the overwrites later.
        os.pwrite(fd, _pack(0).ljust(_SLOT, b"\0") * 2, 0)
        os.fsync(fd)
        return cls(fd, (0, 0), path, intact=False)

    def establish(self) -> None:
        """Move a new file to its path, durably, with its current value. Raises OSError."""
        if not self._established:
            self._established = True
            _beside(self._path).rename(self._path)
            sync_directory(self._path.parent)

    def advance(self, value: int) -> None:
        """Write `value` over the older slot. Raises OSError."""
        if not self._established:
            self.establish()
        os.pwrite(self._fd, _pack(value), self._slot * _SLOT)
        self._slot ^= 1
        self.value = value

    def is_in_place(self) -> bool:
        """True if the open file is still the one at its path. Thread-safe. Raises OSError."""
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
    """Return the number in a slot; -1 if it is damaged."""
    if len(slot) < _BODY.size + _CRC.size:
        return -1
    magic, value = _BODY.unpack_from(slot)
    intact = magic == _MAGIC and _CRC.unpack_from(slot, _BODY.size)[0] == zlib.crc32(slot[: _BODY.size])
    return int(value) if intact else -1


_LOSS_FORM = struct.Struct(">QQ")


class Loss(NamedTuple):
    """Acknowledged writes that were missing: about how many, at least 1; when that was found (Unix ms); how it was found."""

    writes: int
    found_at_ms: int
    why: str = ""

    @classmethod
    def decode(cls, value: bytes) -> "Loss":
        """Parse the stored form."""
        writes, found_at_ms = _LOSS_FORM.unpack_from(value)
        return cls(writes, found_at_ms, value[_LOSS_FORM.size :].decode())

    def encode(self) -> bytes:
        """Return the stored form."""
        return _LOSS_FORM.pack(*self[:2]) + self.why.encode()
