"""The live table: what is on its screen, and what keys do. The adapter is a real gRPC server with lag from the tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Input

from adapter.cli.top import feed as top_feed
from adapter.cli.top.app import GroupsScreen, HelpScreen, TopApp, View, columns_at
from adapter.cli.top.feed import AdapterFeed, Feed
from adapter.cli.top.shards import ShardsScreen
from adapter.client.client import OffsetClient
from adapter.errors import InvalidInputError
from adapter.rpc import lag_pb
from adapter.testing.waiting import PATIENCE_S
from tests.unit.cli.fake_lag import NOW_MS, FakeLag, group, serving, shard

SIZE = (120, 20)
HOSTILE = "evil\x1b[2J\x1b]0;title\x07[red]x[/red][@click=app.quit]\u202e\n"


class Clock:
    """Milliseconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


class Screen:
    """The application, its keys, and what is on its screen."""

    def __init__(self, app: TopApp, pilot: Pilot[None], clock: Clock) -> None:
        self.app = app
        self.pilot = pilot
        self.clock = clock

    @property
    def lines(self) -> list[str]:
        """The lines of the screen."""
        return ["".join(segment.text for segment in strip).rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        """All of the screen."""
        return "\n".join(self.lines)

    @property
    def groups(self) -> GroupsScreen:
        """The first screen."""
        found = self.app.screen_stack[0]
        assert isinstance(found, GroupsScreen)
        return found

    @property
    def names(self) -> list[str]:
        """The groups, in the order of the table."""
        return [row.told.group for row in self.groups.table.rows]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for it, drawing."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.groups.draw(now=not self.groups.paused)
            await self.pilot.pause()
            if holds():
                return
            assert time.monotonic() < deadline, self.text
            await asyncio.sleep(0.02)

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self.pilot.press(*keys)
        await self.pilot.pause()


@asynccontextmanager
async def watched(address: str, size: tuple[int, int] = SIZE, view: View | None = None) -> AsyncIterator[Screen]:
    """`top` of an adapter on a screen of this size."""
    async with (
        OffsetClient.connect(address) as client,
        screen_of(AdapterFeed(client, "the-adapter", lag_pb.LagFilter()), size, view) as screen,
    ):
        yield screen


@asynccontextmanager
async def screen_of(feed: Feed, size: tuple[int, int] = SIZE, view: View | None = None) -> AsyncIterator[Screen]:
    """A feed on a screen of this size."""
    clock = Clock()
    app = TopApp(feed, view or View(), clock)
    async with app.run_test(size=size) as pilot:
        yield Screen(app, pilot, clock)


GROUPS = (
    group("fast", lag=10, lag_seconds=0.5, trend=0.0, commit_rate=1_000.0, shards=4),
    group(
        "slow", lag_pb.WARN, lag=12_345, lag_seconds=200.0, trend=12.5, commit_rate=3.0, shards=4, warn=1, worst_shard="orders/3"
    ),
    group("dead", lag_pb.STOP, lag=999, lag_seconds=7_200.0, shards=2, stop=2, worst_shard="orders/0"),
)


@pytest.fixture
def lag() -> FakeLag:
    """Three groups."""
    return FakeLag(GROUPS)


async def test_the_worst_stand_first_with_what_is_known_of_them(lag: FakeLag, tmp_path: Path) -> None:
    """Numbers, spans, a trend with its arrow, and the status as a word, not only as a colour."""
    async with serving(lag, tmp_path) as address, watched(address, (160, 12)) as screen:
        await screen.until(lambda: screen.names == ["dead", "slow", "fast"])
        assert "live" in screen.lines[0]
        assert "the-adapter" in screen.lines[0]
        assert screen.lines[1].startswith("3 groups  1 stop  1 warn  1 ok, sorted by worst")
        slow = next(line for line in screen.lines if "default/slow" in line)
        assert " ".join(slow.split()).startswith("warn default/slow 12,345 3m 20s ↑ +12.5 3 1s 1h 4: 1 warn")
        assert slow.endswith("orders/3")


async def test_a_group_that_gets_worse_moves_to_the_top_with_a_mark_and_since_when(lag: FakeLag, tmp_path: Path) -> None:
    """Before one that is worse, but was so before."""
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3 and bool(lag.watchers))
        lag.tell(group("fast", lag_pb.WARN, lag=77, status_since_ms=lag.now_ms))
        await screen.until(lambda: screen.names == ["fast", "dead", "slow"])
        assert "▲ warn    default/fast" in screen.text
        screen.clock.ms += 150_000
        await screen.until(lambda: screen.names == ["dead", "slow", "fast"])
        assert "▲" not in screen.text


