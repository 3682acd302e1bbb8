"""Rows on standard output, printed as they arrive: aligned columns at a terminal, tab-separated in a pipe, JSON with `--json`.

Cells are never truncated. Characters that would control the terminal, or begin a new line, are escaped.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar

Side = Literal["left", "right"]
LEFT: Final = "left"
RIGHT: Final = "right"

PAGE = 500  # rows that determine the column widths at a terminal; a wider cell in a later row shifts that row
GAP = "  "
_RAW_BYTES = range(0xDC80, 0xDD00)  # bytes that are not UTF-8, as errors="surrogateescape" decodes them
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Rows(Protocol[R_contra]):
    """A printer of rows. The output is complete when its context is left."""

    count: int

    def __enter__(self) -> Self: ...  # noqa: D105
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...  # noqa: D105
    def add(self, row: R_contra, /) -> None:
        """Print a row."""


class Table(Generic[R]):
    """Prints rows as a table; `cells` turns a row into its cells.

    At a terminal the first PAGE rows are buffered to determine the widths, and an empty table prints nothing. Otherwise it prints
    a line with the column names, then one line for each row, with tabs between cells.
    """

    def __init__(self, columns: Mapping[str, Side], cells: Callable[[R], Sequence[str]]) -> None:
        self.count = 0
        self._columns = columns
        self._cells = cells
        self._page: list[list[str]] = []
        self._widths: list[int] | None = None
        self._terminal = sys.stdout.isatty()

    def __enter__(self) -> Self:
        """Return the printer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Print the buffered rows, also after an error: the rows that arrived are valid."""
        if kind is None and not self.count and not self._terminal:
            self._tabbed([*self._columns])
        self._print_page()

    def end_part(self) -> None:
        """End a part of the table: at a terminal, the next row starts with a new header and new widths."""
        self._print_page()
        self._widths = None

    def add(self, row: R, /) -> None:
        """Print a row."""
        cells = [visible(cell) for cell in self._cells(row)]
        if self._terminal:
            self._aligned(cells)
        else:
            if not self.count:
                self._tabbed([*self._columns])
            self._tabbed(cells)
        self.count += 1

    @staticmethod
    def _tabbed(cells: list[str]) -> None:
        sys.stdout.write("\t".join(cells) + "\n")

    def _aligned(self, cells: list[str]) -> None:
        if self._widths is None:
            self._page.append(cells)
            if len(self._page) == PAGE:
                self._print_page()
        else:
            placed = zip(cells, self._widths, self._columns.values(), strict=True)
            sys.stdout.write(GAP.join(_padded(*cell) for cell in placed).rstrip() + "\n")

    def _print_page(self) -> None:
        if self._page:
            page, self._page = [[*self._columns], *self._page], []
            self._widths = [max(map(_width, column)) for column in zip(*page, strict=True)]
            for cells in page:
                self._aligned(cells)


class JsonRows(Generic[R]):
    """Prints a JSON array, one row on each line; `values` turns a row into an object. After an error the JSON is cut off."""

    def __init__(self, values: Callable[[R], Mapping[str, Any]]) -> None:
        self.count = 0
        self._values = values

    def __enter__(self) -> Self:
        """Return the printer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the array, unless an error ended the context."""
        if kind is None:
            sys.stdout.write("\n]\n" if self.count else "[]\n")

    def add(self, row: R, /) -> None:
        """Print a row."""
        sys.stdout.write((",\n" if self.count else "[\n") + json_text(self._values(row)))
        self.count += 1


def print_table(columns: Mapping[str, Side], rows: Iterable[Sequence[str]]) -> None:
    """Print a table at once."""
    table: Table[Sequence[str]] = Table(columns, lambda row: row)
    with table:
        for row in rows:
            table.add(row)


def print_json(value: Any) -> None:  # noqa: ANN401 - anything json takes
    """Print a value as indented JSON."""
    print(_printable_json(json.dumps(value, indent=2, ensure_ascii=False)))  # noqa: T201 - what the command is for


def json_text(value: Any) -> str:  # noqa: ANN401 - anything json takes
    """A value as JSON on one line."""
    return _printable_json(json.dumps(value, ensure_ascii=False))


def visible(text: str) -> str:
    """A text from outside as one printable line: unprintable characters are escaped as in a Python string."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    code = ord(letter)
    if code in _RAW_BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(letter) or (
        f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004
    )


def _printable_json(text: str) -> str:
    """Escape unprintable characters in JSON text, except the line ends between values (those in strings are escaped already)."""
    if text.isprintable() or text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)


def _padded(cell: str, width: int, side: Side) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if side == RIGHT else cell + blanks


def _width(cell: str) -> int:
    """The number of terminal columns that a cell takes."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len  # noqa: PLC0415 - 10 ms, for names that are not ASCII

    return cell_len(cell)
