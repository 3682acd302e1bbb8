"""A fleet over fake adapters on real sockets: what each of them says, as one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import grpc
import grpc.aio
import pytest

from adapter.errors import ConfigError
from adapter.fleet.fleet import Fleet
from adapter.fleet.link import AdapterLink
from adapter.fleet.section import FleetSection
from adapter.fleet.views import Change, GroupView, Health, Key
from adapter.rpc import lag_pb, offsets_pb
from adapter.testing.lag_adapters import FakeLagAdapter, serving, shard_lag
from adapter.testing.waiting import PATIENCE_S, eventually

NO_MESSAGE = b"\xff\xff\xff\xff"
SLOW = {"timeout_ms": 10_000, "interval_ms": 50}  # nothing is away only because the machine is busy


def section(*addresses: str, **fields: object) -> FleetSection:
    """Settings of a fleet."""
    return FleetSection.model_validate({"adapters": addresses, **SLOW, **fields})


@asynccontextmanager
async def fleet_of(*adapters: FakeLagAdapter, **fields: object) -> AsyncIterator[Fleet]:
    """A fleet over these, which has all of their groups."""
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(adapter)) for adapter in adapters]
        fleet = await stack.enter_async_context(Fleet.open(section(*addresses, **fields)))
        await eventually(lambda: len(fleet.adapters) == len(adapters) and all(view.lag_known for view in fleet.adapters))
        yield fleet


async def the_group(fleet: Fleet, name: str = "g") -> GroupView:
    """The group now."""
    page = await fleet.groups(text=f"default/{name}")
    return page.groups[0]


async def until(fleet: Fleet, condition: Callable[[GroupView], bool], name: str = "g") -> GroupView:
    """The group, as soon as this holds of it."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            for found in (await fleet.groups(text=f"default/{name}")).groups:
                if condition(found):
                    return found
            await anyio.sleep(0.01)


async def until_lag(fleet: Fleet, lag: int, name: str = "g") -> GroupView:
    """The group, as soon as it has this lag."""
    return await until(fleet, lambda view: view.lag.lag == lag, name)


async def test_a_group_of_one_adapter_is_as_that_one_says() -> None:
    """Fields that the fleet does not know stay, too."""
    adapter = FakeLagAdapter("broker-1")
    said = lag_pb.GroupLag(namespace="default", group="g", shards=7, known=3, lag=5, worst_shard="x", trend=-2.5)
    adapter.put(said)
    async with fleet_of(adapter) as fleet:
        view = await the_group(fleet)
        assert view.lag == said
        assert view.adapters == [adapter.address]
        assert (view.stale_since_ms, view.exact) == (0, True)


async def test_what_changes_later_arrives() -> None:
    """Groups that change, come and go."""
    adapter = FakeLagAdapter()
    adapter.set_group("g", [shard_lag("s", 1, 3)])
    async with fleet_of(adapter) as fleet:
        adapter.set_group("g", [shard_lag("s", 1, 11)])
        await until_lag(fleet, 10)
        adapter.set_group("new", [shard_lag("s", 1, 5)])
        await eventually(lambda: fleet.adapters[0].groups == 2)
        adapter.remove("g")
        await eventually(lambda: fleet.adapters[0].groups == 1)
        assert await fleet.group("default", "g") is None


async def test_a_shard_that_moved_does_not_count_as_stopped_where_it_was() -> None:
    """The adapter that it left keeps an old offset, which nobody commits there."""
    left, now = FakeLagAdapter("left"), FakeLagAdapter("now")
    left.set_group("g", [shard_lag("a", 10, 500, status=lag_pb.STOP), shard_lag("b", 5, 8)])
    now.set_group("g", [shard_lag("a", 498, 500)])
    async with fleet_of(left, now) as fleet:
        view = await until_lag(fleet, 2 + 3)
        assert view.lag.status == lag_pb.OK
        assert (view.lag.stop, view.lag.shards, view.lag.moving_lag) == (0, 2, 5)
        assert view.exact
        found = await fleet.group("default", "g")
        assert found
        assert [(row.lag.shard, row.lag.offset, row.adapter, row.others) for row in found.shards] == [
            ("a", 498, now.address, (left.address,)),
            ("b", 5, left.address, ()),
        ]


