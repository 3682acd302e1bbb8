"""The Meta Service on etcd: some processes of the production engine and its clients, and rebalances, over simulated Raft groups.

Each call of an adapter goes to the next process that runs. A process may be killed, or paused as by SIGSTOP; what it had sent to
a Raft group arrives all the same.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio
import grpc.aio

from adapter.errors import InvalidInputError, MetaUnavailableError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.engine import decide_report
from adapter.metaservice.etcd import rebalancing
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.keys import Keys, decode_value
from adapter.metaservice.etcd.sharding import Layout, first_layout
from adapter.model.codec import pack_names
from adapter.model.records import KnownStore, OffsetKey, OffsetRecord, StoreReport
from adapter.rpc import etcd_pb
from adapter.runtime.clocks import Clocks
from adapter.runtime.retry import retrying
from tests.etcd_rules import Contents, transact
from tests.model.loop import PROCESS, Process, VirtualLoop
from tests.model.network import CLUSTER, Service
from tests.model.raft_groups import Channel, Fate, RaftGroup

METADATA = "metadata"
# With all three, each of the consumer groups of the model is in another one; with two, both have some.
OFFSETS = ("east", "north", "west")
SECTION = EtcdSection(timeout_ms=50, max_txn_ops=8)
KEYS = Keys(SECTION.prefix)
METAS = 2  # processes
FIRST_TRY_S, MAX_PAUSE_S = 0.01, 0.1  # of opening


class EtcdProcess(Process):
    """A process with clients of its own. `run` is its program, without which it does nothing."""

    def __init__(self, service: "EtcdService") -> None:
        super().__init__()
        self.dead = False
        self._service = service
        self._context = self.context()
        self._calls: set[asyncio.Task[None]] = set()
        self.clients: list[EtcdCluster] = []
        self._main = service.loop.create_task(self._run(), context=self._context.copy())

    @property
    def ended(self) -> bool:
        """Whether it has come to its end, by itself or not."""
        return self.dead or self._main.done()

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Work on a request, for as long as this lives."""
        task = self._service.loop.create_task(work, context=self._context.copy())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def die(self) -> None:
        """From this moment on, nothing that it does is seen by anybody."""
        self.dead = True
        loop = self._service.loop
        loop.resume(self)
        for task in (self._main, *self._calls):
            loop.call_soon(task.cancel)

    def _connect(self) -> list[EtcdCluster]:
        for group in self._service.groups:
            channel = cast("grpc.aio.Channel", Channel(group, lambda: self.dead))
            self.clients.append(EtcdCluster(group.name, {f"{group.name}:2379": channel}, SECTION.timeout_ms / 1000))
        return self.clients

    async def _run(self) -> None:
        raise NotImplementedError


class MetaProcess(EtcdProcess):
    """A process of the Meta Service."""

    engine: EtcdEngine
    opened = False

    async def _run(self) -> None:
        metadata, *offsets = self._connect()
        service = self._service
        self.engine = EtcdEngine(metadata, offsets, SECTION, Clocks(service.loop.time, service.now_ms))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.engine.run)
            await retrying("open", first_s=FIRST_TRY_S, max_s=MAX_PAUSE_S)(self.engine.open)
            self.opened = True


class Rebalance(EtcdProcess):
    """`offset-adapter meta rebalance` into these Raft groups."""

    def __init__(self, service: "EtcdService", groups: Sequence[str]) -> None:
        self.groups = groups
        self.done = False
        super().__init__(service)

    async def _run(self) -> None:
        metadata, *offsets = self._connect()
        # Another one may have begun another move first, or a Raft group is silent for too long.
        with suppress(InvalidInputError, MetaUnavailableError):
            async with rebalancing.running(metadata, offsets, SECTION) as rebalancer:
                await rebalancer.run(self.groups, _Unwatched())
                self.done = True


class _Unwatched:
    def step(self, what: str, keys: int) -> None:
        pass

    def looked(self, keys: int) -> None:
        pass


