"""The cases: what a client of any language has to do. Their names stand in clients/SPEC.md, beside the rule that each checks.

A case raises AssertionError for a client that breaks the rule. Those of `kills` are apart, since they may go on for hours.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import grpc

from adapter.testing.processes import ended
from adapter.testing.service_manager import service_manager
from adapter.testing.waiting import eventually
from tests.conformance.driver import Answer, Driver
from tests.conformance.statuses import answering
from tests.conformance.world import World, started
from tests.durability.proxy import Proxy

Case: TypeAlias = Callable[[World], Awaitable[None]]

SHARD, OTHER = "orders/0", "orders/1"
RESTARTS = 3


def is_done(answer: Answer) -> bool:
    """Acknowledged, and nothing stood in its way."""
    return answer == {"behind": [], "raised": {}}


async def a_commit_is_stored_with_what_came_with_it(world: World) -> None:
    """Offset and metadata; another namespace is another group."""
    async with world.driver() as driver:
        assert is_done(await driver.commit(world.group, SHARD, 43, metadata="worker 3"))
        assert is_done(await driver.call("commit", group=world.group, namespace="n", offsets=[{"shard": SHARD, "offset": 7}]))
        found = await driver.read(world.group)
        other = await driver.call("read", group=world.group, namespace="n", shards=None)
    assert (found[SHARD]["offset"], found[SHARD]["metadata"]) == (43, "worker 3")
    assert other["offsets"][SHARD]["offset"] == 7


async def an_offset_may_have_64_bits(world: World) -> None:
    """2^64 - 1 comes back as it was, and 2^53 + 1."""
    async with world.driver() as driver:
        for shard, offset in ((SHARD, 2**64 - 1), (OTHER, 2**53 + 1)):
            assert is_done(await driver.commit(world.group, shard, offset))
        found = await driver.read(world.group)
    assert {shard: row["offset"] for shard, row in found.items()} == {SHARD: 2**64 - 1, OTHER: 2**53 + 1}


async def absent_is_not_zero(world: World) -> None:
    """A shard without an offset is left out; one at 0 is not."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 0)
        found = await driver.read(world.group, [SHARD, OTHER])
    assert {shard: row["offset"] for shard, row in found.items()} == {SHARD: 0}


async def a_late_commit_is_no_error(world: World) -> None:
    """A commit below what stands, or a repeated one, is answered with what stands."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 43)
        late = await driver.commit(world.group, SHARD, 5)
        again = await driver.commit(world.group, SHARD, 43)
    assert "error" not in again
    assert [(row["shard"], row["offset"]) for row in late["behind"]] == [(SHARD, 43)]
    assert await world.offset(SHARD) == 43


async def a_rewind_says_its_epoch(world: World) -> None:
    """An overwrite with a lower offset stands in a new epoch, with which the next commits are taken, and older ones are not."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 43)
        before = (await driver.read(world.group))[SHARD]["epoch"]
        rewound = await driver.commit(world.group, SHARD, 5, overwrite=True)
        raised = rewound["raised"][SHARD]
        old = await driver.commit(world.group, SHARD, 44, epoch=before)
        new = await driver.commit(world.group, SHARD, 6, epoch=raised)
    assert raised > before
    assert old["error"] == "moved"
    assert is_done(new)
    assert await world.offset(SHARD) == 6


