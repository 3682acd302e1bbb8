"""`rates.png`: the main commit rates of all stored results. Needs matplotlib, which nothing else in the benchmarks does."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import shown

FILE = "rates.png"
MISSING = "no plot: matplotlib is not installed (make bench brings it)"


def draw(directory: Path, results: Mapping[str, dict[str, Any]]) -> str:
    """Write `rates.png` from the results of `report.stored`. Returns a message: the path, or why there is no plot."""
    rates = [(name, what, rate) for name, result in results.items() for what, rate in result.get("rates", {}).items() if rate > 0]
    if not rates:
        return "no plot: none of these results has rates"
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        return MISSING
    matplotlib.use("agg")  # a file, no window
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    _bars(pyplot, rates)
    pyplot.savefig(directory / FILE, dpi=120)
    pyplot.close()
    return f"Drawn: {directory / FILE}"


def _bars(pyplot: Any, rates: Sequence[tuple[str, str, float]]) -> None:  # noqa: ANN401 - matplotlib is loaded by name
    """One bar for each rate, in the order of the results. The axis is logarithmic: the rates differ by orders of magnitude."""
    _, axes = pyplot.subplots(figsize=(11, 1.2 + 0.3 * len(rates)), layout="constrained")
    names = list(dict.fromkeys(name for name, _, _ in rates))
    labels = [f"{name}: {what}" for name, what, _ in rates]
    bars = axes.barh(labels, [rate for _, _, rate in rates], color=[f"C{names.index(name) % 10}" for name, _, _ in rates])
    axes.bar_label(bars, labels=[shown(rate) for _, _, rate in rates], padding=3)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_xlabel("acknowledged commits per second")
    axes.set_title("Commits per second; summary.md names the runs and the machine")
