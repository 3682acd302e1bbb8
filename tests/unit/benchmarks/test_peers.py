"""The comparison with other servers: its calculations and its report. Running the servers is left to the benchmark itself."""

import asyncio
from collections.abc import Mapping

import pytest

from benchmarks.load import GROUPS
from benchmarks.peers.catalog import PEERS, SHAPES, Shape
from benchmarks.peers.coalesce import CALLS, Coalescing
from benchmarks.peers.kafka import PARTITIONS, partition
from benchmarks.peers.peer import PAGE_CACHE, SYNCED, UNANSWERED, Batch, Facts, absent
from benchmarks.peers.pool import Pool
from benchmarks.peers.rows import Row, duels, lacks, result_of
from benchmarks.peers.usage import TICKS_PER_S, Used, machine_s

SHAPE = SHAPES[0]


def row(name: str, durability: str, machine_s: float, *, ours: bool = False) -> Row:
    """A row with the machine's CPU seconds per million commits."""
    facts = Facts(name, durability, "promise", "how", ours=ours)
    return Row(facts, SHAPE.name, 1_000.0, 1.0, 2.0, Used(1.0, 0.0, 0.0, machine_s), 10.0)


class Held:
    """A connection whose calls end only when the test sets their result."""

    def __init__(self) -> None:
        self.calls: list[tuple[Batch, asyncio.Future[None]]] = []

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Never called; the protocol requires it beside `commit_many`."""
        raise NotImplementedError

    async def commit_many(self, batch: Batch) -> None:
        """Record the call, and wait until the test ends it."""
        answer = asyncio.get_running_loop().create_future()
        self.calls.append((batch, answer))
        await answer

    async def close(self) -> None:
        """Nothing to do."""

    def sent(self) -> list[Mapping[str, Mapping[str, int]]]:
        """The offsets that each call so far carried."""
        return [batch for batch, _ in self.calls]


async def turn() -> None:
    """Let every task that can run do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_costs_are_for_a_million_commits_at_the_measured_rate() -> None:
    """3 CPU seconds in 2 s at 10,000 commits/s are 150 s per million commits."""
    used = Used(12.0, 3.0, 1.0, 4.0).since(Used(10.0, 0.0, 0.0, 0.0)).per_million(10_000)
    assert used == Used(100.0, 150.0, 50.0, 200.0)


def test_nothing_committed_costs_nothing() -> None:
    """A window too short for one answer has no cost per commit."""
    assert Used(2.0, 3.0, 1.0, 4.0).per_million(0) == Used(0.0, 0.0, 0.0, 0.0)


def test_idle_waiting_and_stolen_time_is_not_use() -> None:
    """Of /proc/stat only user, nice, system, irq and softirq count; guest is part of user already."""
    assert machine_s("cpu  1 2 3 1000 500 4 5 700 1 0\ncpu0 9 9 9 9 9 9 9 9 9 9\n") == 15 / TICKS_PER_S


def test_equal_is_compared_with_equal() -> None:
    """Rows of one durability are compared, fastest peer first; rows without an answer are not compared."""
    cached, never, synced = (
        row("interval", PAGE_CACHE, 4, ours=True),
        row("never", PAGE_CACHE, 1, ours=True),
        row("always", SYNCED, 9, ours=True),
    )
    slow, fast, durable, silent = row("a", PAGE_CACHE, 8), row("b", PAGE_CACHE, 2), row("c", SYNCED, 3), row("d", UNANSWERED, 1)
    assert duels([cached, never, slow, fast, silent, synced, durable]) == [(cached, [fast, slow]), (synced, [durable])]


def test_a_peer_that_wins_is_named() -> None:
    """The bar is missed, and a note names the peer and its factor."""
    result = result_of([row("mine", PAGE_CACHE, 4, ours=True), row("theirs", PAGE_CACHE, 2)], [SHAPE], {})
    assert [bar.verdict for bar in result.bars] == ["MISSED"]
    assert any("theirs wins with 2.00 x" in note for note in result.notes)


