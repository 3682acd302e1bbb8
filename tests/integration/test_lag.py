"""OffsetLag over real gRPC with each server: lag after commits, with a broker's log, over resets, deletes and restarts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from adapter.client.blocking import BlockingOffsetClient
from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog, NoBrokerLog
from adapter.client.client import OffsetClient
from adapter.client.progress import Progress
from adapter.errors import MetaUnavailableError
from adapter.model.bounds import ShardKey
from adapter.model.records import CommitMode
from adapter.rpc import lag_pb, offsets_pb, scaler_grpc, scaler_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.serving.failures import FAILED, SERVER
from adapter.testing.broker_log import MemoryLog
from adapter.testing.broker_log import serving as serving_log
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess, adapter_process, ended, executed
from tests.integration.helpers import PATIENCE_S, rpc, serving, wait_until

LAG = {"interval_ms": 100, "bounds_interval_ms": 100, "point_distance_ms": 1, "head_distance_ms": 1}
Lag = lag_pb.GetGroupLagReply


def bounded(offset: int, high: int, low: int = 0, shard: str = "s", group: str = "g") -> offsets_pb.CommitOffsetsRequest:
    """A commit with the bounds of its shard."""
    item = offsets_pb.ShardCommit(shard=shard, offset=offset, low_watermark=low, high_watermark=high, topic="t", partition=3)
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=[item])])


async def until(client: OffsetClient, so: Callable[[Lag], bool], group: str = "g") -> Lag:
    """The lag of a group as soon as it is so."""
    reply = Lag()
    try:
        with anyio.fail_after(PATIENCE_S):
            while True:
                try:
                    reply = await client.group_lag(group)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:
                        raise
                else:
                    if so(reply):
                        return reply
                await anyio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"still not so:\n{reply}")


async def gone(client: OffsetClient, group: str = "g") -> None:
    """Wait until no lag of a group is kept."""
    with anyio.fail_after(PATIENCE_S):
        while group in [one.group async for one in client.list_group_lag()]:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.02)


def has(shard: str = "s", **values: object) -> Callable[[Lag], bool]:
    """Whether a shard has these values."""
    return lambda reply: any(
        row.shard == shard and all(getattr(row, name) == value for name, value in values.items()) for row in reply.shards
    )


async def test_lag_follows_commits_and_their_bounds(directory: Path) -> None:
    """With the labels of the shard, which are read from the store."""
    async with serving(directory, lag=LAG) as (_, client):
        await client.store.CommitOffsets(bounded(40, 100, low=30))
        reply = await until(client, has(offset=40, lag=60))
        row = reply.shards[0]
        assert (row.low_watermark, row.high_watermark, row.topic, row.partition, row.lost) == (30, 100, "t", 3, 0)
        assert (reply.sums.lag, reply.sums.shards, reply.sums.worst_shard, reply.bounds_error) == (60, 1, "s", "")
        await client.store.CommitOffsets(bounded(90, 110, low=95))
        reply = await until(client, has(offset=90, lag=15))
        assert (reply.shards[0].lost, reply.sums.lost) == (5, 5)


async def test_a_consumer_tells_the_bounds_with_its_commits(directory: Path) -> None:
    """By the client, for asyncio or for threads; whoever commits offsets alone has no lag."""
    async with serving(directory, lag=LAG) as (sidecar, client):
        await client.commit("g", {"s": Progress(40, high=100, low=30, metadata="m", topic="t", partition=3), "plain": 1})
        reply = await until(client, has(shard="s", offset=40, lag=60))
        rows = {row.shard: row for row in reply.shards}
        assert (rows["s"].low_watermark, rows["s"].topic, rows["s"].partition, rows["plain"].HasField("lag")) == (
            30,
            "t",
            3,
            False,
        )
        assert (await client.read("g"))["s"].metadata == "m"

        def commit_in_a_thread() -> None:
            with BlockingOffsetClient(sidecar.addresses[0]) as blocking:
                blocking.commit("g", {"s": Progress(41, high=130, log_id="another")})
                blocking.commit("g", {"s": Progress(42, high=150, log_id="another")})

        await anyio.to_thread.run_sync(commit_in_a_thread)
        await until(client, has(shard="s", offset=42, lag=108))


async def test_a_broker_log_tells_the_bounds_and_retention(directory: Path) -> None:
    """Commits of the fast path carry none; the broker is asked for them again and again."""
    log, shard = MemoryLog(), ShardKey("default", "s")
    log.append(shard, *[wall_ms()] * 10)
    async with (
        serving_log(log) as address,
        GrpcBrokerLog.open(BrokerLogSection(address=address)) as broker_log,
        serving(directory, broker_log=broker_log, lag=LAG) as (_, client),
    ):
        await client.commit("g", {"s": 4, "nowhere": 7})
        reply = await until(client, has(offset=4, lag=6))
        assert (reply.sums.shards, reply.sums.known, reply.bounds_error) == (2, 1, "")
        log.append(shard, *[wall_ms()] * 5)
        await until(client, has(lag=11))
        log.trim(shard, 9)
        await until(client, has(lag=6, lost=5))


async def test_a_log_that_was_made_anew_is_known_by_its_identity(directory: Path) -> None:
    """A broker log tells it, or commits do. The new log is longer than the offset, which would have a lag by its number."""
    log, shard = MemoryLog(), ShardKey("default", "s")
    log.create(shard, log_id="first")
    log.append(shard, *range(10))
    async with (
        serving_log(log) as address,
        GrpcBrokerLog.open(BrokerLogSection(address=address)) as broker_log,
        serving(directory, broker_log=broker_log, lag=LAG) as (_, client),
    ):
        await client.commit("g", {"s": 4})
        await until(client, has(lag=6))
        log.create(shard, log_id="second")
        log.append(shard, *range(30))
        reply = await until(client, has(status=lag_pb.BEYOND))
        assert (reply.shards[0].offset, reply.shards[0].high_watermark, reply.shards[0].HasField("lag")) == (4, 30, False)
        changes = (await client.admin.ListChanges(offsets_pb.ListChangesRequest(namespace="default", group="g"))).changes
        assert [(change.kind, [(row.shard, row.after.offset) for row in change.rows]) for change in changes] == [
            ("new-log", [("s", 4)])
        ]
        await client.commit("g", {"s": 5})
        await until(client, has(lag=25))


async def test_the_identity_of_a_log_may_come_with_commits(directory: Path) -> None:
    """The second one is below what stands, and tells that the log is another one."""
    async with serving(directory, lag=LAG) as (_, client):
        request = bounded(4, 10)
        request.groups[0].shards[0].log_id = "first"
        await client.store.CommitOffsets(request)
        await until(client, has(high_watermark=10, lag=6))
        request = bounded(3, 30)
        request.groups[0].shards[0].log_id = "second"
        await client.store.CommitOffsets(request)
        await until(client, has(high_watermark=30, status=lag_pb.BEYOND))


async def test_a_broker_log_that_fails_is_told_and_what_it_told_stays(directory: Path) -> None:
    """The lag is that of the last bounds; without any it is unknown."""
    log = MemoryLog()
    log.append(ShardKey("default", "s"), *[wall_ms()] * 10)
    section = BrokerLogSection(address="127.0.0.1:9", timeout_ms=1_000)
    async with (
        serving_log(log) as address,
        GrpcBrokerLog.open(section.model_copy(update={"address": address})) as broker_log,
        serving(directory, broker_log=broker_log, lag=LAG) as (sidecar, client),
    ):
        await client.commit("g", {"s": 4})
        await until(client, has(lag=6))
        assert sidecar._lag is not None
        sidecar._lag._asking._log = NoBrokerLog()
        sidecar._lag._asking._log.configured = True
        reply = await until(client, lambda reply: bool(reply.bounds_error))
        assert reply.bounds_error.startswith("no broker log is configured")
        assert reply.shards[0].lag == 6
        assert (await client.group_lag_page()).bounds_error == reply.bounds_error


async def test_a_reset_shows_the_lag_of_the_new_offset(directory: Path) -> None:
    """And the window begins anew."""
    async with serving(directory, lag=LAG) as (_, client):
        for offset in (60, 70, 80):
            await client.store.CommitOffsets(bounded(offset, 100))
            await until(client, has(offset=offset))
        await client.admin.ResetOffsets(
            offsets_pb.ResetOffsetsRequest(group="g", shards=["s"], to_offset=10, execute=True), timeout=PATIENCE_S
        )
        reply = await until(client, has(offset=10))
        row = reply.shards[0]
        assert (row.lag, row.points, row.epoch >> 32, row.HasField("commit_rate")) == (90, 1, 1, False)


async def test_a_rewind_is_told(directory: Path) -> None:
    """Among all that a page has of the group."""
    async with serving(directory, lag=LAG) as (_, client):
        for offset in (60, 70, 80):
            await client.store.CommitOffsets(bounded(offset, 100))
            await until(client, has(offset=offset))
        await client.commit("g", {"s": 20}, mode=CommitMode.OVERWRITE)
        reply = await until(client, has(status=lag_pb.REWIND))
        assert (reply.sums.rewind, reply.sums.status) == (1, lag_pb.REWIND)
        found = [one async for one in client.list_group_lag(lag_pb.LagFilter(at_least=lag_pb.REWIND))]
        assert [(one.group, one.rewind) for one in found] == [("g", 1)]


async def test_a_deleted_and_a_handed_over_group_leave(directory: Path) -> None:
    """By a tombstone, and by a removal."""
    async with serving(directory, lag=LAG) as (_, client):
        await client.commit("g", {"s": 5})
        await client.commit("h", {"s": 5})
        await until(client, has(offset=5), "h")
        await client.admin.DeleteOffsets(
            offsets_pb.DeleteOffsetsRequest(group="g", shards=["s"], execute=True), timeout=PATIENCE_S
        )
        await gone(client)
        await client.remove("h")
        await gone(client, "h")


async def test_an_expired_group_leaves(directory: Path) -> None:
    """Nobody committed for longer than the retention."""
    meta = FakeMeta()
    expiry = {"retention_hours": 1, "interval_ms": 50}
    async with serving(directory, meta, lag=LAG, expiry=expiry) as (_, client):
        old = offsets_pb.ShardCommit(shard="s", offset=5, committed_at_ms=wall_ms() - 7_200_000)
        request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=[old])])
        await client.store.CommitOffsets(request)
        await client.flush()
        await gone(client)


async def test_lag_goes_on_without_the_meta_service(directory: Path) -> None:
    """Nothing is flushed, and all is seen."""
    meta = FakeMeta()
    async with serving(directory, meta, lag=LAG) as (_, client):
        await client.store.CommitOffsets(bounded(1, 100))
        meta.down = MetaUnavailableError("away")
        for offset in (2, 3):
            await client.store.CommitOffsets(bounded(offset, 100))
            await until(client, has(offset=offset, lag=100 - offset))
        meta.down = None


async def test_lag_of_groups_that_are_written_through(directory: Path) -> None:
    """They are never dirty."""
    async with serving(directory, lag=LAG, mode="write_through") as (_, client):
        await client.store.CommitOffsets(bounded(7, 10))
        assert (await until(client, has(lag=3))).shards[0].offset == 7


async def test_a_page_is_sorted_filtered_and_cut(directory: Path) -> None:
    """Every order, with ties in key order; `matching` counts all that match."""
    async with serving(directory, lag=LAG) as (_, client):
        for group, lag in (("a", 5), ("b", 50), ("c", 5), ("d", 0)):
            await client.store.CommitOffsets(bounded(1_000 - lag, 1_000, group=group, shard=group))
        await until(client, has("d", lag=0), "d")

        async def groups(order: int, **page: int) -> list[str]:
            reply = await client.group_lag_page(None, lag_pb.LagOrder.ValueType(order), **page)
            assert (reply.matching, reply.groups_kept, reply.shards_kept) == (4, 4, 4)
            return [one.group for one in reply.groups]

        assert await groups(lag_pb.LAG) == ["b", "a", "c", "d"]
        assert await groups(lag_pb.LAG, page_size=2, offset=1) == ["a", "c"]
        assert await groups(lag_pb.LAG, offset=9) == []
        assert await groups(lag_pb.NAME) == ["a", "b", "c", "d"]
        for order in lag_pb.LagOrder.values():
            assert sorted(await groups(order)) == ["a", "b", "c", "d"]
        wanted = lag_pb.LagFilter(namespace="default", pattern="[ab]")
        assert [one.group async for one in client.list_group_lag(wanted, lag_pb.LAG)] == ["b", "a"]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (lag_pb.ListGroupLagRequest(page_size=10_001), "page_size"),
        (lag_pb.ListGroupLagRequest(order=99), "order"),  # type: ignore[arg-type]  # also one that there is not
        (lag_pb.ListGroupLagRequest(filter=lag_pb.LagFilter(at_least=99)), "filter.at_least"),  # type: ignore[arg-type]
        (lag_pb.ListGroupLagRequest(filter=lag_pb.LagFilter(namespace="\n")), "filter.namespace"),
        (lag_pb.ListGroupLagRequest(filter=lag_pb.LagFilter(pattern="x" * 256)), "filter.pattern"),
        (lag_pb.GetGroupLagRequest(), "group"),
        (lag_pb.GetGroupLagRequest(group="g", namespace="\n"), "namespace"),
        (lag_pb.GetGroupLagsRequest(), "groups"),
        (lag_pb.GetGroupLagsRequest(groups=["g", "\n"]), "groups[1]"),
        (lag_pb.WatchGroupLagRequest(filter=lag_pb.LagFilter(pattern="\n")), "filter.pattern"),
    ],
)
async def test_a_bad_request_is_told_its_field(directory: Path, request_: object, field: str) -> None:
    """Of each method."""
    async with serving(directory, lag=LAG) as (_, client):
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:  # noqa: PT012 - one of three calls
            if isinstance(request_, lag_pb.ListGroupLagRequest):
                await client.lag.ListGroupLag(request_)
            elif isinstance(request_, lag_pb.GetGroupLagRequest):
                await client.lag.GetGroupLag(request_)
            elif isinstance(request_, lag_pb.GetGroupLagsRequest):
                async for _ in client.lag.GetGroupLags(request_):
                    pass
            elif isinstance(request_, lag_pb.WatchGroupLagRequest):
                async for _ in client.lag.WatchGroupLag(request_):
                    pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(field)
        assert [one for one in logs if one["log_level"] in {"warning", "error"}] == []


async def test_many_groups_are_told_together_as_each_alone(directory: Path) -> None:
    """In the order of their names in the request, without those of which no lag is kept."""
    async with serving(directory, lag=LAG) as (_, client):
        names = [f"g{number}" for number in range(60)]
        for name in names:
            request = bounded(1, 10)
            request.groups[0].group = name
            await client.store.CommitOffsets(request)
        for name in (names[0], names[-1]):
            await until(client, has(lag=9), name)
        asked = [*reversed(names), "nobody"]
        found = [row async for reply in client.lag.GetGroupLags(lag_pb.GetGroupLagsRequest(groups=asked)) for row in reply.groups]
        assert [row.sums.group for row in found] == asked[:-1]
        for row in (found[0], found[-1]):
            alone = await client.lag.GetGroupLag(lag_pb.GetGroupLagRequest(group=row.sums.group))
            assert [(one.shard, one.lag, one.offset) for one in row.shards] == [
                (one.shard, one.lag, one.offset) for one in alone.shards
            ]
            assert (row.sums.lag, row.sums.shards) == (alone.sums.lag, alone.sums.shards)


async def test_a_watch_tells_what_changes_and_ends_with_the_adapter(directory: Path) -> None:
    """UNAVAILABLE at a stop, as the watch of offsets."""
    async with serving(directory, lag=LAG) as (sidecar, client):
        await client.store.CommitOffsets(bounded(1, 10))
        await until(client, has(lag=9))
        replies = client.watch_group_lag()
        with anyio.fail_after(PATIENCE_S):
            first = await anext(replies)
            assert (first.resync, [one.group for one in first.groups]) == (True, ["g"])
            await client.store.CommitOffsets(bounded(1, 10, group="h"))
            found: set[str] = set()
            while "h" not in found:
                found |= {one.group for one in (await anext(replies)).groups}
            sidecar.stop()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                _ = [reply async for reply in replies]
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_of_an_unknown_group_nothing_is_found(directory: Path) -> None:
    """With the reason; and nothing is logged: anybody may ask."""
    async with serving(directory, lag=LAG) as (_, client):
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.group_lag("nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "nobody commits to it at this adapter" in (caught.value.details() or "")
        assert [one for one in logs if one["log_level"] in {"warning", "error"}] == []


async def test_an_offset_beyond_the_end_of_its_log_is_told_everywhere(directory: Path) -> None:
    """The topic was made anew, and its offsets stayed: by the lag, the group as described, KEDA's scaler, and the metrics."""
    async with serving(directory, lag=LAG) as (sidecar, client):
        await client.store.CommitOffsets(bounded(1_005, 1_005))
        await until(client, has(lag=0))
        superseded = await client.store.CommitOffsets(bounded(9, 49))
        assert [row.offset for row in superseded.superseded] == [1_005]  # what stands
        reply = await until(client, lambda reply: reply.sums.status == lag_pb.BEYOND)
        shard = reply.shards[0]
        assert (shard.offset, shard.high_watermark, shard.HasField("lag"), reply.sums.beyond) == (1_005, 49, False, 1)
        async with grpc.aio.insecure_channel(sidecar.addresses[0]) as channel:
            scaler = scaler_grpc.ExternalScalerStub(channel)
            ref = scaler_pb.ScaledObjectRef(scalerMetadata={"group": "g", "lagThreshold": "10"})
            with pytest.raises(grpc.aio.AioRpcError, match="none of its log, which ends at 49"):
                await scaler.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=ref))
            assert (await scaler.IsActive(ref)).result
        described = offsets_pb.DescribeGroupReply.Shard()
        with anyio.fail_after(PATIENCE_S):
            while not described.warning:  # until the end was told long enough after the commit
                await client.store.CommitOffsets(bounded(10, 50))
                described = (await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"))).shards[0]
        assert described.warning.startswith("is beyond the end of its log, 50")
        assert not described.HasField("lag")
        text = generate_latest(sidecar._metrics.registry).decode()
        assert 'offset_adapter_group_lag_status{group="g",namespace="default"} 6.0' in text
        assert 'offset_adapter_group_superseded_total{group="g",namespace="default"}' in text
        assert 'offset_adapter_lag_groups{status="beyond"} 1.0' in text


async def test_without_lag_every_call_names_the_setting(directory: Path) -> None:
    """FAILED_PRECONDITION; commits are as ever."""
    async with serving(directory, lag={"shards": 0}) as (_, client):
        await client.commit("g", {"s": 1})
        for call in (client.group_lag("g"), client.group_lag_page(), anext(client.watch_group_lag())):
            with pytest.raises(grpc.aio.AioRpcError, match=r"lag\.shards = 0") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_lag_is_there_after_a_kill_and_refused_while_the_adapter_recovers(directory: Path, meta: ServiceProcess) -> None:
    """Real processes. Without the Meta Service the recovery lasts, and nothing is answered that it may contradict (9)."""
    adapter = adapter_process(directory, meta.address, extra="[recovery]\ntimeout_ms = 3600000\n[lag]\ninterval_ms = 100")
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            for at in range(50):
                stubs.store.CommitOffsets(bounded(at + 1, 100, group=f"g{at}"), timeout=PATIENCE_S)
        adapter.kill()
        meta.kill()
        adapter.launch()
        with grpc.insecure_channel(adapter.address) as channel:
            listed = channel.unary_unary(
                "/offsets.v1.OffsetLag/ListGroupLag",
                request_serializer=lag_pb.ListGroupLagRequest.SerializeToString,
                response_deserializer=lag_pb.ListGroupLagReply.FromString,
            )

            def refused() -> bool:
                with pytest.raises(grpc.RpcError) as caught:
                    listed(lag_pb.ListGroupLagRequest(), timeout=PATIENCE_S)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                trailing: list[Any] = [*caught.value.trailing_metadata()]  # the Meta Service has not been asked
                return "recovering" in (caught.value.details() or "") and (FAILED, SERVER) in trailing

            wait_until(refused, "it recovers")
            meta.start()

            def kept() -> bool:
                try:
                    reply = listed(lag_pb.ListGroupLagRequest(), timeout=PATIENCE_S)
                except grpc.RpcError:
                    return False
                return bool(reply.groups_kept == 50 and all(one.last_commit_at_ms for one in reply.groups))

            wait_until(kept, "all groups are read from the store")


def test_without_lag_numpy_is_not_loaded(directory: Path, meta: ServiceProcess) -> None:
    """Nor anything else of it."""
    adapter = adapter_process(directory, meta.address, extra="[lag]\nshards = 0")
    adapter.launched_by = executed  # a fork has everything loaded
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(bounded(1, 10), timeout=PATIENCE_S)
        assert "numpy" not in Path(f"/proc/{adapter.pid}/maps").read_text(encoding="utf-8")