async def a_reset_is_not_undone_by_a_commit_with_an_epoch(world: World) -> None:
    """The commit of the epoch from before is an error that says what stands; after a read the consumer goes on from there."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 100)
        before = (await driver.read(world.group))[SHARD]["epoch"]
        await world.reset(SHARD, 10)
        refused = await driver.commit(world.group, SHARD, 101, epoch=before)
        assert refused["error"] == "moved"
        assert [(row["shard"], row["offset"]) for row in refused["moved"]] == [(SHARD, 10)]
        assert await world.offset(SHARD) == 10
        found = (await driver.read(world.group))[SHARD]
        assert found["offset"] == 10
        assert is_done(await driver.commit(world.group, SHARD, 11, epoch=found["epoch"]))
    assert await world.offset(SHARD) == 11


async def a_reset_holds_off_who_knows_no_epochs(world: World) -> None:
    """Until a read takes it up. A peek does not: its reader goes on from nowhere."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 100)
        await world.reset(SHARD, 10)
        for offset, overwrite in ((101, False), (102, True)):
            refused = await driver.commit(world.group, SHARD, offset, overwrite=overwrite)
            assert refused["error"] == "moved"
            assert [(row["offset"], row["held"]) for row in refused["moved"]] == [(10, True)]
            peeked = await driver.read(world.group, [SHARD], "peek")
            assert (peeked[SHARD]["offset"], peeked[SHARD]["held"]) == (10, True)
        assert (await driver.read(world.group, [SHARD]))[SHARD]["offset"] == 10
        assert "error" not in await driver.commit(world.group, SHARD, 11)
    assert await world.offset(SHARD) == 11


async def the_epoch_of_the_row_is_taken(world: World) -> None:
    """A consumer that will go on from the reset may say so by its epoch, and is told the next one, the same to it."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 100)
        await world.reset(SHARD, 10)
        row = (await driver.commit(world.group, SHARD, 101))["moved"][0]
        late = await driver.commit(world.group, SHARD, 9, epoch=row["epoch"])
        assert [behind["offset"] for behind in late["behind"]] == [10]
        assert is_done(await driver.commit(world.group, SHARD, 11, epoch=row["epoch"]))
        back = await driver.commit(world.group, SHARD, 8, epoch=row["epoch"], overwrite=True)
        assert is_done(await driver.commit(world.group, SHARD, 12, epoch=back["raised"][SHARD]))
    assert await world.offset(SHARD) == 12


async def a_moved_shard_leaves_the_others_durable(world: World) -> None:
    """The error names the one that was moved; the other of the same commit is stored."""
    async with world.driver() as driver:
        rows = [{"shard": SHARD, "offset": 100}, {"shard": OTHER, "offset": 100}]
        await driver.call("commit", group=world.group, offsets=rows)
        await world.reset(SHARD, 10)
        refused = await driver.call("commit", group=world.group, offsets=[row | {"offset": 101} for row in rows])
    assert [row["shard"] for row in refused["moved"]] == [SHARD]
    assert (await world.offset(SHARD), await world.offset(OTHER)) == (10, 101)


async def a_delete_is_moved_to_nothing(world: World) -> None:
    """The row has no offset, which is not 0."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 100)
        await world.delete(SHARD)
        refused = await driver.commit(world.group, SHARD, 101)
        assert [row["offset"] for row in refused["moved"]] == [None]
        assert await driver.read(world.group) == {}


async def a_generation_that_has_ended_is_fenced(world: World) -> None:
    """Nothing of the commit is stored, commits of other groups that are made at the same time are, and the newest goes on."""
    async with world.driver() as driver:
        assert is_done(await driver.commit(world.group, SHARD, 1, generation=5, member="new"))
        others = [
            driver.begin("commit", group=f"{world.group}-{at}", offsets=[{"shard": SHARD, "offset": at}]) for at in range(20)
        ]
        old = await driver.commit(world.group, SHARD, 9, generation=4, member="old")
        assert all(map(is_done, await asyncio.gather(*(answer for _, answer in others))))
        assert await world.offset(SHARD) == 1
        assert is_done(await driver.commit(world.group, SHARD, 2, generation=5, member="new"))
    assert old["error"] == "fenced"
    assert "4" in old["message"]


