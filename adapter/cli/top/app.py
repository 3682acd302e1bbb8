"""`offset-adapter top` at a terminal: the application, and its screen with the groups.

What the adapter tells is taken as it arrives; the screen is drawn at most every DRAW_S, and less often if sorting takes long, so
that keys are answered at once whatever the number of groups. An adapter that does not answer is said, and waited for.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import islice
from typing import ClassVar, Final, NamedTuple

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, Static

from adapter.cli.lag_text import STATUSES, age_text, arrow, count_text, rate_text, shards_text, span_text, status_word, trend_text
from adapter.cli.table import RIGHT
from adapter.cli.terminal import visible
from adapter.cli.top.feed import Event, Feed, Lost, State
from adapter.cli.top.live_table import DIM, PLAIN, Cell, Column, LiveTable
from adapter.cli.top.rows import BETTER, CHANGED, ORDERS, SAME, WORSE, GroupRow, Order, Rows
from adapter.cli.top.shards import ShardsScreen
from adapter.errors import InvalidInputError
from adapter.model.lag_status import severity
from adapter.rpc import lag_pb

DRAW_S: Final = 0.5
_BUSY_SHARE: Final = 10  # of the time, drawing takes at most one part in so many
_SLICE: Final = 500  # groups that are taken before keys are looked after
_SETTLE_MS: Final = 3_000  # after a new beginning: what was not told again by then is gone

STYLES: Final[dict[int, Style]] = {
    lag_pb.LAG_STATUS_UNSPECIFIED: DIM,
    lag_pb.OK: Style(color="green"),
    lag_pb.WARN: Style(color="yellow"),
    lag_pb.REWIND: Style(color="magenta"),
    lag_pb.STALL: Style(color="red"),
    lag_pb.STOP: Style(color="red", bold=True),
    lag_pb.BEYOND: Style(color="red", bold=True, reverse=True),
}
_MARKS: Final = {
    WORSE: ("▲", Style(color="red", bold=True)),
    BETTER: ("▼", Style(color="green")),
    CHANGED: ("•", Style(color="yellow")),
    SAME: (" ", PLAIN),
}
_COLUMNS: Final = (
    Column("", 1),
    Column("status", 7),
    Column("group", 16, share=3),
    Column("lag", 9, RIGHT),
    Column("lag-time", 8, RIGHT, rank=1),
    Column("trend/s", 9, RIGHT, rank=2),
    Column("commits/s", 9, RIGHT, rank=5),
    Column("last-commit", 11, RIGHT, rank=4),
    Column("since", 8, RIGHT, rank=3),
    Column("shards", 18, rank=6),
    Column("worst-shard", 14, rank=7, share=2),
)
_HELP: Final = """\
up down j k  PgUp PgDn  Home End    move
Enter, or a click on the row        the group's shards
/                                   filter: words that are all in namespace/group; * ? [ make a pattern of the whole name
Esc                                 no filter; back
s                                   the next order
w l t d c o n                       by worst, lag, lag time, trend, commit rate, oldest commit, name
r                                   the other way round
a                                   only groups of at least: warn, rewind, stall, stop, beyond; again: all
p                                   pause: what is shown stays as it is
?                                   this help
q, Ctrl-C                           end

status   ok  warn: it commits, and falls behind  rewind: it went back  stall: it commits the same offset again and again
         stop: it commits no more, while there is something to read  beyond: its offset is beyond the end of the log
         unknown: nothing to judge by yet
▲ ▼ •    got worse, got better, changed before you looked: within two minutes. By worst, groups that got worse come first.
lag      messages that can still be read. lag time: how long ago the end of the log was at the offset.
trend/s  messages per second by which the lag grows (+) or shrinks (-)."""


def columns_at(names: Sequence[str]) -> Sequence[int]:
    """The places of the columns that are named, behind the mark; all without names. Raises InvalidInputError."""
    titles = [column.title for column in _COLUMNS[1:]]
    unknown = next((name for name in names if name not in titles), None)
    if unknown is not None:
        raise InvalidInputError(f"--columns: the live table has no {unknown!r}; it has {', '.join(titles)}; --once has more")
    return [0, *(titles.index(name) + 1 for name in names or titles)]


class View(NamedTuple):
    """What is shown at first."""

    order: Order = "worst"
    at_least: int = 0
    limit: int = 0  # rows; 0: all
    columns: Sequence[str] = ()  # empty: those that fit


class GroupsScreen(Screen[None]):
    """The groups."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority it is done before the next key is given to anybody: the words may be typed, or pasted, at once.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("s", "next_order", "Sort"),
        Binding("r", "backwards", "Reverse"),
        Binding("a", "at_least", "At least"),
        Binding("p", "pause", "Pause"),
        Binding("escape", "no_filter", "No filter", show=False),
        *(Binding(key, f"order('{order}')", show=False) for key, order in zip("wltdcon", ORDERS, strict=True)),
    ]

    def __init__(self, top: "TopApp", view: View) -> None:
        super().__init__()
        self._top = top
        self._limit = view.limit
        self.order: Order = view.order
        self.at_least = view.at_least
        self.backwards = False
        self.paused = False
        self.words = ""
        self.matching = 0
        self._drawn_at = 0.0
        self._cost_s = 0.0
        self._shown_now_ms = 0  # of the adapter's clock, when the rows were taken that are shown
        at = columns_at(view.columns)
        self.table: LiveTable[GroupRow] = LiveTable(
            [_COLUMNS[place] for place in at],
            lambda row: [self._cells(row)[place] for place in at],
            lambda row: row.key,
            id="groups",
        )

    def compose(self) -> ComposeResult:
        """The lines above, the table, the filter, the keys."""
        yield Static("", id="state", markup=False)
        yield Static("", id="counts", markup=False)
        yield Static("", id="notes", markup=False)
        yield self.table
        filter_line = Input(placeholder="words of namespace/group; Enter keeps the filter, Esc takes it away", id="filter")
        filter_line.display = False
        yield filter_line
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Draw, now and from time to time."""
        self.table.focus()
        self.set_interval(DRAW_S, self.draw)
        self.draw(now=True)

    def draw(self, *, now: bool = False) -> None:
        """Show what there is, unless it is paused. Not `now`: only if the last time was long enough ago for what it took."""
        began = time.monotonic()
        if not now and began - self._drawn_at < self._cost_s * _BUSY_SHARE:
            return
        if not self.paused:
            self._shown_now_ms = self._top.now_ms()
        if now or not self.paused:
            rows = self._top.groups.shown(
                self.order, self._shown_now_ms, self.words, backwards=self.backwards, at_least=self.at_least
            )
            self.matching = len(rows)
            self.table.show(rows[: self._limit] if self._limit else rows)
        self.query_one("#state", Static).update(self._top.state_text(paused=self.paused))
        self.query_one("#counts", Static).update(self._counts_text())
        notes = self.query_one("#notes", Static)
        told = self._top.notes()
        notes.display = bool(told)
        notes.update(Text("\n".join(told), style="yellow"))
        self._drawn_at = time.monotonic()
        self._cost_s = self._drawn_at - began

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """In the filter, `/` is a letter as any other."""
        return action != "filter" or not isinstance(self.focused, Input)

    def action_filter(self) -> None:
        """Let a filter be typed."""
        line = self.query_one("#filter", Input)
        line.display = True
        self.set_focus(line)  # at once: the next keys may be here already

    def action_no_filter(self) -> None:
        """Take the filter away."""
        self.query_one("#filter", Input).value = ""
        self._typed()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as it is typed."""
        self.words = event.value
        self.draw(now=True)

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self._typed()

    def action_next_order(self) -> None:
        """Sort by the next key."""
        orders = [*ORDERS]
        self.action_order(orders[(orders.index(self.order) + 1) % len(orders)])

    def action_order(self, order: Order) -> None:
        """Sort by this."""
        self.order, self.backwards = order, False
        self.table.hold(None)
        self.draw(now=True)

    def action_backwards(self) -> None:
        """Turn the order round."""
        self.backwards = not self.backwards
        self.draw(now=True)

    def action_at_least(self) -> None:
        """Show only groups that are worse than now; after the worst status, all."""
        levels = [0, *(status for word, status in STATUSES.items() if word != "ok")]
        worse = [level for level in levels if level > self.at_least]
        self.at_least = worse[0] if worse else 0
        self.draw(now=True)

    def action_pause(self) -> None:
        """Leave what is shown as it is, or go on."""
        self.paused = not self.paused
        self._top.hold(held=self.paused)
        self.draw(now=True)

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        """Show the shards of a group."""
        row = next((row for row in self.table.rows if row.key == event.key), None)
        if row is not None:
            self.app.push_screen(ShardsScreen(self._top.feed, row.key, STYLES))

    def _typed(self) -> None:
        self.query_one("#filter", Input).display = False
        self.set_focus(self.table)

    def _counts_text(self) -> Text:
        counts = self._top.groups.counts()
        text = Text(f"{len(self._top.groups):,} groups")
        for status in sorted(counts, key=severity, reverse=True):
            text.append("  ")
            text.append(f"{counts[status]:,} {status_word(status)}", style=STYLES.get(status, DIM))
        shown = f", {self.matching:,} shown" if self.words or self.at_least else ""
        text.append(f"{shown}, sorted by {self.order}{', backwards' if self.backwards else ''}")
        if self.at_least:
            text.append(f", at least {status_word(self.at_least)}")
        if self.words:
            text.append(f", filter: {visible(self.words)}", style="bold")
        return text

    def _cells(self, row: GroupRow) -> Sequence[Cell]:
        now_ms = self._shown_now_ms if self.paused else self._top.now_ms()
        style = STYLES.get(row.status, DIM)
        change = row.lately(now_ms)
        return (
            _MARKS[change],
            (status_word(row.status), style),
            (row.name, PLAIN),
            (count_text(row.lag), PLAIN),
            (span_text(row.lag_seconds), PLAIN),
            (f"{arrow(row.trend)} {trend_text(row.trend)}", PLAIN),
            (rate_text(row.commit_rate), PLAIN),
            (age_text(row.last_commit_at_ms, now_ms), PLAIN),
            (age_text(row.since_ms, now_ms), _MARKS[change][1]),
            (shards_text(row.told), PLAIN),
            (visible(row.told.worst_shard), PLAIN),
        )


