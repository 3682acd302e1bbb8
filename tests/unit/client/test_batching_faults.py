"""Commits that share requests when a request is lost, refused, slow or cancelled, and the effect on the other commits."""

import asyncio

import pytest

from adapter.client import batching
from adapter.client.batching import Batcher
from adapter.model.records import CommitMode, GroupKey, Member
from adapter.rpc import offsets_pb
from tests.unit.links import LONG_S, TIMEOUT_S, Client, Code, FakeAdapter, Fault, codes, settled, virtual


@virtual
async def test_one_callers_refusal_is_nobody_elses() -> None:
    """A refused request is sent again in parts: by group, then by caller (10)."""
    client = Client(FakeAdapter())
    await client.held()
    bad = [client.start({"refused": 1}), client.start({"s": 1}, "refused")]
    good = [client.start({str(at): at}, group) for at in range(20) for group in ("g", "h")]
    found = codes(await client.released(*bad, *good))
    assert found == [Code.FAILED_PRECONDITION] * 2 + [[]] * 40
    # Together; then g, h and refused; then all 21 of g.
    assert [len(request) for request in client.sent()] == [3] + [1] * 24
    await client.ended()


@virtual
async def test_a_group_that_was_refused_goes_by_itself_until_it_passes() -> None:
    """A fenced consumer that keeps trying costs the others one request, not one for each try."""
    client = Client(FakeAdapter())
    client.adapter.generations[GroupKey("default", "zombie")] = 2
    assert codes(await asyncio.gather(client.start({"s": 1}, "zombie", member=Member(1)), return_exceptions=True)) == [
        Code.FAILED_PRECONDITION
    ]
    await client.held()
    found = await client.released(client.start({"s": 1}, "zombie", member=Member(1)), client.start({"s": 1}))
    assert codes(found) == [Code.FAILED_PRECONDITION, []]
    assert sorted(client.sent(), key=str) == [{"g": {"s": 1}}, {"zombie": {"s": 1}}]
    await client.commit({"s": 1}, "zombie", member=Member(2))
    await client.held()
    await client.released(client.start({"s": 2}, "zombie", member=Member(2)), client.start({"s": 2}))
    assert len(client.sent()) == 1


@virtual
async def test_what_waits_of_a_refused_group_goes_by_itself_too() -> None:
    """Its commits were about to share a request with others when the refusal came."""
    client = Client(FakeAdapter(Fault(0.1)))
    tasks = [client.start({"s": 1}, "refused"), client.start({"s": 1})]
    await settled()
    tasks.append(client.start({"s": 1}, "other"))
    await asyncio.sleep(0.05)
    tasks += [client.start({"s": 2}), client.start({"s": 2}, "h")]
    assert codes(await asyncio.gather(*tasks, return_exceptions=True)) == [Code.FAILED_PRECONDITION, [("s", 0, 2)], [], [], []]
    assert [sorted(request) for request in client.sent()] == [["g", "refused"], ["other"], ["h"], ["refused"], ["g"]]


@virtual
async def test_a_group_that_is_written_through_goes_by_itself() -> None:
    """Write-through waits for the Meta Service: others wait with it only once. Its own commits are still merged."""
    client = Client(FakeAdapter(Fault(0.1)))
    client.adapter.through.add("through")
    await asyncio.gather(client.commit({"s": 1}, "through"), client.commit({"s": 1}))
    client.adapter.requests.clear()
    later = [client.start({"s": at}, group) for at in (2, 3) for group in ("through", "g")]
    await asyncio.sleep(0.05)
    later += [client.start({str(at): at}, "through") for at in range(5)]
    await asyncio.gather(*later)
    assert client.sent() == [{"g": {"s": 3}}, {"through": {"s": 3}}, {"through": {str(at): at for at in range(5)}}]
    client.adapter.through.clear()
    await client.commit({"s": 5}, "through")
    client.adapter.requests.clear()
    await asyncio.gather(client.commit({"s": 6}, "through"), client.commit({"s": 6}))
    assert len(client.adapter.requests) == 1


