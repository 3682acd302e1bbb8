"""What the bridge and the plugin cost a RocketMQ broker: latency of a commit, CPU time and memory, beside the stock broker.

In one run, in turns, each with a new broker and empty disks. One of RocketMQ's own clients commits, one commit after the other.
Then the broker has a large table of offsets in which nothing changes. Needs what `make demo-rocketmq` fetches.
"""

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.progress import Progress, TaskID

from adapter.rocketmq.broker import connected
from adapter.rocketmq.config import RocketmqSection
from benchmarks.machine import cpu_s, memory_mib
from benchmarks.report import Result, Table
from benchmarks.scale import Scale
from demo.rocketmq.designs import NAMES, DesignError, design_of
from demo.rocketmq.lab import Lab, LabError

TITLE = "what the bridge and the plugin cost a RocketMQ broker"
TOPIC, QUEUES = "measured", 4
FILLERS = 16  # calls at once that fill the table
COLUMNS = (
    "offsets kept by",
    "commits/s",
    "p50 us",
    "p99 us",
    "broker CPU us/commit",
    "sidecar CPU us/commit",
    "broker MiB",
    "idle: broker CPU %",
    "idle: sidecar CPU %",
)


class Measured(NamedTuple):
    """Of one turn, in the order of COLUMNS."""

    rate: float
    p50_us: float
    p99_us: float
    broker_us: float
    sidecar_us: float
    broker_mib: float
    idle_broker: float
    idle_sidecar: float


async def run(scale: Scale, _: Path, progress: Progress) -> Result:
    """Measure every design, in turns."""
    result = Result("rocketmq", TITLE)
    found: dict[str, list[Measured]] = {name: [] for name in NAMES}
    task = progress.add_task("brokers", total=scale.rocketmq_rounds * len(NAMES))
    try:
        for name in NAMES * scale.rocketmq_rounds:
            found[name].append(await asyncio.to_thread(_turn, name, scale, progress, task))
    except (DesignError, LabError) as error:
        result.tables.append(Table("Not measured", ("why",), [[str(error)]]))
        return result
    medians = {name: Measured(*map(median, zip(*turns, strict=True))) for name, turns in found.items()}
    stock = medians["stock"]
    result.tables += [
        Table(f"Medians of {scale.rocketmq_rounds} turns", COLUMNS, [[name, *row] for name, row in medians.items()]),
        Table(
            "As multiples of the stock broker's",
            ("offsets kept by", "p50", "p99", "broker CPU/commit", "broker memory"),
            [
                [
                    name,
                    row.p50_us / stock.p50_us,
                    row.p99_us / stock.p99_us,
                    row.broker_us / stock.broker_us,
                    row.broker_mib / stock.broker_mib,
                ]
                for name, row in medians.items()
            ],
        ),
    ]
    result.notes += [
        f"{scale.rocketmq_commits:,} commits count, after as many that do not. Client, broker and sidecar share the machine.",
        f"Idle: {scale.rocketmq_table:,} offsets in groups of {QUEUES}, none of which changes for {scale.rocketmq_idle_s:g} s.",
    ]
    return result


def _turn(name: str, scale: Scale, progress: Progress, task: TaskID) -> Measured:
    with Lab.open(design_of(name)) as lab:
        lab.start_broker()
        lab.ask("send", TOPIC, 100)
        lab.ask("latency", "warm", TOPIC, max(scale.rocketmq_commits // 10, 100))
        before, began = _used(lab), time.perf_counter()
        p50, p99, _ = map(int, lab.ask("latency", "measured", TOPIC, scale.rocketmq_commits)[0].split())
        seconds, after = time.perf_counter() - began, _used(lab)
        commits = 2 * scale.rocketmq_commits  # of which the second half is timed
        broker_us, sidecar_us = ((now - then) / commits * 1e6 for now, then in zip(after, before, strict=True))
        asyncio.run(_fill(lab, scale.rocketmq_table))
        time.sleep(scale.rocketmq_idle_s / 2)  # for what the fill has begun
        before, began = _used(lab), time.perf_counter()
        time.sleep(scale.rocketmq_idle_s)
        idle_s = time.perf_counter() - began
        idle = [(now - then) / idle_s * 100 for now, then in zip(_used(lab), before, strict=True)]
        assert lab.broker is not None
        mib, _ = memory_mib(lab.broker.process.pid)
        progress.advance(task)
        return Measured(commits / seconds, p50, p99, broker_us, sidecar_us, mib, *idle)


def _used(lab: Lab) -> tuple[float, float]:
    """CPU seconds of the broker and of the sidecar since their start."""
    assert lab.broker is not None
    return cpu_s(lab.broker.process.pid), cpu_s(lab.adapter.pid) if lab.adapter else 0.0


async def _fill(lab: Lab, offsets: int) -> None:
    """Commit an offset of each queue for many groups, as their consumers would."""
    groups = iter(range(offsets // QUEUES))

    async def some() -> None:
        async with connected(RocketmqSection(broker=lab.broker_address), None) as broker:
            for number in groups:
                group = f"group-of-the-table-{number}"
                await broker.create_group(group)
                for queue in range(QUEUES):
                    await broker.update_offset(group, TOPIC, queue, 20)

    await asyncio.gather(*(some() for _ in range(FILLERS)))