class HelpScreen(ModalScreen[None]):
    """What the keys do, and what the columns mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "app.pop_screen", "Back")]

    def compose(self) -> ComposeResult:
        """The text."""
        with VerticalScroll(id="help"):
            yield Static(_HELP, markup=False)
        yield Footer(show_command_palette=False)


class TopApp(App[None]):
    """A live table of groups.

    `clock` tells milliseconds and only goes forward. Ages are told by the adapter's clock, which goes on from what it said last.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "offset-adapter top"
    CSS = """
    Screen { layout: vertical; }
    #state, #counts, #notes, #group, #sums { height: auto; }
    LiveTable { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }
    #filter { border: none; height: 1; padding: 0; }
    HelpScreen { align: center middle; }
    #help { width: 100%; max-width: 132; height: auto; max-height: 100%; padding: 0 2; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, feed: Feed, view: View, clock: Callable[[], int]) -> None:
        super().__init__()
        self.feed = feed
        self.groups = Rows()
        self._view = view
        self._clock = clock
        self._live = self.groups
        self._told_at_ms = 0  # by the adapter's clock
        self._heard_at_ms = 0  # by ours
        self._anew_at_ms: int | None = None  # when the stream began anew, until what it did not tell again is gone
        self._lost: Lost | None = None
        self._lost_at_ms = 0
        self._state = State()

    def get_default_screen(self) -> Screen[None]:
        """The groups."""
        return GroupsScreen(self, self._view)

    def on_mount(self) -> None:
        """Begin to follow the adapter."""
        self.run_worker(self._follow(), name="top.feed")

    def action_help(self) -> None:
        """Show the help."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def hold(self, *, held: bool) -> None:
        """Leave `groups` as they are, while what is told is taken elsewhere; or take both together again."""
        self.groups = self._live.copy() if held else self._live

    def now_ms(self) -> int:
        """Now, by the adapter's clock: Unix time in milliseconds."""
        return self._told_at_ms + (self._clock() - self._heard_at_ms if self._told_at_ms else 0)

    def state_text(self, *, paused: bool) -> Text:
        """The first line: which adapter, and whether it answers."""
        text = Text(f"{visible(self.feed.name)}  ")
        if self._lost is not None:
            since = span_text((self._clock() - self._lost_at_ms) // 1_000)
            text.append(f"NO ANSWER for {since}, trying again: {visible(self._lost.why)}", style="bold red")
        elif not self._told_at_ms:
            text.append("connecting", style="yellow")
        else:
            text.append("live", style="green")
        if paused:
            text.append("  PAUSED", style="bold yellow")
        if self._told_at_ms:
            text.append(f"  {time.strftime('%H:%M:%S', time.localtime(self._told_at_ms / 1000))}")
        return text

    def notes(self) -> list[str]:
        """What is to be known of all groups."""
        return [visible(text) for text in self._state.notes]

    async def _follow(self) -> None:
        async with aclosing(self.feed.events()) as events:
            async for event in events:
                await self._take(event)

    async def _take(self, event: Event) -> None:
        if isinstance(event, Lost):
            if self._lost is None:
                self._lost_at_ms = self._clock()
            self._lost = event
        elif isinstance(event, State):
            self._state, self._lost = event, None
            if self._anew_at_ms is not None and self._clock() - self._anew_at_ms > _SETTLE_MS:
                self._settled(self._told_at_ms + 1)
        else:
            await self._take_reply(event)

    async def _take_reply(self, reply: lag_pb.WatchGroupLagReply) -> None:
        self._lost = None
        if reply.resync:
            self._live.began_anew(reply.evaluated_at_ms)
            self._anew_at_ms = self._clock()
        elif self._anew_at_ms is not None:
            self._settled(reply.evaluated_at_ms)
        groups = iter(reply.groups)
        while some := list(islice(groups, _SLICE)):
            self._live.told(some)
            await asyncio.sleep(0)
        self._live.removed((row.namespace, row.group) for row in reply.removed)
        if reply.evaluated_at_ms:
            self._told_at_ms, self._heard_at_ms = reply.evaluated_at_ms, self._clock()

    def _settled(self, at_ms: int) -> None:
        if self._live.settle(at_ms):
            self._anew_at_ms = None
