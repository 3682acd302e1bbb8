"""A process as the production code runs it, alone in its own event loop and in virtual time, between calls to Raft groups.

Its clusters only record what is called. So a process is a machine: from an event (a client's call begins, an answer or an error
arrives) to the calls that it makes next and the results that it gives. It never sees the clock, nor another process.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel

from adapter.errors import AdapterError, MetaUnavailableError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd import rebalancing
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.sharding import Layout
from adapter.model.records import (
    FIRST_EPOCH,
    STORE_ID_BYTES,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreMark,
    StoreReport,
)
from adapter.rpc import etcd_pb
from adapter.runtime import backoff
from adapter.runtime.clocks import Clocks
from adapter.runtime.retry import retrying
from tests.model import order
from tests.model.loop import VirtualLoop

CLUSTER = "c"  # the cluster of brokers whose offsets these are
METADATA, A, B = "metadata", "A", "B"
GROUPS = (METADATA, A, B)  # the Raft groups
NOW_MS = 1_000_000  # the wall clock of all processes
SECTION = EtcdSection(max_txn_ops=8)
KEYS = Keys(SECTION.prefix)
# The store that an adapter reports, whose home is B if there is one. Its write counter is told as an offset of this key.
LOCAL_STORE = StoreReport("broker-2", "/store", bytes(STORE_ID_BYTES), 0)
STORE = OffsetKey("", LOCAL_STORE.broker, LOCAL_STORE.path)
_MAX_TURNS = 100  # of timers, until a process that makes no call counts as one that never will


class Request(NamedTuple):
    """A call to a Raft group, in etcd's encoding. `resend`: the client may send it again when it has no answer."""

    group: str
    is_txn: bool
    data: bytes
    resend: bool


class Save(NamedTuple):
    """A client saves offsets."""

    records: tuple[tuple[OffsetKey, OffsetRecord], ...]


class Read(NamedTuple):
    """A client reads offsets."""

    keys: tuple[OffsetKey, ...]


class Delete(NamedTuple):
    """A client deletes a shard of a consumer group."""

    key: OffsetKey


class Expire(NamedTuple):
    """The sweep asks whether a consumer group has expired."""

    key: OffsetKey
    before_ms: int


class Drop(NamedTuple):
    """The sweep removes old tombstones."""

    before_ms: int


class Report(NamedTuple):
    """An adapter reports its store, up to this write, and asks what is remembered."""

    seq: int


class Rebalance(NamedTuple):
    """`offset-adapter meta rebalance` into these Raft groups."""

    groups: tuple[str, ...]


Operation = Save | Read | Delete | Expire | Drop | Report | Rebalance


class Result(NamedTuple):
    """What came of an operation: by key what stands, and which rows failed; `error` if all of it failed."""

    operation: Operation
    stands: Mapping[OffsetKey, OffsetRecord | None]
    failed: tuple[OffsetKey, ...] = ()
    error: str = ""
    removed: int = 0


class Birth(NamedTuple):
    """How a process starts: a Meta Service with the calls of its clients, or a rebalance."""

    name: str
    program: tuple[Operation, ...]


class Start(NamedTuple):
    """The client makes its next call."""


class Answer(NamedTuple):
    """A call is answered."""

    number: int
    data: bytes


class Fail(NamedTuple):
    """A call ends without an answer: it may or may not be done."""

    number: int


class Cancel(NamedTuple):
    """The client gives up its call."""


Event = Start | Answer | Fail | Cancel


class DiedError(Exception):
    """A process ended by an error that the production code does not expect."""


