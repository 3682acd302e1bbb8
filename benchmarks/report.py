"""What a benchmark measured: printed as tables, stored in `results.json`, summarized in `summary.md`.

`results.json` maps the name of a benchmark to its newest result: tables, bars, notes, rates, the run (command, date, machine).
`summary.md` is derived from it: the bars, the runs and the machine. A bar is `met` or `MISSED`; a missed bar does not fail a run.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

Cell = str | int | float
FILE = "results.json"
SUMMARY = "summary.md"
OF_A_RUN = ("commit", "load average before")  # facts about a run; the other facts are about the machine


@dataclass(frozen=True)
class Table:
    """The rows of one measurement. The first column names the row; a table of one cell says why nothing was measured."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Bar:
    """A measured number and its limit: the most that it may be, or with `least` the least."""

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
        """The limit with its comparison, such as `<= 1.3`."""
        return f"{'>=' if self.least else '<='} {shown(self.limit)}"

    @property
    def sentence(self) -> str:
        """The bar as one line: what, how much, the limit."""
        return f"{self.text}: {shown(self.value)} (bar: {self.bound})"


@dataclass
class Result:
    """What one benchmark measured. `rates` are the bars of the plot: what was measured -> acknowledged commits per second."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)


def shown(value: Cell) -> str:
    """A cell as text: three significant digits, and a comma between thousands."""
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
    """Replace this benchmark's part of `results.json`, and write `summary.md` anew. `about` describes the run."""
    directory.mkdir(parents=True, exist_ok=True)
    bars = [{**asdict(bar), "bound": bar.bound, "verdict": bar.verdict} for bar in result.bars]
    results = {**stored(directory), result.name: {**asdict(result), "bars": bars, **about}}
    _replace(directory / FILE, _as_json(results))
    _replace(directory / SUMMARY, summary(results))


def stored(directory: Path) -> dict[str, dict[str, Any]]:
    """The newest result of each benchmark by its name; empty if nothing was stored there."""
    try:
        results: dict[str, dict[str, Any]] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return results


def loaded(content: dict[str, Any]) -> Result:
    """A stored result as a `Result`, for `show`."""
    return Result(
        content["name"],
        content["title"],
        [Table(**table) for table in content["tables"]],
        [Bar(bar["text"], bar["value"], bar["limit"], bar["least"]) for bar in content["bars"]],
        content["notes"],
        content.get("rates", {}),  # absent in results of older runs
    )


def summary(results: dict[str, dict[str, Any]]) -> str:
    """Markdown with one line for each bar, each benchmark without a bar, each run and each fact about the machine."""
    runs = _runs(results)
    lines = [
        "# Benchmark results",
        "",
        "Written by `make bench` from [results.json](results.json), which has all tables; `python -m benchmarks --stored NAME`",
        "prints them. How to read them: [../README.md](../README.md). The column `run` refers to the table of runs below.",
        "",
        "| benchmark | bar | measured | limit | | run |",
        "| --- | --- | ---: | ---: | --- | ---: |",
    ]
    for name, result in results.items():
        run = runs[_run(result)]
        lines += [
            f"| {name} | {bar['text']} | {shown(bar['value'])} | {bar['bound']} | {bar['verdict']} | {run} |"
            for bar in result["bars"]
        ]
        if not result["bars"]:
            lines.append(f"| {name} | {result['title']} | | no bar | | {run} |")
    lines += [f"- {name}: not measured: {why}" for name, why in _not_measured(results)]
    lines += ["", "| run | date | commit | load average before | command |", "| ---: | --- | --- | ---: | --- |"]
    for (command, date, commit, load), run in runs.items():
        lines.append(f"| {run} | {date} | {commit} | {load} | `{command}` |")
    lines += ["", "| machine | |", "| --- | --- |"]
    lines += [f"| {name} | {' or '.join(values)} |" for name, values in _machine(results).items()]
    return "\n".join(lines) + "\n"


def _run(result: dict[str, Any]) -> tuple[str, str, str, str]:
    machine = result["machine"]
    return result["command"], result["date"], *(machine[name] for name in OF_A_RUN)


def _runs(results: dict[str, dict[str, Any]]) -> dict[tuple[str, str, str, str], int]:
    """The runs that measured these results, from the oldest on, with their numbers from 1."""
    runs = sorted({_run(result) for result in results.values()}, key=lambda run: (run[1], run))
    return {run: number for number, run in enumerate(runs, 1)}


def _machine(results: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Fact about the machine -> its different values in these results; one value if all were measured on the same machine."""
    values: dict[str, dict[str, None]] = {}
    for result in results.values():
        for name, value in result["machine"].items():
            if name not in OF_A_RUN:
                values.setdefault(name, {})[value] = None
    return {name: list(seen) for name, seen in values.items()}


def _not_measured(results: dict[str, dict[str, Any]]) -> dict[tuple[str, str], None]:
    """The benchmarks that have a table of a single cell, with that cell: the tool that is missing."""
    tables = [(name, table["rows"]) for name, result in results.items() for table in result["tables"]]
    return {(name, str(rows[0][0])): None for name, rows in tables if len(rows) == 1 and len(rows[0]) == 1}


def _as_json(results: dict[str, dict[str, Any]]) -> str:
    """JSON with one line for each benchmark, in the order of their names."""
    parts = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in sorted(results.items())]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _replace(path: Path, text: str) -> None:
    """Write a file so that an interrupted run leaves the old content: it holds the results of all benchmarks."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
