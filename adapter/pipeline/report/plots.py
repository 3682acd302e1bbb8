"""The plots of the report, as PNG: a panel for each of the worst groups, and bars of the messages that are read again.

Drawn without a display. An unknown value is a gap in a line, never zero. Names are drawn as plain text, not as markup.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DateFormatter
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator

from adapter.pipeline.lag.status import BURROW_GROUP
from adapter.pipeline.report.content import Group, Point, Report

PANELS = 12
_COLUMNS = 4
GAP_STEPS = 3  # a line is interrupted after this many times its usual distance without a point

_COLOURS = {"OK": "#2f7d57", "WARN": "#c07a00", "ERR": "#b42318"}  # as on the page
_INK, _QUIET, _GRID, _BAR = "#3d4451", "#8a92a0", "#e3e6eb", "#35608f"
_WIDTH_INCHES, _PANEL_INCHES, _BARS_INCHES = 11.0, 1.75, 2.7
_DPI = 160  # 1,760 pixels wide, shown at 1,140: sharp on high-density screens too
_NAME_LENGTH = 20
_FEW = 2  # up to this many points are drawn with markers
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_SHORT_MS = 10 * 60_000
# Distances between ticks on an axis of seconds.
_TICKS_S = (1, 2, 5, 10, 20, 30, *(_MINUTE * n for n in (1, 2, 5, 10, 20, 30)), *(_HOUR * n for n in (1, 2, 4, 8, 12)))


class Unit(NamedTuple):
    """The unit of an axis: how a value is formatted, and where the ticks are up to a largest value."""

    shown: Callable[[float], str]
    ticks: Callable[[float, int], Locator]


class Line(NamedTuple):
    """A group's lag: its rank in the table of worst groups, its name, its status, and its points in order of time."""

    rank: int
    group: str
    level: str
    at_ms: Sequence[int]
    values: Sequence[float]  # NaN: unknown


def lag_plot(report: Report) -> bytes | None:
    """The plot of lag in messages over time; None if no lag is known."""
    return _panels(report, lines(report, lambda point: point.total_lag), MESSAGES)


def lag_seconds_plot(report: Report) -> bytes | None:
    """The plot of lag in seconds over time; None if none is known."""
    return _panels(report, lines(report, lambda point: point.lag_seconds), SECONDS)


def rewinds_plot(report: Report) -> bytes | None:
    """The plot of messages that are read again over time; None if there are none."""
    if not report.bars:
        return None
    figure = _figure(_BARS_INCHES)
    axes = figure.add_subplot()
    left = [_date(bar.at_ms) for bar in report.bars]
    axes.bar(left, [bar.duplicates for bar in report.bars], width=_date(report.bar_ms) - _date(0), align="edge", color=_BAR)
    _style(axes, MESSAGES, ticks=5)
    _time_axis(axes, min(report.from_ms, report.bars[0].at_ms), max(report.at_ms or 0, report.bars[-1].at_ms + report.bar_ms), 9)
    return _png(figure)


def lines(report: Report, value: Callable[[Point], float | None]) -> list[Line]:
    """The lines of the worst groups. Empty if they have no known value."""
    found: dict[tuple[str, str], list[Point]] = {}
    for point in report.lag:
        found.setdefault((point.namespace, point.group), []).append(point)
    made = [
        _line(rank, group, found.get((group.namespace, group.group), []), report.lag_step_ms, value)
        for rank, group in enumerate(report.worst[:PANELS], 1)
    ]
    return made if any(not math.isnan(number) for line in made for number in line.values) else []


def drawable(name: str) -> str:
    """A name as the font can draw it: a long one is shortened in the middle, a missing character becomes a box."""
    glyphs: Mapping[int, int] = get_font(findfont(FontProperties())).get_charmap()
    known = "".join(letter if ord(letter) in glyphs else "\N{WHITE SQUARE}" for letter in name)
    half = _NAME_LENGTH // 2
    return known if len(known) <= _NAME_LENGTH else f"{known[:half]}\N{HORIZONTAL ELLIPSIS}{known[-half + 1 :]}"


