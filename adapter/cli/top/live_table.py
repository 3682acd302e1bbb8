"""The table of a live screen: a Textual widget that makes the cells of the rows that are seen, and of no others.

Texts are put into segments as they are, never through markup. Callers pass printable texts (`adapter.cli.terminal.visible`).
"""

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from adapter.cli.table import LEFT, RIGHT, Side

R = TypeVar("R")
Cell = tuple[str, Style]

PLAIN: Final = Style.null()
DIM: Final = Style(dim=True)
HEAD: Final = Style(bold=True, underline=True)
_CURSOR: Final = Style(reverse=True)
_GAP: Final = 1  # columns between two cells
_CUT: Final = "…"
_LEAST: Final = 4  # columns of a column that gives way


class Column(NamedTuple):
    """A column. It takes `width` columns of the terminal; with a `share` it also takes this part of what is left.

    Where the terminal is too narrow, columns of the largest `rank` are left out first; those of rank 0 never.
    """

    title: str
    width: int
    side: Side = LEFT
    rank: int = 0
    share: int = 0


class LiveTable(ScrollView, Generic[R], can_focus=True):
    """Rows below a line with titles, and a cursor that stays on its row wherever that row is moved to.

    `cells` makes the cells of a row, one for each column; `key` says which row it is.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f", "page(1)", show=False),
        Binding("home,g", "to(0)", show=False),
        Binding("end,G", "to(-1)", show=False),
        Binding("enter", "choose", "Shards", show=False),
    ]

    class Chosen(Message):
        """Enter, or a click on the row with the cursor."""

        def __init__(self, key: Hashable) -> None:
            self.key = key
            super().__init__()

    def __init__(
        self,
        columns: Sequence[Column],
        cells: Callable[[R], Sequence[Cell]],
        key: Callable[[R], Hashable],
        *,
        id: str | None = None,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(id=id)
        self._columns = columns
        self._cells = cells
        self._key = key
        self._rows: Sequence[R] = ()
        self._at = 0  # the row of the cursor
        self._held: Hashable | None = None  # the key of that row, once somebody has moved the cursor
        self._layout: list[tuple[int, int]] = []  # columns that are seen, with their widths
        self.made = 0  # rows of which cells were made, for tests

    @property
    def rows(self) -> Sequence[R]:
        """The rows, as they are shown."""
        return self._rows

    @property
    def current(self) -> R | None:
        """The row of the cursor; None if there is no row."""
        return self._rows[self._at] if self._rows else None

    def show(self, rows: Sequence[R]) -> None:
        """Show these rows. The cursor follows the row that somebody put it on; else it stays at its place."""
        in_view = 0 <= self._at - self._top < max(self._room, 1)
        self._rows = rows
        last = max(len(rows) - 1, 0)
        if self._held is not None:
            self._at = next((at for at, row in enumerate(rows) if self._key(row) == self._held), min(self._at, last))
        self._at = min(self._at, last)
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        if in_view:
            self._scroll_to_cursor()
        self.refresh()

    def hold(self, key: Hashable | None) -> None:
        """Put the cursor on a row; None lets it stay at the top."""
        self._held = key
        if key is None:
            self._at = 0

    def render_line(self, y: int) -> Strip:
        """A line of the screen: the titles, or a row."""
        width = self.size.width
        if y == 0:
            cells: Sequence[Cell] = [(column.title, HEAD) for column in self._columns]
            return self._strip(cells, width, HEAD)
        at = self._top + y - 1
        if at >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        self.made += 1
        return self._strip(self._cells(self._rows[at]), width, _CURSOR if at == self._at and self.has_focus else PLAIN)

    def on_resize(self, event: Resize) -> None:
        """Lay the columns out anew."""
        self._layout = layout(self._columns, event.size.width)
        self.virtual_size = Size(event.size.width, len(self._rows) + 1)
        self._scroll_to_cursor()
        self.refresh()

    def on_click(self, event: Click) -> None:
        """Put the cursor on a row; on the row that has it, choose it."""
        at = self._top + event.y - 1
        if event.y == 0 or at >= len(self._rows):
            return
        if at == self._at:
            self.action_choose()
        self._to(at)

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._to(self._at + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by what is seen at once."""
        self._to(self._at + by * max(self._room - 1, 1))

    def action_to(self, at: int) -> None:
        """Move the cursor to a row; -1 is the last one."""
        self._to(at if at >= 0 else len(self._rows) - 1)

    def action_choose(self) -> None:
        """Tell that the row of the cursor was chosen."""
        if self._rows:
            self.post_message(self.Chosen(self._key(self._rows[self._at])))

    @property
    def _top(self) -> int:
        return round(self.scroll_offset.y)

    @property
    def _room(self) -> int:
        return self.scrollable_content_region.height - 1

    def _to(self, at: int) -> None:
        self._at = max(min(at, len(self._rows) - 1), 0)
        # At the top the cursor holds no row: who looks at the worst group sees the next one that is the worst.
        self._held = self._key(self._rows[self._at]) if self._rows and self._at else None
        self._scroll_to_cursor()
        self.refresh()

    def _scroll_to_cursor(self) -> None:
        top, room = self._top, max(self._room, 1)
        if self._at < top:
            self.scroll_to(y=self._at, animate=False, force=True)
        elif self._at >= top + room:
            self.scroll_to(y=self._at - room + 1, animate=False, force=True)

    def _strip(self, cells: Sequence[Cell], width: int, over: Style) -> Strip:
        base = self.rich_style
        segments = []
        for place, (at, room) in enumerate(self._layout):
            text, style = cells[at]
            fitted = fit(text, room, self._columns[at].side)
            segments.append(Segment((" " * _GAP if place else "") + fitted, base + style + over))
        return Strip(segments).adjust_cell_length(width, base + over)


def layout(columns: Sequence[Column], room: int) -> list[tuple[int, int]]:
    """Which columns fit into so many columns of a terminal, each with its width.

    What is left goes to those with a share; what is missing still when every column with a rank is left out, is taken from them.
    """
    shown = [*range(len(columns))]
    for rank in sorted({column.rank for column in columns} - {0}, reverse=True):
        if _total(columns, shown) <= room:
            break
        shown = [at for at in shown if columns[at].rank != rank]
    left = room - _total(columns, shown)
    shares = sum(columns[at].share for at in shown)
    given = {at: left * columns[at].share // shares if shares else 0 for at in shown}
    return [(at, max(columns[at].width + given[at], min(columns[at].width, _LEAST))) for at in shown]


def fit(text: str, room: int, side: Side) -> str:
    """A text in exactly `room` columns. One that is too long loses its middle: names differ at their ends."""
    width = cell_len(text)
    if width > room:
        if room <= 1:
            return _CUT * room
        head = (room - 1) // 2
        first = chop_cells(text, head)[0] if head else ""
        last = chop_cells(text[::-1], room - 1 - cell_len(first))[0][::-1]
        text = first + _CUT + last
        width = cell_len(text)
    if side == RIGHT and width < room:
        return " " * (room - width) + text
    return set_cell_size(text, room)


def _total(columns: Sequence[Column], shown: Sequence[int]) -> int:
    return sum(columns[at].width for at in shown) + _GAP * max(len(shown) - 1, 0)