async def an_invalid_commit_names_the_field_and_hurts_no_other(world: World) -> None:
    """Names and metadata that are too long, and offsets of others at the same time, which are all stored."""
    bad = [
        ({"shard": "x" * 256, "offset": 1}, "shard"),
        ({"shard": "", "offset": 1}, "shard"),
        ({"shard": "a\nb", "offset": 1}, "shard"),
        ({"shard": SHARD, "offset": 1, "metadata": "m" * 4_097}, "metadata"),
    ]
    async with world.driver() as driver:
        good = []
        for at, (row, field) in enumerate(bad):
            good += [
                driver.begin("commit", group=world.group, offsets=[{"shard": f"s-{at}-{number}", "offset": number}])[1]
                for number in range(20)
            ]
            refused = await driver.call("commit", group=world.group, offsets=[row])
            assert refused["error"] == "invalid", refused
            assert field in refused["field"] + refused["message"], refused
        assert all(is_done(answer) for answer in await asyncio.gather(*good))


async def many_commits_at_once(world: World) -> None:
    """64 shards of 8 groups, 20 commits of each that are made without waiting; the last one stands."""
    async with world.driver() as driver:
        answers = [
            driver.begin("commit", group=f"{world.group}-{at % 8}", offsets=[{"shard": f"s-{at}", "offset": offset}])[1]
            for offset in range(1, 21)
            for at in range(64)
        ]
        for answer in await asyncio.gather(*answers):
            assert "error" not in answer
        found = [await driver.read(f"{world.group}-{at}") for at in range(8)]
    assert [{row["offset"] for row in rows.values()} for rows in found] == [{20}] * 8
    assert sum(map(len, found)) == 64


async def a_request_names_no_shard_twice(world: World) -> None:
    """20 commits of each of two shards that are made without waiting: an adapter refuses a request with one of them twice."""
    async with answering() as service, world.driver(service.address) as driver:
        answers = [
            driver.begin("commit", group=world.group, offsets=[{"shard": shard, "offset": offset}])[1]
            for offset in range(1, 21)
            for shard in (SHARD, OTHER)
        ]
        assert not any("error" in answer for answer in await asyncio.gather(*answers))  # some may be behind the last one
    for request in service.requests:
        for group in request.groups:
            names = [*group.shard_names, *(row.shard for row in group.shards)]
            assert len(names) == len(set(names)), names


async def a_hand_over_is_read_at_the_next_adapter(world: World) -> None:
    """`remove` at the one, `read` at the other; and back."""
    other = world.new_adapter()
    with ended(other):
        await started(other)
        async with world.driver() as here, world.driver(other.address) as there:
            for offset, giver, taker in ((42, here, there), (43, there, here), (44, here, there)):
                assert is_done(await giver.commit(world.group, SHARD, offset))
                assert (await giver.call("remove", group=world.group, shards=[SHARD]))["removed"] == 1
                assert (await taker.read(world.group, [SHARD]))[SHARD]["offset"] == offset


async def what_is_persisted_needs_no_adapter(world: World) -> None:
    """`persist`, kill -9, and another adapter on an empty disk has it."""
    first, second = world.new_adapter(), world.new_adapter()
    with ended(first, second):
        await started(first)
        async with world.driver(first.address) as driver:
            assert is_done(await driver.commit(world.group, SHARD, 42))
            assert await driver.call("persist", group=world.group, shards=[SHARD]) == {}
        first.kill()
        await started(second)
        async with world.driver(second.address) as driver:
            assert (await driver.read(world.group))[SHARD]["offset"] == 42


async def a_watch_hears_what_others_move(world: World) -> None:
    """A reset, a delete, a removal; not a commit that goes forward."""
    async with world.driver() as driver:
        await driver.watch()
        await driver.commit(world.group, SHARD, 100)
        await driver.commit(world.group, OTHER, 100)
        await world.reset(SHARD, 10)
        told = await driver.heard(lambda change: change.get("shard") == SHARD)
        assert (told["group"], told["offset"]) == (world.group, 10)
        since = len(driver.changes)
        await world.delete(SHARD)
        told = await driver.heard(lambda change: change.get("shard") == SHARD, since)
        assert told["offset"] is None
        await driver.call("remove", group=world.group, shards=[OTHER])
        gone = await driver.heard(lambda change: change["change"] == "removed" and change["group"] == world.group)
        assert gone["shards"] in ([OTHER], [])


