"""What KEDA is told of a fleet: unknown, incomplete, or the shards."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import anyio

from adapter.fleet.fleet import Fleet
from adapter.fleet.fleet_source import FleetLagSource
from adapter.fleet.scaling import GroupState, is_active, parse_trigger, values
from adapter.rpc import offsets_pb
from adapter.testing.lag_adapters import FakeLagAdapter, serving, shard_lag
from adapter.testing.processes import free_port
from adapter.testing.waiting import PATIENCE_S, eventually
from tests.unit.fleet.test_fleet import fleet_of, section

TRIGGER = parse_trigger({"group": "g", "lagThreshold": "10"})


async def until(fleet: Fleet, unknown: str = "", incomplete: str = "") -> GroupState:
    """The state of group g, as soon as it is unknown, and incomplete, for reasons that have these texts; empty: for none."""
    source = FleetLagSource(fleet)
    with anyio.fail_after(PATIENCE_S):
        while True:
            state = await source.state("default", "g")
            said = ((state.unknown, unknown), (state.incomplete, incomplete))
            if all(text in reason and bool(text) == bool(reason) for reason, text in said):
                return state
            await anyio.sleep(0.01)


def adapter_with(lag: int, shard: str = "a") -> FakeLagAdapter:
    """An adapter with a shard of g."""
    adapter = FakeLagAdapter(f"broker-{shard}")
    adapter.set_group("g", [shard_lag(shard, 0, lag)])
    return adapter


async def test_a_group_over_two_adapters_has_the_shards_of_both() -> None:
    """And nothing is unknown of it."""
    async with fleet_of(adapter_with(3), adapter_with(4, "b")) as fleet:
        state = await until(fleet)
        assert [(shard.lag.shard, shard.lag.lag, shard.bounds_age_s) for shard in state.shards] == [("a", 3, 0.0), ("b", 4, 0.0)]


async def test_a_group_that_no_adapter_has_is_unknown() -> None:
    """It may never have committed."""
    async with fleet_of(FakeLagAdapter()) as fleet:
        await until(fleet, unknown="no adapter has commits of this group")


async def test_a_group_is_unknown_while_an_adapter_was_never_reached() -> None:
    """Its shards there are not known."""
    async with serving(adapter_with(0)) as address, Fleet.open(section(address, f"127.0.0.1:{free_port()}")) as fleet:
        state = await until(fleet, unknown="its groups are not known yet", incomplete="does not answer")
        assert is_active(TRIGGER, state)


async def test_a_group_is_unknown_while_its_adapter_recovers() -> None:
    """Not all of its offsets were compared."""
    adapter = adapter_with(0)
    async with fleet_of(adapter) as fleet:
        await until(fleet)
        adapter.state = offsets_pb.StatusReply.RECOVERING
        await until(fleet, unknown="does not answer", incomplete="recovering")


@asynccontextmanager
async def fleet_with_one_that_leaves(
    stays: FakeLagAdapter, leaves: FakeLagAdapter
) -> AsyncIterator[tuple[Fleet, AsyncExitStack]]:
    """A fleet over two adapters, and what ends the second one."""
    async with AsyncExitStack() as stack, AsyncExitStack() as leaving:
        addresses = [await stack.enter_async_context(serving(stays)), await leaving.enter_async_context(serving(leaves))]
        fleet = await stack.enter_async_context(Fleet.open(section(*addresses)))
        await until(fleet)
        yield fleet, leaving


async def test_a_group_is_unknown_while_an_adapter_with_a_shard_of_it_is_away() -> None:
    """With the adapter that it waits for."""
    async with fleet_with_one_that_leaves(adapter_with(0), adapter_with(0, "b")) as (fleet, leaving):
        assert not is_active(TRIGGER, await until(fleet))
        await leaving.aclose()
        await until(fleet, unknown="broker-b", incomplete="broker-b")


async def test_an_adapter_that_is_away_and_had_nothing_of_the_group_keeps_it_active_with_its_number() -> None:
    """It may have something now; what is known is enough for the number of replicas."""
    async with fleet_with_one_that_leaves(adapter_with(0), FakeLagAdapter("other")) as (fleet, leaving):
        assert not is_active(TRIGGER, await until(fleet))
        await leaving.aclose()
        state = await until(fleet, incomplete="adapter other does not answer")
        assert is_active(TRIGGER, state)
        assert list(values(TRIGGER, state).values()) == [0.0]


async def test_shards_that_an_adapter_forgot_keep_a_group_active() -> None:
    """One of them may be of this group."""
    adapter = adapter_with(0)
    adapter.forgotten = 3
    async with fleet_of(adapter) as fleet:
        assert is_active(TRIGGER, await until(fleet, incomplete="forgot 3 shards"))


async def test_groups_without_room_keep_a_group_active() -> None:
    """As forgotten shards do."""
    adapter = adapter_with(0)
    adapter.set_group("h", [shard_lag("x", 0, 0)])
    async with fleet_of(adapter, max_groups=1) as fleet:
        await until(fleet, incomplete="have no room")


async def test_a_name_that_was_never_resolved_makes_all_groups_unknown() -> None:
    """Nobody knows which adapters there are."""

    async def resolving(_host: str, _port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    async with Fleet.open(section("dns:a:1", resolve_ms=100), resolving=resolving) as fleet:
        await until(fleet, unknown="its addresses are not known yet", incomplete="Name or service not known")


async def test_no_adapters_know_nothing() -> None:
    """A name may have no address."""

    async def resolving(_host: str, _port: int) -> Sequence[str]:
        return []

    async with Fleet.open(section("dns:a:1", resolve_ms=100), resolving=resolving) as fleet:
        await until(fleet, unknown="no adapter is known", incomplete="has no address")


async def test_a_change_of_the_group_wakes() -> None:
    """And one of an adapter's state; not one of another group."""
    adapter = adapter_with(0)
    adapter.set_group("h", [shard_lag("x", 0, 0)])
    async with fleet_of(adapter) as fleet, aclosing(FleetLagSource(fleet).changes("default", "g")) as changes:
        await anext(changes)
        adapter.set_group("g", [shard_lag("a", 0, 5)])
        with anyio.fail_after(PATIENCE_S):
            await anext(changes)
        adapter.state = offsets_pb.StatusReply.DEGRADED
        with anyio.fail_after(PATIENCE_S):
            await anext(changes)
        await eventually(lambda: fleet.adapters[0].health.value == "degraded")
