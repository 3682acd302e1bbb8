"""The screen of `top` with the shards of one group, asked for again and again."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

import grpc
import grpc.aio
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static

from adapter.cli.lag_text import age_text, arrow, count_text, rate_text, shards_text, span_text, status_word, trend_text
from adapter.cli.names import natural_order
from adapter.cli.table import RIGHT
from adapter.cli.terminal import visible
from adapter.cli.top.feed import Feed, Shards, why
from adapter.cli.top.live_table import DIM, PLAIN, Cell, Column, LiveTable
from adapter.cli.top.rows import Key
from adapter.model.lag_order import worst_first
from adapter.model.records import epoch_text
from adapter.rpc import lag_pb

EVERY_S: Final = 1.0
_BUSY_SHARE: Final = 10  # of the time, showing takes at most one part in so many
ShardOrder = Literal["worst", "lag", "shard"]
_ORDERS: Final[tuple[ShardOrder, ...]] = ("worst", "lag", "shard")
_COLUMNS: Final = (
    Column("status", 7),
    Column("shard", 14, share=1),
    Column("lag", 9, RIGHT),
    Column("lag-time", 8, RIGHT, rank=1),
    Column("lost", 9, RIGHT, rank=5),
    Column("trend/s", 9, RIGHT, rank=3),
    Column("commits/s", 9, RIGHT, rank=6),
    Column("written/s", 9, RIGHT, rank=7),
    Column("last-commit", 11, RIGHT, rank=4),
    Column("offset", 12, RIGHT, rank=2),
    Column("end", 12, RIGHT, rank=4),
    Column("start", 12, RIGHT, rank=9),
    Column("epoch", 6, RIGHT, rank=10),
    Column("burrow", 7, rank=8),
    Column("adapter", 16, rank=4),
)
_NOTHING: Final = Shards(lag_pb.GroupLag(), (), 0)


class ShardsScreen(Screen[None]):
    """The shards of a group. An error is shown above what was told last."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "next_order", "Sort"),
        Binding("escape,backspace", "app.pop_screen", "Back"),
    ]

    def __init__(self, feed: Feed, key: Key, styles: Mapping[int, Style]) -> None:
        super().__init__()
        self._feed = feed
        self._group = key
        self._styles = styles
        self._told = _NOTHING
        # Kept, and not looked up: an answer may come while the screen goes away.
        self._heading = Static("", id="group", markup=False)
        self._sums = Static("", id="sums", markup=False)
        self.order: ShardOrder = "worst"
        self.table: LiveTable[lag_pb.ShardLag] = LiveTable(
            _COLUMNS if feed.many else _COLUMNS[:-1], self._cells, lambda row: row.shard, id="shards"
        )

    def compose(self) -> ComposeResult:
        """The lines above, the table, the keys."""
        yield self._heading
        yield self._sums
        yield self.table
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to ask."""
        self.table.focus()
        self._tell("asking", "yellow")
        self.run_worker(self._ask(), name="top.shards")

    def action_next_order(self) -> None:
        """Sort by the next key."""
        self.order = _ORDERS[(_ORDERS.index(self.order) + 1) % len(_ORDERS)]
        self.table.hold(None)
        self._show()

    async def _ask(self) -> None:
        while True:
            began = time.monotonic()
            try:
                told = await self._feed.group(*self._group)
            except grpc.aio.AioRpcError as error:
                self._tell(f"NO ANSWER, trying again: {why(error)}", "bold red")
                await asyncio.sleep(EVERY_S)
                continue
            asked = time.monotonic()
            self._told = told or _NOTHING
            self._show()
            if told is None:
                self._tell("no lag of it is kept any more", "yellow")
            took = time.monotonic() - asked
            await asyncio.sleep(max(EVERY_S - (asked - began), took * _BUSY_SHARE, EVERY_S / 2))

    def _show(self) -> None:
        reply = self._told
        self.table.show(sorted(reply.shards, key=_KEYS[self.order]))
        self._tell(reply.note or ("live" if reply.shards else ""), "yellow" if reply.note else "green")
        sums = reply.sums
        now_ms = reply.evaluated_at_ms
        status = status_word(sums.status)
        parts = [
            f"lag {count_text(sums.lag if sums.HasField('lag') else None)}",
            f"lag time {span_text(sums.lag_seconds if sums.HasField('lag_seconds') else None)}",
            f"trend {trend_text(sums.trend if sums.HasField('trend') else None)}/s",
            f"commits {rate_text(sums.commit_rate if sums.HasField('commit_rate') else None)}/s",
            f"written {rate_text(sums.produce_rate if sums.HasField('produce_rate') else None)}/s",
            f"last commit {age_text(sums.last_commit_at_ms, now_ms)}",
            f"shards {shards_text(sums)}",
        ]
        if sums.lost:
            parts.append(f"LOST {count_text(sums.lost)}")
        line = Text(f"{status} for {age_text(sums.status_since_ms, now_ms)}", style=self._styles.get(sums.status, DIM))
        line.append(f", {', '.join(parts)}, sorted by {self.order}", style=Style(bold=False, color="default"))
        self._sums.update(line if reply.shards else "")

    def _tell(self, said: str, style: str) -> None:
        text = Text(visible("/".join(self._group)), style="bold")
        text.append(f"  {visible(said)}", style=style)
        self._heading.update(text)

    def _cells(self, row: lag_pb.ShardLag) -> Sequence[Cell]:
        return (
            (status_word(row.status), self._styles.get(row.status, DIM)),
            (visible(row.shard), PLAIN),
            (count_text(row.lag if row.HasField("lag") else None), PLAIN),
            (span_text(row.lag_seconds if row.HasField("lag_seconds") else None), PLAIN),
            (count_text(row.lost), Style(color="red", bold=True) if row.lost else DIM),
            (_trend(row), PLAIN),
            (rate_text(row.commit_rate if row.HasField("commit_rate") else None), PLAIN),
            (rate_text(row.produce_rate if row.HasField("produce_rate") else None), PLAIN),
            (age_text(row.committed_at_ms, self._told.evaluated_at_ms), PLAIN),
            (str(row.offset), PLAIN),
            (str(row.high_watermark) if row.HasField("high_watermark") else "-", PLAIN),
            (str(row.low_watermark) if row.HasField("low_watermark") else "-", PLAIN),
            (epoch_text(row.epoch), DIM),
            (status_word(row.burrow), self._styles.get(row.burrow, DIM)),
            (visible(self._told.adapters.get(row.shard, "")), PLAIN),
        )


def _trend(row: lag_pb.ShardLag) -> str:
    per_s = row.trend if row.HasField("trend") else None
    return f"{arrow(per_s)} {trend_text(per_s)}"


def _lag(row: lag_pb.ShardLag) -> int:
    return -(row.lag if row.HasField("lag") else -1)


_KEYS = {
    "worst": lambda row: (
        *worst_first(
            row.status, row.lag_seconds if row.HasField("lag_seconds") else None, row.lag if row.HasField("lag") else None
        ),
        natural_order(row.shard),
    ),
    "lag": lambda row: (_lag(row), natural_order(row.shard)),
    "shard": lambda row: natural_order(row.shard),
}