async def test_a_shard_that_was_reset_to_an_earlier_offset_counts_by_its_epoch() -> None:
    """The larger epoch is the newer one, whatever the offset."""
    one, other = FakeLagAdapter(), FakeLagAdapter()
    one.set_group("g", [shard_lag("a", 900, 1_000)])
    other.set_group("g", [shard_lag("a", 100, 1_000, epoch=2)])
    async with fleet_of(one, other) as fleet:
        await until_lag(fleet, 900)


async def test_the_shards_of_a_group_are_asked_again_only_after_a_change() -> None:
    """A page over groups that several adapters have costs them nothing while nothing changes."""
    one, other = FakeLagAdapter(), FakeLagAdapter()
    for adapter, shard in ((one, "a"), (other, "b")):
        adapter.set_group("g", [shard_lag(shard, 1, 3)])
    async with fleet_of(one, other) as fleet:
        await until(fleet, lambda view: view.lag.lag == 4 and view.exact)
        asked = -1
        with anyio.fail_after(PATIENCE_S):
            while asked != one.calls["GetGroupLag"]:  # the page may have been first: they are being asked beside it as well
                asked = one.calls["GetGroupLag"]
                for _ in range(5):
                    await fleet.groups()
                    await fleet.group("default", "g")
        other.set_group("g", [shard_lag("b", 1, 9)])
        await until_lag(fleet, 10)
        assert one.calls["GetGroupLag"] == asked, "nothing changed there"


async def test_groups_of_an_adapter_that_is_away_stay_with_their_last_lag_and_since_when() -> None:
    """Unknown is not 0, and not gone."""
    adapter, other = FakeLagAdapter(), FakeLagAdapter()
    other.set_group("h", [shard_lag("s", 1, 3)])
    adapter.set_group("g", [shard_lag("s", 1, 8)])
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(other))
        async with serving(adapter) as leaving:
            fleet = await stack.enter_async_context(Fleet.open(section(address, leaving)))
            await eventually(lambda: all(view.lag_known for view in fleet.adapters) and len(fleet.adapters) == 2)
        await eventually(lambda: fleet.adapters[0].health is Health.AWAY)
        view = await the_group(fleet)
        assert view.lag.lag == 7
        assert view.stale_since_ms > 0
        assert (await the_group(fleet, "h")).stale_since_ms == 0
        assert (await fleet.groups()).stale == 1
        found = await fleet.group("default", "g")
        assert found
        assert found.missing[leaving]
        async with serving(adapter, leaving):  # it comes back, with another lag
            adapter.set_group("g", [shard_lag("s", 1, 5)])
            await until_lag(fleet, 4)
            await eventually(lambda: all(view.health is Health.SERVING and view.lag_known for view in fleet.adapters))
            assert (await the_group(fleet)).stale_since_ms == 0


async def test_a_group_is_live_when_all_of_its_shards_moved_from_the_adapter_that_is_away() -> None:
    """After a fail-over, what the lost broker said last is older."""
    lost, heir = FakeLagAdapter(), FakeLagAdapter()
    lost.set_group("g", [shard_lag("a", 10, 20)])
    heir.set_group("g", [shard_lag("a", 9, 20), shard_lag("b", 1, 1)])
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(heir))
        async with serving(lost) as leaving:
            fleet = await stack.enter_async_context(Fleet.open(section(address, leaving)))
            # Of both, shard by shard: of an adapter that left before it was asked for its shards nobody could tell them.
            await until(fleet, lambda view: view.lag.lag == 10 and len(view.adapters) == 2 and view.exact)
        await eventually(lambda: fleet.adapters[0].health is Health.AWAY)
        await until(fleet, lambda view: view.stale_since_ms > 0)
        heir.set_group("g", [shard_lag("a", 12, 20), shard_lag("b", 1, 1)])
        await until(fleet, lambda view: view.lag.lag == 8 and view.stale_since_ms == 0)


