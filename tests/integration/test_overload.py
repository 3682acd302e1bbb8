"""Overload end to end: real servers and clients; a Meta Service whose limit is one, an adapter, and its callers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import anyio.to_thread
import grpc
import grpc.aio
import pytest

from adapter.errors import MetaUnavailableError
from adapter.meta.blocking import MetaCalls
from adapter.meta.client import GrpcMetaClient
from adapter.metaservice.config import LimitsSection
from adapter.metaservice.engine import MergeCounts
from adapter.metaservice.limits import MAX_DELAY_S, MIN_DELAY_S, Limits
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.offset_service import MetaService
from adapter.model.codec import encode_key, encode_plain
from adapter.model.records import GroupKey, OffsetKey, SaveEntry, SaveOutcome, StoreReport
from adapter.rpc import meta_grpc, offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.retry import retrying
from adapter.runtime.serving.listener import listening
from adapter.runtime.serving.pushback import pushback_s
from adapter.runtime.settings.config import ServerSection
from adapter.testing.processes import ended, meta_process
from tests.integration.helpers import PATIENCE_S, commits, key, meta_section, record, serving, stored_in, until_clean
from tests.model.engine import MemoryEngine
from tests.unit.helpers import packed_rows, whole_groups

ENTRY = SaveEntry(key("held"), record(1))


class HeldEngine(MemoryEngine):
    """Holds saves and merges back until the gate is opened."""

    def __init__(self) -> None:
        super().__init__(wall_ms)
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.calls = 0

    async def save(
        self, cluster: str, entries: Sequence[SaveEntry], reported: StoreReport | None = None, *, tell: bool = False
    ) -> list[SaveOutcome]:
        await self._wait()
        return await super().save(cluster, entries, reported, tell=tell)

    async def merge(
        self,
        cluster: str,
        keys: Sequence[bytes],
        records: Sequence[bytes],
        reported: StoreReport | None = None,
        *,
        tell: bool = False,
    ) -> MergeCounts:
        await self._wait()
        return await super().merge(cluster, keys, records, reported, tell=tell)

    async def _wait(self) -> None:
        self.calls += 1
        self.entered.set()
        await self.gate.wait()


class Meta:
    """A Meta Service that takes one offset at a time, over an engine that holds it."""

    def __init__(self) -> None:
        self.engine = HeldEngine()
        self.metrics = MetaMetrics()
        self.address = ""
        self.saving: asyncio.Task[object] | None = None

    @property
    def refusals(self) -> float:
        """Calls that it refused."""
        return self.metrics.registry.get_sample_value("offset_meta_refused_calls_total", {"limit": "offsets"}) or 0.0

    def standing(self, where: OffsetKey) -> int:
        """The offset that it holds; 0 for nothing."""
        found = self.engine.standing("default", where)
        return found.offset if found else 0


@asynccontextmanager
async def metas(count: int, *, full: bool = True) -> AsyncIterator[list[Meta]]:
    """Serving Meta Services; `full`: each has a save under way, until its gate is opened."""
    made = [Meta() for _ in range(count)]
    async with anyio.create_task_group() as tasks:
        stop = anyio.Event()
        for meta in made:
            await tasks.start(_serve, meta, stop, full)
        try:
            yield made
        finally:
            for meta in made:
                meta.engine.gate.set()
            stop.set()


async def _serve(meta: Meta, stop: anyio.Event, full: bool, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    def add(server: grpc.aio.Server) -> None:
        service = MetaService(meta.engine, Limits(LimitsSection(offsets=1), meta.metrics), meta.metrics)
        meta_grpc.add_MetaServiceServiceServicer_to_server(service, server)

    async with listening(ServerSection(listen="127.0.0.1:0"), [], add) as server:
        meta.address = server.addresses[0]
        async with GrpcMetaClient.open(meta_section(meta.address, timeout_ms=60_000)) as client:
            saving = asyncio.create_task(client.save([ENTRY])) if full else None
            if saving:
                await meta.engine.entered.wait()
            else:
                meta.engine.gate.set()
            task_status.started()
            await stop.wait()
            if saving:
                await saving


async def test_a_save_over_the_limit_is_refused_before_anything_is_written_and_reads_go_on() -> None:
    """It says when to come back. The server did answer: it is there for loads of groups and for the recovery."""
    async with metas(1) as (meta,), GrpcMetaClient.open(meta_section(meta.address)) as client:
        with pytest.raises(MetaUnavailableError, match="RESOURCE_EXHAUSTED: 1 offset under way, of at most 1") as caught:
            await client.save([SaveEntry(key("a"), record(5)), SaveEntry(key("b"), record(5))])
        assert MIN_DELAY_S <= caught.value.retry_after_s <= MAX_DELAY_S
        assert (meta.engine.calls, meta.refusals, client.available) == (1, 1, True)
        assert await client.get([key("a")]) == {}
        assert await whole_groups(client, GroupKey("default", "g")) == [{}]
        meta.engine.gate.set()
        await retrying("save", first_s=0.01, max_s=0.1)(client.save, [SaveEntry(key("a"), record(5))])
        assert meta.standing(key("a")) == 5


async def test_another_meta_with_room_takes_the_save_and_stays_the_current_one() -> None:
    """In the same call: whoever is overloaded is relieved."""
    async with (
        metas(1) as (busy,),
        metas(1, full=False) as (idle,),
        GrpcMetaClient.open(meta_section(busy.address, idle.address)) as client,
    ):
        await client.save([SaveEntry(key("a"), record(5))])
        assert (client.endpoint, busy.refusals, idle.standing(key("a"))) == (idle.address, 1, 5)


async def test_when_no_meta_has_room_the_shortest_time_counts_and_one_that_is_there_is_called_next() -> None:
    """A dead one beside them changes neither: it may be why the others are overloaded."""
    async with metas(2) as made:
        addresses = ["127.0.0.1:1", *(meta.address for meta in made)]
        async with GrpcMetaClient.open(meta_section(*addresses)) as client:
            with pytest.raises(MetaUnavailableError, match=r"^127\.0\.0\.1:1: UNAVAILABLE.*; .*RESOURCE_EXHAUSTED.*; ") as caught:
                await client.save([ENTRY])
            said = [float(part.split()[0]) for part in str(caught.value).split("come back in ")[1:]]
            assert len(said) == 2
            assert caught.value.retry_after_s == pytest.approx(min(said), abs=0.06)
            assert (client.endpoint, client.available) == (made[0].address, True)


async def test_a_fleet_with_one_configuration_begins_at_all_of_its_metas() -> None:
    """Else the first one would serve every adapter, and the others nobody."""
    section = meta_section("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    begins = {True: set[str](), False: set[str]()}
    for spread in [True] * 60 + [False]:
        async with GrpcMetaClient.open(section, spread=spread) as client:
            begins[spread].add(client.endpoint)
    assert begins == {True: set(section.endpoints), False: {"127.0.0.1:1"}}


async def test_an_adapter_goes_on_beside_an_overloaded_meta_and_flushes_when_there_is_room(directory: Path) -> None:
    """Commits are taken and new groups loaded; it is not degraded, and nothing is lost (4, 9)."""
    async with metas(1) as (meta,), GrpcMetaClient.open(meta_section(meta.address)) as way:
        async with serving(directory, way, flush={"interval_ms": 10, "backoff_max_ms": 20}) as (_, client):
            await client.commit("g", {"a": 1})
            with anyio.fail_after(PATIENCE_S):
                while not meta.refusals:  # noqa: ASYNC110 - counted by the server
                    await anyio.sleep(0.01)
            await client.commit("other", {"a": 1})
            status = await client.status()
            assert (status.state, status.meta_available, status.dirty_keys) == (offsets_pb.StatusReply.SERVING, True, 2)
            assert "RESOURCE_EXHAUSTED" in status.last_flush_error
            meta.engine.gate.set()
            await until_clean(client)
        assert [meta.standing(key("a", group)) for group in ("g", "other")] == [1, 1]


async def test_a_written_through_commit_under_overload_tells_its_caller_when_to_come_back(directory: Path) -> None:
    """It does not count; UNAVAILABLE as without a Meta Service, since the adapter's own disk is not full."""
    async with metas(1) as (meta,), GrpcMetaClient.open(meta_section(meta.address)) as way:
        async with serving(directory, way, mode="write_through") as (_, client):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.store.CommitOffsets(commits({"s": 1}), timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert MIN_DELAY_S <= pushback_s(caught.value.trailing_metadata()) <= MAX_DELAY_S
            assert meta.standing(key()) == 0
            meta.engine.gate.set()
            await client.commit("g", {"s": 1})
        assert meta.standing(key()) == 1


async def test_a_merge_of_the_pipeline_waits_for_room() -> None:
    """The bulk calls count as saves do, and Spark's workers honour the answer."""

    def merge() -> int:
        with closing(MetaCalls(meta_section(meta.address), retry_s=PATIENCE_S)) as calls:
            return calls.merge(packed_rows("default", [encode_key(key("a"))], [encode_plain(0, 1, 5, 1)])).applied

    async with metas(1) as (meta,):
        merging = asyncio.create_task(anyio.to_thread.run_sync(merge))
        with anyio.fail_after(PATIENCE_S):
            while not meta.refusals:  # noqa: ASYNC110 - counted by the server
                await anyio.sleep(0.01)
        meta.engine.gate.set()
        assert await merging == 1
        assert meta.standing(key("a")) == 5


async def test_a_process_with_a_limit_of_one_serves_everybody_in_the_end(directory: Path) -> None:
    """Six at once, each with more than the limit: some are refused, with a time; all is stored in the end."""
    service = meta_process(directory, extra="[limits]\noffsets = 1\n")
    refused: list[float] = []

    async def save_all(client: GrpcMetaClient, name: str) -> None:
        for offset in (1, 2):
            entries = [SaveEntry(key(f"{name}-{at}"), record(offset)) for at in range(200)]

            async def save(entries: list[SaveEntry] = entries) -> None:
                try:
                    await client.save(entries)
                except MetaUnavailableError as error:
                    refused.append(error.retry_after_s)
                    raise

            await retrying("save", first_s=0.001, max_s=0.05)(save)

    with ended(service):
        service.start()
        async with GrpcMetaClient.open(meta_section(service.address)) as client, anyio.create_task_group() as tasks:
            await save_all(client, "0")  # so that it knows how fast it is
            for number in range(6):
                tasks.start_soon(save_all, client, str(number))
        assert refused
        assert all(MIN_DELAY_S <= delay <= MAX_DELAY_S for delay in refused)
        stored = await anyio.to_thread.run_sync(stored_in, service)
    assert stored == {key(f"{number}-{at}"): (1, 2) for number in range(6) for at in range(200)}
