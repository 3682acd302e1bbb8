"""DescribeGroup with a broker's log over real gRPC: bounds and lag, and what is left of the answer when the broker is away."""

from pathlib import Path

import anyio
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.model.bounds import ShardKey
from adapter.model.records import U64_MAX
from adapter.rpc import offsets_pb
from adapter.testing.broker_log import serving as serving_log
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port
from tests.integration.brokers import ScriptedBroker, adapter_at, broker_without_methods, hanging_broker, memory_log
from tests.integration.helpers import PATIENCE_S, key, record

Row = offsets_pb.DescribeGroupReply.Shard
ABSENT = (None, None, None)


async def describe(client: OffsetClient, group: str = "g") -> offsets_pb.DescribeGroupReply:
    """Everything about a group."""
    return await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group=group), timeout=PATIENCE_S)


def bounds_of(reply: offsets_pb.DescribeGroupReply) -> dict[str, tuple[int | None, int | None, int | None]]:
    """Shard -> low, high, lag; None where a field is absent."""
    return {row.shard: (_field(row, "low_watermark"), _field(row, "high_watermark"), _field(row, "lag")) for row in reply.shards}


def _field(row: Row, name: str) -> int | None:
    return getattr(row, name) if row.HasField(name) else None  # type: ignore[arg-type]


async def tell(client: OffsetClient, shard: str, offset: int, high: int) -> None:
    """Commit an offset with the shard's end."""
    row = offsets_pb.ShardCommit(shard=shard, offset=offset, high_watermark=high)
    group = offsets_pb.GroupCommits(group="g", shards=[row])
    await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[group]), timeout=PATIENCE_S)


async def test_bounds_and_lag_come_from_the_broker(directory: Path) -> None:
    """A trimmed shard begins later; a group at the end, or beyond it, has no lag; a shard unknown to the broker shows none."""
    log = memory_log(s=range(10), end=range(4), beyond=range(3))
    log.trim(ShardKey("default", "s"), 2)
    async with serving_log(log) as broker, adapter_at(directory, broker) as client:
        await client.commit("g", {"s": 7, "end": 4, "beyond": 9, "unknown": 1})
        reply = await describe(client)
        assert reply.bounds_error == ""
        assert bounds_of(reply) == {"s": (2, 10, 3), "end": (0, 4, 0), "beyond": (0, 3, 0), "unknown": ABSENT}
        log.append(ShardKey("default", "s"), 1)
        assert bounds_of(await describe(client))["s"] == (2, 11, 4)


async def test_the_broker_knows_better_than_commits(directory: Path) -> None:
    """Bounds told with commits age; also where the broker says that there is no such shard (any more)."""
    async with serving_log(memory_log(s=range(10))) as broker, adapter_at(directory, broker) as client:
        await tell(client, "s", 4, 5)
        await tell(client, "gone", 4, 5)
        assert bounds_of(await describe(client)) == {"s": (0, 10, 6), "gone": ABSENT}


async def test_lag_is_counted_from_the_larger_of_both_values(directory: Path) -> None:
    """Another adapter may have gone further, which shows in the Meta Service only; a tombstone has bounds but no lag."""
    meta = FakeMeta({key("remote"): record(8), key("dead"): record(0, 2**32, live=False)})
    async with serving_log(memory_log(remote=range(10), dead=range(10))) as broker, adapter_at(directory, broker, meta) as client:
        await client.commit("g", {"remote": 3})
        assert bounds_of(await describe(client)) == {"remote": (0, 10, 2), "dead": (0, 10, None)}


async def test_what_is_gone_is_no_lag(directory: Path) -> None:
    """Retention took messages that the group had not read: they cannot be read any more (redpanda #30624)."""
    log = memory_log(s=range(10), all=range(10))
    log.trim(ShardKey("default", "s"), 8)
    log.trim(ShardKey("default", "all"), 10)
    async with serving_log(log) as broker, adapter_at(directory, broker) as client:
        await client.commit("g", {"s": 1, "all": 1})
        assert bounds_of(await describe(client)) == {"s": (8, 10, 2), "all": (10, 10, 0)}