async def test_a_comparison_that_began_before_an_adapter_left_does_not_show_its_groups_as_live() -> None:
    """It may end behind one that began later: what that has found out stands."""
    lost, heir = FakeLagAdapter(), FakeLagAdapter()
    lost.set_group("g", [shard_lag("a", 10, 20)])
    heir.set_group("g", [shard_lag("a", 9, 20), shard_lag("b", 1, 1)])
    gate, began, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(heir))
        async with serving(lost) as leaving:
            fleet = await stack.enter_async_context(Fleet.open(section(address, leaving)))
            await until_lag(fleet, 10)
            await eventually(lambda: all(view.lag_known for view in fleet.adapters) and len(fleet.adapters) == 2)
            link = next(link for link in fleet._links.values() if link.view.address == address)
            ask = link.shards

            async def held(key: Key) -> lag_pb.GetGroupLagReply:
                reply = await ask(key)
                if not began.is_set():
                    began.set()
                    await gate.wait()
                    ended.set()
                return reply

            link.shards = held  # type: ignore[method-assign]
            heir.set_group("g", [shard_lag("a", 9, 20), shard_lag("b", 1, 3)])
            await began.wait()
        await until(fleet, lambda view: view.stale_since_ms > 0)
        gate.set()
        await ended.wait()
        await eventually(lambda: not fleet._table.unmerged)
        assert (await the_group(fleet)).stale_since_ms > 0


async def test_a_group_that_is_gone_after_a_new_stream_is_removed() -> None:
    """A resync tells all; what it does not have is no more."""
    adapter = FakeLagAdapter()
    for name in ("g", "gone"):
        adapter.set_group(name, [shard_lag("s", 1, 8)])
    async with fleet_of(adapter) as fleet:
        del adapter.sums["default", "gone"]
        adapter.end_streams()
        await eventually(lambda: fleet.adapters[0].groups == 1)
        assert [view.lag.group for view in (await fleet.groups()).groups] == ["g"]


async def test_an_adapter_that_hangs_costs_the_others_nothing() -> None:
    """Each call has a deadline, and each adapter its own tasks."""
    well, hanging = FakeLagAdapter(), FakeLagAdapter()
    well.set_group("g", [shard_lag("s", 1, 8)])
    hanging.hanging = True
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(adapter)) for adapter in (well, hanging)]
        fleet = await stack.enter_async_context(Fleet.open(section(*addresses, timeout_ms=300)))
        await eventually(lambda: any(view.lag_known for view in fleet.adapters))
        await until_lag(fleet, 7)
        await eventually(lambda: "DEADLINE_EXCEEDED" in fleet.adapters[0].error)
        assert fleet.adapters[0].address == hanging.address


async def test_without_a_token_the_health_service_tells_the_state() -> None:
    """Status needs the token; health and lag need none."""
    adapter = FakeLagAdapter("b")
    adapter.token = "a" * 32
    adapter.set_group("g", [shard_lag("s", 1, 8)])
    async with fleet_of(adapter) as fleet:
        (view,) = fleet.adapters
        assert view.status is None
        assert "UNAUTHENTICATED" in view.status_error
        assert view.health is Health.SERVING
        adapter.state = offsets_pb.StatusReply.RECOVERING
        await eventually(lambda: fleet.adapters[0].health is Health.RECOVERING)
        assert (await the_group(fleet)).stale_since_ms > 0, "what a recovering adapter says of lag is not complete"


async def test_with_the_token_the_status_is_shown(tmp_path: Path) -> None:
    """The token of the settings is sent."""
    token = tmp_path / "token"
    token.write_text("a" * 32)
    token.chmod(0o600)
    adapter = FakeLagAdapter("broker-7")
    adapter.token = "a" * 32
    adapter.state = offsets_pb.StatusReply.DEGRADED
    async with fleet_of(adapter, token_file=token) as fleet:
        (view,) = fleet.adapters
        assert view.status
        assert (view.broker, view.version, view.health, view.status_error) == ("broker-7", "1.2.3", Health.DEGRADED, "")