async def a_watch_begins_anew_and_says_so(world: World) -> None:
    """A kill -9, and a drain: disconnected, then resync, then changes again, each time."""
    adapter = world.new_adapter()
    with ended(adapter):
        await started(adapter)
        aside = World(world.command, world.directory, world.meta, adapter, world.group)
        async with aside.driver() as driver:
            await driver.watch()
            await _commit(driver, aside.group, SHARD, 100)
            for offset, end in ((50, adapter.kill), (40, adapter.stop)):
                since = len(driver.changes)
                await asyncio.to_thread(end)
                await driver.heard(lambda change: change["change"] == "disconnected", since)
                await started(adapter)
                await driver.heard(lambda change: change["change"] == "resync", since)
                await aside.reset(SHARD, offset)
                await driver.heard(partial(_is_at, offset), since)


async def a_restart_behind_a_held_socket_refuses_no_commit(world: World) -> None:
    """The service manager holds the socket: no commit fails while the adapter is stopped and started again."""
    adapter = world.new_adapter()
    with service_manager(adapter) as manager:
        manager.hold_tcp()
        manager.hold_unix()
        await asyncio.to_thread(manager.start)
        async with world.driver(adapter.address) as driver:
            reached, running = [0] * 8, True

            async def consume(at: int) -> None:
                while running:
                    answer = await driver.commit(world.group, f"s-{at}", reached[at] + 1)
                    assert "error" not in answer, answer
                    reached[at] += 1

            consumers = [asyncio.create_task(consume(at)) for at in range(8)]
            for _ in range(RESTARTS):
                least = min(reached) + 20
                await eventually(partial(_advanced, reached, least, consumers))
                assert await asyncio.to_thread(manager.restart) == 0
            running = False
            await asyncio.gather(*consumers)
            found = await driver.read(world.group)
    assert {shard: row["offset"] for shard, row in found.items()} == {f"s-{at}": offset for at, offset in enumerate(reached)}


async def a_lost_answer_is_asked_for_again(world: World) -> None:
    """The answer is cut off on its way: the commit was made, and is made again, until it is acknowledged."""
    async with Proxy(world.adapter.tcp_address).listening() as proxy, world.driver(proxy.address) as driver:
        await driver.commit(world.group, SHARD, 1)
        proxy.cutting = True
        _, answer = driver.begin("commit", group=world.group, offsets=[{"shard": SHARD, "offset": 2}])
        await eventually(lambda: proxy.disturbed > 0)
        proxy.cutting = False
        repeated = await answer
    assert "error" not in repeated
    assert await world.offset(SHARD) == 2


async def an_overwrite_is_sent_once(world: World) -> None:
    """The answer is cut off: the caller is told that nobody knows, and nothing is sent that could undo what came since."""
    async with Proxy(world.adapter.tcp_address).listening() as proxy, world.driver(proxy.address) as driver:
        await driver.commit(world.group, SHARD, 100)
        proxy.cutting = True
        answer = await driver.commit(world.group, SHARD, 50, overwrite=True)
    assert (answer.get("error"), proxy.disturbed) == ("lost", 1), answer
    assert await world.offset(SHARD) == 50


async def a_dropped_commit_is_not_made_after_a_later_one(world: World) -> None:
    """The caller went away from 100 and then went back to 50: 50 stands, whatever became of the first."""
    async with world.driver() as driver:
        await driver.commit(world.group, SHARD, 10)
        world.adapter.freeze()
        try:
            dropped, _ = driver.begin("commit", group=world.group, offsets=[{"shard": SHARD, "offset": 100}])
            await driver.call("drop", of=dropped)
            _, answer = driver.begin("commit", group=world.group, offsets=[{"shard": SHARD, "offset": 50}], overwrite=True)
        finally:
            world.adapter.thaw()
        assert "error" not in await answer
        await driver.commit(world.group, OTHER, 1)
    assert await world.offset(SHARD) == 50


