"""A world of what is rare: small pages, resets to anything, epochs near the limit, topics, imports, packed saves, broken HTTP/2.

What is promised is what is promised everywhere: the invariants after each step, for the keys of the model, whatever is asked for;
no call ends with anything but an answer or an error of the adapter's.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from types import ModuleType
from typing import Any, cast

import grpc

from adapter.client.broker_log import BrokerLog
from adapter.errors import BrokerLogError
from adapter.meta.packed import Chunk, merge_outcomes, merge_request
from adapter.metaservice.engine import differing
from adapter.model.bounds import Bounds
from adapter.model.records import (
    EPOCH_MAX,
    ERA_BITS,
    CommitMode,
    GroupKey,
    OffsetKey,
    OffsetRecord,
    ReadMode,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreReport,
)
from adapter.rpc import meta_pb, offsets_pb
from adapter.runtime.serving.statuses import Context
from adapter.sidecar.api.offset_service import OffsetService
from adapter.sidecar.api.traced import TracedOffsetService
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.flush_spans import FlushSpans
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.engine.resets import Outcome
from adapter.sidecar.ledger.operations import Commit
from adapter.sidecar.ledger.write_batch import Stored
from adapter.testing.fake_meta import entries_of
from tests.model import choices as st
from tests.model.broker import Broker, Running, Setup, SimSidecar
from tests.model.choices import rule
from tests.model.invariants import Watch
from tests.model.machines import GROUPS, KEYS
from tests.model.network import CLUSTER, SaveCall, Service, SimMeta
from tests.model.raw_http2 import BEGINNINGS, FRAMES, RawClient
from tests.model.runs import BROKERS, GROUP, KEY, SELDOM, SETUPS, WAITS, Everything
from tests.model.world import World
from tests.unit.calls import UNIX, AbortedError, FakeContext, context

# What is a thousand in production, and six here in all: by the module that has it, its name, and what it is here.
SMALL = (
    ("adapter.runtime.slices", "SLICE", 2),
    ("adapter.runtime.serving.large_calls", "SLICE_ROWS", 2),
    ("adapter.runtime.serving.large_calls", "MAX_ROWS", 4),
    ("adapter.runtime.serving.large_calls", "MAX_CHANGES", 3),
    ("adapter.runtime.serving.large_calls", "MAX_NAMED", 4),
    ("adapter.sidecar.engine.groups", "PAGE_KEYS", 2),
    ("adapter.sidecar.engine.groups", "MAX_VISITED", 4),
    ("adapter.sidecar.engine.reads", "GROUP_ROWS", 1),
    ("adapter.sidecar.engine.resets", "LIST_PAGE", 2),
    ("adapter.sidecar.engine.reset_writer", "SAVE_ENTRIES", 1),
    ("adapter.sidecar.engine.reset_writer", "READ_KEYS", 1),
    ("adapter.sidecar.engine.group_loader", "LOAD_GROUPS", 1),
    ("adapter.sidecar.engine.group_loader", "LOAD_KEYS", 1),
    ("adapter.sidecar.engine.flusher", "AT_ONCE", 1),
    ("adapter.sidecar.ledger.group_state", "MAX_REMOVED", 1),
    ("adapter.sidecar.ledger.group_state", "MAX_GROUPS", 1),
    ("adapter.sidecar.engine.policies", "MAX_CALLERS", 2),
    ("adapter.sidecar.engine.policies", "MAX_SHARED", 2),
    ("adapter.sidecar.engine.expiry", "LOOKED_AT", 2),
    ("adapter.sidecar.ledger.watching", "MAX_BEHIND", 2),
    ("adapter.sidecar.ledger.watching", "MAX_WATCHERS", 1),
    ("adapter.sidecar.ledger.group_state", "MAX_KEYS", 3),
    ("adapter.sidecar.ledger.ledger", "IDLE_S", 5),
    ("adapter.meta.packed", "PACKED_AT_ONCE", 1),
    ("adapter.sidecar.api.commit_requests", "SLICE_OFFSETS", 1),
    ("adapter.model.names", "MAX_GOOD", 3),
    ("adapter.sidecar.api.commits", "SMALL", 1),
    ("adapter.sidecar.api.commit_stream", "MAX_PIPELINED", 2),
    ("adapter.runtime.serving.http2.headers", "KNOWN_MAX", 2),
)
LAST_ERA = EPOCH_MAX >> ERA_BITS << ERA_BITS
EPOCHS = st.sampled_from([0, 1, 2, 1 << ERA_BITS, EPOCH_MAX - 1, EPOCH_MAX, EPOCH_MAX - (1 << ERA_BITS), LAST_ERA])
SHARDS = [["a"], ["b"], ["a", "b"], [], ["aa"], ["a", "a"]]
TOKENS = [b"", b"x", b"\0", b"\xff" * 40, b"default", b"\x01a\x01b"]
# Commits of which some are refused; of shards that are there.
STRANGE = [
    [offsets_pb.GroupCommits(group="g", shard_names=["a", "b"], offsets=[1])],
    [offsets_pb.GroupCommits(group="g", shard_names=["a"], offsets=[1], epochs=[2**63])],
    [offsets_pb.GroupCommits(group="g", shard_names=["a", "a"], offsets=[1, 2])],
    [offsets_pb.GroupCommits(group="g", shard_names=["a"], offsets=[0]), offsets_pb.GroupCommits(group="g", member_id="n")],
    [offsets_pb.GroupCommits(group="g", generation=number, shard_names=["b"], offsets=[0]) for number in (1, 2)],
    [offsets_pb.GroupCommits(group="g", shard_names=["a"], offsets=[1], shards=[offsets_pb.ShardCommit(shard="a", offset=1)])],
]
STORE_READ = 2, offsets_pb.STORE  # of `_calls`: what and which number
BROADCAST = "bc"  # a group of which the model knows nothing
LINGERS_S = 26.0  # longer than a peer has for its first frame


class WideService(Service):
    """The service, which takes saves in packed form, too."""

    async def merge(self, request: meta_pb.MergeOffsetDataRequest, reported: StoreReport | None) -> meta_pb.MergeOffsetDataReply:
        """As the production service: what differs from what was sent is told, and a bad entry does not disturb the others."""
        entries = entries_of(request)
        outcomes: list[SaveOutcome] = await self.save(entries, reported)
        reply = meta_pb.MergeOffsetDataReply()
        for outcome in outcomes:
            reply.applied += outcome.status is Status.APPLIED
            reply.superseded += outcome.status is Status.SUPERSEDED
        for one in differing(entries, outcomes):
            if one.status is Status.INVALID:
                reply.rejected.add(index=one.at, message=one.message)
            else:
                reply.standing.add(index=one.at, status=_STATUSES[one.status], record=one.record, message=one.message)
        return reply


_STATUSES = {Status.APPLIED: meta_pb.SaveOffsetResult.APPLIED, Status.SUPERSEDED: meta_pb.SaveOffsetResult.SUPERSEDED}


class WideMeta(SimMeta):
    """A client that packs what is flushed."""

    _service: WideService

    async def save(self, entries: Sequence[SaveEntry]) -> Sequence[SaveOutcome]:  # type: ignore[override]
        if not isinstance(entries, Chunk):
            return await super().save(entries)
        if not self.dead:
            self._on_save(SaveCall(asyncio.get_running_loop().time(), list(entries)))
        store = self.server_reports.store
        reported = store() if store and self._reported_unanswered == self._unanswered else None
        request = await merge_request(CLUSTER, entries)
        return await merge_outcomes(entries, await self._reported(lambda: self._service.merge(request, reported)))


class WideLog:
    """The broker's log, which has what some shards have, and now and then no answer."""

    configured = True

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._asked = count(1)

    async def bounds(self, namespace: str, shards: Iterable[str]) -> dict[str, Bounds]:  # noqa: ARG002 - as the Protocol says
        """Of shards that were made: all but one that nobody has."""
        self._answer()
        return {shard: Bounds(2, 8, self._now_ms()) for shard in shards if shard in {"a", "b"}}

    async def offsets_for_time(
        self,
        namespace: str,  # noqa: ARG002 - as the Protocol says
        shards: Iterable[str],
        timestamp_ms: int,
    ) -> dict[str, int | None]:
        """Behind the last message, of one shard, where the time is late."""
        self._answer()
        return {shard: None if shard == "b" and timestamp_ms else 3 for shard in shards}

    def _answer(self) -> None:
        if next(self._asked) % 4 == 0:
            raise BrokerLogError("no answer, by the test")


