"""The display of `make demo-pipeline`: phases, commands, events with their time, tables, and the verdict."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from demo.pipeline_checks import Check

TITLE = "Offset adapter demo: the offsets of a fleet in Spark"
_STYLES = {"OK": "green", "WARN": "yellow"}
_SHOWN = 3


class Story:
    """Prints the progress of one demo, starting with the title."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self.phase = "start"
        console.print(Text(TITLE, style="bold"))

    @contextmanager
    def busy(self, phase: str) -> Iterator[None]:
        """Print the begin of a phase; a terminal shows a spinner until its end."""
        self.phase = phase
        self._console.print(Text(f"\n{phase}", style="bold cyan"))
        if self._console.is_terminal:
            with self._console.status(f"{phase} ..."):
                yield
        else:
            yield

    def tell(self, text: str) -> None:
        """Print an event."""
        self._console.print(Text(f"{time.monotonic() - self._started:5.1f} s  {text}"))

    def command(self, line: str) -> None:
        """Print a command line."""
        self._console.print(
            Text(f"{time.monotonic() - self._started:5.1f} s  "), Text(f"$ {line}", style="bold"), sep="", end="\n"
        )

    def output(self, text: str) -> None:
        """Print the output of a command without its lines about the start."""
        for line in text.strip().splitlines():
            if not line.endswith(" ..."):
                self._console.print(Text(f"         {line}", style="dim"), soft_wrap=True)

    def show(self, table: RenderableType) -> None:
        """Print a table."""
        self._console.print(table)

    def verdict(self, checks: Sequence[Check], page: Path) -> None:
        """Print all comparisons, the verdict, and the path of the report."""
        table = _table("comparison", "compared", "wrong")
        for check in checks:
            style = "" if check.holds else "red"
            table.add_row(escape(check.what), f"{check.compared:,}", f"{len(check.wrong):,}", style=style)
        self._console.print("", table)
        wrong = [check for check in checks if not check.holds]
        for check in wrong:
            self._console.print(
                Text(
                    f"WRONG: {check.what}: {'; '.join(check.wrong[:_SHOWN]) or 'there was nothing to compare'}", style="bold red"
                )
            )
        if not wrong:
            self._console.print(Text("\nEverything compared is equal.", style="bold green"))
        self._console.print(Text(f"The report: {page}"), soft_wrap=True)


def lag_table(groups: Sequence[dict[str, Any]]) -> Table:
    """The groups in the tables of the lag job, the largest lag first."""
    table = _table("group", "status", "lag", "lag time", "drained in")
    for row in sorted(groups, key=lambda row: -(row["total_lag"] or 0)):
        status = Text(row["status"], style=_STYLES.get(row["status"], "red"))
        table.add_row(
            escape(row["group"]),
            status,
            _known(row["total_lag"], ",d"),
            _seconds(row["max_lag_seconds"]),
            _seconds(row["drain_seconds"]),
        )
    return table


def rewind_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rewinds in order of time."""
    table = _table("rewound", "from", "to", "read again", text=("shard",))
    for row in sorted(rows, key=lambda row: row["at"]):
        table.add_row(
            escape(row["group"]),
            f"{row['from_offset']:,}",
            f"{row['offset']:,}",
            f"{row['duplicates']:,}",
            escape(row["shard"]),
        )
    return table


def _table(first: str, *numbers: str, text: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold", min_width=33)
    for name in numbers:
        table.add_column(name, justify="right")
    for name in text:
        table.add_column(name)
    return table


def _known(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