async def test_an_adapter_that_keeps_no_lag_says_why() -> None:
    """It serves, but its lag is not known."""
    adapter = FakeLagAdapter()
    adapter.lag_off = True
    async with serving(adapter) as address, Fleet.open(section(address)) as fleet:
        await eventually(lambda: fleet.adapters[0].health is Health.SERVING and bool(fleet.adapters[0].lag_error))
        assert "[lag] shards = 0" in fleet.adapters[0].lag_error
        assert not fleet.adapters[0].lag_known


async def test_addresses_of_a_name_come_and_go() -> None:
    """Pods: an address that left is away for a while, then forgotten with its groups."""
    one, other = FakeLagAdapter(), FakeLagAdapter()
    one.set_group("g", [shard_lag("s", 1, 8)])
    other.set_group("h", [shard_lag("s", 1, 8)])
    async with serving(one) as first, serving(other) as second:
        has: Sequence[str] = [first, second]

        async def resolving(host: str, port: int) -> Sequence[str]:
            assert (host, port) == ("adapters.svc", 9520)
            return has

        settings = section("dns:adapters.svc:9520", resolve_ms=100, forget_ms=1_000)
        async with Fleet.open(settings, resolving=resolving) as fleet:
            await eventually(lambda: len(fleet.adapters) == 2 and all(view.lag_known for view in fleet.adapters))
            has = [second]
            await eventually(lambda: fleet.adapters[0].health is Health.AWAY)
            assert "does not have this address" in fleet.adapters[0].error
            assert (await the_group(fleet)).stale_since_ms > 0
            await eventually(lambda: len(fleet.adapters) == 1)
            assert [view.lag.group for view in (await fleet.groups()).groups] == ["h"]
            has = [first, second]
            await until_lag(fleet, 7)


async def test_an_address_of_two_names_is_there_until_both_have_lost_it() -> None:
    """As a pod behind two services: whichever of them had it first, and also if the other one gets it later."""
    adapter = FakeLagAdapter()
    adapter.set_group("g", [shard_lag("s", 1, 8)])
    async with serving(adapter) as address:
        has: dict[str, Sequence[str]] = {"a": [address], "b": [address]}
        asked: Counter[str] = Counter()

        async def resolving(host: str, _port: int) -> Sequence[str]:
            asked[host] += 1
            return has[host]

        async def rounds() -> None:
            before = Counter(asked)
            await eventually(lambda: all(asked[host] > before[host] + 2 for host in has))

        settings = section("dns:a:1", "dns:b:1", resolve_ms=100, forget_ms=600_000)
        async with Fleet.open(settings, resolving=resolving) as fleet:
            await eventually(lambda: bool(fleet.adapters) and fleet.adapters[0].lag_known)
            await rounds()
            assert len(fleet.adapters) == 1
            has["a"] = []
            await rounds()
            assert [view.health for view in fleet.adapters] == [Health.SERVING]
            has["b"] = []
            await eventually(lambda: fleet.adapters[0].health is Health.AWAY)
            has["b"] = [address]
            await eventually(lambda: [view.health for view in fleet.adapters] == [Health.SERVING])
            await rounds()
            assert [view.health for view in fleet.adapters] == [Health.SERVING]


async def test_a_name_that_cannot_be_resolved_is_a_problem_and_forgets_nothing() -> None:
    """A DNS server that is away does not make adapters go away."""
    adapter = FakeLagAdapter()
    works = True
    async with serving(adapter) as address:

        async def resolving(_host: str, _port: int) -> Sequence[str]:
            if not works:
                raise OSError(-2, "Name or service not known")
            return [address]

        async with Fleet.open(section("dns:a:1", resolve_ms=100), resolving=resolving) as fleet:
            await eventually(lambda: bool(fleet.adapters) and fleet.adapters[0].lag_known)
            works = False
            await eventually(lambda: bool(fleet.problems))
            assert fleet.problems == ["dns:a:1: Name or service not known"]
            assert fleet.adapters[0].health is Health.SERVING
            works = True
            await eventually(lambda: not fleet.problems)


