"""Results: tables for the screen, JSON for scripts, one summary for readers. A bar is met or MISSED; nothing here fails a run."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """Rows of one measurement."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Bar:
    """A number that must not be above a limit, or with `least` not below it."""

    text: str
    value: float
    limit: float
    least: bool = False

    @property
    def verdict(self) -> str:
        """`met` or `MISSED`."""
        return "met" if (self.value >= self.limit if self.least else self.value <= self.limit) else "MISSED"

    @property
    def bound(self) -> str:
        """The limit in words."""
        return f"{'>=' if self.least else '<='} {shown(self.limit)}"

    @property
    def sentence(self) -> str:
        """The bar in words."""
        return f"{self.text}: {shown(self.value)} (bar: {self.bound})"


@dataclass
class Result:
    """What one benchmark found out. `rates` are what the plot shows: what was measured -> acknowledged commits per second."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)


def shown(value: Cell) -> str:
    """A cell as a reader wants it: three digits are enough, and whole thousands have their comma."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def show(console: Console, result: Result) -> None:
    """Print a result."""
    for table in result.tables:
        grid = RichTable(title=table.title, title_justify="left", title_style="bold")
        for at, column in enumerate(table.columns):
            grid.add_column(column, justify="right" if at else "left", no_wrap=at == 0)
        for row in table.rows:
            grid.add_row(*map(shown, row))
        console.print(grid)
    for bar in result.bars:
        style = "green" if bar.verdict == "met" else "bold red"
        console.print(f"  [{style}]{bar.verdict:6}[/]  {bar.sentence}", highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(f"  {note}", style="dim", highlight=False, soft_wrap=True)
    console.print()


def store(directory: Path, result: Result, about: dict[str, Any]) -> None:
    """Write `<name>.json`, and `summary.md` anew from all results that are there."""
    directory.mkdir(parents=True, exist_ok=True)
    bars = [{**asdict(bar), "bound": bar.bound, "verdict": bar.verdict} for bar in result.bars]
    content = {**asdict(result), "bars": bars, **about}
    (directory / f"{result.name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (directory / "summary.md").write_text(summary(stored(directory)), encoding="utf-8")


def stored(directory: Path) -> list[dict[str, Any]]:
    """All results that are there."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]


def summary(results: Sequence[dict[str, Any]]) -> str:
    """All results as Markdown. Each run's machine facts stand once, above what was measured in it."""
    lines = ["# Benchmark results", "", "Written by `make bench`. How to read it: [../README.md](../README.md).", ""]
    lines += ["| bar | measured | limit | |", "| --- | ---: | ---: | --- |"]
    bars = [bar for result in results for bar in result["bars"]]
    lines += [f"| {bar['text']} | {shown(bar['value'])} | {bar['bound']} | {bar['verdict']} |" for bar in bars]
    about = None
    for result in results:
        if (result["machine"], result["command"]) != about:
            about = (result["machine"], result["command"])
            lines += ["", *_about(result)]
        lines += ["", f"## {result['name']}: {result['title']}", ""]
        for table in result["tables"]:
            lines += _markdown(table)
        lines += [f"- {note}" for note in result["notes"]]
    return "\n".join(lines) + "\n"


def _about(result: dict[str, Any]) -> list[str]:
    facts = {"command": f"`{result['command']}`", "date": result["date"], **result["machine"]}
    return ["| machine and run | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts.items())]


def _markdown(table: dict[str, Any]) -> list[str]:
    return [
        f"**{table['title']}**",
        "",
        "| " + " | ".join(table["columns"]) + " |",
        "| --- |" + " ---: |" * (len(table["columns"]) - 1),
        *("| " + " | ".join(map(shown, row)) + " |" for row in table["rows"]),
        "",
    ]
