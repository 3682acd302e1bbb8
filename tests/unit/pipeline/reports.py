"""Reports as they are gathered, made by hand, for tests of the page."""

from dataclasses import replace
from typing import Any

from adapter.pipeline.report.content import Bar, Count, Group, GroupPoint, Point, Reject, Report, Rewind, RewindTotals

AT_MS = 1_795_255_200_000
HOSTILE = (
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=alert(1)>'",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1$ $x^$",
    "_not in a legend",
    "消費者 🐇 abc",
    "x" * 255,
)


def group(name: str, status: str = "OK", lag: int | None = 5, **others: Any) -> Group:
    """A group of one shard."""
    seconds = None if lag is None else lag / 10
    return Group("default", name, status, status, 1, int(lag is None), lag, seconds, seconds, f"{name}/0")._replace(**others)


def report_of(*groups: Group, **others: Any) -> Report:
    """A report over an hour, with three points for each group."""
    times = (AT_MS - 3_600_000, AT_MS - 1_800_000, AT_MS)
    counts = tuple(Count(status, sum(row.status == status for row in groups), 2) for status in ("STOP", "WARN", "OK"))
    known = [row.total_lag for row in groups if row.total_lag is not None]
    made = Report(
        AT_MS,
        times[0],
        groups=len(groups),
        shards=len(groups),
        unknown_lag_shards=sum(row.unknown_lag_shards for row in groups),
        counts=counts,
        worst=groups,
        history=tuple(Point(at, float(sum(known)) if known else None, 1) for at in times),
        lines=tuple(tuple(GroupPoint(at, row.total_lag, row.max_lag_seconds) for at in times) for row in groups),
        bar_ms=75_000,
    )
    return replace(made, **others)


def fleet() -> Report:
    """Healthy groups, one that is stopped, and names with HTML and scripts."""
    hostile = [group(name, "WARN", 1_000 + number) for number, name in enumerate(HOSTILE)]
    return report_of(
        *(
            group("stopped", "STOP", 350_000),
            *hostile,
            *(group(f"healthy-{number}") for number in range(30)),
            group("unknown", lag=None),
        ),
        rewinds=tuple(Rewind(AT_MS, "default", name, "s/0", "b1", "rewind", 9, 2, 7, 0) for name in HOSTILE),
        rewind_totals=RewindTotals(7, 49, 0, 0),
        bars=(Bar(AT_MS, 49),),
        rejects=(Reject(None, "b1", "a.parquet", None, None, None, HOSTILE[1]),),
        reject_count=1,
    )