async def test_changes_are_told_together() -> None:
    """Not each change of each group, but what changed meanwhile."""
    adapter = FakeLagAdapter()
    adapter.set_group("g", [shard_lag("s", 1, 8)])
    async with fleet_of(adapter) as fleet:
        changes = fleet.changes(pause_s=0.01)
        assert await anext(changes) == Change(adapters=True, groups=frozenset(), many=True)
        for high in range(9, 30):
            adapter.set_group("g", [shard_lag("s", 1, high)])
        with anyio.fail_after(PATIENCE_S):
            while ("default", "g") not in (await anext(changes)).groups:
                pass
        await until_lag(fleet, 28)
        await changes.aclose()


async def test_the_history_has_the_lags_of_the_last_minutes() -> None:
    """For a sparkline."""
    adapter = FakeLagAdapter()
    adapter.set_group("g", [shard_lag("s", 1, 8)])
    async with fleet_of(adapter, history_ms=100) as fleet:
        await until_lag(fleet, 7)
        for high in (10, 20):
            adapter.set_group("g", [shard_lag("s", 1, high)])
            await until(fleet, partial(_has, high - 1))
        history = (await the_group(fleet)).history
        assert list(dict.fromkeys(history))[-2:] == [9, 19]


def _has(lag: int, view: GroupView) -> bool:
    return lag in view.history


async def test_what_does_not_fit_is_counted_and_not_kept() -> None:
    """Memory is bounded by `max_groups`."""
    adapter = FakeLagAdapter()
    for name in ("a", "b", "c"):
        adapter.set_group(name, [shard_lag("s", 1, 8)])
    async with fleet_of(adapter, max_groups=2) as fleet:
        page = await fleet.groups()
        assert (page.matching, page.kept, page.left_out) == (2, 2, 1)


