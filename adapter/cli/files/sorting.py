"""An external sort of offsets for import and export: rows go in in any order, and come out sorted by name, each key once.

SQLite sorts them, in memory or in an anonymous temporary file, so memory stays bounded by CACHE_KIB.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self

from adapter.errors import AdapterError
from adapter.formats.rows import OffsetRow

CACHE_KIB = 32 * 1_024
BATCH = 10_000  # rows of one insert
_DIGITS_MAX = 10  # digits of the largest int of Java, the type of a partition
_SIGN = 2**63  # SQLite's integers are signed, offsets are 0 to 2^64 - 1: subtracting 2^63 keeps their order

# A shard name is split into stem and number, so that queue 10 sorts after queue 9.
_TABLE = "CREATE TABLE offsets (namespace, grp, stem, number, offset, committed_at_ms, metadata, topic, partition, epoch)"
_INSERT = "INSERT INTO offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SORTED = "SELECT * FROM offsets ORDER BY namespace, grp, stem, number, offset, committed_at_ms"
_SAME = "b.namespace = o.namespace AND b.grp = o.grp AND b.stem = o.stem AND b.number = o.number"
_LARGER = f"SELECT b.*, o.offset FROM beside b JOIN offsets o ON {_SAME} WHERE b.offset > o.offset"  # noqa: S608 - constants
_ABSENT = f"SELECT b.* FROM beside b LEFT JOIN offsets o ON {_SAME} WHERE o.offset IS NULL"  # noqa: S608 - constants
_OF_OURS = " AND (b.namespace, b.grp, b.stem) IN (SELECT namespace, grp, stem FROM offsets)"
_KEY = 4  # columns
_BY_NAME = " ORDER BY b.namespace, b.grp, b.stem, b.number"


class SortingError(AdapterError):
    """The temporary file could not be written."""


class Beside(NamedTuple):
    """What another place has: how many rows, and the first of them by name. None for no row."""

    larger: tuple[int, OffsetRow, int] | None  # than the same key here; with the offset here
    absent: tuple[int, OffsetRow] | None  # here


class OffsetSorter:
    """Collects offsets and yields them sorted. Of a repeated key only the largest offset is kept. Raises SortingError."""

    def __init__(self) -> None:
        self.added = 0  # offsets, repeated ones included
        self.repeated = 0  # offsets that the last iteration has dropped so far because their key was repeated
        with _translated():
            self._database = sqlite3.connect("")  # SQLite's name for an anonymous temporary file
            for setting in (f"cache_size = -{CACHE_KIB}", "journal_mode = OFF", "synchronous = OFF"):
                self._database.execute(f"PRAGMA {setting}")
            self._database.execute(_TABLE)

    def __enter__(self) -> Self:
        """Return the sorter; leaving the context deletes its table."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Delete the table."""
        self._database.close()

    def add(self, rows: Iterable[OffsetRow]) -> None:
        """Add offsets."""
        cells = map(_cells, rows)
        while batch := list(islice(cells, BATCH)):
            with _translated():
                self._database.executemany(_INSERT, batch)
            self.added += len(batch)

    def groups(self) -> int:
        """How many different groups were added."""
        with _translated():
            (count,) = self._database.execute("SELECT count(*) FROM (SELECT DISTINCT namespace, grp FROM offsets)").fetchone()
            return int(count)

    def beside(self, rows: Iterable[OffsetRow], *, whole: bool = True) -> Beside:
        """What these rows have that is not here. Unless `whole`, only of those groups and topics of which something is here."""
        absent = _ABSENT if whole else _ABSENT + _OF_OURS
        with _translated():
            self._database.execute(_TABLE.replace("offsets", "beside"))
            try:
                self._database.executemany(_INSERT.replace("offsets", "beside"), map(_cells, rows))
                more, first = self._found(_LARGER)
                missing, first_missing = self._found(absent)
                return Beside(
                    (more, _row(first[:-1]), first[-1] + _SIGN) if more else None,
                    (missing, _row(first_missing)) if missing else None,
                )
            finally:
                self._database.execute("DROP TABLE beside")

    def _found(self, query: str) -> tuple[int, tuple[Any, ...]]:
        """How many rows a query has, and the first of them."""
        (count,) = self._database.execute(f"SELECT count(*) FROM ({query})").fetchone()  # noqa: S608 - constants
        return int(count), self._database.execute(query + _BY_NAME).fetchone() if count else ()

    def __iter__(self) -> Iterator[OffsetRow]:
        """Yield the offsets, sorted by namespace, group and shard."""
        self.repeated = 0
        with _translated():
            last: tuple[Any, ...] = ()
            for cells in self._database.execute(_SORTED):
                if cells[:_KEY] == last[:_KEY]:
                    self.repeated += 1
                elif last:
                    yield _row(last)
                last = cells
            if last:
                yield _row(last)


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