class WideSidecar(SimSidecar):
    """A process that records its flushes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._spans = FlushSpans(lambda _: None, 1.0)
        self.offsets = TracedOffsetService(self.state.serving, self.state.committing_core, self._metrics, self._spans)

    def take_settings(self) -> None:
        """Begin to retry at other times, at a server that has another address; and back."""
        config = self._config
        flush = config.flush.model_copy(update={"refused_retry_ms": 900 - config.flush.refused_retry_ms})
        meta = config.meta.model_copy(update={"endpoints": (*config.meta.endpoints[1:], "127.0.0.1:1")})
        self._take(config.model_copy(update={"flush": flush, "meta": meta}))


class WideBroker(Broker):
    """A broker with such a client, and a log, if its number is even."""

    meta_type = WideMeta
    sidecar_type = WideSidecar

    def broker_log(self) -> BrokerLog:
        """What its processes ask for bounds."""
        return WideLog(self.machine.clocks.now_ms) if self.name == "b0" else super().broker_log()


class WideWorld(World):
    """The world, in which pages may be small."""

    service_type = WideService
    broker_type = WideBroker

    def __init__(self, seed: int, setups: Sequence[Setup], *, small: bool) -> None:
        self._before = list(_made_small()) if small else []
        self._raw: list[RawClient] = []
        super().__init__(seed, setups)

    def close(self) -> None:
        """End everything, and be as large as ever."""
        super().close()
        for module, name, value in self._before:
            setattr(module, name, value)

    def reset_to(self, at: int, wanted: Wanted, reset: Reset, *, execute: bool) -> None:
        """An admin resets shards to anything."""
        self._administer(at, lambda core: core.resets.reset(wanted, reset, execute=execute), execute=execute)

    def delete_everywhere(self, at: int, shards: Sequence[str], *, execute: bool) -> None:
        """An admin deletes shards of all groups."""
        self._administer(at, lambda core: core.resets.delete_everywhere("default", shards, execute=execute), execute=execute)

    def clone_some(self, at: int, wanted: Wanted, target: GroupKey, *, execute: bool) -> None:
        """An admin clones some shards."""
        self._administer(at, lambda core: core.resets.clone(wanted, target, execute=execute), execute=execute)

    def _administer(self, at: int, change: Callable[[Core], Coroutine[Any, Any, Outcome]], *, execute: bool) -> None:
        """What is only planned changes nothing, so nothing is owed."""
        running = self._running(at)
        if execute:
            self._admin(at, change)
        elif running:
            running.call(lambda: running.demand(change(running.serving())))

    def import_offsets(self, at: int, offsets: dict[OffsetKey, int], epoch: int, *, overwrite: bool, execute: bool) -> None:
        """An admin imports offsets."""
        now_ms = self.now_ms()
        entries = [(key, OffsetRecord(epoch, offset, committed_at_ms=now_ms)) for key, offset in offsets.items()]
        mode = CommitMode.OVERWRITE if overwrite else CommitMode.INCREASE_ONLY
        for key in offsets:
            self.model.carried(key, epoch)
        running = self._running(at)
        if not running:
            return

        async def imported() -> None:
            # It is the operator's, and takes up what is held.
            with self._taking_up({key.group_key for key in offsets} if execute else ()):
                await running.demand(running.serving().resets.merge(Commit(entries, mode), execute=execute))

        running.call(imported)

    def commit_strangely(self, at: int, commits: Sequence[offsets_pb.GroupCommits], *, overwrite: bool) -> None:
        """Commits with bounds, topics, and epochs that nobody gave out."""
        mode = offsets_pb.OVERWRITE if overwrite else offsets_pb.INCREASE_ONLY
        for group in commits:
            for shard in group.shards:
                self.model.carried(OffsetKey("default", group.group, shard.shard), min(shard.epoch, EPOCH_MAX))
        request = offsets_pb.CommitOffsetsRequest(groups=commits, mode=mode)
        self._ask(at, lambda running: _service_of(running).CommitOffsets(request, traced()))

    def ask(self, at: int, what: int, group: GroupKey, number: int) -> None:
        """Somebody calls the API."""
        self._ask(at, lambda running: _calls(running, group, number)[what](), [group] if (what, number) == STORE_READ else ())

    def _ask(self, at: int, work: Callable[[Running], Awaitable[Any]], taking_up: Collection[GroupKey] = ()) -> None:
        running = self._running(at)
        if not running or running.sidecar is None:
            return

        async def asked() -> None:
            try:
                with self._taking_up(taking_up):
                    await running.demand(work(running))
            except AbortedError as error:
                if error.args[0] in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}:
                    self._violation(f"{running.broker.name} answered with {error}")

        running.call(asked)

    def send_raw(self, at: int, beginning: bytes, frames: Sequence[bytes], cut: int) -> None:
        """A connection sends frames as they are, in pieces of so many bytes (0: a piece for each frame)."""
        running = self._running(at)
        if not running or running.dead or running.paused or not running.grpc_server:
            return
        data = [beginning, *frames]
        if cut:
            whole = b"".join(data)[: 40 * cut]
            data = [whole[start : start + cut] for start in range(0, len(whole), cut)]

        def come() -> None:
            if not running.grpc_server or running.dead:
                return
            client = RawClient(running.grpc_server)
            self._raw.append(client)
            running._clients[-1_000 - len(self._raw)] = client  # type: ignore[assignment]

            def on() -> None:
                if data and not client.closed:
                    client.send(data.pop(0))
                    running.read(on)

            on()

        running.read(come)


class WideWatch(Watch):
    """All invariants, of the keys that the model knows."""

    def _what_is_clean_is_there(
        self, at: int, stored: dict[OffsetKey, Stored], flushed_seq: int, there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        problems = super()._what_is_clean_is_there(at, _known(stored), flushed_seq, there)
        yield from (problem for problem in problems if not problem.startswith("4:"))

    def _a_stop_leaves_nothing(
        self, at: int, stored: dict[OffsetKey, Stored], there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        yield from super()._a_stop_leaves_nothing(at, _known(stored), there)


class Wide(Everything):
    """What is rare."""

    watch_type = WideWatch
    world: WideWorld

    @rule(seed=st.integers(0, 99), setups=st.tuples(*[SETUPS] * 2), small=st.booleans())
    def begin(self, seed: int, setups: tuple[Setup, ...], small: bool) -> None:  # type: ignore[override]
        """Two adapters start over empty disks, with small pages or not."""
        self.world = WideWorld(seed, setups, small=small)
        self.watch = self.watch_type(self.world)

    @rule(
        at=BROKERS,
        key=KEY,
        whole=st.sampled_from([0, 1, 2, 3]),
        to=st.sampled_from(To),
        value=st.sampled_from([0, 1, 5, -1, -5, 100, 2**62]),
        create=st.booleans(),
        execute=st.booleans(),
        wait=WAITS,
    )
    def reset_to(self, at: int, key: OffsetKey, whole: int, to: To, value: int, create: bool, execute: bool, wait: float) -> None:
        """A reset to a bound, by so much, to a time, of one shard, of all, of a topic, of one that is not there."""
        shards = [[key.shard], [], [], [key.shard, "aa"]][whole]
        if to is To.TARGETS:  # those that are named get one
            shards, whole = [key.shard], 0
        wanted = Wanted(key.group_key, shards, ["t"] if whole == 2 else [])
        targets = {key.shard: abs(value)} if to is To.TARGETS else {}
        self.world.reset_to(at, wanted, Reset(to, value, targets, create and whole != 3), execute=execute)
        self._pass(wait)

    @rule(at=BROKERS, both=st.booleans(), execute=st.booleans(), wait=WAITS)
    def delete_everywhere(self, at: int, both: bool, execute: bool, wait: float) -> None:
        """Shards are made anew."""
        self.world.delete_everywhere(at, "ab" if both else "a", execute=execute)
        self._pass(wait)

    @rule(at=BROKERS, key=KEY, to=GROUP, absent=SELDOM, execute=st.booleans(), wait=WAITS)
    def clone_some(self, at: int, key: OffsetKey, to: GroupKey, absent: bool, execute: bool, wait: float) -> None:
        """One shard is cloned, or one that is not there."""
        self.world.clone_some(at, Wanted(key.group_key, ["aa" if absent else key.shard]), to, execute=execute)
        self._pass(wait)

    @rule(
        at=BROKERS,
        offsets=st.dictionaries(KEY, st.integers(0, 9), min_size=1, max_size=4),
        epoch=EPOCHS,
        overwrite=st.booleans(),
        execute=st.booleans(),
        wait=WAITS,
    )
    def import_offsets(
        self, at: int, offsets: dict[OffsetKey, int], epoch: int, overwrite: bool, execute: bool, wait: float
    ) -> None:
        """An import, with the epochs of another cluster."""
        self.world.import_offsets(at, offsets, epoch, overwrite=overwrite, execute=execute)
        self._pass(wait)

    @rule(
        at=BROKERS,
        offsets=st.dictionaries(KEY, st.integers(0, 9), min_size=1, max_size=4),
        epoch=EPOCHS,
        bounds=st.sampled_from([None, (0, 5), (3, 9), (7, 7), (9, 3)]),
        topic=st.sampled_from(["", "t", "t/x", "T" * 200]),
        partition=st.sampled_from([0, 3]),
        age_ms=st.sampled_from([0, 1, 10_000, -400_000]),
        overwrite=SELDOM,
        wait=WAITS,
    )
    def commit_strangely(
        self,
        at: int,
        offsets: dict[OffsetKey, int],
        epoch: int,
        bounds: tuple[int, int] | None,
        topic: str,
        partition: int,
        age_ms: int,
        overwrite: bool,
        wait: float,
    ) -> None:
        """Commits that tell bounds and topics, with epochs that nobody gave out."""
        made = []
        for key, offset in offsets.items():
            shard = offsets_pb.ShardCommit(shard=key.shard, offset=offset, epoch=epoch, topic=topic, partition=partition)
            if age_ms:
                shard.committed_at_ms = self.world.now_ms() - age_ms
            if bounds:
                shard.low_watermark, shard.high_watermark = bounds
            made.append(offsets_pb.GroupCommits(group=key.group, shards=[shard]))
        self.world.commit_strangely(at, made, overwrite=overwrite)
        self._pass(wait)

    @rule(at=BROKERS, what=st.integers(0, 15), group=GROUP, number=st.integers(0, 5), wait=WAITS)
    def ask(self, at: int, what: int, group: GroupKey, number: int, wait: float) -> None:
        """Somebody asks for something unusual."""
        self.world.ask(at, what, group, number)
        self._pass(wait)

    @rule(
        at=BROKERS,
        connections=st.lists(
            st.tuples(
                st.sampled_from(BEGINNINGS),
                st.lists(st.sampled_from(FRAMES), min_size=1, max_size=4),
                st.sampled_from([0, 0, 7, 1_000]),
            ),
            min_size=1,
            max_size=10,
        ),
        wait=WAITS,
    )
    def send_raw(self, at: int, connections: list[tuple[bytes, list[bytes], int]], wait: float) -> None:
        """Connections that break HTTP/2, or use what few clients use."""
        for beginning, frames, cut in connections:
            self.world.send_raw(at, beginning, frames, cut)
        self._pass(wait)

    @rule()
    def linger(self) -> None:
        """Long enough for peers that say nothing."""
        self._pass(LINGERS_S)


def _calls(running: Running, group: GroupKey, number: int) -> Sequence[Callable[[], Awaitable[Any]]]:
    """What can be asked for, of a group; the number says how."""
    offsets, name = _service_of(running), group.group
    named = [offsets_pb.GroupShards(group=name, shards=SHARDS[number])]
    client = f"c{number % 3}"
    shard = offsets_pb.ShardCommit(shard="xy"[number % 2], offset=number)
    lists = [
        offsets_pb.ListOffsetsRequest(page_size=number, page_token=TOKENS[number]),
        offsets_pb.ListOffsetsRequest(namespace="default", group=name, page_size=1),
    ]
    reads = [
        offsets_pb.ReadOffsetsRequest(groups=named, mode=cast("Any", number)),
        offsets_pb.ReadOffsetsRequest(groups=named, mode=offsets_pb.STORE, keep_hold=True),
    ]
    of_client = offsets_pb.CommitBroadcastRequest(group=BROADCAST, client_id=client, shards=[shard])
    of_all = offsets_pb.ReadBroadcastRequest(group=BROADCAST, client_id=client if number else "", shards="x" * (number % 2))
    watch = offsets_pb.WatchOffsetsRequest(namespace="default", group=name if number % 2 else "")
    prefix = TOKENS[number] if number == len(TOKENS) - 2 else b""
    return [
        *(partial(offsets.ListOffsets, one, context()) for one in lists),
        *(partial(offsets.ReadOffsets, one, context()) for one in reads),
        lambda: offsets.PersistOffsets(offsets_pb.PersistOffsetsRequest(groups=named), context()),
        lambda: offsets.CommitBroadcast(of_client, context()),
        lambda: offsets.ReadBroadcast(of_all, context()),
        lambda: _watched(running, watch, 0.05 * number),
        lambda: running.serving().handover.persist([Wanted(one, []) for one in GROUPS]),
        lambda: running.serving().reader.begin([Wanted(one, ["a"]) for one in GROUPS], ReadMode.MEMORY_FIRST_THEN_STORE),
        lambda: _all(running.serving().groups.rows()),
        lambda: running.serving().groups.page(prefix, b"" if prefix else TOKENS[number], 1 + number),
        lambda: running.serving().renewal.confirm([key for key in KEYS if key.group_key == group]),
        lambda: running.serving().broadcasts.keep(),  # noqa: PLW0108 - not before it is asked for
        lambda: _take_settings(running),
        lambda: offsets.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=STRANGE[number]), traced()),
    ]


async def _all(rows: AsyncIterator[object]) -> None:
    async for _ in rows:
        pass


async def _watched(running: Running, request: offsets_pb.WatchOffsetsRequest, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            async for _ in _service_of(running).WatchOffsets(request, context()):
                pass
    except TimeoutError:
        pass


def traced() -> Context:
    """The context of a call that is traced."""
    return cast("Context", FakeContext(UNIX, {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}, {}))


async def _take_settings(running: Running) -> None:
    assert isinstance(running.sidecar, WideSidecar)
    running.sidecar.take_settings()


def _service_of(running: Running) -> OffsetService:
    assert running.sidecar
    return running.sidecar.offsets


def _known(stored: dict[OffsetKey, Stored]) -> dict[OffsetKey, Stored]:
    return {key: found for key, found in stored.items() if key in KEYS}


def _made_small() -> Iterator[tuple[ModuleType, str, object]]:
    """Make what is large small, also where it was imported; yields what it was."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("adapter.")]
    for owner, name, value in SMALL:
        before = getattr(sys.modules[owner], name)
        for module in modules:
            if vars(module).get(name) == before:
                yield module, name, before
                setattr(module, name, value)
