"""The phases of `make demo-pipeline`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import pyarrow.parquet as pq

from adapter.model.records import OffsetKey
from adapter.testing.waiting import eventually
from demo.cluster import DemoError
from demo.pipeline_checks import Check, equal, every, key_of, newest, offsets_and_lag, rewinds, statuses, survived
from demo.pipeline_fleet import Broker, Driver, Fleet, journaled
from demo.pipeline_load import TICK_S, Load, Way
from demo.pipeline_story import Story, lag_table, rewind_table
from demo.table import QueueOffset

LOAD_TICKS = 200
STOPS_AFTER = 60
REWINDS_AFTER = 160
OUTAGE_TICKS = 40
WAIT_S = 30.0
POINT_DISTANCE_MS = 400  # Burrow's window of 10 commits is then 4 s


class Scenario:
    """The phases and the values that they share."""

    def __init__(self, fleet: Fleet, spark: Driver, table: Sequence[QueueOffset], report: Path, story: Story) -> None:
        self._fleet = fleet
        self._spark = spark
        self._table = table
        self._report = report
        self._story = story
        self._load = Load(starts(table), len(fleet.brokers), stops_after=STOPS_AFTER, rewinds_after=REWINDS_AFTER)
        self._checks: list[Check] = []
        self._below = below(fleet)
        self._lost = fleet.brokers[-1]

    async def play(self) -> list[Check]:
        """Run all phases; returns the comparisons. Raises DemoError, and the errors of starting a process."""
        phases = {
            "1 Start, and take over RocketMQ's offsets": self._import,
            "2 Load on all adapters": self._run_load,
            "3 Lag, rates and evaluation from the journals": self._lag,
            "4 The Meta Service goes away, and an adapter is killed": self._crash,
            "5 What did the Meta Service not get? Repair it": self._reconcile,
            "6 The report": self._make_report,
        }
        for name, run in phases.items():
            with self._story.busy(name):
                await run()
        return self._checks

    async def _import(self) -> None:
        await anyio.to_thread.run_sync(self._fleet.meta.start)
        self._story.output(await self._spark.job("import", "--apply"))
        wanted = {entry.key: entry.offset for entry in self._table}
        self._checks.append(equal("import: RocketMQ's offsets in the Meta Service", await self._fleet.remote_offsets(), wanted))

    async def _run_load(self) -> None:
        await self._fleet.start_adapters()
        self._story.tell(f"{len(self._fleet.brokers)} adapters with journals serve")
        for group, way in self._load.ways.items():
            self._story.tell(f"{group} {way.value}")
        await self._load.run([broker.client for broker in self._fleet.brokers], LOAD_TICKS)
        async with anyio.create_task_group() as tasks:
            for number in range(len(self._fleet.brokers)):
                tasks.start_soon(collect, self._fleet, self._load, number)
        self._story.tell(
            f"{self._load.commits:,} commits in {LOAD_TICKS * TICK_S:g} s; the journals are collected in one directory"
        )

    async def _lag(self) -> None:
        await self._spark.job("lag", "--available-now")
        tables = self._below / "lag"
        groups, rewound = newest(tables / "groups"), every(tables / "rewinds")
        self._story.show(lag_table(groups))
        self._story.show(rewind_table(rewound))
        self._checks += [
            offsets_and_lag(newest(tables / "shards"), self._load),
            statuses(groups, self._load),
            rewinds(rewound, self._load),
        ]

    async def _crash(self) -> None:
        fleet, story = self._fleet, self._story
        fleet.meta.kill()
        story.tell("kill -9 of the Meta Service; commits go on")
        before, stood = self._load.commits, {key: self._load.acknowledged[key] for key in self._lost_keys}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._load.run, [broker.client for broker in fleet.brokers], OUTAGE_TICKS)
            await anyio.sleep(OUTAGE_TICKS * TICK_S / 2)
            await eventually(lambda: any(self._load.acknowledged[key] > at for key, at in stood.items()))  # on a busy machine
            self._lost.adapter.kill()
            story.tell(f"kill -9 of the adapter of {self._lost.name}, under load")
        story.tell(f"{self._load.commits - before:,} commits were acknowledged without a Meta Service")
        await anyio.to_thread.run_sync(self._lost.adapter.start)
        story.tell(f"{self._lost.name} is back, degraded: it serves what it has")
        snapshots = self._below / "snapshots"
        snapshots.mkdir()
        for broker in fleet.brokers:
            story.output(await fleet.snapshot(broker, snapshots))
        self._lost.adapter.kill()
        story.tell(f"the machine of {self._lost.name} is lost: only its snapshot is left")
        what = "snapshot of the killed adapter: all that it acknowledged"
        self._checks.append(survived(what, held(snapshots, self._lost), self._load, self._lost_keys))

    async def _reconcile(self) -> None:
        fleet = self._fleet
        await anyio.to_thread.run_sync(fleet.meta.start)
        for broker in fleet.brokers:
            if broker is not self._lost:
                await clean(broker)
        self._story.tell("the Meta Service is back; the other adapters have flushed")
        remote = await fleet.remote_offsets()
        behind = {
            key: offset for key, offset in held(self._below / "snapshots", self._lost).items() if remote.get(key, -1) < offset
        }
        self._story.output(await self._spark.job("reconcile"))
        found = {key_of(row): row["local_offset"] for row in every(self._below / "reconcile" / "differences")}
        self._checks.append(equal("reconcile: the keys that are behind, and no other", found, behind))
        self._story.output(await self._spark.job("reconcile", "--apply"))
        wanted = {**remote, **behind}
        self._checks.append(equal("after the repair: every key of the Meta Service", await fleet.remote_offsets(), wanted))
        what = "after the repair: all that was acknowledged, anywhere"
        self._checks.append(survived(what, await fleet.remote_offsets(), self._load, set(self._load.acknowledged)))

    async def _make_report(self) -> None:
        await self._spark.job("report")
        page = self._report / "index.html"
        wrong = () if page.is_file() and "demo-stops" in page.read_text() else (str(page),)
        self._checks.append(Check("the report, with the group that stopped", 1, wrong))

    @property
    def _lost_keys(self) -> set[OffsetKey]:
        return self._load.keys_of(len(self._fleet.brokers) - 1)


def starts(table: Sequence[QueueOffset]) -> list[tuple[QueueOffset, Way]]:
    """The start offsets: RocketMQ's groups keep up; other groups read the same queues from there, each in its way."""
    own = [entry for entry in table if not entry.is_retry]
    added: list[tuple[QueueOffset, Way]] = []
    for topic, ways in (("TopicTest", (Way.SLOW, Way.STOPS)), ("lsqTopic1", (Way.REWINDS,))):
        furthest = {
            entry.queue_id: max(other.offset for other in own if other.key.shard == entry.key.shard)
            for entry in own
            if entry.topic == topic
        }
        for way in ways:
            added += [(QueueOffset(f"demo-{way.name.lower()}", topic, queue, offset), way) for queue, offset in furthest.items()]
    return [*((entry, Way.STEADY) for entry in own), *added]


