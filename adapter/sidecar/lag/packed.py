"""Tables of rows in blocks, which become as narrow as their values when nothing is put into them any more.

A block in use is a table of 64-bit columns, as the rules of lag read them; integers are -1, unknown, or above. One that rests
has each column in the fewest bytes: the distance of each value from the smallest one, matrices as wide as the longest row, and a
column of equal values once. All of them are in one piece of memory: an array for each would be a small object, and a thousand of
these, made in a burst of commits, keep the memory around them after the burst. What is taken is what was put, to the last bit;
beyond a row's `counts` a matrix has no meaning before and after it.
"""

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from adapter.model.lag_rows import UNKNOWN, US_OF_MS, Commits, Heads, Ints
from adapter.sidecar.lag.view import Numbers, Rows

BLOCK_ROWS = 1_024
RESTING = 3  # calls of `rest` until a block becomes narrow into which nothing was put
REST_S = 0.0002
LEAST_BYTES = 513  # of a block: what is shorter, Python puts among its small objects

_HEAD = struct.Struct("<c?iHIQ")  # of a column: kind, once for all, width (-1: no matrix), step, where it begins, base

Array = npt.NDArray[Any]
T = TypeVar("T", bound=Commits | Heads | Rows)


def let_others() -> None:
    """Let the event loop have the interpreter's lock."""
    time.sleep(REST_S)


class _Column(NamedTuple):
    """Values in few bytes: base + step * (code - 1), and -1 for the code 0; or with step 0 the codes themselves."""

    codes: Array
    base: int = 0
    step: int = 0

    def take(self, rows: Array) -> Array:
        """The values of some rows."""
        codes = self.codes[rows]
        if not self.step:
            return codes
        # In 64 bits without a sign: the last offset of all is 2**63 - 1.
        values = (codes.astype(np.uint64) - np.uint64(1)) * np.uint64(self.step) + np.uint64(self.base)
        return np.where(codes == 0, UNKNOWN, values.view(np.int64))


class Packed(Generic[T]):
    """A table without an end. A row is `empty` until something is put there."""

    def __init__(self, empty: Callable[[int], T]) -> None:
        self._empty = empty
        self._blank = _narrow(empty(BLOCK_ROWS))
        self._blocks: list[T | bytes] = []  # as they are read, or narrow
        self._untouched: list[int] = []  # of each block the calls of `rest` since something was put there
        self._shared: set[int] = set()  # blocks that a copy has as well

    def copy(self) -> "Packed[T]":
        """The same rows, which do not change with these. Nothing is copied before something is put there."""
        other: Packed[T] = Packed(self._empty)
        other._blocks, other._untouched = list(self._blocks), list(self._untouched)
        self._shared = set(range(len(self._blocks)))
        other._shared = set(self._shared)
        return other

    def take(self, rows: Ints | Numbers) -> T:
        """A copy of some rows, in the given order; a row may occur more than once."""
        table = self._empty(len(rows))
        columns = _columns(table)
        for number, places, within in _by_block(rows):
            block = self._blocks[number] if number < len(self._blocks) else self._blank
            values = (
                (column.take(within) for column in _opened(block))
                if isinstance(block, bytes)
                else (one[within] for one in _columns(block))
            )
            for column, some in zip(columns, values, strict=True):
                if some.ndim == 1:
                    column[places] = some
                else:
                    column[places, : some.shape[1]] = some
        return table

    def put(self, rows: Ints, table: T) -> None:
        """Replace some rows, each of which occurs once. A block that rests goes on resting if that changes nothing."""
        columns = _columns(table)
        for number, places, within in _by_block(rows):
            values = [column[places] for column in columns]
            if number < len(self._blocks) and _holds(self._blocks[number], within, values):
                continue
            for column, some in zip(_columns(self._wide(number)), values, strict=True):
                column[within] = some
            self._untouched[number] = 0

    def clear(self, rows: Ints) -> None:
        """Forget some rows."""
        self.put(rows, self._empty(len(rows)))

    def rest(self) -> None:
        """Make narrow what nothing was put into for a while. With a rest behind each block."""
        for number, block in enumerate(self._blocks):
            if not isinstance(block, bytes):
                self._untouched[number] += 1
                if self._untouched[number] > RESTING:
                    self._blocks[number] = _narrow(block)
                    let_others()

    def _wide(self, number: int) -> T:
        """A block that may be changed."""
        while len(self._blocks) <= number:
            self._blocks.append(self._blank)
            self._untouched.append(0)
        block = self._blocks[number]
        if isinstance(block, bytes) or number in self._shared:
            self._shared.discard(number)
            block = self._blocks[number] = self.take(np.arange(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS))
        return block


