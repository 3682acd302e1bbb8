"""What happens in the demo, as a list of phases."""

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
import anyio.abc
import anyio.to_thread

from adapter.model import OffsetKey
from adapter.reads import ReadMode
from adapter.rpc import offsets_pb
from adapter.testing import Ledger, eventually, positions
from demo.cluster import Cluster, DemoError
from demo.comparison import Comparison, compare
from demo.consumers import Consumers, commit_request
from demo.state import State
from demo.table import QueueOffset

CONSUME_S = 6.0
AWAY_S = 6.0  # how long the Meta Service is away
AFTER_S = 3.5  # how long everything is watched after each fault
WAIT_S = 30.0


class Phase(NamedTuple):
    """A step, with the seconds that it is planned to take."""

    name: str
    planned_s: float
    run: Callable[[], Awaitable[None]]


class Scenario:
    """The phases, and what they hand on to each other."""

    def __init__(self, cluster: Cluster, table: list[QueueOffset], state: State, tasks: anyio.abc.TaskGroup) -> None:
        self._cluster = cluster
        self._table = table
        self._state = state
        self._tasks = tasks
        self._ledger = Ledger()
        self._consumers = Consumers(cluster.broker, self._ledger, state)
        self._remote: dict[OffsetKey, tuple[int, int]] = {}
        self._comparison: Comparison | None = None
        self._phases = [
            Phase("start", 2.0, self._start),
            Phase("load", 0.5, self._load),
            Phase("consume", CONSUME_S, self._consume),
            Phase("kill -9", 2.0 + AFTER_S, self._kill_adapter),
            Phase("outage", AWAY_S, self._take_meta_away),
            Phase("return", 3.0 + AFTER_S, self._bring_meta_back),
            Phase("stop", 1.0, self._stop),
            Phase("compare", 0.5, self._compare),
        ]
        state.keys = len(table)
        state.phases = [(phase.name, phase.planned_s) for phase in self._phases]

    async def play(self) -> Comparison:
        """Run all phases. Raises DemoError, and what starting a process raises."""
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
        await self._cluster.broker.store.CommitOffsets(commit_request(self._table), timeout=WAIT_S)
        for entry in self._table:
            self._ledger.note(entry.key, entry.offset)
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
        # Paused until all is compared: later commits would hide what was lost. What is under way dies with the adapter.
        self._consumers.pause()
        under_way = self._consumers.under_way
        adapter.kill()
        await eventually(lambda: self._consumers.under_way == 0, WAIT_S)
        state.tell(f"kill -9 of the adapter, {under_way} commits under way, {state.acknowledged:,} acknowledged before")
        await anyio.to_thread.run_sync(adapter.start)
        await self._cluster.channel.channel_ready()
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
        self._cluster.meta.kill()
        self._state.tell("kill -9 of the Meta Service")
        await anyio.sleep(AWAY_S)
        status = await self._cluster.broker.status()
        committed = self._state.acknowledged - before
        _require(committed > 0, "no commit was acknowledged while the Meta Service was away")
        _require(status.dirty_keys <= len(self._table), f"{status.dirty_keys} keys are dirty, more than there are")
        self._state.tell(
            f"{AWAY_S:g} s without it: {committed:,} commits acknowledged, {status.dirty_keys} of {len(self._table)} keys dirty"
        )

    async def _bring_meta_back(self) -> None:
        self._consumers.pause()  # what was committed during the outage is nowhere but in dirty keys now
        await eventually(lambda: self._consumers.under_way == 0, WAIT_S)
        await anyio.to_thread.run_sync(self._cluster.meta.start)
        await self._verify("the outage", "back, ")
        self._consumers.resume()
        await anyio.sleep(AFTER_S)

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
        self._comparison = compare(self._ledger.acknowledged, local, self._remote)

    async def _verify(self, after: str, introduction: str = "") -> None:
        """With the consumers paused: what was acknowledged is in the adapter, and once nothing is dirty in the Meta Service, too.

        More than that may be there: commits that were under way at a kill.
        """
        started = time.monotonic()
        with anyio.fail_after(WAIT_S):
            while (await self._cluster.broker.status()).dirty_keys:  # noqa: ASYNC110 - the condition is in another process
                await anyio.sleep(0.02)
        seconds = time.monotonic() - started
        local = positions(await self._read_back())
        missing = compare(self._ledger.acknowledged, local, await self._cluster.remote_positions()).missing
        _require(not missing, f"{after} lost something of {len(missing)} keys, for example {next(iter(missing), None)}")
        self._state.tell(f"{introduction}flushed after {seconds:.1f} s; {len(local)} keys compared: {after} lost nothing")

    async def _read_back(self) -> list[offsets_pb.ShardOffset]:
        """The adapter's local values of all groups."""
        rows: list[offsets_pb.ShardOffset] = []
        for group in sorted({entry.group for entry in self._table}):
            rows += (await self._cluster.broker.read(group, mode=ReadMode.MEMORY)).values()
        return rows


def _require(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - the condition is the subject
    if not condition:
        raise DemoError(otherwise)
