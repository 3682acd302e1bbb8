"""Lines and bars as paths of SVG: the sparkline of a group, and a chart over time. An unknown value is a gap, never zero."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

SPARK_WIDTH, SPARK_HEIGHT = 240, 48  # in its own units
SPARKS_KEPT = 4_096  # drawn ones that are kept: most histories are the same in the next build of a page
CHART_WIDTH, CHART_HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 8, 8, 12, 28  # of the chart, around its lines
_WIDE, _HIGH = CHART_WIDTH - LEFT - RIGHT, CHART_HEIGHT - TOP - BOTTOM

Value = int | float | None


@lru_cache(maxsize=SPARKS_KEPT)
def spark_path(values: tuple[Value, ...]) -> str:
    """The path of a sparkline from 0 to the largest value; empty for fewer than two known values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    scale, low = (SPARK_HEIGHT - 4) / (max(known) or 1), SPARK_HEIGHT - 2
    parts: list[str] = []
    pen = "M"
    for across, value in zip(_places(len(values)), values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{across}{int(low - scale * value)}")
        pen = "L"
    return "".join(parts)


@cache
def _places(count: int) -> tuple[str, ...]:
    """Where the points of a sparkline are from left to right, each with the blank behind it."""
    return tuple(f"{SPARK_WIDTH * index // max(1, count - 1)} " for index in range(count))


@lru_cache(maxsize=SPARKS_KEPT)
def spark_text(values: tuple[Value, ...]) -> str:
    """The same in words, for who does not see it."""
    known = [value for value in values if value is not None]
    if len(known) < 2:  # noqa: PLR2004
        return "no change lately"
    first, last, most = known[0], known[-1], max(known)
    way = "the same" if first == last else "up" if last > first else "down"
    return f"{way}: from {first:,.0f} to {last:,.0f}, at most {most:,.0f}"


class Chart(NamedTuple):
    """A chart: a path for each series, the values at its borders, and marks with their texts."""

    paths: Sequence[str]
    least: float
    most: float
    from_ms: int
    to_ms: int
    marks: Sequence[tuple[float, str]]


def chart(
    times_ms: Sequence[int], series: Sequence[Sequence[Value]], marks: Sequence[tuple[int, str]] = (), least: float | None = None
) -> Chart | None:
    """Draw lines over the same times, ascending, Unix milliseconds; None if none has two known values.

    `marks`: times with their texts. `least`: the value at the lower border; None: the least of all.
    """
    known = [[value for value in values if value is not None] for values in series]
    if max(map(len, known), default=0) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    low = min(map(min, filter(None, known))) if least is None else least
    most = max(map(max, filter(None, known)))
    from_ms, to_ms = times_ms[0], times_ms[-1]
    places = [across(at_ms, from_ms, to_ms) for at_ms in times_ms]
    paths = [_path(places, values, low, most) for values in series]
    return Chart(
        paths,
        low,
        most,
        from_ms,
        to_ms,
        [(across(at_ms, from_ms, to_ms), text) for at_ms, text in marks if from_ms <= at_ms <= to_ms],
    )


def bars(bars_of: Sequence[tuple[int, int]], step_ms: int, from_ms: int, to_ms: int) -> Chart | None:
    """Draw bars from 0: the time at which each begins and its value, `step_ms` wide; None without any."""
    if not bars_of:
        return None
    most = max(value for _, value in bars_of)
    low = TOP + _HIGH
    path = "".join(
        f"M{across(at_ms, from_ms, to_ms)} {low}V{low - _HIGH * value / max(1, most):.1f}"
        f"H{max(across(at_ms + step_ms, from_ms, to_ms), across(at_ms, from_ms, to_ms) + 1)}V{low}Z"
        for at_ms, value in bars_of
    )
    return Chart([path], 0, most, from_ms, to_ms, ())


def across(at_ms: int, from_ms: int, to_ms: int) -> float:
    """Where a time is from left to right, within the borders."""
    share = (at_ms - from_ms) / max(1, to_ms - from_ms)
    return round(LEFT + _WIDE * min(1, max(0, share)), 1)


def _path(places: Sequence[float], values: Sequence[Value], least: float, most: float) -> str:
    span = max(1, most - least)
    parts: list[str] = []
    pen = "M"
    for place, value in zip(places, values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{place} {TOP + _HIGH - _HIGH * (value - least) / span:.1f}")
        pen = "L"
    return "".join(parts)
