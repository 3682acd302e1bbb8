"""Rows on standard output, printed as they arrive: as a table (columns at a terminal, tabs in a pipe), as JSON, or as CSV.

Cells are never truncated. At a terminal that is too narrow for a table, columns without a value are left out, then those that a
table can spare, which is told; if that is not enough, each row is printed as a record of `name  value` lines. Characters that
would control the terminal, or begin a new line, are escaped.
"""

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar

from adapter.cli import terminal
from adapter.cli.terminal import visible

Side = Literal["left", "right"]
LEFT: Final = "left"
RIGHT: Final = "right"

PAGE = 500  # rows that determine the column widths at a terminal; a wider cell in a later row shifts that row
GAP = "  "
PROSE_MIN = 20  # columns that a folded last cell needs at least


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
    """Prints rows as a table; `cells` turns a row into its cells. With `prose` the last cell is text that may be folded.

    `spare`: columns that are left out, in this order, where there is not enough room.

    At a terminal the first PAGE rows are buffered to determine the widths, and an empty table prints nothing. Otherwise it prints
    a line with the column names, then one line for each row, with tabs between cells, whatever COLUMNS says.
    """

    def __init__(
        self,
        columns: Mapping[str, Side],
        cells: Callable[[R], Sequence[str]],
        *,
        prose: bool = False,
        spare: Sequence[str] = (),
    ) -> None:
        self.count = 0
        self._columns = columns
        self._cells = cells
        self._prose = prose
        self._spare = spare
        self._left_out: dict[str, None] = {}
        self._page: list[list[str]] = []
        self._layout: _Layout | None = None
        self._terminal = sys.stdout.isatty()

    def __enter__(self) -> Self:
        """Return the printer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Print the buffered rows, also after an error: the rows that arrived are valid."""
        if kind is None and not self.count and not self._terminal:
            self._tabbed([*self._columns])
        self._print_page()
        if self._left_out:
            sys.stdout.flush()  # keeps the order of lines at a terminal
            sys.stderr.write(f"left out for lack of room: {', '.join(self._left_out)}; --wide shows all\n")

    def end_part(self) -> None:
        """End a part of the table: at a terminal, the next row starts with a new header and new widths."""
        self._print_page()
        self._layout = None

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
        if self._layout and not self._layout.shows(cells):
            self.end_part()
        if self._layout is None:
            self._page.append(cells)
            if len(self._page) == PAGE:
                self._print_page()
        else:
            self._layout.print(cells)

    def _print_page(self) -> None:
        if self._page:
            page, self._page = self._page, []
            self._layout, spared = _layout_of(self._columns, page, self._spare, prose=self._prose)
            self._left_out.update(dict.fromkeys(spared))
            for cells in page:
                self._layout.print(cells)


class _Layout(Protocol):
    """How rows look at a terminal."""

    def shows(self, cells: list[str]) -> bool:
        """False if a cell with a value is in a column that is left out."""

    def print(self, cells: list[str]) -> None:
        """Print a row."""


class _Columns:
    """Aligned columns below a line with their names. `folded`: the columns of the terminal to which the last cell is folded.

    `spared`: columns that are left out whatever is in them.
    """

    def __init__(
        self,
        names: Mapping[str, Side],
        shown: Sequence[int],
        widths: Sequence[int],
        *,
        folded: int | None = None,
        spared: Sequence[str] = (),
    ) -> None:
        self._sides = [*names.values()]
        self._shown = shown
        self._needed = {*shown, *(at for at, name in enumerate(names) if name in spared)}
        self._widths = widths
        self._folded = folded
        self.print([*names])

    def shows(self, cells: list[str]) -> bool:
        return len(self._shown) == len(cells) or all(not cell or at in self._needed for at, cell in enumerate(cells))

    def print(self, cells: list[str]) -> None:
        *first, last = [cells[at] for at in self._shown]
        sides = [self._sides[at] for at in self._shown]
        start = "".join(_padded(*cell) + GAP for cell in zip(first, self._widths, sides, strict=False))
        if self._folded is None:
            lines = [_padded(last, self._widths[-1], sides[-1])]
        else:
            room = self._folded - _width(start)
            lines = textwrap.wrap(last, room, break_long_words=False, break_on_hyphens=False) or [""]
        for at, line in enumerate(lines):
            sys.stdout.write(((" " * _width(start) if at else start) + line).rstrip() + "\n")


