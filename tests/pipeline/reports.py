"""Reports as Spark collects them, made by hand, for tests of the page."""

from typing import Any

from adapter.pipeline.report.content import Count, Group, Point, Report

AT_MS = 1_795_255_200_000
HOSTILE = (
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=alert(1)>'",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1$ $x^$",
    "_not in a legend",
    "消費者 🐇 \N{RIGHT-TO-LEFT OVERRIDE}abc",
    "x" * 255,
)


def group(name: str, status: str = "OK", lag: int | None = 5, **others: Any) -> Group:
    """A group of one shard."""
    seconds = None if lag is None else lag / 10
    return Group("default", name, status, status, 1, int(lag is None), lag, seconds, seconds, f"{name}/0")._replace(**others)


def report_of(*groups: Group, lag: tuple[Point, ...] | None = None) -> Report:
    """A report over an hour, with three points for each group."""
    times = (AT_MS - 3_600_000, AT_MS - 1_800_000, AT_MS)
    points = tuple(Point(row.namespace, row.group, at, row.total_lag, row.max_lag_seconds) for row in groups for at in times)
    counts = tuple(Count(status, sum(row.status == status for row in groups), 2) for status in ("STOP", "WARN", "OK"))
    return Report(
        AT_MS,
        times[0],
        groups=len(groups),
        shards=len(groups),
        unknown_lag_shards=sum(row.unknown_lag_shards for row in groups),
        counts=counts,
        worst=groups,
        lag=points if lag is None else lag,
        lag_step_ms=15_000,
        bar_ms=75_000,
    )
