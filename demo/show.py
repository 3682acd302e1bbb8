"""Shows the timeline of a demo: a live screen at a terminal, otherwise a line each second and each event."""

import sys
from collections.abc import Callable

import anyio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.timeline import Timeline

REFRESH_S = 0.25
LINE_S = 1.0
BAR_WIDTH = 56


class Show:
    """The display of one demo. `line` gives the state in one line, `body` as a renderable between phases and events."""

    def __init__(
        self, title: str, timeline: Timeline, console: Console, line: Callable[[], str], body: Callable[[], RenderableType]
    ) -> None:
        self._title = title
        self._timeline = timeline
        self._console = console
        self._line = line
        self._body = body
        # Not console.is_terminal: FORCE_COLOR makes it True for files too.
        self.live = sys.stdout.isatty() and not console.is_dumb_terminal
        if not self.live:
            timeline.on_event = lambda at, text: print(f"{at:5.1f} s  * {text}", flush=True)

    async def run(self) -> None:
        """Update the display until cancelled."""
        if not self.live:
            await self._lines()
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self.screen(), refresh=True)
                await anyio.sleep(REFRESH_S)

    async def _lines(self) -> None:
        print(self._title, flush=True)
        while True:
            await anyio.sleep(LINE_S)
            print(self._line(), flush=True)

    def screen(self) -> RenderableType:
        """The live screen: the state, and as many of the last events as fit."""
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=1.0, completed=self._timeline.progress, width=BAR_WIDTH), f"{self._timeline.elapsed:4.1f} s"
        )
        upper = Group(Text(self._title, style="bold"), "", self._phases(), bar, "", self._body(), "")
        room = max(1, self._console.height - len(self._console.render_lines(upper)))
        events = [Text(line, no_wrap=True, overflow="ellipsis") for line in self._events()[-room:]]
        return Group(upper, *events)

    def recap(self) -> None:
        """Print all events at the end, unless they were printed already."""
        if self.live:
            self._console.print(Text(self._title, style="bold"), *map(Text, self._events()), sep="\n")

    def _phases(self) -> Text:
        names = [name for name, _ in self._timeline.phases]
        styles = ["green"] * self._timeline.phase + ["bold reverse"] + ["dim"] * len(names)
        return Text("  ").join(Text(name, style=style) for name, style in zip(names, styles, strict=False))

    def _events(self) -> list[str]:
        return [f"{at:5.1f} s  {text}" for at, text in self._timeline.events]