class EtcdService(Service):
    """The processes, and the Raft groups behind them. `begin` has to be called first."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.up = False
        self.refusing: set[OffsetKey] = set()
        self.metas: list[MetaProcess] = []
        self.rebalances: list[Rebalance] = []
        self._turns = itertools.count()
        self.troubles = 0
        self._troubled_at = 0.0
        self._reported: dict[str, StoreReport] = {}  # of each broker, what was answered last
        self.forgotten: set[str] = set()  # brokers that were told less of their store than was answered before
        self._standing: dict[OffsetKey, OffsetRecord | None] = {}
        self._standing_of: tuple[Contents, ...] = ()

    def begin(self, loop: VirtualLoop, seed: int, first: Sequence[str]) -> None:
        """Start all processes, over Raft groups of which these have been used for offsets."""
        self.loop = loop
        names = enumerate((METADATA, *OFFSETS), 1)
        self.groups = [RaftGroup(loop, name, number, SECTION.max_txn_ops, 10 * seed + number) for number, name in names]
        request = etcd_pb.TxnRequest()
        put = request.success.add().request_put
        put.key, put.value = KEYS.layout, first_layout(first).encode()
        self.groups[0].contents, _ = transact(self.groups[0].contents, request)
        self.metas = [MetaProcess(self) for _ in range(METAS)]
        self.up = True

    @property
    def engine(self) -> EtcdEngine:  # type: ignore[override]
        """That of the process in which this is asked."""
        process = PROCESS.get()
        assert isinstance(process, MetaProcess)
        return process.engine

    def raft_group(self, name: str) -> RaftGroup:
        """The Raft group of this name."""
        return next(group for group in self.groups if group.name == name)

    @property
    def layout(self) -> Layout:
        """Which Raft groups hold the offsets."""
        return Layout.decode(self.groups[0].contents.rows[KEYS.layout].value)

    def mover_of(self, key: OffsetKey) -> str:
        """A Raft group that moves an offset when it is added or taken away, if there is one."""
        packed = pack_names(CLUSTER, key.namespace, key.group)
        home = self.layout.home(packed)
        if len(self.layout.groups) > 1:
            return home
        added = (name for name in OFFSETS if first_layout({home, name}).home(packed) != home)
        return next(added, OFFSETS[0])

    @property
    def calm(self) -> bool:
        """Whether all processes and Raft groups answer, nothing is being moved, and all processes know where everything is.

        One that has missed a change of the layout learns of it from the Raft group where it finds offsets no longer.
        """
        idle = all(one.ended for one in self.rebalances) and self.layout.settled
        answers = all(meta.opened and not meta.ended and not meta.paused for meta in self.metas)
        known = answers and all(meta.engine.fences.known == self.layout for meta in self.metas)
        return idle and known and not any(group.silent for group in self.groups)

    @property
    def troubled_at(self) -> float:
        """When calls were last kept from being answered by a Raft group or a process."""
        if any(group.silent for group in self.groups) or any(meta.ended or meta.paused or not meta.opened for meta in self.metas):
            self._troubled_at = self.loop.now
        return self._troubled_at

    def _trouble(self) -> None:
        """Something that keeps calls from being answered begins or ends."""
        self.troubles += 1
        self._troubled_at = self.loop.now

    def fall_silent(self, name: str, fates: Sequence[Fate]) -> None:
        """A Raft group answers nobody from now on."""
        self._trouble()
        self.raft_group(name).fall_silent(fates)

    def speak(self, name: str) -> None:
        """A Raft group answers again."""
        if self.raft_group(name).silent:
            self._trouble()
            self.raft_group(name).speak()

    def kill(self, number: int) -> None:
        """Kill -9 of a process."""
        if not self.metas[number].dead:
            self._trouble()
            self.metas[number].die()
            self.up = any(not meta.dead for meta in self.metas)

    def start(self, number: int) -> None:
        """Start what does not run."""
        if self.metas[number].ended:
            self._trouble()
            self.metas[number] = MetaProcess(self)
            self.up = True

    def pause(self, number: int) -> None:
        """SIGSTOP of a process."""
        if not (self.metas[number].ended or self.metas[number].paused):
            self._trouble()
            self.loop.pause(self.metas[number])

    def resume(self, number: int) -> None:
        """SIGCONT."""
        if self.metas[number].paused:
            self._trouble()
            self.loop.resume(self.metas[number])

    def crash(self) -> None:
        """Kill all of them, rebalances as well."""
        for number in range(len(self.metas)):
            self.kill(number)
        self.kill_rebalances()

    def rebalance(self, groups: Sequence[str]) -> Rebalance:
        """Start one."""
        self.troubles += 1
        self.rebalances = [one for one in self.rebalances if not one.ended]
        started = Rebalance(self, groups)
        self.rebalances.append(started)
        return started

    def kill_rebalances(self) -> None:
        """Kill -9 of all that run."""
        for one in self.rebalances:
            one.die()
        self.rebalances = []

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """A request comes to the next process that runs. In that one its answer is made; nobody answers if it is killed."""
        running = [meta for meta in self.metas if not meta.ended]
        if running:
            running[next(self._turns) % len(running)].serve(work)
        else:
            work.close()

    async def report_store(self, store: StoreReport, replaces: bytes) -> KnownStore | None:
        """As the production service; notes who is told too little."""
        before = self._reported.get(store.broker)
        known = await self.engine.report_store(CLUSTER, store, replaces, self.now_ms())
        if before and (
            known is None or (known.store.store_id == before.store_id and known.store.flushed_seq < before.flushed_seq)
        ):
            self.forgotten.add(store.broker)
        if kept := decide_report(store, known, replaces, 0):
            self._reported[store.broker] = kept.store
        return known

    def standing(self, key: OffsetKey) -> OffsetRecord | None:
        """What a reader is told: what is at home, or still where a move under way takes it from."""
        contents = tuple(group.contents for group in self.groups)
        if not all(map(_is, contents, self._standing_of)) or not self._standing_of:
            self._standing, self._standing_of = {}, contents
        if key not in self._standing:
            packed = pack_names(CLUSTER, key.namespace, key.group)
            places = {self.layout.home(packed), self.layout.former(packed)}
            rows = (group.contents.rows.get(KEYS.offset(CLUSTER, key)) for group in self.groups if group.name in places)
            value = max((row.value for row in rows if row), default=None)
            self._standing[key] = None if value is None else decode_value(value)
        return self._standing[key]

    def strays(self) -> Iterator[str]:
        """What is elsewhere than at home, offsets and reports of stores, and the Raft group in which it is."""
        packed_of = {KEYS.offsets: KEYS.group_of, KEYS.stores: KEYS.broker_of}
        for group in self.groups[1:]:
            for where in group.contents.rows:
                for prefix, packed in packed_of.items():
                    if where.startswith(prefix) and self.layout.home(packed(where)) != group.name:
                        yield f"{where!r} in {group.name}"


def _is(one: object, other: object) -> bool:
    return one is other