async def test_keys_sort(lag: FakeLag, tmp_path: Path) -> None:
    """Each order has its key; `s` goes through all; `r` turns round."""
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3)
        for key, expected in {
            "l": ["slow", "dead", "fast"],
            "t": ["dead", "slow", "fast"],
            "d": ["slow", "fast", "dead"],
            "c": ["fast", "slow", "dead"],
            "n": ["dead", "fast", "slow"],
            "w": ["dead", "slow", "fast"],
        }.items():
            await screen.press(key)
            assert screen.names == expected, key
        await screen.press("r")
        assert screen.names == ["fast", "slow", "dead"]
        assert "sorted by worst, backwards" in screen.text
        await screen.press("s")
        assert "sorted by lag" in screen.lines[1]
        assert screen.names == ["slow", "dead", "fast"]


async def test_a_filter_is_typed_and_taken_away(lag: FakeLag, tmp_path: Path) -> None:
    """It filters while it is typed; keys that sort are letters then."""
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3)
        await screen.press("slash", "s", "l", "w")
        assert screen.names == []
        await screen.press("backspace")
        assert screen.names == ["slow"]
        await screen.press("enter")
        assert screen.groups.table.has_focus
        assert "1 shown, sorted by worst, filter: sl" in screen.text
        await screen.press("escape")
        assert len(screen.names) == 3
        await screen.press("slash", *"t/sl")
        assert (screen.groups.words, screen.names) == ("t/sl", ["slow"])
        await screen.press("escape")
        await screen.press("slash", "q", "escape")
        assert (len(screen.names), screen.groups.query_one(Input).display) == (3, False)


async def test_a_filter_that_arrives_at_once_is_whole(lag: FakeLag, tmp_path: Path) -> None:
    """Pasted, or typed faster than the screen is drawn: its letters were taken for keys of the table."""
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3)
        for key, letter in (("slash", "/"), ("s", "s"), ("l", "l"), ("enter", "\r")):
            screen.app.post_message(Key(key, letter))
        await screen.until(lambda: screen.names == ["slow"] and screen.groups.table.has_focus)
        assert (screen.groups.order, screen.app.screen) == ("worst", screen.groups)


async def test_only_groups_that_are_bad_enough(lag: FakeLag, tmp_path: Path) -> None:
    """`a` goes through the statuses, and back to all; the option is where it begins."""
    async with serving(lag, tmp_path) as address, watched(address, view=View("name", lag_pb.WARN)) as screen:
        await screen.until(lambda: screen.names == ["dead", "slow"])
        await screen.press("a")
        assert screen.names == ["dead"]
        assert "at least rewind" in screen.text
        await screen.press("a", "a", "a", "a")
        assert screen.names == ["dead", "fast", "slow"]


async def test_a_paused_screen_stays_as_it_is(lag: FakeLag, tmp_path: Path) -> None:
    """Also when it is sorted; and shows all that happened as soon as it goes on."""
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3 and bool(lag.watchers))
        await screen.press("p")
        assert "PAUSED" in screen.lines[0]
        before = screen.app.groups.get(("default", "fast"))
        lag.tell(group("fast", lag_pb.STOP, lag=5, status_since_ms=lag.now_ms), gone=[("default", "slow")])
        live = screen.app._live
        await screen.until(lambda: len(live) == 2)
        await screen.press("n")
        assert screen.names == ["dead", "fast", "slow"]
        assert screen.app.groups.get(("default", "fast")) == before
        await screen.press("w", "p")
        await screen.until(lambda: screen.names == ["fast", "dead"])
        assert "PAUSED" not in screen.text


