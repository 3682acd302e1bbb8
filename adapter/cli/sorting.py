"""Offsets on their way between a file and the adapter: any order in, the order of their names out, each key once.

SQLite sorts them: in memory while they are few, then in a temporary file that nobody else sees, so that memory is bounded.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from operator import itemgetter
from types import TracebackType
from typing import Any, Self

from adapter.errors import AdapterError
from adapter.formats.rows import OffsetRow

CACHE_KIB = 32 * 1_024
BATCH = 10_000  # rows of one insert
_DIGITS_MAX = 10  # of Java's int
_SIGN = 2**63  # SQLite's numbers have a sign, ours are up to 2^64 - 1: shifted, they keep their order

# A shard is sorted by what stands before its number, then by the number: queue 10 behind queue 9.
_TABLE = "CREATE TABLE offsets (namespace, grp, stem, number, offset, committed_at_ms, metadata, topic, partition, epoch)"
_INSERT = "INSERT INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SORTED = "SELECT * FROM offsets ORDER BY namespace, grp, stem, number, offset, committed_at_ms"
_KEY = itemgetter(0, 1, 2, 3)


class SortingError(AdapterError):
    """The temporary file could not be written."""


class OffsetSorter:
    """A table of offsets. Of a key that comes more than once the largest offset stays. Raises SortingError."""

    def __init__(self) -> None:
        self.added = 0  # offsets that came
        self.repeated = 0  # of those that were read so far: how many had a key that was there already
        with _translated():
            self._database = sqlite3.connect("")  # SQLite's name for a temporary file of its own
            for setting in (f"store_size = -{CACHE_KIB}", "journal_mode = OFF", "synchronous = OFF"):
                self._database.execute(f"PRAGMA {setting}")
            self._database.execute(_TABLE)

    def __enter__(self) -> Self:
        """The table, gone at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Forget everything."""
        self._database.close()

    def add(self, rows: Iterable[OffsetRow]) -> None:
        """Take some offsets in."""
        cells = map(_cells, rows)
        while batch := list(islice(cells, BATCH)):
            with _translated():
                self._database.executemany(_INSERT, batch)
            self.added += len(batch)

    def groups(self) -> int:
        """Of how many groups they are."""
        with _translated():
            (count,) = self._database.execute("SELECT count(*) FROM (SELECT DISTINCT namespace, grp FROM offsets)").fetchone()
            return int(count)

    def __iter__(self) -> Iterator[OffsetRow]:
        """All of them, sorted."""
        self.repeated = 0
        with _translated():
            for _, same in groupby(self._database.execute(_SORTED), _KEY):
                values = list(same)
                self.repeated += len(values) - 1
                yield _row(values[-1])


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise SortingError(f"the temporary table of offsets (in $SQLITE_TMPDIR, else /var/tmp or /tmp): {error}") from error


def _cells(row: OffsetRow) -> tuple[Any, ...]:
    stem, number = row.shard, -1
    before, slash, digits = row.shard.rpartition("/")
    if slash and digits.isdecimal() and digits.isascii() and len(digits) <= _DIGITS_MAX and (digits[0] != "0" or digits == "0"):
        stem, number = before, int(digits)
    return (
        row.namespace,
        row.group,
        stem,
        number,
        row.offset - _SIGN,
        row.committed_at_ms - _SIGN,
        row.metadata,
        row.topic,
        row.partition,
        row.epoch - _SIGN,
    )


def _row(cells: tuple[Any, ...]) -> OffsetRow:
    namespace, group, stem, number, offset, committed_at_ms, metadata, topic, partition, epoch = cells
    shard = stem if number < 0 else f"{stem}/{number}"
    return OffsetRow(namespace, group, shard, offset + _SIGN, metadata, committed_at_ms + _SIGN, topic, partition, epoch + _SIGN)
