"""`top --fleet`: several adapters as one, with what is wrong of them. Each is a real gRPC server."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs

from adapter.cli.connection import CallError, Target
from adapter.cli.output import JSON, TABLE
from adapter.cli.top import fleet as top_fleet
from adapter.cli.top.fleet import FleetFeed
from adapter.cli.top.listing import Wanted
from adapter.errors import ConfigError
from adapter.rpc import lag_pb
from adapter.testing.lag_adapters import FakeLagAdapter, serving, shard_lag
from tests.unit.cli.top.test_app import screen_of

ALL = Wanted(lag_pb.LagFilter(), "worst", 0)
NOBODY = "unix:/nowhere/nobody.sock"
WIDE = (160, 14)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What the fleet logs is not printed; the command has this itself."""
    with capture_logs():
        yield


def adapter_with(*groups: str, status: "lag_pb.LagStatus.ValueType" = lag_pb.OK) -> FakeLagAdapter:
    """An adapter with these groups, each with one shard."""
    made = FakeLagAdapter()
    for group in groups:
        made.set_group(group, [shard_lag(f"{group}/0", 1, 8, status=status)])
    return made


async def test_one_listing_has_the_groups_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Sorted together; True, so exit code 0."""
    a, b = adapter_with("a"), adapter_with("b", status=lag_pb.STOP)
    async with serving(a) as one, serving(b) as other, top_fleet.opened(Target(""), [one, other]) as fleet:
        await top_fleet.known(fleet)
        assert await top_fleet.print_fleet(fleet, ALL, JSON)
        assert [(row["group"], row["status"]) for row in json.loads(capsys.readouterr().out)] == [("b", "stop"), ("a", "ok")]
        assert await top_fleet.print_fleet(fleet, ALL._replace(limit=1), TABLE)
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (2, "1 group of 2 adapters\n")


async def test_an_adapter_that_does_not_answer_is_named_and_fatal_only_if_nobody_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """False: not everything is there."""
    async with serving(adapter_with("a")) as one, top_fleet.opened(Target(""), [one, NOBODY]) as fleet:
        await top_fleet.known(fleet)
        assert not await top_fleet.print_fleet(fleet, ALL, TABLE)
    out, err = capsys.readouterr()
    assert "\ta\t" in out
    assert f"warning: {NOBODY}: " in err
    async with top_fleet.opened(Target(""), [NOBODY]) as fleet:
        with pytest.raises(CallError, match=r"nobody\.sock"):
            await top_fleet.known(fleet)


async def test_an_address_that_is_none_is_refused() -> None:
    """With what there may be."""
    with pytest.raises(ConfigError, match="'nonsense' is not HOST:PORT, unix:PATH or dns:NAME:PORT"):
        async with top_fleet.opened(Target(""), ["nonsense"]):
            pass


async def test_the_live_table_follows_all_of_them() -> None:
    """What changes, what goes; of a shard, which adapter has it."""
    first, second = adapter_with("a"), adapter_with("b", "c")
    async with serving(first) as one, serving(second) as other, top_fleet.opened(Target(""), [one, other]) as fleet:
        await top_fleet.known(fleet)
        feed = FleetFeed(fleet, lag_pb.LagFilter())
        async with screen_of(feed, WIDE) as screen:
            await screen.until(lambda: sorted(screen.names) == ["a", "b", "c"])
            await screen.until(lambda: screen.lines[0].startswith("fleet of 2 adapters  live"))
            second.set_group("b", [shard_lag("b/0", 1, 9, status=lag_pb.STOP)])
            second.remove("c")
            await screen.until(lambda: screen.names == ["b", "a"])
            told = await feed.group("default", "a")
            assert told is not None
            assert ([row.shard for row in told.shards], told.adapters) == (["a/0"], {"a/0": one})
            await screen.press("end", "enter")
            await screen.until(lambda: "a/0" in screen.text and one in screen.text)
            assert await feed.group("default", "absent") is None


async def test_a_filter_leaves_groups_out() -> None:
    """By pattern, as with one adapter."""
    async with serving(adapter_with("a", "b")) as one, top_fleet.opened(Target(""), [one]) as fleet:
        await top_fleet.known(fleet)
        async with screen_of(FleetFeed(fleet, lag_pb.LagFilter(pattern="b*")), WIDE) as screen:
            await screen.until(lambda: screen.names == ["b"])


async def test_an_adapter_that_goes_is_named_above_the_table_and_all_of_them_are_waited_for() -> None:
    """Its groups stay as it told them last."""
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        one = await first.enter_async_context(serving(adapter_with("a")))
        other = await second.enter_async_context(serving(adapter_with("b")))
        async with top_fleet.opened(Target(""), [one, other]) as fleet:
            await top_fleet.known(fleet)
            async with screen_of(FleetFeed(fleet, lag_pb.LagFilter()), WIDE) as screen:
                await screen.until(lambda: sorted(screen.names) == ["a", "b"])
                await second.aclose()
                await screen.until(lambda: f"{other}: " in screen.text)
                assert "  live" in screen.lines[0]
                await first.aclose()
                await screen.until(lambda: "NO ANSWER" in screen.lines[0])
                assert sorted(screen.names) == ["a", "b"]
