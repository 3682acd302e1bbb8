"""The display of `make demo`: the state while it runs; at the end a table and a verdict."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.comparison import Comparison
from demo.show import Show
from demo.state import State

TITLE = "Offset adapter demo: offsets of real RocketMQ brokers, one commit per message"


class Display:
    """Displays the state. It does not change it."""

    def __init__(self, state: State, console: Console) -> None:
        self._state = state
        self._console = console
        self._show = Show(TITLE, state, console, self.line, self._numbers)

    async def run(self) -> None:
        """Update the display until cancelled."""
        await self._show.run()

    def line(self) -> str:
        """The state in one line."""
        state = self._state
        return (
            f"{state.elapsed:5.1f} s  {state.phase_name}: {state.commits_per_s:,.0f} commits/s, "
            f"{state.save_calls_per_s:.1f} save calls/s, dirty {state.dirty_keys}/{state.keys}, flush {state.flush_ms:.1f} ms, "
            f"adapter {state.adapter}, Meta Service {state.meta}"
        )

    def report(self, comparison: Comparison) -> None:
        """Print the events, the table and the verdict."""
        self._show.recap()
        sentence = Text(verdict(comparison, self._state), style="bold green" if comparison.complete else "bold red")
        self._console.print("", comparison_table(comparison), "", sentence, sep="\n")

    def _numbers(self) -> Table:
        state = self._state
        oldest = f", oldest {state.oldest_dirty_s:.1f} s" if state.dirty_keys else ""
        table = Table.grid(padding=(0, 2))
        for width in (12, 26, 12, 22):
            table.add_column(min_width=width)
        table.add_row("consumers", f"{state.consumers}", "acknowledged", f"{state.acknowledged:,} commits")
        table.add_row("commits/s", Text(f"{state.commits_per_s:,.0f}", style="bold"), "sent again", f"{state.retried:,}")
        table.add_row("save calls/s", Text(f"{state.save_calls_per_s:.1f}", style="bold"), "save calls", f"{state.save_calls:,}")
        table.add_row("dirty keys", f"{state.dirty_keys} of {state.keys}{oldest}", "last flush", f"{state.flush_ms:.1f} ms")
        table.add_row("adapter", _process(state.adapter), "Meta Service", _process(state.meta))
        return table


def comparison_table(comparison: Comparison) -> Table:
    """A row for each group, and a row with the totals."""
    # Narrow, so that the longest group name and seven digits fit into 80 columns.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, show_footer=True)
    table.title, table.title_justify = "Offsets, summed over the keys of a group; missing: keys", "left"
    totals = [sum(column) for column in zip(*(row[1:] for row in comparison.rows), strict=True)]
    table.add_column("group", "all", overflow="fold")
    for name, total in zip(("keys", "acknowledged", "local", "remote", "missing"), totals or [0] * 5, strict=True):
        table.add_column(name, f"{total:,}", justify="right")
    for row in comparison.rows:
        table.add_row(row.group, *(f"{number:,}" for number in row[1:]), style="red" if row.missing else "")
    return table


def verdict(comparison: Comparison, state: State) -> str:
    """The verdict in one sentence."""
    if comparison.missing:
        return f"MISSING: {len(comparison.missing)} of {comparison.keys} keys, for example {comparison.missing[0]}."
    if comparison.ahead:
        return f"WRONG: {len(comparison.ahead)} keys are above what was acknowledged, for example {comparison.ahead[0]}."
    if not comparison.complete:
        return "WRONG: there was nothing to compare."
    return (
        f"Nothing is missing: all {state.acknowledged:,} acknowledged commits on {comparison.keys} keys are in the local store "
        f"and in the Meta Service, which got about {state.save_calls:,} save calls for them."
    )


def _process(text: str) -> Text:
    return Text(text, style="green" if text.startswith("serving") else "yellow")