class _Records:
    """One line for each cell that is not empty, with the column's name, and an empty line behind each row."""

    def __init__(self, names: Mapping[str, Side]) -> None:
        self._names = [*names]
        self._width = max(map(len, self._names))

    def shows(self, cells: list[str]) -> bool:  # noqa: ARG002 - as of _Layout
        return True

    def print(self, cells: list[str]) -> None:
        lines = [f"{name:{self._width}}{GAP}{cell}\n" for name, cell in zip(self._names, cells, strict=True) if cell]
        sys.stdout.write("".join([*lines, "\n"]))


def _layout_of(
    names: Mapping[str, Side], page: Sequence[list[str]], spare: Sequence[str], *, prose: bool
) -> tuple[_Layout, Sequence[str]]:
    """The layout that fits rows to the terminal without cutting a cell, and the columns that it left out in spite of values."""
    room = terminal.width()
    widths = [max(map(_width, column)) for column in zip([*names], *page, strict=True)]
    every = [*range(len(widths))]
    if _total(widths) <= room:
        return _Columns(names, every, widths), ()
    if prose and room - _total(widths[:-1]) - len(GAP) >= PROSE_MIN:
        return _Columns(names, every, widths, folded=room), ()
    filled = [at for at in every if any(cells[at] for cells in page)]
    titles = [*names]
    for count in range(len(spare) + 1):
        spared = [name for name in spare[:count] if titles.index(name) in filled]
        shown = [at for at in filled if titles[at] not in spared]
        some = [widths[at] for at in shown]
        if shown and _total(some) <= room:
            return _Columns(names, shown, some, spared=spared), spared
    return _Records(names), ()


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


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


class CsvRows(Generic[R]):
    """Prints CSV as RFC 4180 quotes it, with line ends of Unix, below a line with the names of the fields.

    `values` turns a row into an object, as for JSON. A value that is absent is an empty cell, an array or object is JSON.
    """

    def __init__(self, fields: Sequence[str], values: Callable[[R], Mapping[str, Any]]) -> None:
        import csv  # noqa: PLC0415 - tables do not need it

        self.count = 0
        self._fields = fields
        self._values = values
        self._writer = csv.writer(sys.stdout, lineterminator="\n")

    def __enter__(self) -> Self:
        """Return the printer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Print the names of the fields if there was no row, unless an error ended the context."""
        if kind is None and not self.count:
            self._writer.writerow(self._fields)

    def add(self, row: R, /) -> None:
        """Print a row."""
        if not self.count:
            self._writer.writerow(self._fields)
        values = self._values(row)
        self._writer.writerow([_csv_cell(values.get(name)) for name in self._fields])
        self.count += 1


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) else json_text(value)


def print_table(columns: Mapping[str, Side], rows: Iterable[Sequence[str]], *, prose: bool = False) -> None:
    """Print a table at once."""
    table: Table[Sequence[str]] = Table(columns, lambda row: row, prose=prose)
    with table:
        for row in rows:
            table.add(row)


def print_json(value: Any) -> None:  # noqa: ANN401 - anything json takes
    """Print a value as indented JSON."""
    import json  # noqa: PLC0415 - tables do not need it

    print(_printable_json(json.dumps(value, indent=2, ensure_ascii=False)))  # noqa: T201 - what the command is for


def json_text(value: Any) -> str:  # noqa: ANN401 - anything json takes
    """A value as JSON on one line."""
    import json  # noqa: PLC0415 - as above; found in sys.modules for each further row

    return _printable_json(json.dumps(value, ensure_ascii=False))


def _printable_json(text: str) -> str:
    """Escape unprintable characters in JSON text, except the line ends between values (those in strings are escaped already)."""
    if text.isprintable() or text.replace("\n", "").isprintable():
        return text
    import json  # noqa: PLC0415 - as above

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