async def test_the_largest_bounds_are_shown(directory: Path) -> None:
    """64 bits, as far as the reply."""
    full = ScriptedBroker(
        lambda request, _: offsets_pb.GetBoundsReply(
            bounds=[offsets_pb.GetBoundsReply.Bounds(shard=shard, low=0, high=U64_MAX) for shard in request.shards]
        )
    )
    async with serving_log(full) as broker, adapter_at(directory, broker) as client:
        await client.commit("g", {"s": 0})
        assert bounds_of(await describe(client)) == {"s": (0, U64_MAX, U64_MAX)}


async def test_a_group_with_more_shards_than_one_question_takes(directory: Path) -> None:
    """All of them have their bounds."""
    ends = {f"s{number}": [5] for number in range(1_201)}
    async with serving_log(memory_log(**ends)) as broker, adapter_at(directory, broker) as client:
        await client.commit("g", dict.fromkeys(ends, 0))
        assert bounds_of(await describe(client)) == dict.fromkeys(ends, (0, 1, 1))


async def test_with_the_broker_away_the_rest_is_still_there(directory: Path) -> None:
    """Why there are no bounds is told; positions are shown, and bounds that commits told."""
    broker = f"127.0.0.1:{free_port()}"
    async with adapter_at(directory, broker) as client:
        await client.commit("g", {"s": 7})
        await tell(client, "told", 4, 5)
        reply = await describe(client)
    assert reply.bounds_error.startswith(f"the broker at {broker} cannot be reached: ")
    assert {row.shard: row.local.offset for row in reply.shards} == {"s": 7, "told": 4}
    assert bounds_of(reply) == {"s": ABSENT, "told": (0, 5, 1)}


async def test_a_slow_broker_is_not_waited_for_longer_than_its_deadline(directory: Path) -> None:
    """`broker_log.timeout_ms`; the answer then has all but the bounds."""
    async with serving_log(hanging_broker()) as broker, adapter_at(directory, broker, timeout_ms=100) as client:
        await client.commit("g", {"s": 7})
        reply = await describe(client)
    assert reply.bounds_error.startswith(f"the broker at {broker} did not answer within 0.1 s: ")
    assert [(row.shard, row.local.offset) for row in reply.shards] == [("s", 7)]


async def test_a_broker_that_does_not_serve_it_is_told_so(directory: Path) -> None:
    """Each time somebody looks, for it is a fault of the settings."""
    async with serving_log(broker_without_methods()) as broker, adapter_at(directory, broker) as client:
        await client.commit("g", {"s": 7})
        for _ in range(2):
            assert (await describe(client)).bounds_error.startswith(
                f"the broker at {broker} does not serve offsets.v1.BrokerLog: "
            )


async def test_with_both_away_both_are_told(directory: Path) -> None:
    """The local positions are what is left."""
    meta = FakeMeta()
    broker = f"127.0.0.1:{free_port()}"
    async with adapter_at(directory, broker, meta) as client:
        await client.commit("g", {"s": 7})
        meta.down = MetaUnavailableError("down for the test")
        reply = await describe(client)
        meta.down = None
    assert reply.remote_error == "down for the test"
    assert reply.bounds_error.startswith(f"the broker at {broker} cannot be reached: ")
    assert [(row.shard, row.local.offset, row.HasField("remote")) for row in reply.shards] == [("s", 7, False)]


async def test_a_group_without_offsets_asks_the_broker_nothing(directory: Path) -> None:
    """There is no broker at this address, and no error."""
    async with adapter_at(directory, f"127.0.0.1:{free_port()}") as client:
        reply = await describe(client, "nobody")
    assert (list(reply.shards), reply.bounds_error) == ([], "")


@pytest.mark.parametrize("configured", [True, False])
async def test_the_address_in_the_settings_is_used(directory: Path, meta: ServiceProcess, *, configured: bool) -> None:
    """A real process; without the setting there are no bounds, and that is no error."""
    async with serving_log(memory_log(s=range(10))) as broker:
        adapter = adapter_process(directory, meta.address, extra=f"[broker_log]\naddress = '{broker if configured else ''}'")
        with ended(adapter):
            await anyio.to_thread.run_sync(adapter.start)
            async with OffsetClient.connect(f"unix:{directory / 'a.sock'}", PATIENCE_S) as client:
                await client.commit("g", {"s": 7})
                reply = await describe(client)
            assert (bounds_of(reply), reply.bounds_error) == ({"s": (0, 10, 3) if configured else ABSENT}, "")
            assert await anyio.to_thread.run_sync(adapter.stop) == 0