async def test_enter_shows_the_shards_of_a_group_and_goes_on_asking(
    lag: FakeLag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst first; an adapter that does not answer is said above what was told; Esc goes back."""
    monkeypatch.setattr("adapter.cli.top.shards.EVERY_S", 0.02)
    key = ("default", "slow")
    lag.shards[key] = [
        shard("orders/10", lag=1, lag_seconds=1.0, offset=7, high_watermark=8),
        shard("orders/9", lag=2, lag_seconds=1.0, offset=7, high_watermark=9),
        shard("orders/3", lag_pb.WARN, lag=9, offset=1, high_watermark=20, low_watermark=11, lost=10, burrow=lag_pb.WARN),
    ]
    async with serving(lag, tmp_path) as address, watched(address, (150, 12)) as screen:
        await screen.until(lambda: len(screen.names) == 3)
        await screen.press("down", "enter")
        await screen.until(lambda: "orders/10" in screen.text)
        shards = screen.app.screen
        assert isinstance(shards, ShardsScreen)
        assert [row.shard for row in shards.table.rows] == ["orders/3", "orders/9", "orders/10"]
        assert "default/slow  live" in screen.lines[0]
        assert screen.lines[1].startswith("warn for 1h, lag 12,345, lag time 3m 20s, trend +12.5/s")
        await screen.press("s", "s")
        assert [row.shard for row in shards.table.rows] == ["orders/3", "orders/9", "orders/10"]
        lag.bounds_error = "the broker\x1b[2J is away"
        await screen.until(lambda: "the broker\\x1b[2J is away" in screen.lines[0])
        lag.refusal = (grpc.StatusCode.UNAVAILABLE, "it restarts")
        await screen.until(lambda: "NO ANSWER, trying again: UNAVAILABLE: it restarts" in screen.lines[0])
        assert "orders/10" in screen.text
        lag.refusal = None
        lag.groups.pop(key)
        await screen.until(lambda: "no lag of it is kept any more" in screen.lines[0])
        assert "orders/10" not in screen.text
        await screen.press("escape")
        assert screen.app.screen is screen.groups


async def test_an_adapter_that_restarts_is_waited_for_and_that_is_said(lag: FakeLag, tmp_path: Path) -> None:
    """What was told stays on the screen, with when it was told; then everything is told anew."""
    async with serving(lag, tmp_path) as address:
        pass
    async with serving(lag, tmp_path):
        watching = watched(address)
        screen = await watching.__aenter__()
        await screen.until(lambda: len(screen.names) == 3)
    try:
        await screen.until(lambda: "NO ANSWER" in screen.lines[0])
        screen.clock.ms += 65_000
        await screen.until(lambda: "NO ANSWER for 1m 5s, trying again: UNAVAILABLE" in screen.lines[0])
        assert len(screen.names) == 3
        lag.groups.pop(("default", "slow"))
        lag.groups["default", "new"] = group("new")
        async with serving(lag, tmp_path):
            await screen.until(lambda: "new" in screen.names and "live" in screen.lines[0] and bool(lag.watchers))
            lag.tell(group("new", lag=5))
            await screen.until(lambda: sorted(screen.names) == ["dead", "fast", "new"])
    finally:
        await watching.__aexit__(None, None, None)


async def test_a_machine_that_is_gone_is_noticed_though_its_stream_is_open(
    lag: FakeLag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without changes is silent, too."""
    monkeypatch.setattr(top_feed, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(top_feed, "ANSWER_S", 0.2)
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3)
        lag.silent = True
        await screen.until(lambda: "NO ANSWER" in screen.lines[0] and "DEADLINE_EXCEEDED" in screen.lines[0])
        lag.silent = False
        await screen.until(lambda: "  live" in screen.lines[0])


async def test_after_a_new_beginning_a_quiet_adapter_forgets_nothing_of_before(
    lag: FakeLag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that were not told again go, also when no later evaluation changes anything."""
    monkeypatch.setattr(top_feed, "ASK_EVERY_S", 0.02)
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3 and bool(lag.watchers))
        lag.watchers[0].put_nowait(lag_pb.WatchGroupLagReply(resync=True, groups=GROUPS[:1], evaluated_at_ms=lag.now_ms))
        await screen.until(lambda: screen.app._anew_at_ms is not None and not lag.watchers[0].qsize())
        assert len(screen.names) == 3
        screen.clock.ms += 3_001
        await screen.until(lambda: screen.names == ["fast"])


async def test_notes_on_the_whole_are_above_the_table(lag: FakeLag, tmp_path: Path) -> None:
    """Why lag is unknown, and that groups are missing."""
    lag.bounds_error, lag.forgotten = "broker 127.0.0.1:9540 does not answer", 7
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: "127.0.0.1:9540 does not answer" in screen.text)
        assert "7 shards forgotten" in screen.text


async def test_a_terminal_obeys_nothing_that_a_consumer_wrote(lag: FakeLag, tmp_path: Path) -> None:
    """No control characters, no markup, no marks of direction: on either screen."""
    bad = group(HOSTILE, lag_pb.STOP, namespace="n[bold]", worst_shard=HOSTILE)
    lag.groups = {("n[bold]", HOSTILE): bad}
    lag.shards["n[bold]", HOSTILE] = [shard(HOSTILE, lag=1)]
    async with serving(lag, tmp_path) as address, watched(address, (250, 12)) as screen:
        await screen.until(lambda: len(screen.names) == 1)
        escaped = "n[bold]/evil\\x1b[2J\\x1b]0;title\\x07[red]x[/red][@click=app.quit]\\u202e\\n"
        assert escaped in screen.text
        assert screen.text.replace("\n", "").isprintable()
        await screen.press("slash", *"[red]")
        assert "filter: [red]" in screen.text
        await screen.press("escape", "enter")
        await screen.until(lambda: isinstance(screen.app.screen, ShardsScreen) and "live" in screen.lines[0])
        assert screen.lines[0].startswith(escaped)
        assert screen.text.replace("\n", "").isprintable()


async def test_thousands_of_groups_cost_a_key_only_what_is_seen(tmp_path: Path) -> None:
    """Cells are made of the rows on the screen, whatever there is below; to the end and back."""
    lag = FakeLag(group(f"g{number:04}", lag=number, status_since_ms=NOW_MS - 3_600_000) for number in range(2_000))
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 2_000)
        table = screen.groups.table
        for key, there in (("end", "default/g1999"), ("home", "default/g0000"), ("pagedown", "default/g0015")):
            await screen.press("n")
            table.made = 0
            await screen.press(key)
            assert there in screen.text
            assert table.made <= 6 * SIZE[1], key
        await screen.press("slash", *"g012")
        assert screen.names == [f"g012{digit}" for digit in range(10)]


async def test_the_cursor_stays_on_its_group_and_at_the_top_it_stays_at_the_top(lag: FakeLag, tmp_path: Path) -> None:
    """Who has chosen a group follows it; who has not sees what is worst."""
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3 and bool(lag.watchers))
        table = screen.groups.table
        await screen.press("down")
        lag.tell(group("slow", lag_pb.STOP, lag=1, status_since_ms=lag.now_ms))
        await screen.until(lambda: screen.names[0] == "slow")
        current = table.current
        assert current
        assert current.told.group == "slow"
        await screen.press("w", "k")
        lag.tell(group("fast", lag_pb.STOP, lag_seconds=9e9, status_since_ms=lag.now_ms))
        await screen.until(lambda: screen.names[0] == "fast")
        current = table.current
        assert current
        assert current.told.group == "fast"


async def test_a_terminal_of_any_width_shows_status_group_and_lag(lag: FakeLag, tmp_path: Path) -> None:
    """Columns of less weight are left out; a resize lays them out anew."""
    async with serving(lag, tmp_path) as address, watched(address, (200, 12)) as screen:
        await screen.until(lambda: len(screen.names) == 3)
        assert "worst-shard" in screen.text
        for width in (30, 40, 80, 100, 200):
            await screen.pilot.resize_terminal(width, 10)
            await screen.until(lambda width=width: screen.app.size.width == width)  # type: ignore[misc] # mypy cannot infer it
            slow = next(line for line in screen.lines if "slow" in line)
            assert "warn" in slow, width
            assert (width < 40) or "12,345" in slow, width
            assert ("worst-shard" in screen.text) == (width == 200), width
            assert all(len(line) <= width for line in screen.lines), width


def test_columns_of_the_live_table_are_those_that_are_named() -> None:
    """Behind the mark; an unknown one is told with those that there are."""
    assert [*columns_at([])] == [*range(11)]
    assert [*columns_at(["lag", "group"])] == [0, 3, 2]
    with pytest.raises(
        InvalidInputError, match="--columns: the live table has no 'namespace'; it has status, group, lag, lag-time"
    ):
        columns_at(["namespace"])


async def test_help_and_the_end(lag: FakeLag, tmp_path: Path) -> None:
    """`?` explains, `q` closes the help first, then ends; Ctrl-C ends at once."""
    async with serving(lag, tmp_path) as address:
        async with watched(address) as screen:
            await screen.until(lambda: len(screen.names) == 3)
            await screen.press("question_mark")
            assert [type(shown) for shown in screen.app.screen_stack[1:]] == [HelpScreen]
            assert "the group's shards" in screen.text
            await screen.press("end")
            assert "messages per second by which the lag grows" in screen.text
            await screen.press("question_mark")
            assert len(screen.app.screen_stack) == 1
            await screen.press("q")
            assert (screen.app._exit, screen.app.return_code) == (True, 0)
        async with watched(address) as screen:
            await screen.press("slash", "ctrl+c")
            assert screen.app._exit


async def test_a_click_chooses(lag: FakeLag, tmp_path: Path) -> None:
    """The first puts the cursor there, the second shows the shards; the line of titles is no row."""
    async with serving(lag, tmp_path) as address, watched(address) as screen:
        await screen.until(lambda: len(screen.names) == 3)
        table: Any = screen.groups.table
        await screen.pilot.click(table, offset=(5, 0))
        await screen.pilot.click(table, offset=(5, 9))
        assert table.current.told.group == "dead"
        await screen.pilot.click(table, offset=(5, 3))
        assert table.current.told.group == "fast"
        await screen.pilot.click(table, offset=(5, 3))
        await screen.pilot.pause()
        assert isinstance(screen.app.screen, ShardsScreen)


async def test_only_the_first_so_many(lag: FakeLag, tmp_path: Path) -> None:
    """`--limit` is one of rows."""
    async with serving(lag, tmp_path) as address, watched(address, view=View(limit=2)) as screen:
        await screen.until(lambda: screen.names == ["dead", "slow"])
