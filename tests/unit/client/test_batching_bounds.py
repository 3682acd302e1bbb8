"""The limits of a client: pending offsets, the size of a request, remembered groups; and its close."""

import asyncio
import sys
from types import FrameType
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client import batching
from adapter.client.pending import PendingLimit
from adapter.model.records import Member
from tests.unit.links import TIMEOUT_S, Client, Code, FakeAdapter, Fault, codes, settled, virtual


@virtual
async def test_groups_that_are_not_committed_to_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the number of names ever used, whatever became of their commits."""
    monkeypatch.setattr(batching, "MAX_GROUPS", 10)
    client = Client(FakeAdapter(Fault(0.1)), resend=False)
    client.batcher._forget_at = 10
    for turn in range(20):
        groups = [f"g{turn}-{at}" for at in range(10)]
        client.adapter.away.update(groups[::2])
        found = await asyncio.gather(*(client.start({"s": 1}, group) for group in groups), return_exceptions=True)
        assert codes(found) == [Code.UNAVAILABLE, []] * 5
    assert len(client.batcher._groups) <= 20


@virtual
async def test_callers_wait_for_room() -> None:
    """Pending offsets are limited; a caller that waits to be admitted may be cancelled."""
    client = Client(FakeAdapter())
    await client.held()
    client.batcher.limit = PendingLimit(10)
    client.batcher.limit.used = 2  # those of `held`
    tasks = [client.start({f"{at}": at}) for at in range(50)]
    await settled()
    assert client.batcher.limit.used == 10
    tasks[30].cancel()
    found = await client.released(*tasks)
    assert [type(one) for one in found].count(list) == 49
    await client.ended()


@virtual
async def test_who_comes_later_does_not_pass_those_who_wait_for_room() -> None:
    """A later caller waits even if there is room for its smaller commit."""
    client = Client(FakeAdapter(Fault(0.1)))
    client.batcher.limit = PendingLimit(2)
    first, *rest = [client.start({str(at): at}) for at in range(5)]
    await first
    last = client.start({"last": 9})
    await asyncio.gather(last, *rest)
    assert [entry.key.shard for entry in client.adapter.applied] == ["0", "1", "2", "3", "4", "last"]


@virtual
async def test_who_is_answered_does_not_pass_those_who_wait_for_room_either() -> None:
    """Its next commit has a later deadline; merged before theirs it would hide that theirs has passed."""
    client = Client(FakeAdapter(Fault(1)))
    client.batcher.limit = PendingLimit(1)

    async def twice() -> None:
        await client.commit({"first": 1})
        await client.commit({"second": 1})

    both = asyncio.create_task(twice())
    await asyncio.gather(client.start({"waits": 1}), both)
    assert [entry.key.shard for entry in client.adapter.applied] == ["first", "waits", "second"]


@virtual
@pytest.mark.no_cover
async def test_the_end_of_many_waits_for_room_is_work_in_proportion() -> None:
    """Their deadlines pass at about the same time: 30,000 held the event loop of their consumer for 14 s."""
    steps: list[int] = []

    def line(_: FrameType, event: str, __: Any) -> Any:
        steps[-1] += event == "line"
        return line

    for count in (100, 800):
        limit = PendingLimit(1)
        limit.used = 1
        waiting = [asyncio.create_task(limit.wait(1)) for _ in range(count)]
        await settled()
        steps.append(0)
        before = sys.gettrace()
        sys.settrace(line)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        sys.settrace(before)
        assert codes(found) == [Code.DEADLINE_EXCEEDED] * count
    assert steps[1] < 9 * steps[0]


@virtual
async def test_waiting_for_room_counts_towards_the_deadline() -> None:
    """The timeout includes the time before a caller is admitted."""
    client = Client(FakeAdapter())
    client.batcher.limit = PendingLimit(10)
    client.adapter.hanging.add("g")
    began = asyncio.get_running_loop().time()
    early = [client.start({f"{at}": at}) for at in range(10)]
    await asyncio.sleep(1)
    late = [client.start({f"{at}": at}) for at in range(10)]
    for tasks, seconds in ((early, TIMEOUT_S), (late, TIMEOUT_S + 1)):
        assert codes(await asyncio.gather(*tasks, return_exceptions=True)) == [Code.DEADLINE_EXCEEDED] * 10
        assert asyncio.get_running_loop().time() - began <= seconds + batching.EXPIRY_STEP_S
    await client.ended()


@virtual
async def test_room_for_many_is_taken_by_many_at_once() -> None:
    """Admitted one after the other's reply, they would be sent one by one."""
    client = Client(FakeAdapter(Fault(0.1)))
    client.batcher.limit = PendingLimit(10)
    tasks = [client.start({str(at): at for at in range(10)})] + [client.start({str(at): 99}) for at in range(10)]
    await asyncio.gather(*tasks)
    assert len(client.adapter.requests) <= 4