def _holds(block: Commits | Heads | Rows | bytes, rows: Array, values: Sequence[Array]) -> bool:
    """Whether a narrow block has these values in these rows."""
    if not isinstance(block, bytes) or any(some.ndim > 1 for some in values):
        return False
    return all(
        np.array_equal(column.take(rows), some, equal_nan=True) for column, some in zip(_opened(block), values, strict=True)
    )


def _columns(table: Commits | Heads | Rows) -> list[Array]:
    return [getattr(table, field.name) for field in fields(table)]


def _by_block(rows: Ints | Numbers) -> Iterator[tuple[int, Array | slice, Array]]:
    """Each block that has some of these rows, their places in `rows`, and in the block."""
    if not len(rows):
        return
    numbers = rows // BLOCK_ROWS
    if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        yield int(numbers[0]), slice(None), rows - numbers[0] * BLOCK_ROWS
        return
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.diff(numbers[order])) + 1
    for places in np.split(order, ends):
        number = int(numbers[places[0]])
        yield number, places, rows[places] - number * BLOCK_ROWS


def _narrow(table: Commits | Heads | Rows) -> bytes:
    counts = None if isinstance(table, Rows) else table.counts
    found = []
    for column in _columns(table):
        if column.dtype != np.int64:
            found.append(_Column(_once(column)))
        elif column.ndim == 1 or counts is None:
            found.append(_narrowed(column))
        else:
            there = np.arange(int(counts.max(initial=0))) < counts[:, None]
            found.append(_narrowed(np.where(there, column[:, : there.shape[1]], UNKNOWN)))
    return _closed(found)


def _closed(columns: Sequence[_Column]) -> bytes:
    """Columns in one piece: how many, the head of each, and their codes."""
    heads, data = [bytes((len(columns),))], bytearray(1 + len(columns) * _HEAD.size)
    for codes, base, step in columns:
        once = codes.size > 0 and not any(codes.strides)
        heads.append(_HEAD.pack(codes.dtype.char.encode(), once, codes.shape[1] if codes.ndim > 1 else -1, step, len(data), base))
        data += (codes.flat[0] if once else codes).tobytes()
    head = b"".join(heads)
    data[: len(head)] = head
    return bytes(data.ljust(LEAST_BYTES))


def _opened(block: bytes) -> Iterator[_Column]:
    """The columns of a block, whose codes are read where they are."""
    for at in range(1, 1 + block[0] * _HEAD.size, _HEAD.size):
        kind, once, width, step, begin, base = _HEAD.unpack_from(block, at)
        shape = (BLOCK_ROWS,) if width < 0 else (BLOCK_ROWS, width)
        codes: Array = np.ndarray(shape, kind.decode(), block, begin, (0,) * len(shape) if once else None)
        yield _Column(codes, base, step)


def _narrowed(values: Ints) -> _Column:
    known = values >= 0
    base = int(values.min(initial=np.iinfo(np.int64).max, where=known))
    # In 64 bits without a sign, as above.
    codes = np.where(known, (values - base).view(np.uint64) + np.uint64(1), np.uint64(0))
    step, most = 1, int(codes.max(initial=0))
    if most > np.iinfo(np.uint16).max and not ((values - base)[known] % US_OF_MS).any():  # times
        step, most = US_OF_MS, (most - 1) // US_OF_MS + 1
        codes = np.where(known, (codes - np.uint64(1)) // np.uint64(US_OF_MS) + np.uint64(1), codes)
    return _Column(_once(codes.astype(np.min_scalar_type(most))), base if known.any() else 0, step)


def _once(values: Array) -> Array:
    """The values, or one of them for all if they are equal."""
    if values.size and ((values == values.flat[0]).all() or (values.dtype.kind == "f" and np.isnan(values).all())):
        return np.broadcast_to(values.flat[0], values.shape)
    return values