async def clean(broker: Broker) -> None:
    """Wait until a broker's adapter has no dirty key. Raises TimeoutError."""
    with anyio.fail_after(WAIT_S):
        while await broker.dirty():  # noqa: ASYNC110 - the condition is in another process
            await anyio.sleep(0.02)


async def collect(fleet: Fleet, load: Load, number: int) -> None:
    """Copy a broker's journal, once all acknowledged commits are in finished segments. Raises TimeoutError."""
    broker = fleet.brokers[number]
    await clean(broker)
    wanted = {key: load.acknowledged[key] for key in load.keys_of(number)}
    with anyio.fail_after(WAIT_S):
        while not wanted.items() <= (found := journaled(broker.journal)).offsets.items():  # noqa: ASYNC110
            await anyio.sleep(0.05)
    for segment in found.segments:
        copy = below(fleet) / "journals" / segment.relative_to(broker.journal)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(segment, copy)


def held(snapshots: Path, broker: Broker) -> dict[OffsetKey, int]:
    """The offsets in a broker's snapshot. Raises DemoError unless there is exactly one snapshot."""
    found = list(snapshots.glob(f"{broker.name}-*.parquet"))
    if len(found) != 1:
        raise DemoError(f"{len(found)} snapshots of {broker.name} instead of one")
    return {key_of(row): row["offset"] for row in pq.ParquetFile(found[0]).read().to_pylist()}


def below(fleet: Fleet) -> Path:
    """The directory for collected files and results of a fleet."""
    return fleet.directory / "collected"


def write_config(fleet: Fleet, report: Path, files: Sequence[Path] = ()) -> None:
    """Write job.toml for all jobs. `files`: the offset files of RocketMQ."""
    collected = below(fleet)
    (fleet.directory / "job.toml").write_text(f"""
[meta]
endpoints = ['{fleet.meta.address}']
[lag]
journals = ['{collected / "journals"}']
output = '{collected / "lag"}'
max_files = 15
point_distance_ms = {POINT_DISTANCE_MS}
head_distance_ms = {POINT_DISTANCE_MS}
[reconcile]
snapshots = ['{collected / "snapshots"}']
output = '{collected / "reconcile"}'
[import]
files = {[str(path) for path in files] or ["none"]}
output = '{collected / "import"}'
[report]
tables = '{collected / "lag"}'
output = '{report}'
[log]
level = 'warning'
""")