@virtual
async def test_a_close_waits_for_what_was_taken_and_refuses_the_rest() -> None:
    """Pending commits are sent. Callers that come later or still wait for room get an error."""
    client = Client(FakeAdapter())
    await client.held()
    client.batcher.limit = PendingLimit(5)
    tasks = [client.start({str(at): at}) for at in range(8)]
    await settled()
    closing = asyncio.create_task(client.batcher.close(3))
    await settled()
    with pytest.raises(grpc.aio.AioRpcError, match="the client is closed"):
        await client.commit({"late": 1})
    assert codes(await client.released(*tasks)) == [[]] * 5 + [Code.CANCELLED] * 3
    await closing
    assert len(client.sent()) == 1


@virtual
async def test_a_close_ends_after_its_limit() -> None:
    """Remaining callers learn that the outcome is unknown. No task or timer is left, also if the close is cancelled."""
    for cancelled in (False, True):
        client = Client(FakeAdapter())
        await client.held()
        tasks = [client.start({str(at): at}) for at in range(5)]
        await settled()
        loop = asyncio.get_running_loop()
        began = loop.time()
        closing = asyncio.create_task(client.batcher.close(2))
        await asyncio.sleep(1)
        if cancelled:
            closing.cancel()
        await asyncio.wait([closing])
        assert loop.time() - began == (1 if cancelled else 2)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert codes(found) == [Code.CANCELLED] * 5
        assert "may be applied or not" in str(found[0])
        await client.batcher.close(2)
        assert client.batcher._requests == {}


@virtual
@pytest.mark.parametrize("turns", range(6))
async def test_a_close_at_once_leaves_nobody_waiting(turns: int) -> None:
    """The close begins after each possible number of loop iterations since the commit."""
    client = Client(FakeAdapter(Fault(1.0)))
    task = client.start({"s": 1})
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.batcher.close(0)
    assert codes(await asyncio.gather(task, return_exceptions=True)) == [Code.CANCELLED]


@virtual
async def test_a_request_that_has_not_begun_when_the_close_ends_leaves_nobody_waiting() -> None:
    """The close is cancelled in the loop iteration in which the request is created."""
    client, loop = Client(FakeAdapter(Fault(1.0))), asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []
    loop.call_soon(lambda: loop.call_soon(closing[0].cancel))
    task = client.start({"s": 1})
    closing.append(asyncio.create_task(client.batcher.close(1)))
    await asyncio.wait(closing)
    assert client.adapter.requests == []
    assert codes(await asyncio.gather(task, return_exceptions=True)) == [Code.CANCELLED]


@virtual
async def test_a_close_outlives_a_lost_request() -> None:
    """The request is sent again while the close waits."""
    client = Client(FakeAdapter())
    client.adapter.faults.append(Fault(0.1, lost=True))
    task = client.start({"s": 1})
    await settled()
    await client.batcher.close(2)
    assert await task == []


@virtual
async def test_the_end_of_a_request_by_others_leaves_nobody_waiting() -> None:
    """The end of the event loop cancels all tasks, and every caller still gets a result."""
    client = Client(FakeAdapter())
    client.adapter.gate.clear()
    tasks = [client.start({"s": 1}), client.start({"s": 1}, "h")]
    await settled()
    for flight in list(client.batcher._requests):
        flight.cancel()
    assert codes(await asyncio.gather(*tasks, return_exceptions=True)) == [Code.CANCELLED] * 2
    await client.ended()


@virtual
async def test_requests_stay_small() -> None:
    """Thousands of commits with the longest names: under 4 MiB each, no commit is divided, and all are sent."""
    client = Client(FakeAdapter())
    await client.held()
    name = "\N{MUSHROOM}" * 61
    member = Member(1, name)
    offsets: list[dict[str, Any]] = [{f"{name}{at}-{one}": at for one in range(3)} for at in range(2_000)]
    tasks = [client.start(one, f"{name}{at}", member=member) for at, one in enumerate(offsets)]
    await client.released(*tasks)
    sizes = [request.ByteSize() for request in client.adapter.requests]
    assert max(sizes) < 4 << 20
    assert len(client.adapter.applied) == 6_002
    assert len(sizes) < 10


@virtual
async def test_what_waits_is_spread_over_the_requests_that_may_be_under_way() -> None:
    """With one large and one small request, adapter and client would wait for each other alternately."""
    client = Client(FakeAdapter())
    await client.held()
    await client.released(*(client.start({str(at): at}) for at in range(198)))
    assert max(len(request["g"]) for request in client.sent()) <= 100
    assert len(client.sent()) <= 3