@virtual
async def test_groups_that_hang_do_not_hold_up_the_others() -> None:
    """Groups that are known to be written through are sent in separate requests."""
    client = Client(FakeAdapter())
    slow = {f"slow-{at}" for at in range(5)}
    client.adapter.through |= slow
    await asyncio.gather(*(client.commit({"s": 1}, group) for group in slow))
    client.adapter.hanging |= slow
    hanging = [client.start({"s": at}, group) for at in range(3) for group in slow]
    await settled()
    hanging += [client.start({"s": 9}, group) for group in slow]
    loop = asyncio.get_running_loop()
    began = loop.time()
    for at in range(10):
        await asyncio.gather(client.commit({"s": at}), client.commit({"s": at}, "h"))
    assert loop.time() == began
    assert codes(await client.released(*hanging)) == [Code.DEADLINE_EXCEEDED] * 20
    await client.ended()


@virtual
@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_request_is_sent_again_with_the_newest_values(applied: bool) -> None:
    """Merging makes that safe, whether or not the lost request was applied."""
    client = Client(FakeAdapter())
    client.adapter.faults.append(Fault(0.001, lost=True, applied=applied))
    first = client.start({"s": 5})
    await asyncio.sleep(0.002)
    others = [client.start({"s": at}) for at in (7, 6)]
    assert await asyncio.gather(first, *others) == [[("s", 0, 7)], [], [("s", 0, 7)]]
    assert client.sent() == [{"g": {"s": 5}}, {"g": {"s": 7}}]
    await client.ended()


@virtual
async def test_a_lost_request_of_many_is_sent_again_group_by_group() -> None:
    """One of the groups may be the cause: while it keeps failing, a success of another one lets the rest continue."""
    client = Client(FakeAdapter())
    client.adapter.away.add("away")
    await client.held()
    lost = [client.start({"s": 1}, "away"), client.start({"s": 1}, epoch=9)]
    good = [client.start({str(at): 1}, f"g{at}") for at in range(20 * batching.MAX_SEPARATE)]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await settled()
    client.adapter.gate.set()
    assert await asyncio.gather(*good) == [[]] * len(good)
    assert loop.time() - began <= 2 * batching.FIRST_PAUSE_S
    assert not any(task.done() for task in lost)
    assert codes(await asyncio.gather(*lost, return_exceptions=True)) == [Code.UNAVAILABLE] * 2
    await client.ended()


@virtual
async def test_an_outage_costs_few_requests_and_ends_for_all_at_once() -> None:
    """A thousand groups share one pause; the first one that passes again lets all others go."""
    client = Client(FakeAdapter())
    groups = [f"g{at}" for at in range(1_000)]
    client.adapter.away.update(groups)
    tasks = [client.start({"s": 1}, group) for group in groups]
    await asyncio.sleep(TIMEOUT_S - 2 * batching.MAX_PAUSE_S)
    assert len(client.adapter.requests) < 30 * batching.MAX_SEPARATE
    client.adapter.away.clear()
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await asyncio.gather(*tasks) == [[]] * 1_000
    assert loop.time() - began <= batching.MAX_PAUSE_S
    await client.ended()


@virtual
async def test_a_lost_commit_is_an_error_after_the_callers_own_time() -> None:
    """The error comes at the caller's deadline, for a lost request and for one that hangs."""
    client = Client(FakeAdapter())
    client.adapter.away.add("away")
    client.adapter.hanging.add("hanging")
    loop = asyncio.get_running_loop()
    for group, code in (("away", Code.UNAVAILABLE), ("hanging", Code.DEADLINE_EXCEEDED)):
        began = loop.time()
        early = client.start({"s": 1}, group)
        await asyncio.sleep(1)
        late = client.start({"s": 2}, group)
        for task, seconds in ((early, TIMEOUT_S), (late, TIMEOUT_S + 1)):
            assert codes(await asyncio.gather(task, return_exceptions=True)) == [code]
            assert seconds <= loop.time() - began <= seconds + batching.EXPIRY_STEP_S
    assert await client.commit({"s": 1}) == []
    await client.ended()


@virtual
async def test_what_was_lost_in_two_requests_keeps_its_deadlines() -> None:
    """The two are resent together, and each commit still fails at its own deadline."""
    client = Client(FakeAdapter())
    client.adapter.away.add("g")
    client.adapter.faults.extend([Fault(1.5, lost=True), Fault(1.0, lost=True)])
    loop = asyncio.get_running_loop()
    began = loop.time()
    early = client.start({"s": 1})
    await asyncio.sleep(1)
    late = client.start({"s": 2})
    for task, seconds in ((early, TIMEOUT_S), (late, TIMEOUT_S + 1)):
        await asyncio.wait([task])
        assert seconds <= loop.time() - began <= seconds + batching.EXPIRY_STEP_S
    assert codes(await asyncio.gather(early, late, return_exceptions=True)) == [Code.UNAVAILABLE] * 2
    await client.ended()


