"""The phases of `make demo-cluster`: each part is killed in turn, and started again."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import anyio.abc
import anyio.to_thread

from adapter.metaservice.etcd.leader_placement import apart
from adapter.testing.etcd import LocalCluster, LocalMember
from adapter.testing.processes import ServiceProcess
from adapter.testing.waiting import eventually
from demo.cluster import DemoError, listed
from demo.comparison import compare
from demo.raft_control import put_metadata
from demo.raft_fleet import Fleet, MetaProcess, node_of, start, started
from demo.raft_load import Load
from demo.raft_state import BrokerState, Fault, MetaState, Outcome, ProcessState, RaftState

WAIT_S = 60.0  # timeout of steps that take a few seconds on an idle machine
SMALL_LAG_S = 1.0


class Phase(NamedTuple):
    """A phase with its planned duration in seconds."""

    name: str
    planned_s: float
    run: Callable[[], Awaitable[None]]


class Scenario:
    """The phases. The load runs for `watch_s` seconds at first, after each kill, and after each return."""

    def __init__(self, fleet: Fleet, state: RaftState, tasks: anyio.abc.TaskGroup, watch_s: float) -> None:
        self._fleet = fleet
        self._state = state
        self._tasks = tasks
        self._watch_s = watch_s
        self._load = Load(fleet.brokers, state.ledger)
        self._phases = [
            Phase("start", 5.0, self._start),
            Phase("load", watch_s, self._run_load),
            Phase("member", 2 * watch_s + 1, self._kill_member),
            Phase("leader", 2 * watch_s + 3, self._kill_leader),
            Phase("node", 2 * watch_s + 3, self._kill_node),
            Phase("meta", 2 * watch_s + 2, self._kill_meta),
            Phase("adapter", 2 * watch_s + 2, self._kill_adapter),
            Phase("compare", 3.0, self._stop_and_compare),
        ]
        state.phases = [(phase.name, phase.planned_s) for phase in self._phases]
        state.metas = {meta.name: MetaState() for meta in fleet.metas}
        state.brokers = {broker.name: BrokerState() for broker in fleet.brokers}
        self._outcome = Outcome({})

    async def play(self) -> Outcome:
        """Run all phases. Raises DemoError, and the errors of starting a process."""
        for number, phase in enumerate(self._phases):
            self._state.enter(number)
            await phase.run()
        return self._outcome

    async def _start(self) -> None:
        fleet = self._fleet
        for meta in fleet.metas:
            meta.process.launch()  # early, since it is slow to start; it waits for etcd
        await fleet.start_etcd()
        self._state.tell(f"two Raft groups of three etcd members run, in {fleet.directory}: each write is synced to that disk")
        await started(*(meta.process for meta in fleet.metas))
        await start(*(broker.adapter for broker in fleet.brokers))
        await self._until(self._well, "all serve, and the leaders are apart")
        leaders = ", ".join(f"{group} {node}" for group, node in self._state.leaders.items())
        self._state.tell(f"two Meta Service processes and three adapters serve; leaders: {leaders}")

    async def _run_load(self) -> None:
        self._load.start(self._tasks)
        self._tasks.start_soon(put_metadata, self._fleet.metas, self._state, name="control plane")
        self._state.tell(f"{self._load.running} consumer groups commit, and a control plane puts metadata")
        await anyio.sleep(self._watch_s)

    async def _kill_member(self) -> None:
        leader = await _leader(self._fleet.offsets)
        member = next(member for member in self._fleet.offsets.members if member is not leader)
        await self._kill(f"{member.name}, a follower", member, more=f", on {node_of(member)}")

    async def _kill_leader(self) -> None:
        leader = await _leader(self._fleet.offsets)
        await self._kill(f"{leader.name}, the leader", leader, more=f", on {node_of(leader)}")

    async def _kill_node(self) -> None:
        """Kill both members on the node of the metadata leader at once."""
        node = node_of(await _leader(self._fleet.metadata))
        members = (*self._fleet.metadata.members, *self._fleet.offsets.members)
        both = [member for member in members if node_of(member) == node]
        await self._kill(f"{node}, both members", *both, more=", one led metadata")

    async def _kill_meta(self) -> None:
        meta = self._busiest()
        users = sum(broker.endpoint == meta.process.address for broker in self._state.brokers.values())
        balances = " and which balances" if self._state.metas[meta.name].balances else ""
        await self._kill(meta.name, meta.process, more=f", which {users} adapters use{balances}")

    async def _kill_adapter(self) -> None:
        broker = self._fleet.brokers[-1]
        await self._kill(f"adapter of {broker.name}", broker.adapter, more="; its brokers commit again when it is back")

    async def _kill(self, what: str, *victims: ServiceProcess, more: str = "") -> None:
        """Kill processes, let the others run on, start them again, and wait until all are healthy."""
        async with self._measured(what) as fault:
            self._state.tell(f"kill -9: {what}{more}")
            for victim in victims:
                victim.kill()
            killed_at = self._state.elapsed
            await anyio.sleep(self._watch_s)
            await self._until(lambda: self._state.looked_at > killed_at and self._goes_on(), "the rest goes on")
            self._state.tell(f"without it: flush lag at most {fault.lag_s:.2f} s; starting it again")
            await start(*victims)
            fault.away_s = self._state.elapsed - killed_at
            await self._until(self._well, "all is well again")
            self._state.tell("back, and all is well")
            await anyio.sleep(self._watch_s)

    @asynccontextmanager
    async def _measured(self, what: str) -> AsyncIterator[Fault]:
        state, fault = self._state, Fault(what)
        state.fault = fault
        state.ledger.measure()
        yield fault
        state.fault = None
        fault.waited_s = state.ledger.slowest_s
        state.faults.append(fault)

    async def _stop_and_compare(self) -> None:
        fleet, state = self._fleet, self._state
        self._load.stop()
        await self._until(lambda: self._load.running == 0, "every commit is answered")
        await _stop({broker.name: broker.adapter for broker in fleet.brokers})
        remote = {meta.name: await listed(meta.process.address) for meta in fleet.metas}
        await _stop({meta.name: meta.process for meta in fleet.metas})
        state.tell("load, adapters and Meta Service stopped by SIGTERM, exit codes 0")
        local, acknowledged = await fleet.stored(), state.ledger.positions
        self._outcome = Outcome(
            {
                name: compare(acknowledged, local, {key: record.position for key, record in records.items()})
                for name, records in remote.items()
            }
        )

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            await eventually(holds, WAIT_S)
        except TimeoutError:
            raise DemoError(f"not so within {WAIT_S:g} s: {what}") from None

    def _goes_on(self) -> bool:
        """True if every Raft group has a leader and running adapters can flush."""
        situation = self._state.situation
        led = situation is not None and all(group.leader for group in (situation.metadata, *situation.offsets))
        return led and all(broker.lag_s < SMALL_LAG_S for broker in self._state.brokers.values())

    def _well(self) -> bool:
        """True if all processes run, the leaders are on different nodes, and neither a flush nor a commit waits."""
        situation = self._state.situation
        if situation is None or not self._goes_on() or not apart(situation):
            return False
        members_there = all(member.reachable for group in (situation.metadata, *situation.offsets) for member in group.members)
        shown: list[ProcessState] = [*self._state.metas.values(), *self._state.brokers.values()]
        return members_there and all(process.serves for process in shown) and self._state.ledger.waiting_s() < SMALL_LAG_S

    def _busiest(self) -> MetaProcess:
        """The Meta Service process that most adapters use; of two, the one that balances leaders."""
        uses = Counter(broker.endpoint for broker in self._state.brokers.values())
        return max(self._fleet.metas, key=lambda meta: (uses[meta.process.address], self._state.metas[meta.name].balances))


async def _leader(group: LocalCluster) -> LocalMember:
    return await anyio.to_thread.run_sync(group.leader)


async def _stop(processes: dict[str, ServiceProcess]) -> None:
    """Send SIGTERM to all at once. Raises DemoError if one does not end cleanly."""
    codes: dict[str, int] = {}

    async def stop(name: str, process: ServiceProcess) -> None:
        codes[name] = await anyio.to_thread.run_sync(process.stop)

    async with anyio.create_task_group() as tasks:
        for name, process in processes.items():
            tasks.start_soon(stop, name, process, name=f"stop {name}")
    wrong = {name: code for name, code in codes.items() if code}
    if wrong:
        raise DemoError(f"exit codes {wrong}: not everything was flushed, or a process failed")