def short_seconds(seconds: float) -> str:
    """Seconds in a suitable unit: 90 -> `1.5 min`."""
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def short_number(number: float) -> str:
    """A number in short form: 1,500,000 -> `1.5 M`."""
    for unit, size in (("E", 10**18), ("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def _second_ticks(largest: float, ticks: int) -> Locator:
    """Ticks at whole minutes, hours or days, instead of at round numbers of seconds."""
    least = largest / ticks
    days = _DAY * max(math.ceil(least / _DAY), 1)
    step = next((step for step in _TICKS_S if step >= least), days)
    return FixedLocator([step * number for number in range(ticks + 1)])


def _message_ticks(_largest: float, ticks: int) -> Locator:
    return MaxNLocator(ticks, integer=True)


MESSAGES = Unit(short_number, _message_ticks)
SECONDS = Unit(short_seconds, _second_ticks)


def _line(rank: int, group: Group, points: Sequence[Point], step_ms: int, value: Callable[[Point], float | None]) -> Line:
    """A group's line, with an unknown point wherever there was no evaluation for a long time."""
    times: list[int] = []
    values: list[float] = []
    gap_ms = GAP_STEPS * _usual_distance(points, step_ms)
    for point in points:
        if times and point.at_ms - times[-1] > gap_ms:
            times.append(times[-1] + 1)
            values.append(math.nan)
        known = value(point)
        times.append(point.at_ms)
        values.append(math.nan if known is None else known)
    return Line(rank, group.group, BURROW_GROUP[group.status], times, values)


def _usual_distance(points: Sequence[Point], step_ms: int) -> int:
    """The usual milliseconds between two points: at least a step, more if the lag job evaluates less often."""
    between = sorted(later.at_ms - point.at_ms for point, later in pairwise(points))
    return max(step_ms, between[len(between) // 2]) if between else step_ms


def _panels(report: Report, drawn: Sequence[Line], unit: Unit) -> bytes | None:
    if not drawn or report.at_ms is None:
        return None
    columns = min(len(drawn), _COLUMNS)
    rows = math.ceil(len(drawn) / columns)
    figure = _figure(_PANEL_INCHES * rows + 0.3)
    for number, line in enumerate(drawn):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(axes, line, unit)
        _style(axes, unit, ticks=3)
        _time_axis(axes, report.from_ms, report.at_ms, 4)
        if number + columns < len(drawn):
            axes.tick_params(labelbottom=False)
    return _png(figure)


def _draw(axes: Axes, line: Line, unit: Unit) -> None:
    """Draw a line with its name and its last value."""
    colour = _COLOURS[line.level]
    times = [_date(at_ms) for at_ms in line.at_ms]
    axes.plot(times, line.values, color=colour, linewidth=1.6, marker="o" if len(times) <= _FEW else "", markersize=4)
    axes.fill_between(times, line.values, color=colour, alpha=0.12, linewidth=0)
    last = line.values[-1] if line.values else math.nan
    title = axes.set_title(f"{line.rank}  {drawable(line.group)}", loc="left", fontsize=8.5, color=_INK, pad=5)
    title.set_parse_math(False)  # otherwise a `$` in a name starts a formula
    known = not math.isnan(last)
    words, style = (unit.shown(last), "normal") if known else ("unknown", "italic")
    axes.set_title(words, loc="right", fontsize=8.5, color=colour if known else _QUIET, style=style, pad=5)


def _style(axes: Axes, unit: Unit, ticks: int) -> None:
    largest = axes.dataLim.y1
    top = max(largest * 1.08, 1) if math.isfinite(largest) else 1
    axes.set_ylim(bottom=0, top=top)
    axes.yaxis.set_major_locator(unit.ticks(top, ticks) if math.isfinite(largest) else FixedLocator([]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: unit.shown(number)))
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=0, labelsize=7.5)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)


def _time_axis(axes: Axes, from_ms: int, to_ms: int, ticks: int) -> None:
    locator = AutoDateLocator(tz=UTC, minticks=max(ticks // 2, 2), maxticks=ticks)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    # Full times for a short span: the concise format would show only their seconds.
    short = to_ms - from_ms < _SHORT_MS
    concise = ConciseDateFormatter(locator, tz=UTC, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S", tz=UTC) if short else concise)  # type: ignore[no-untyped-call]
    axes.set_xlim(_date(from_ms), _date(max(to_ms, from_ms + 1_000)))


def _figure(height_inches: float) -> Figure:
    figure = Figure(figsize=(_WIDTH_INCHES, height_inches), dpi=_DPI)
    figure.set_layout_engine("constrained", hspace=0.08, wspace=0.06)
    FigureCanvasAgg(figure)
    return figure


def _date(at_ms: int) -> float:
    return at_ms / 86_400_000  # matplotlib counts days since 1970


def _png(figure: Figure) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()
