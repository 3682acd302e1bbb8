"""`python -m benchmarks [NAME ...]`: measure, print tables, store the results. A missed bar does not change the exit code."""

import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from benchmarks import (
    ack_window,
    clients,
    command,
    console_pages,
    drain,
    during_flush,
    etcd_fleet,
    etcd_isolation,
    etcd_meta,
    etcd_placement,
    etcd_rebalance,
    fast_path_batches,
    fast_path_client,
    fast_path_floor,
    fast_path_sync,
    fleet,
    flush,
    http2,
    journal,
    lag_live,
    lag_rules,
    machine,
    memory,
    meta_bulk,
    modes,
    offset_files,
    pipeline_import,
    pipeline_lag,
    pipeline_reconcile,
    pipeline_source,
    pipeline_start,
    plot,
    rates,
    recovery,
    recovery_loss,
    restart,
    robustmq,
    robustmq_front,
    rocketmq,
    start,
    worst_requests,
)
from benchmarks.peers import run as peers
from benchmarks.report import Result, loaded, show, store, stored
from benchmarks.scale import Scale, chosen

Benchmark = Callable[[Scale, Path, Progress], Awaitable[Result]]

ALL: dict[str, Benchmark] = {
    "rates": rates.run,
    "flush": flush.run,
    "recovery": recovery.run,
    "recovery_loss": recovery_loss.run,
    "start": start.run,
    "modes": modes.run,
    "ack_window": ack_window.run,
    "floor": fast_path_floor.run,
    "client": fast_path_client.run,
    "clients": clients.run,
    "batches": fast_path_batches.run,
    "wal_sync": fast_path_sync.run,
    "http2": http2.run,
    "during_flush": during_flush.run,
    "drain": drain.run,
    "restart": restart.run,
    "worst_requests": worst_requests.run,
    "journal": journal.run,
    "lag_live": lag_live.run,
    "memory": memory.run,
    "console": console_pages.run,
    "fleet": fleet.run,
    "meta_bulk": meta_bulk.run,
    "offset_files": offset_files.run,
    "command": command.run,
    "lag_rules": lag_rules.run,
    "pipeline_source": pipeline_source.run,
    "pipeline_etcd": pipeline_source.run_etcd,
    "pipeline_start": pipeline_start.run,
    "pipeline_lag": pipeline_lag.run,
    "pipeline_reconcile": pipeline_reconcile.run,
    "pipeline_import": pipeline_import.run,
    "etcd_meta": etcd_meta.run,
    "etcd_isolation": etcd_isolation.run,
    "etcd_fleet": etcd_fleet.run,
    "etcd_placement": etcd_placement.run,
    "etcd_rebalance": etcd_rebalance.run,
    "robustmq": robustmq.run,
    "robustmq_front": robustmq_front.run,
    "rocketmq": rocketmq.run,
    "peers": peers.run,
}
# These start servers of others, or Spark, or need clients that are built: a short run leaves them out unless it names them.
HEAVY = {name for name in ALL if name in {"clients", "peers", "robustmq", "rocketmq"} or name.startswith(("pipeline", "etcd"))}
RESULTS = Path(__file__).parent / "results"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(ALL)))
@click.option("--results", type=click.Path(path_type=Path), help="Where results go. Without it, a short run stores none.")
@click.option("--stored", "only_stored", is_flag=True, help="Measure nothing: print the results that are stored.")
def main(names: tuple[str, ...], results: Path | None, *, only_stored: bool) -> None:
    """Run benchmarks (default: all). BENCH=short: tiny sizes; servers of others and Spark only if named. BENCH=full: long."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    if only_stored:
        _print_stored(results or RESULTS, names, console)
        return
    try:
        scale = chosen()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if results is None and not scale.short:
        results = RESULTS
    logs.setup(LogSection(level="error"))
    facts = machine.facts()
    console.print(", ".join(f"{name}: {value}" for name, value in facts.items()), style="dim", highlight=False, soft_wrap=True)
    about = {
        "command": _command(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "short": scale.short,
        "full": scale.full,
        "machine": facts,
    }
    for name in dict.fromkeys(names or [name for name in ALL if not (scale.short and name in HEAVY)]):
        result = asyncio.run(_measure(ALL[name], scale, console))
        show(console, result)
        if results:
            store(results, result, about)
    if results:
        console.print(plot.draw(results, stored(results)), highlight=False, soft_wrap=True)
        console.print(f"Stored in {results}", highlight=False)


def _print_stored(directory: Path, names: tuple[str, ...], console: Console) -> None:
    for name, content in stored(directory).items():
        if not names or name in names:
            console.print(f"{content['date']}, `{content['command']}`", style="dim", highlight=False, soft_wrap=True)
            show(console, loaded(content))


async def _measure(benchmark: Benchmark, scale: Scale, console: Console) -> Result:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Twice a second: drawing the progress must not take CPU time from what is measured.
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress,
    ):
        return await benchmark(scale, Path(directory), progress)


def _command() -> str:
    short = f"BENCH={os.environ['BENCH']} " if os.environ.get("BENCH") else ""
    return f"{short}python -m benchmarks {shlex.join(sys.argv[1:])}".rstrip()


if __name__ == "__main__":
    main()
