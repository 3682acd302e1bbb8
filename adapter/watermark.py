"""The newest acknowledged write, kept outside RocksDB's WAL.

A file of its own, overwritten in place after each WriteBatch and before its acknowledgement. If RocksDB opens with less
than this says, acknowledged writes are missing. It survives a killed process as it is, a power cut as of the last `sync`.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Self

_MAGIC = b"OFFSETWM"
_BODY = struct.Struct(">8sQ")
_CRC = struct.Struct(">I")
_SLOT = 32  # two slots, written in turn: a torn write leaves the other one


class Watermark:
    """An ever-growing number in a file. Not thread-safe, except `sync`."""

    def __init__(self, fd: int, slots: tuple[int, int]) -> None:
        self._fd = fd
        self._slot = slots.index(min(slots))
        self.value = max(slots)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create. A file that was never written whole reads as 0. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = os.pread(fd, 2 * _SLOT, 0)
        mark = cls(fd, (_parse(data[:_SLOT]), _parse(data[_SLOT:])))
        if len(data) < 2 * _SLOT:
            # All blocks are taken now, so that a full disk cannot stop the overwrites later.
            os.pwrite(fd, data.ljust(2 * _SLOT, b"\0"), 0)
            os.fsync(fd)
        return mark

    def advance(self, value: int) -> None:
        """Overwrite the older slot. Raises OSError."""
        body = _BODY.pack(_MAGIC, value)
        os.pwrite(self._fd, body + _CRC.pack(zlib.crc32(body)), self._slot * _SLOT)
        self._slot ^= 1
        self.value = value

    def sync(self) -> None:
        """Make it survive a power cut. Blocks; releases the GIL. Raises OSError."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file without a sync."""
        os.close(self._fd)


def _parse(slot: bytes) -> int:
    if len(slot) < _BODY.size + _CRC.size:
        return 0
    magic, value = _BODY.unpack_from(slot)
    intact = magic == _MAGIC and _CRC.unpack_from(slot, _BODY.size)[0] == zlib.crc32(slot[: _BODY.size])
    return int(value) if intact else 0
