"""The phases of `make demo`."""

import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import anyio
import anyio.abc
import anyio.to_thread

from adapter.model.records import FIRST_EPOCH, OffsetKey, ReadMode, taken_up
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.testing.history import ADAPTER, META, History
from adapter.testing.waiting import eventually, positions
from demo.cluster import Cluster, DemoError
from demo.comparison import Comparison, compare
from demo.consumers import Consumers, commit_request
from demo.state import State
from demo.table import QueueOffset

CONSUME_S = 6.0
AWAY_S = 6.0  # duration of the Meta Service's outage
AFTER_S = 3.5  # how long the load continues after each fault
TURNS = 10  # commits by each consumer, on average, for which an outage lasts at least
WAIT_S = 30.0
BOTH = (ADAPTER, META)  # a reset is acknowledged by both


class Phase(NamedTuple):
    """A phase with its planned duration in seconds."""

    name: str
    planned_s: float
    run: Callable[[], Awaitable[None]]


class Scenario:
    """The phases and the values that they share."""

    def __init__(self, cluster: Cluster, table: list[QueueOffset], state: State, tasks: anyio.abc.TaskGroup) -> None:
        self._cluster = cluster
        self._table = table
        self._state = state
        self._tasks = tasks
        self._history = History()
        self._consumers = Consumers(cluster.broker, cluster.log, self._history, state)
        self._remote: dict[OffsetKey, tuple[int, int]] = {}
        self._away_at_ms = 0
        self._comparison: Comparison | None = None
        self._phases = [
            Phase("start", 2.0, self._start),
            Phase("load", 0.5, self._load),
            Phase("consume", CONSUME_S, self._consume),
            Phase("kill -9", 2.0 + AFTER_S, self._kill_adapter),
            Phase("outage", AWAY_S, self._take_meta_away),
            Phase("return", 3.0 + AFTER_S, self._bring_meta_back),
            Phase("reset", 4.0 + AFTER_S, self._reset),
            Phase("stop", 1.0, self._stop),
            Phase("compare", 0.5, self._compare),
        ]
        state.keys = len(table)
        state.phases = [(phase.name, phase.planned_s) for phase in self._phases]

    async def play(self) -> Comparison:
        """Run all phases. Raises DemoError, and the errors of starting a process."""
        for number, phase in enumerate(self._phases):
            self._state.enter(number)
            await phase.run()
        _require(self._comparison is not None, "nothing was compared")
        assert self._comparison is not None
        return self._comparison

    async def _start(self) -> None:
        await anyio.to_thread.run_sync(self._cluster.meta.start)
        await anyio.to_thread.run_sync(self._cluster.adapter.start)
        self._state.tell("Meta Service and adapter serve")

    async def _load(self) -> None:
        await self._cluster.channel.channel_ready()
        writes = [self._history.begin(entry.key, (FIRST_EPOCH, entry.offset)) for entry in self._table]
        await self._cluster.broker.store.CommitOffsets(commit_request(self._table), timeout=WAIT_S)
        for write in writes:
            write.acknowledged()
        rows = await self._read_back()
        labels = {(row.group, row.topic, row.partition, row.offset) for row in rows}
        _require(labels == set(self._table), "the table reads back differently")
        groups = len({entry.group for entry in self._table})
        self._state.tell(f"loaded RocketMQ's table: {len(self._table)} offsets of {groups} groups")

    async def _consume(self) -> None:
        self._consumers.start(self._tasks, self._table)
        self._state.tell(f"{self._state.consumers} consumers read on from there and commit every message")
        await anyio.sleep(CONSUME_S)

    async def _kill_adapter(self) -> None:
        state, adapter = self._state, self._cluster.adapter
        # Paused until the comparison is done: later commits would hide a loss. Commits in flight end with the adapter.
        self._consumers.pause()
        under_way = self._consumers.under_way
        adapter.kill()
        await eventually(lambda: self._consumers.under_way == 0, WAIT_S)
        state.tell(f"kill -9 of the adapter, {under_way} commits under way, {state.acknowledged:,} acknowledged before")
        await self._start_adapter()
        recovery = (await self._cluster.broker.status()).recovery
        state.tell(
            f"back: recovery compared {recovery.compared}: pushed {recovery.pushed}, adopted {recovery.adopted}, "
            f"equal {recovery.equal}, failed {recovery.failed}"
        )
        await self._verify("the kill -9")
        self._consumers.resume()
        await anyio.sleep(AFTER_S)

    async def _take_meta_away(self) -> None:
        before = self._state.acknowledged
        self._away_at_ms = wall_ms()
        self._cluster.meta.kill()
        self._state.tell("kill -9 of the Meta Service")
        await anyio.sleep(AWAY_S)
        with suppress(TimeoutError):  # on a busy machine the consumers take longer
            await eventually(lambda: self._state.acknowledged > before + TURNS * self._state.consumers, WAIT_S)
        status = await self._cluster.broker.status()
        committed = self._state.acknowledged - before
        _require(committed > 0, "no commit was acknowledged while the Meta Service was away")
        _require(status.dirty_keys <= len(self._table), f"{status.dirty_keys} keys are dirty, more than there are")
        self._state.tell(
            f"{AWAY_S:g} s without it: {committed:,} commits acknowledged, {status.dirty_keys} of {len(self._table)} keys dirty"
        )

    async def _bring_meta_back(self) -> None:
        self._consumers.pause()  # commits made during the outage are only in dirty keys now
        await eventually(lambda: self._consumers.under_way == 0, WAIT_S)
        await anyio.to_thread.run_sync(self._cluster.meta.start)
        await self._verify("the outage", "back, ")
        self._consumers.resume()
        await anyio.sleep(AFTER_S)

    async def _reset(self) -> None:
        """An operator moves a group back; then a broker returns with its data from before the reset."""
        self._consumers.pause()
        await eventually(lambda: self._consumers.under_way == 0, WAIT_S)
        store, old = self._cluster.store, self._cluster.store.with_name("old")
        self._cluster.adapter.kill()
        await anyio.to_thread.run_sync(shutil.copytree, store, old)
        await self._start_adapter()
        await self._reset_group(self._table[0].group)
        self._cluster.adapter.kill()
        await anyio.to_thread.run_sync(shutil.rmtree, store)
        old.rename(store)
        await self._start_adapter()
        adopted = (await self._cluster.broker.status()).recovery.adopted
        self._state.tell(f"kill -9; the broker comes back with its data from before the reset: {adopted} offsets adopted")
        await self._verify("the return of old data")
        self._consumers.resume()
        await anyio.sleep(AFTER_S)

    async def _reset_group(self, group: str) -> None:
        admin = self._cluster.broker.admin
        request = offsets_pb.ResetOffsetsRequest(group=group, to_timestamp_ms=self._away_at_ms)
        plan = await admin.ResetOffsets(request, timeout=WAIT_S)
        writes = [
            self._history.begin(
                OffsetKey(row.namespace, row.group, row.shard),
                (row.after.epoch, row.after.offset),
                (taken_up(row.after.epoch), row.after.offset),
                places=BOTH,
            )
            for row in plan.rows
        ]
        request.execute = True
        done = await admin.ResetOffsets(request, timeout=WAIT_S)
        for write in writes:
            write.acknowledged()
        _require(done.executed, "the reset was not executed")
        back = sum(row.before.offset - row.after.offset for row in done.rows)
        self._state.tell(f"reset {group} to the time of the outage: back by {back:,} messages, read back and equal")

    async def _start_adapter(self) -> None:
        await anyio.to_thread.run_sync(self._cluster.adapter.start)
        await self._cluster.channel.channel_ready()

    async def _stop(self) -> None:
        self._consumers.stop()
        await eventually(lambda: self._consumers.running == 0, WAIT_S)
        code = await anyio.to_thread.run_sync(self._cluster.adapter.stop)
        _require(code == 0, f"the adapter ended with {code}: not everything was flushed")
        self._remote = await self._cluster.remote_positions()
        code = await anyio.to_thread.run_sync(self._cluster.meta.stop)
        _require(code == 0, f"the Meta Service ended with {code}")
        self._state.tell("consumers, adapter and Meta Service stopped by SIGTERM, exit codes 0")

    async def _compare(self) -> None:
        local = await anyio.to_thread.run_sync(self._cluster.stored_positions)
        self._comparison = compare(self._history.least(), local, self._remote)

    async def _verify(self, after: str, introduction: str = "") -> None:
        """Check that acknowledged commits are in the adapter and, once it is clean, in the Meta Service. Consumers are paused.

        Offsets may be larger than acknowledged: by commits that were in flight at a kill.
        """
        started, flush = time.monotonic(), self._history.carrying()
        with anyio.fail_after(WAIT_S):
            while (await self._cluster.broker.status()).dirty_keys:  # noqa: ASYNC110 - the condition is in another process
                await anyio.sleep(0.02)
        seconds = time.monotonic() - started
        flush.done()
        reading, reading_meta = self._history.reading(), self._history.reading(META)
        local = positions(await self._read_back())
        reading.found(local)
        reading_meta.found(await self._cluster.remote_positions())
        wrong = self._history.check()
        _require(not wrong, f"{after} lost something, {len(wrong)} reads are wrong, for example {next(iter(wrong), None)}")
        self._state.tell(f"{introduction}flushed after {seconds:.1f} s; {len(local)} keys compared: {after} lost nothing")

    async def _read_back(self) -> list[offsets_pb.ShardOffset]:
        """Read the adapter's local offsets of all groups."""
        rows: list[offsets_pb.ShardOffset] = []
        for group in sorted({entry.group for entry in self._table}):
            rows += (await self._cluster.broker.read(group, mode=ReadMode.MEMORY)).values()
        return rows


def _require(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - the condition is the subject
    if not condition:
        raise DemoError(otherwise)
