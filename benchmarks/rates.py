"""Save calls per second at growing commit rates: about ten per second at any rate (invariant 5)."""

from pathlib import Path

from rich.progress import Progress

from benchmarks.load import Load
from benchmarks.processes import Measured, running_stack
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "save calls per second and latency at growing commit rates"
SAVES_LIMIT = 10.5  # per second, at a flush interval of 100 ms

COLUMNS = (
    "offered",
    "commits/s",
    "p50 ms",
    "p99 ms",
    "saves/s seen by Meta",
    "saves/s sent",
    "adapter CPU",
    "Meta CPU",
)


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure all rates, one after the other, with the same two processes."""
    result = Result("rates", TITLE)
    rows: list[tuple[str, Measured]] = []
    with running_stack(directory) as stack:
        loads = _loads(stack.adapter.tcp_address, scale)
        task = progress.add_task("rates", total=len(loads))
        for name, load in loads:
            progress.update(task, description=f"rates: {name}")
            rows.append((name, await stack.under(load)))
            progress.advance(task)
    result.tables.append(Table(f"Load for {scale.rates_s:g} s each, wal_sync = interval", COLUMNS, [_row(*row) for row in rows]))
    worst = max(rows, key=lambda row: row[1].saves_seen)
    result.bars.append(Bar(f"save calls/s, at most ({worst[0]})", worst[1].saves_seen, SAVES_LIMIT))
    late = max(measured.late_p99_ms for _, measured in rows)
    result.notes.append(f"Offered rates: 99 % of the commits were sent less than {late:.1f} ms after their time.")
    return result


def _loads(address: str, scale: Scale) -> list[tuple[str, Load]]:
    def load(group: str, rate: float = 0.0, batch: int = 1, *, stream: bool = False) -> Load:
        return Load(address, group, scale.rates_s, rate, batch=batch, stream=stream, warm_up_s=scale.warm_up_s)

    return [
        ("100/s, one offset each", load("rate-100", 100)),
        ("1,000/s, one offset each", load("rate-1000", 1_000)),
        ("64 at once, one offset each", load("unary")),
        ("64 at once, 16 offsets each", load("batch", batch=16)),
        ("one stream, 64 unanswered", load("stream", stream=True)),
    ]


def _row(name: str, measured: Measured) -> list[str | float]:
    return [
        name,
        measured.commits,
        measured.p50_ms,
        measured.p99_ms,
        measured.saves_seen,
        measured.saves_sent,
        measured.adapter_cpu,
        measured.meta_cpu,
    ]