async def test_an_adapter_that_makes_up_groups_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by their number nor by the size of one. An honest one with more groups than fit twice is known all the same."""
    links: list[AdapterLink] = []
    all_came = AdapterLink._all_came

    async def noted(link: AdapterLink) -> None:
        links.append(link)
        assert link._coming
        assert len(link._coming) == 2 * 2
        await all_came(link)

    monkeypatch.setattr(AdapterLink, "_all_came", noted)
    adapter = FakeLagAdapter()
    for at in range(10):
        adapter.set_group(f"g{at}", [shard_lag("s", 1, 8)])
    async with fleet_of(adapter, max_groups=2) as fleet:
        assert links
        assert fleet.adapters[0].lag_known
        adapter.put(lag_pb.GroupLag(namespace="default", group="g" * 5_000))
        await eventually(lambda: "no message" in fleet.adapters[0].lag_error)


async def test_a_token_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    """Adapters take a new one by a reload; a file that is bad meanwhile changes nothing."""
    token = tmp_path / "token"
    token.write_text("a" * 32)
    token.chmod(0o600)
    adapter = FakeLagAdapter("broker-1")
    adapter.token = "a" * 32
    async with fleet_of(adapter, token_file=token) as fleet:
        await eventually(lambda: fleet.adapters[0].status is not None)
        token.write_text("short")
        adapter.token = "b" * 32
        await eventually(lambda: fleet.adapters[0].status is None)
        token.write_text("b" * 32)
        await eventually(lambda: fleet.adapters[0].status is not None)
        assert not fleet.adapters[0].status_error


async def test_groups_are_followed_on_a_new_channel_when_the_former_one_is_closed() -> None:
    """As after new TLS files; grpc.aio tells the end of a channel by a cancellation, which ends nothing here."""
    adapter = FakeLagAdapter()
    adapter.set_group("g", [shard_lag("s", 1, 8)])
    async with fleet_of(adapter) as fleet:
        (link,) = fleet._links.values()
        former = link._channel
        link._connect(None)
        await former.close()
        adapter.set_group("g", [shard_lag("s", 1, 10)])
        await until_lag(fleet, 9)
        await eventually(lambda: fleet.adapters[0].lag_known)


async def test_a_token_does_not_leave_the_machine_in_plaintext(tmp_path: Path) -> None:
    """As for the command line."""
    with pytest.raises(ValueError, match="plaintext"):
        section("adapter.example:9520", token_file=tmp_path / "t")
    with pytest.raises(ValueError, match="plaintext"):
        section("dns:adapters:9520", token_file=tmp_path / "t")
    section("unix:/run/a.sock", "127.0.0.1:9520", token_file=tmp_path / "t")


@pytest.mark.parametrize("address", ["", "host", "host:x", "host:99999", "unix:", "dns:", "dns:name", "dns:name:x"])
async def test_an_address_that_cannot_be_right_is_refused(address: str) -> None:
    """With what it may be."""
    with pytest.raises(ValueError, match="adapters"):
        section(address)


async def test_a_missing_file_of_a_token_is_an_error_at_the_start(tmp_path: Path) -> None:
    """Not later, for each adapter."""
    with pytest.raises(ConfigError, match=r"fleet\.token_file"):
        async with Fleet.open(section("unix:/run/a.sock", token_file=tmp_path / "none")):
            pass


async def test_an_adapter_may_be_forgotten_while_a_group_of_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at who has the group and the question: what the others have of it is compared."""

    async def at_once(_: object) -> None:
        """The link has ended already."""

    left, stays = FakeLagAdapter("left"), FakeLagAdapter("stays")
    left.set_group("g", [shard_lag("a", 1, 3)])
    stays.set_group("g", [shard_lag("b", 1, 4)])
    async with fleet_of(left, stays) as fleet:
        link = next(link for link in fleet._links.values() if link.view.address == left.address)
        link.leave()
        comparing = asyncio.create_task(fleet._compared(("default", "g"), 0.0))
        await asyncio.sleep(0)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "wait", at_once)
            await fleet._end(link)
        found = await comparing
        assert found
        assert "b" in {row.lag.shard for row in found.shards}
        await until_lag(fleet, 3)


class _OtherService(grpc.GenericRpcHandler):
    """Answers every call with bytes that are no message."""

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def one(_: bytes, __: object) -> bytes:
            return NO_MESSAGE

        async def some(_: bytes, __: object) -> AsyncIterator[bytes]:
            yield NO_MESSAGE

        if "Watch" in details.method:
            return grpc.unary_stream_rpc_method_handler(some)
        return grpc.unary_unary_rpc_method_handler(one)


async def test_what_is_no_message_of_an_adapter_is_told_and_ends_nothing() -> None:
    """Another service may have got the address of a pod that is gone. grpc.aio gives None for what it cannot parse."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_OtherService(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    adapter = FakeLagAdapter()
    adapter.set_group("g", [shard_lag("s", 1, 3)])
    try:
        async with serving(adapter) as address, Fleet.open(section(f"127.0.0.1:{port}", address)) as fleet:
            await eventually(
                lambda: any("no message" in view.error and "no message" in view.lag_error for view in fleet.adapters)
            )
            await until_lag(fleet, 2)
    finally:
        await server.stop(0)


async def test_numbers_that_no_field_can_hold_in_sum_end_nothing() -> None:
    """Whoever reports bounds with its commits can make the lag of a shard as large as that."""
    most, unknown = 2**64 - 1, lag_pb.LagStatus.ValueType(300)
    one, other = FakeLagAdapter(), FakeLagAdapter()
    for number, adapter in enumerate((one, other)):
        rows = [shard_lag(f"{number}/{at}", 0, most, lost=most) for at in range(2)]
        adapter.put(lag_pb.GroupLag(namespace="default", group="g", shards=2**32 - 1, lag=most, lost=most, status=unknown), rows)
    async with fleet_of(one, other) as fleet:
        view = await until(fleet, lambda view: view.exact)
        assert (view.lag.lag, view.lag.lost) == (most, most)