async def each_status_is_the_error_that_says_what_to_do(world: World) -> None:
    """By code, and by text where the code does not say it."""
    expected = [
        (grpc.StatusCode.INVALID_ARGUMENT, "groups[0].shards[0].metadata: is too long", "invalid"),
        (grpc.StatusCode.FAILED_PRECONDITION, "n/g: ILLEGAL_GENERATION: generation 4 has ended", "fenced"),
        (grpc.StatusCode.FAILED_PRECONDITION, "n/g/s: the Meta Service refused it", "refused"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "the disk is full", "exhausted"),
        (grpc.StatusCode.DATA_LOSS, "the store is damaged", "damaged"),
        (grpc.StatusCode.PERMISSION_DENIED, "not here", "refused"),
        (grpc.StatusCode.UNAUTHENTICATED, "no token", "refused"),
        (grpc.StatusCode.UNIMPLEMENTED, "no such call", "refused"),
        (grpc.StatusCode.UNAVAILABLE, "recovering", "lost"),
        (grpc.StatusCode.ABORTED, "contended", "lost"),
        (grpc.StatusCode.INTERNAL, "unexpected", "lost"),
        (grpc.StatusCode.UNKNOWN, "unexpected", "lost"),
    ]
    async with answering() as service, world.driver(service.address) as driver:
        for code, text, kind in expected:
            service.status = (code, text)
            # An overwrite: it is not sent again, so that each code is seen at once.
            answer = await driver.commit(world.group, SHARD, 1, overwrite=True)
            assert (answer["error"], text.removeprefix("groups[0].") in answer["message"]) == (kind, True), (code, answer)
            assert answer.get("field", "shards[0].metadata") in {"shards[0].metadata", "groups[0].shards[0].metadata"}
        assert len(service.requests) == len(expected)


async def a_call_ends_at_its_timeout(world: World) -> None:
    """The adapter is frozen: the caller hears that nobody knows. Then it goes on, and so does the client."""
    async with world.driver(timeout_s=1.0) as driver:
        await driver.commit(world.group, SHARD, 1)
        world.adapter.freeze()
        try:
            answer = await driver.commit(world.group, SHARD, 2)
        finally:
            world.adapter.thaw()
        assert answer["error"] == "lost"
    async with world.driver() as driver:
        assert "error" not in await driver.commit(world.group, SHARD, 3)


def _is_at(offset: int, change: Answer) -> bool:
    return (change.get("shard"), change.get("offset")) == (SHARD, offset)


def _advanced(reached: Sequence[int], least: int, consumers: Sequence["asyncio.Task[None]"]) -> bool:
    """Or a consumer has ended, with an error."""
    return min(reached) > least or any(each.done() for each in consumers)


async def _commit(driver: Driver, group: str, shard: str, offset: int) -> None:
    assert is_done(await driver.commit(group, shard, offset))


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        a_commit_is_stored_with_what_came_with_it,
        an_offset_may_have_64_bits,
        absent_is_not_zero,
        a_late_commit_is_no_error,
        a_rewind_says_its_epoch,
        a_reset_is_not_undone_by_a_commit_with_an_epoch,
        a_reset_holds_off_who_knows_no_epochs,
        the_epoch_of_the_row_is_taken,
        a_moved_shard_leaves_the_others_durable,
        a_delete_is_moved_to_nothing,
        a_generation_that_has_ended_is_fenced,
        an_invalid_commit_names_the_field_and_hurts_no_other,
        many_commits_at_once,
        a_request_names_no_shard_twice,
        a_hand_over_is_read_at_the_next_adapter,
        what_is_persisted_needs_no_adapter,
        a_watch_hears_what_others_move,
        a_watch_begins_anew_and_says_so,
        a_restart_behind_a_held_socket_refuses_no_commit,
        a_lost_answer_is_asked_for_again,
        an_overwrite_is_sent_once,
        a_dropped_commit_is_not_made_after_a_later_one,
        a_call_ends_at_its_timeout,
        each_status_is_the_error_that_says_what_to_do,
    )
}