class Port:
    """Stands for `EtcdCluster`: records calls, and waits."""

    available = True
    losses = 0
    mark: StoreMark | None = None

    def __init__(self, name: str, ask: Callable[[Request], Awaitable[bytes]]) -> None:
        self.name = name
        self._ask = ask

    async def txn(self, request: etcd_pb.TxnRequest, *, resend: bool = True) -> etcd_pb.TxnResponse:
        for op in request.success:
            if op.request_put.key.startswith(KEYS.writers):
                op.request_put.value = b""  # counts the transactions of a process, and nobody reads it
        data = await self._ask(Request(self.name, is_txn=True, data=_encoded(request), resend=resend))
        return etcd_pb.TxnResponse.FromString(data)

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        data = await self._ask(Request(self.name, is_txn=False, data=_encoded(request), resend=True))
        return etcd_pb.RangeResponse.FromString(data)


def _encoded(request: etcd_pb.TxnRequest | etcd_pb.RangeRequest) -> bytes:
    return request.SerializeToString(deterministic=True)


@dataclass
class Process:
    """One that runs. After `feed` nothing runs in it until it is fed again."""

    birth: Birth
    calls: dict[int, tuple[Request, "asyncio.Future[bytes]"]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    left: int = 0  # operations that have not begun
    opened: bool = False
    busy: bool = False  # an operation is under way
    engine: EtcdEngine | None = None
    made: int = 0  # calls, so far
    _begun: tuple[int, object] = (-1, None)
    _scope: anyio.CancelScope | None = None

    def __post_init__(self) -> None:
        """Start it."""
        self.left = len(self.birth.program)
        self._loop = VirtualLoop()
        self._started = asyncio.Event()
        backoff.jitter.seed(0)
        order.places.seed(0)
        self._main = self._loop.create_task(self._run())
        self._settle()

    @property
    def ended(self) -> bool:
        """Whether it has come to its end by itself."""
        return self._main.done()

    @property
    def startable(self) -> bool:
        """Whether its client may make the next call."""
        return self.opened and not self.busy and self.left > 0 and not self.ended

    def feed(self, event: Event) -> None:
        """Let this happen, and run until the process waits for the next event."""
        if isinstance(event, Start):
            self._started.set()
        elif isinstance(event, Cancel):
            assert self._scope
            self._loop.call_soon(self._scope.cancel)
        else:
            _, future = self.calls.pop(event.number)
            if not future.done():  # whoever waited for it was cancelled
                if isinstance(event, Answer):
                    future.set_result(event.data)
                else:
                    future.set_exception(MetaUnavailableError("no answer"))
        self._settle()

    @property
    def begins(self) -> object:
        """The step of a rebalance, while it makes the first call of it; else None."""
        made, step = self._begun
        return step if made + 1 == self.made and self.calls else None

    def count_on(self, made: int) -> None:
        """Number calls, those under way included, as if this were its `made`th."""
        shift = made - self.made
        self.calls = {number + shift: call for number, call in self.calls.items()}
        self.made = made
        self._begun = self._begun[0] + shift, self._begun[1]

    def close(self) -> None:
        """Kill it: nothing of it runs any more."""
        self._loop.set_exception_handler(lambda *_: None)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_for(0)
        self._loop.close()

    def _settle(self) -> None:
        loop = self._loop
        loop.run_for(0)
        for _ in range(_MAX_TURNS):
            wakes = loop._scheduled[0][0] if loop._scheduled else math.inf
            if self.calls or self.ended or self.startable or wakes == math.inf:
                break
            loop.now = max(loop.now, wakes)  # exactly: a timer that is due too early would be set again for ever
            loop.run_for(0)
        else:
            raise DiedError("it waits for ever, and calls nobody")
        if self._main.done() and not self._main.cancelled() and self._main.exception():
            raise DiedError(repr(self._main.exception())) from self._main.exception()
        if loop.errors:
            raise DiedError(str(loop.errors))

    async def _ask(self, request: Request) -> bytes:
        self.made += 1
        number = self.made
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.calls[number] = request, future
        return await future

    async def _run(self) -> None:
        metadata, *groups = (Port(name, self._ask) for name in GROUPS)
        if isinstance(self.birth.program[0], Rebalance):
            await self._rebalance(metadata, groups, self.birth.program[0])
        else:
            await self._serve(metadata, groups)

    async def _rebalance(self, metadata: Any, groups: Any, operation: Rebalance) -> None:
        self.left = 0
        self.busy = True
        try:
            async with rebalancing.running(metadata, groups, SECTION) as rebalancer:
                self._watch_steps(rebalancer)
                await rebalancer.run(operation.groups, _Unwatched())
        except AdapterError as error:
            self.results.append(Result(operation, {}, error=f"{type(error).__name__}: {error}"))
        else:
            self.results.append(Result(operation, {}))
        self.busy = False

    def _watch_steps(self, rebalancer: rebalancing.Rebalancer) -> None:
        """Note where a step begins: from there on a rebalance depends on the layout, and on nothing that it did before."""
        production = rebalancer._step

        async def step(layout: Layout, following: Layout, watcher: rebalancing.Watcher) -> None:
            widths = tuple(
                (name, end, width.value) for name, known in rebalancer._widths.items() for end, width in known._known.items()
            )
            self._begun = self.made, (layout, following, widths)
            await production(layout, following, watcher)

        rebalancer._step = step  # type: ignore[method-assign]

    async def _serve(self, metadata: Any, groups: Any) -> None:
        engine = self.engine = EtcdEngine(metadata, groups, SECTION, Clocks(now_ms=lambda: NOW_MS))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            await retrying("open", first_s=0.1, max_s=1.0)(engine.open)
            self.opened = True
            for operation in self.birth.program:
                await self._started.wait()
                self._started.clear()
                self.left -= 1
                self.busy = True
                with anyio.CancelScope() as self._scope:
                    try:
                        result = await _perform(engine, operation)
                    except AdapterError as error:
                        result = Result(operation, {}, error=f"{type(error).__name__}: {error}")
                if self._scope.cancelled_caught:
                    result = Result(operation, {}, error="given up")
                self.busy = False
                self.results.append(result)
            await anyio.sleep_forever()


class _Unwatched:
    def step(self, what: str, keys: int) -> None:
        pass

    def looked(self, keys: int) -> None:
        pass


async def _perform(engine: EtcdEngine, operation: Operation) -> Result:
    if isinstance(operation, Save):
        entries = [SaveEntry(key, record) for key, record in operation.records]
        outcomes = await engine.save(CLUSTER, entries)
        return _saved(operation, outcomes)
    if isinstance(operation, Read):
        found = dict(await engine.get(CLUSTER, operation.keys))
        return Result(operation, {key: found.get(key) for key in operation.keys})
    if isinstance(operation, Delete):
        namespace, group, shard = operation.key
        await engine.delete(CLUSTER, namespace, group, [shard])
        return Result(operation, {})
    if isinstance(operation, Expire):
        namespace, group, _ = operation.key
        expiry = await engine.expire(CLUSTER, namespace, group, operation.before_ms, NOW_MS)
        return Result(operation, {}, removed=expiry.expired)
    if isinstance(operation, Drop):
        return Result(operation, {}, removed=await engine.drop_tombstones(operation.before_ms))
    if isinstance(operation, Report):
        known = await engine.report_store(CLUSTER, LOCAL_STORE._replace(flushed_seq=operation.seq), b"", NOW_MS)
        return Result(operation, {STORE: OffsetRecord(FIRST_EPOCH, known.store.flushed_seq) if known else None})
    raise TypeError(operation)


def _saved(operation: Save, outcomes: list[SaveOutcome]) -> Result:
    stands: dict[OffsetKey, OffsetRecord | None] = {}
    failed = []
    for (key, record), outcome in zip(operation.records, outcomes, strict=True):
        if outcome.status is Status.APPLIED:
            stands[key] = outcome.standing or record
        elif outcome.status is Status.SUPERSEDED:
            stands[key] = outcome.standing
        else:
            failed.append(key)
    return Result(operation, stands, tuple(failed))