@virtual
async def test_an_overwrite_is_never_sent_twice() -> None:
    """A repetition could undo what others committed since. The commits queued behind it continue."""
    client = Client(FakeAdapter())
    await client.held()
    client.adapter.faults.append(Fault(lost=True))
    found = await client.released(client.start({"s": 5}, overwrite=True), client.start({"s": 6}))
    assert codes(found) == [Code.UNAVAILABLE, []]
    assert client.sent() == [{"g": {"s": 5}}, {"g": {"s": 6}}]
    await client.ended()


@virtual
async def test_without_resend_a_lost_commit_ends_with_its_error() -> None:
    """A commit lost together with other groups is still sent once more, by itself."""
    client = Client(FakeAdapter(), resend=False)
    client.adapter.away.add("away")
    await client.held()
    tasks = [client.start({"s": at}, "away") for at in (1, 2)] + [client.start({"s": 1}, "h")]
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert codes(await client.released(*tasks)) == [Code.UNAVAILABLE, Code.UNAVAILABLE, []]
    assert loop.time() == began
    assert len(client.adapter.requests) == 3
    await client.ended()


@virtual
async def test_a_cancelled_caller_disturbs_nobody() -> None:
    """While pending, in a shared request, or in a separate one."""
    client = Client(FakeAdapter())
    client.adapter.gate.clear()
    alone = client.start({"s": 1}, "alone")
    await settled()
    under_way = [client.start({str(at): at}) for at in range(3)]
    await settled()
    waiting = [client.start({str(at): at}) for at in range(3)]
    await settled()
    for task in (alone, under_way[0], waiting[0]):
        task.cancel()
    found = await client.released(alone, *under_way, *waiting)
    assert [type(one) for one in found] == [asyncio.CancelledError] + [asyncio.CancelledError, list, list] * 2
    await client.ended()


@virtual
async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    """It also does not delay the commits behind it, although its group was due."""
    client = Client(FakeAdapter())
    await client.held()
    gone, stays = client.start({"s": 9}), client.start({"s": 3}, overwrite=True)
    other = client.start({"s": 1}, "h")
    await settled()
    gone.cancel()
    other.cancel()
    assert (await client.released(stays, gone))[0] == []
    assert client.sent() == [{"g": {"s": 3}}]
    await client.ended()


@virtual
async def test_a_full_disk_is_not_asked_once_for_each_caller() -> None:
    """An error that concerns everybody is given to all callers at once; each group sends one request."""
    client = Client(FakeAdapter())
    client.adapter.full = True
    found = codes(await asyncio.gather(*(client.start({str(at): at}, f"g{at % 2}") for at in range(20)), return_exceptions=True))
    assert found == [Code.RESOURCE_EXHAUSTED] * 20
    assert len(client.adapter.requests) == 3
    client.adapter.full = False
    assert await client.commit({"s": 1}, "g0") == []
    await client.ended()


@virtual
async def test_a_commit_whose_time_is_over_is_not_told_of_another_ones_refusal() -> None:
    """It fails with its own timeout: its group was in a refused request, and the resent one hung."""
    client = Client(FakeAdapter())
    client.adapter.faults.extend([Fault(), Fault(LONG_S), Fault(LONG_S)])
    bad, good = client.start({"s": 1}, "refused"), client.start({"s": 1})
    assert Code.FAILED_PRECONDITION not in codes(await asyncio.gather(good, return_exceptions=True))
    bad.cancel()
    await client.batcher.close(0)


@virtual
async def test_a_reply_that_makes_no_sense_is_an_error() -> None:
    """If a reply names a group that was not in the request, all callers of the request get an error."""

    async def send(_request: offsets_pb.CommitOffsetsRequest, _timeout_s: float) -> offsets_pb.CommitOffsetsReply:
        return offsets_pb.CommitOffsetsReply(written_through=[7])

    batcher = Batcher(send, TIMEOUT_S, resend=True)
    with pytest.raises(IndexError):
        await batcher.commit(("default", "g"), {"s": 1}, CommitMode.INCREASE_ONLY, {}, None)
