"""The main rates of all stored results as one picture. Nothing else here needs matplotlib: without it there is no picture."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import shown

FILE = "rates.png"
MISSING = "no plot: matplotlib is not installed (make bench brings it)"


def draw(directory: Path, results: Sequence[dict[str, Any]]) -> str:
    """Write `rates.png` of results as they are stored; returns what to tell the user."""
    rates = [(result["name"], what, rate) for result in results for what, rate in result.get("rates", {}).items() if rate > 0]
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
    """One bar each, in the order of the benchmarks; the rates are far apart, hence the logarithm."""
    _, axes = pyplot.subplots(figsize=(11, 1.2 + 0.3 * len(rates)), layout="constrained")
    names = list(dict.fromkeys(name for name, _, _ in rates))
    labels = [f"{name}: {what}" for name, what, _ in rates]
    bars = axes.barh(labels, [rate for _, _, rate in rates], color=[f"C{names.index(name) % 10}" for name, _, _ in rates])
    axes.bar_label(bars, labels=[shown(rate) for _, _, rate in rates], padding=3)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_xlabel("acknowledged commits per second")
    axes.set_title("Commits per second; what each bar is, and on which machine, is in summary.md")
