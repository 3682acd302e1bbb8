"""Renders the report as an HTML page. All names from the fleet are escaped; the page needs no network and no script."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from adapter.model.records import DEFAULT_NAMESPACE
from adapter.pipeline.lag.status import BURROW_GROUP
from adapter.pipeline.report.content import HISTORY_MS, Report

TEMPLATE = "report.html.j2"
# The style of each status.
_LEVELS = {"OK": "fine", "WARN": "warn", "ERR": "error"}
_DECIMAL_BELOW_S = 9.95  # seconds below this are shown with one decimal
_PNG_SIZE = slice(16, 24)  # width and height in a PNG's first chunk, 4 bytes each, big-endian


def render(report: Report, pictures: Mapping[str, bytes], tables: str, made_ms: int) -> str:
    """The page as HTML.

    `pictures`: file name -> PNG of the plots beside it; `made_ms`: the time of the page, Unix milliseconds.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"number": number, "duration": duration, "time": time}
    return environment.get_template(TEMPLATE).render(
        report=report,
        pictures={name: _size(png) for name, png in pictures.items()},
        tables=tables,
        made_ms=made_ms,
        age="" if report.at_ms is None else _age((made_ms - report.at_ms) / 1000),
        history=f"{HISTORY_MS // 3_600_000} hours",
        level=lambda status: _LEVELS[BURROW_GROUP[status]],
        default_namespace=DEFAULT_NAMESPACE,
    )


def number(value: int | None) -> str | None:
    """1234567 -> `1,234,567`; None (unknown) stays None."""
    return None if value is None else f"{value:,}"


def duration(seconds: float | None) -> str | None:
    """Seconds in at most two units, such as `1 h 5 min`; None (unknown) stays None."""
    if seconds is None:
        return None
    if 0 < seconds < _DECIMAL_BELOW_S:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "< 0.1 s"  # noqa: PLR2004 - where rounding begins
    whole = round(seconds)
    for large, unit, small, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large:,} {unit} {rest} {part}" if rest else f"{whole // large:,} {unit}"
    return f"{whole} s"


def time(at_ms: int) -> str:
    """Unix milliseconds as a date and time of day."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _age(seconds: float) -> str:
    return f"{duration(seconds)} later" if seconds >= 0 else "by a clock that is behind the adapters'"


def _size(png: bytes) -> tuple[int, int]:
    both = png[_PNG_SIZE]
    return int.from_bytes(both[:4]), int.from_bytes(both[4:])
