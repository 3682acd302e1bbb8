"""Renders the report as one HTML page that needs no other file and no network, and is whole without its script.

All names from the fleet are escaped. The page looks as the console does, light and dark.
"""

import base64
import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from adapter.look import shown
from adapter.look.charts import Chart, Value, bars, chart, spark_path, spark_text
from adapter.look.pages import environment, row_id, style
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.pipeline.lag.status import SEVERITY
from adapter.pipeline.report.content import Group, GroupPoint, Report

TEMPLATE = "report.html"
SCRIPT = Path(__file__).parent / "templates" / "sort.js"
GAP_STEPS = 3  # a line is interrupted after this many times its usual distance without a point


class Drawn(NamedTuple):
    """One of the worst groups: its rank and the id of its section, its sparkline with its text, and its charts."""

    rank: int
    id: str
    row: Group
    spark: str
    spark_text: str
    lag: Chart | None
    seconds: Chart | None


def render(report: Report, tables: str, console: str, made_ms: int) -> str:
    """The page as HTML. `console`: its address, or empty; `made_ms`: the time of the page, Unix milliseconds."""
    script = SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawn = [_drawn(report, rank, row, line) for rank, (row, line) in enumerate(zip(report.worst, report.lines, strict=True), 1)]
    values: dict[str, Any] = {
        "report": report,
        "drawn": drawn,
        "ids": {(one.row.namespace, one.row.group): one.id for one in drawn},
        "total": _lines([point.at_ms for point in report.history], [point.total_lag for point in report.history]),
        "bad": _lines([point.at_ms for point in report.history], [point.bad for point in report.history]),
        "bars": bars(report.bars, report.bar_ms, report.from_ms, report.at_ms or report.from_ms),
        "tables": tables,
        "made_ms": made_ms,
        "age": "" if report.at_ms is None else _age((made_ms - report.at_ms) / 1000),
        "severity": {name: number for number, name in enumerate(SEVERITY)},
        "default_namespace": DEFAULT_NAMESPACE,
        "console": console,
        "console_link": lambda row: f"{console}/group?{urlencode({'namespace': row.namespace, 'group': row.group})}",
        # Our own files, with nothing of the fleet in them.
        "style": Markup(style()),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "script_digest": digest,
    }
    return environment("adapter.pipeline.report").get_template(TEMPLATE).render(values)


def _drawn(report: Report, rank: int, row: Group, line: Sequence[GroupPoint]) -> Drawn:
    key = (row.namespace, row.group)
    marks = [(moved.at_ms, moved.kind) for moved in report.rewinds if (moved.namespace, moved.group) == key]
    times, lag = [point.at_ms for point in line], tuple(point.total_lag for point in line)
    return Drawn(
        rank,
        row_id("g", *key),
        row,
        spark_path(lag),
        spark_text(lag),
        _lines(times, lag, marks),
        _lines(times, [point.lag_seconds for point in line], marks),
    )


def _lines(times_ms: Sequence[int], values: Sequence[Value], marks: Sequence[tuple[int, str]] = ()) -> Chart | None:
    return chart(*with_gaps(times_ms, values), marks, 0)


def with_gaps(times_ms: Sequence[int], values: Sequence[Value]) -> tuple[list[int], list[list[Value]]]:
    """A line with an unknown point wherever the lag job evaluated nothing for a long time."""
    between = sorted(later - earlier for earlier, later in pairwise(times_ms))
    gap_ms = GAP_STEPS * between[len(between) // 2] if between else 0
    times: list[int] = []
    line: list[Value] = []
    for at_ms, value in zip(times_ms, values, strict=True):
        if times and at_ms - times[-1] > gap_ms:
            times.append(times[-1] + 1)
            line.append(None)
        times.append(at_ms)
        line.append(value)
    return times, [line]


def _age(seconds: float) -> str:
    """How old the data were when the page was made."""
    return f"{shown.seconds(seconds)} later" if seconds >= 0 else "by a clock that is behind the adapters'"
