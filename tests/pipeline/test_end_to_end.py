"""Adapters under load with journals -> lag tables -> a crash -> snapshots -> reconcile --apply -> equal, as in the demo."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from adapter.model.records import OffsetKey
from adapter.testing.waiting import eventually
from demo.pipeline_checks import Check, equal, every, key_of, newest, offsets_and_lag, rewinds, statuses, survived
from demo.pipeline_fleet import Driver, Fleet
from demo.pipeline_load import Load, Way
from demo.pipeline_scenario import below, clean, collect, held, write_config
from demo.table import QueueOffset
from tests.pipeline.jvm import SHORT_LIVED

LOAD_TICKS = 130  # 6.5 s: one that stopped after 1.3 s is silent for longer than Burrow's window
OUTAGE_TICKS = 20
FIRST = 1_000  # where every shard's log ends at first


def starts() -> list[tuple[QueueOffset, Way]]:
    """Four queues and their start positions, read by one group for each way of consuming."""
    return [(QueueOffset(f"g-{way.name.lower()}", "T", queue, FIRST), way) for way in Way for queue in range(4)]


@asynccontextmanager
async def session(fleet: Fleet, directory: Path) -> AsyncIterator[Driver]:
    """The process of the jobs; it starts beside the load."""
    write_config(fleet, directory / "report")
    async with Driver.open(directory, print) as driver:
        yield driver


def right(check: Check) -> None:
    """Fail with a description of what is wrong."""
    assert check.holds, check


def moving_keys(load: Load) -> set[OffsetKey]:
    """The keys that the load still commits to the last adapter, which will be lost."""
    return {key for key in load.keys_of(1) if load.ways[key.group] is not Way.STOPS}


async def crash(fleet: Fleet, load: Load) -> None:
    """The Meta Service goes away, then the last adapter is killed under load, and comes back degraded.

    Not before every key of that adapter has an acknowledged commit that the Meta Service cannot have.
    """
    lost = fleet.brokers[-1]
    fleet.meta.kill()
    before = dict(load.acknowledged)
    moving = moving_keys(load)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load.run, [broker.client for broker in fleet.brokers], OUTAGE_TICKS)
        await eventually(lambda: all(load.acknowledged[key] > before[key] for key in moving))
        lost.adapter.kill()
    await anyio.to_thread.run_sync(lost.adapter.start)


async def snapshots(fleet: Fleet) -> Path:
    """Take snapshots of all adapters; the last adapter is stopped after its own."""
    directory = below(fleet) / "snapshots"
    directory.mkdir()
    for broker in fleet.brokers:
        await fleet.snapshot(broker, directory)
    fleet.brokers[-1].adapter.kill()
    return directory


@pytest.mark.timeout(600)
async def test_journals_tell_the_lag_and_snapshots_repair_what_a_crash_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets, heads, lag and rewinds are exactly those of the load; behind are exactly the keys of the adapter that was lost."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
    async with Fleet.open(tmp_path, 2, print) as fleet, session(fleet, tmp_path) as spark:
        load = Load(starts(), 2, stops_after=25, rewinds_after=100)
        await anyio.to_thread.run_sync(fleet.meta.start)
        await fleet.start_adapters()
        await load.run([broker.client for broker in fleet.brokers], LOAD_TICKS)
        for number in range(2):
            await collect(fleet, load, number)

        await spark.job("lag", "--available-now")
        tables = below(fleet) / "lag"
        right(offsets_and_lag(newest(tables / "shards"), load))
        right(rewinds(every(tables / "rewinds"), load))
        right(statuses(newest(tables / "groups"), load))
        assert len(load.rewinds) == 4
        assert every(tables / "rejects") == []

        await crash(fleet, load)
        kept = held(await snapshots(fleet), fleet.brokers[-1])
        right(survived("snapshot", kept, load, load.keys_of(1)))
        await anyio.to_thread.run_sync(fleet.meta.start)
        await clean(fleet.brokers[0])
        remote = await fleet.remote_offsets()
        behind = {key: offset for key, offset in kept.items() if remote[key] < offset}
        assert set(behind) == moving_keys(load)

        await spark.job("reconcile", "--apply")
        found: dict[OffsetKey, int] = {}
        for row in every(below(fleet) / "reconcile" / "differences"):
            assert (row["kind"], row["remote_offset"]) == ("behind", remote[key_of(row)])
            found[key_of(row)] = row["local_offset"]
        right(equal("differences", found, behind))
        right(equal("repaired", await fleet.remote_offsets(), {**remote, **behind}))
