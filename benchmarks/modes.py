"""Write-back compared to write-through under the same load, and the cost of each wal_sync."""

from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

from rich.progress import Progress

from benchmarks.load import Load
from benchmarks.processes import Measured, running_stack
from benchmarks.report import Result, Table
from benchmarks.scale import Scale

TITLE = "cached against write-through, and the three wal_sync"

COLUMNS = (
    "mode",
    "commits/s",
    "p50 ms",
    "p99 ms",
    "saves/s seen by Meta",
    "Meta CPU s per 100,000 commits",
    "adapter CPU s per 100,000 commits",
)


@dataclass(frozen=True)
class Mode:
    """A mode of the adapter: write-back with a wal_sync, or write-through."""

    name: str
    mode: str
    wal_sync: str


MODES = (
    Mode("cached, wal_sync = interval", "write_back", "interval"),
    Mode("cached, wal_sync = always", "write_back", "always"),
    Mode("cached, wal_sync = never", "write_back", "never"),
    Mode("write_through", "write_through", "interval"),
)


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure each mode with its own two processes, in turn, so that a slow phase of the machine affects all."""
    result = Result("modes", TITLE)
    task = progress.add_task("modes", total=len(scale.modes_rates) * scale.modes_rounds * len(MODES))
    with ExitStack() as running:
        stacks = {
            mode: running.enter_context(running_stack(directory / str(at), wal_sync=mode.wal_sync, top=f'mode = "{mode.mode}"'))
            for at, mode in enumerate(MODES)
        }
        for rate in scale.modes_rates:
            found: dict[Mode, list[Measured]] = {mode: [] for mode in MODES}
            for number in range(scale.modes_rounds):
                for mode, stack in stacks.items():
                    progress.update(task, description=f"modes: {mode.name}")
                    load = Load(stack.adapter.tcp_address, f"{rate}-{number}", scale.modes_s, rate, warm_up_s=scale.warm_up_s)
                    found[mode].append(await stack.under(load))
                    progress.advance(task)
            result.tables.append(Table(_title(rate), COLUMNS, [_row(mode, _middle(windows)) for mode, windows in found.items()]))
    result.notes.append(f"Medians of {scale.modes_rounds} windows of {scale.modes_s:g} s each, the modes taking turns.")
    return result


def _title(rate: int) -> str:
    return f"64 consumers, {rate} commits/s together" if rate else "64 consumers, each as fast as it is answered"


def _middle(windows: list[Measured]) -> Measured:
    return Measured(*(median(values) for values in zip(*map(astuple, windows), strict=True)))


def _row(mode: Mode, measured: Measured) -> list[str | float]:
    row: list[str | float] = [mode.name, measured.commits, measured.p50_ms, measured.p99_ms, measured.saves_seen]
    if not measured.commits:  # possible in a very short window on a busy machine
        return [*row, "-", "-"]
    per_100_000 = 100_000 / measured.commits
    return [*row, measured.meta_cpu * per_100_000, measured.adapter_cpu * per_100_000]
