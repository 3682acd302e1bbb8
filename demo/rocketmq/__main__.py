"""`make demo-rocketmq`: kill -9 of a real RocketMQ broker, with its offsets kept by itself, by the bridge and by the plugin.

Exit code 0 if no message is never delivered where an adapter runs, 1 if one is or the demo failed.
"""

import os
import random
import sys
from collections.abc import Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table

from demo.rocketmq.designs import NAMES, DesignError, design_of
from demo.rocketmq.lab import Lab, LabError
from demo.rocketmq.rounds import COMMITS_PER_S, MESSAGES, Cost, Kind, play

ALL = [Kind.BROKER, Kind.SIDECAR, Kind.BOTH, Kind.FILE, Kind.DISK]
READ_ON = "docs/rocketmq.md: install, configure, what is weaker, how to go back."


def kinds_of(kills: int) -> list[Kind]:
    """The kinds in turn, and a broker on an empty disk at the end."""
    return [*(ALL[at % len(ALL)] for at in range(kills - 1)), Kind.MOVED]


def table_of(costs: dict[str, list[Cost]]) -> Table:
    """What each kind of kill cost, design beside design: the mean, and the worst in brackets."""
    table = Table("killed", "", *costs, box=box.SIMPLE, title="kill -9, mean (worst)", title_justify="left")
    for kind in Kind:
        rows = {name: [cost for cost in found if cost.kind is kind] for name, found in costs.items()}
        if not any(rows.values()):
            continue
        table.add_row(kind.value, "kills", *(str(len(found)) for found in rows.values()))
        table.add_row("", "acknowledged commits lost", *(_cell([cost.lost for cost in found]) for found in rows.values()))
        table.add_row("", "messages handled again", *(_cell([cost.again for cost in found]) for found in rows.values()))
        table.add_row("", "messages never handled", *(_cell([cost.never for cost in found]) for found in rows.values()))
    return table


def _cell(numbers: Sequence[int]) -> str:
    return f"{sum(numbers) / len(numbers):,.0f} ({max(numbers):,})" if numbers else "-"


@click.command()
@click.option("--design", "names", type=click.Choice(NAMES), multiple=True, help="May be repeated. Default: all.")
@click.option("--kills", type=click.IntRange(1), default=20, show_default=True, help="For each design.")
@click.option("--version", "version", default="5.3.3", show_default=True, help="Of RocketMQ; 4.9.7 is there as well.")
@click.option("--messages", type=click.IntRange(1_000), default=MESSAGES, show_default=True, help="Of a round.")
@click.option("--settings", default="", help="More lines of broker.conf, such as configManagerVersion=v2.")
@click.option("--seed", type=int, default=None, help="Of the times at which processes are killed.")
def main(names: tuple[str, ...], kills: int, version: str, messages: int, settings: str, seed: int | None) -> None:
    """Run from the command line."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    costs: dict[str, list[Cost]] = {}
    seed = random.randrange(2**31) if seed is None else seed
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    console.print(f"RocketMQ {version}, {COMMITS_PER_S:,} commits/s, {load}, --seed {seed}")
    try:
        for design in [design_of(name) for name in names or NAMES]:
            found = costs[design.name] = []
            with Lab.open(design, version, settings.replace("\\n", "\n")) as lab:
                for number, cost in enumerate(play(lab, kinds_of(kills), random.Random(seed), messages), start=1):
                    found.append(cost)
                    met = f"; offsets back {cost.met_s:.1f} s after the boot" if design.met and cost.kind.broker_dies else ""
                    before = f"acknowledged {cost.acknowledged:,}, lost {cost.lost:,}"
                    after = f"handled {cost.handled:,}, again {cost.again:,}, never {cost.never:,}"
                    console.print(f"{design.name} {number}/{kills} {cost.kind.value}: {before}; {after}{met}")
    except (DesignError, LabError) as error:
        console.print(str(error), style="red")
        sys.exit(1)
    console.print(table_of(costs), f"Read on: {READ_ON}", sep="\n")
    sys.exit(1 if any(cost.never for name, found in costs.items() if name != "stock" for cost in found) else 0)


if __name__ == "__main__":
    main()