def test_a_peer_that_loses_is_no_winner() -> None:
    """The bar is met, and no note names a winner."""
    result = result_of([row("mine", PAGE_CACHE, 2, ours=True), row("theirs", PAGE_CACHE, 4)], [SHAPE], {})
    assert [bar.verdict for bar in result.bars] == ["met"]
    assert not any("wins" in note for note in result.notes)


def test_a_peer_that_is_not_installed_is_listed_by_name() -> None:
    """The report lists it with the programs and libraries that it lacks."""
    lacking = absent({"no-such-server": None, "sh": "/bin/sh"}, "no_such_library", "asyncio")
    assert lacking == ["no-such-server", "no_such_library (Python, by make bench)"]
    table = result_of([], [SHAPE], {"Some Server": lacks(lacking)}).tables[-1]
    why = "not installed: run benchmarks/install-peers.sh (lacks no-such-server, no_such_library (Python, by make bench))"
    assert table.rows == [("Some Server", why)]


def test_every_peer_says_what_its_answer_is_worth() -> None:
    """Each has a name of its own, one of the three known durabilities, and a description."""
    facts = [factory().facts for factory in PEERS.values()]
    assert len({fact.name for fact in facts}) == len(facts)
    assert all(fact.durability in {PAGE_CACHE, SYNCED, UNANSWERED} and fact.promise and fact.how for fact in facts)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_shards_of_a_group_have_each_their_own_partition_in_kafka(shape: Shape) -> None:
    """If two shards shared a partition, Kafka would store fewer keys than the other servers."""
    for group in range(min(GROUPS, shape.consumers)):
        numbers = range(group, shape.consumers, GROUPS)
        found = [partition(f"queue-{number}-{at}") for number in numbers for at in range(shape.batch)]
        assert len(set(found)) == len(found)
        assert max(found) < PARTITIONS - 1  # the last one is for looking whether a coordinator answers


async def test_commits_that_find_no_free_call_go_together_into_the_next() -> None:
    """While calls are free, each commit gets its own; a repeated key is sent once, with its newest offset."""
    held = Held()
    coalescing = Coalescing(held)
    commits = []
    for number in range(CALLS):
        commits.append(asyncio.create_task(coalescing.commit("g", "first", number)))
        await turn()
    commits += [asyncio.create_task(coalescing.commit("g", shard, offset)) for shard, offset in (("a", 1), ("b", 2), ("a", 3))]
    await turn()
    assert held.sent() == [{"g": {"first": number}} for number in range(CALLS)]
    held.calls[0][1].set_result(None)
    await turn()
    assert held.sent()[CALLS:] == [{"g": {"a": 3, "b": 2}}]
    for _, answer in held.calls[1:]:
        answer.set_result(None)
    await asyncio.gather(*commits)


async def test_a_failed_call_fails_only_the_commits_that_it_carried() -> None:
    """Commits of another call in progress still succeed."""
    held = Held()
    coalescing = Coalescing(held)
    lost = asyncio.create_task(coalescing.commit("g", "a", 1))
    await turn()
    kept = asyncio.create_task(coalescing.commit("g", "b", 1))
    await turn()
    held.calls[0][1].set_exception(ConnectionError("gone"))
    held.calls[1][1].set_result(None)
    with pytest.raises(ConnectionError):
        await lost
    await kept


async def test_who_waits_longest_for_a_connection_is_next() -> None:
    """A task that returns a connection and wants it again queues behind those that wait already."""
    pool = Pool(["only"])
    order: list[str] = []

    async def use(name: str) -> None:
        for _ in range(2):
            connection = await pool.take()
            order.append(name)
            await asyncio.sleep(0)
            pool.give(connection)

    await asyncio.gather(*(use(name) for name in ("first", "second", "third")))
    assert order == ["first", "second", "third"] * 2
