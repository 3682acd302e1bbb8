"""The fleet of `make console` and `make demo-alerts`: its logs, its consumers, and what is committed by them."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from adapter.model.records import OffsetKey
from demo.fleet.consumers import Consumer
from demo.fleet.logs import PacedLog
from demo.fleet.processes import Fleet
from demo.fleet.scenario import SHOP, Group, Scenario, Topic, Way

NOW_MS = 1_700_000_000_000
KEY = OffsetKey("default", "g", "t/1")

SMALL = Scenario(
    {"t": Topic("t", 3, 300.0)},
    [Group("steady", ["t"]), Group("stalls", ["t"], Way.STALLS), Group("reset", ["t"], Way.RESET)],
    ill_after_s=0.0,
)


def _log(rate: float = 10.0, retention_s: float = 60.0) -> PacedLog:
    return PacedLog(rate, retention_s, NOW_MS, 1_000)


def _offsets(way: Way, turns: int, *, partition: int = 1, ill_after_s: float = 5.0) -> tuple[Sequence[int | None], PacedLog]:
    """What a consumer commits in each of so many seconds."""
    log = _log()
    consumer = Consumer(Group("g", ["t"], way), KEY, partition, log, ill_after_s)
    found: list[int | None] = []
    for second in range(1, turns + 1):
        log.produce(1.0, NOW_MS + 1_000 * second)
        commit = consumer.consume(1.0)
        found.append(commit.offset if commit else None)
    return found, log


def test_a_log_grows_at_its_rate_and_forgets_what_retention_removes() -> None:
    """A minute of messages at ten per second is kept, however long it runs."""
    log = _log()
    assert (log.low, log.high) == (400, 1_000)
    for second in range(1, 3_601):
        log.produce(1.0, NOW_MS + 1_000 * second)
    assert log.high == 37_000
    assert log.high - log.low == pytest.approx(600, abs=10)
    assert len(log) < 400


def test_a_log_finds_offsets_by_time() -> None:
    """The first message of the time or later; none behind the end, the first one for a time before the beginning."""
    log = _log()
    log.produce(1.0, NOW_MS + 1_000)
    assert log.first_since(NOW_MS + 1_000) == 1_000
    assert log.first_since(NOW_MS - 10_000) == 890
    assert log.first_since(NOW_MS - 10_000_000) == log.low
    assert log.first_since(NOW_MS + 1_001) is None


def test_consumers_do_what_their_way_says() -> None:
    """Twenty seconds of each, against a log with ten messages per second."""
    steady, log = _offsets(Way.STEADY, 20)
    assert steady[-1] == log.high
    stalled, _ = _offsets(Way.STALLS, 20)
    assert len(set(stalled[5:])) == 1
    assert stalled[3] != stalled[4]
    stopped, _ = _offsets(Way.STOPS, 20)
    assert stopped[4] is not None
    assert stopped[5:] == [None] * 15
    lagging, log = _offsets(Way.LAGS, 20)
    assert log.high - (lagging[-1] or 0) == pytest.approx(80, abs=2)
    behind, _ = _offsets(Way.CATCHES_UP, 20)
    assert all(early < late for early, late in itertools.pairwise(behind) if early is not None and late is not None)
    rewinding, _ = _offsets(Way.REWINDS, 20)
    assert any(late < early for early, late in itertools.pairwise(rewinding) if early and late)


def test_of_a_group_with_one_ill_shard_the_others_keep_up() -> None:
    """The second partition is the ill one."""
    ill, _ = _offsets(Way.ONE_STALLS, 20, partition=1)
    well, log = _offsets(Way.ONE_STALLS, 20, partition=0)
    assert len(set(ill[5:])) == 1
    assert well[-1] == log.high


def test_retention_passes_a_group_that_is_far_too_slow() -> None:
    """It begins at the oldest message, and what it has not read is removed."""
    offsets, log = _offsets(Way.BEHIND, 20)
    assert (offsets[-1] or 0) < log.low


def test_the_scenario_has_every_way_on_several_brokers() -> None:
    """Dozens of groups, each way at least once, all of their topics known, names of keys distinct."""
    assert len(SHOP.groups) > 36
    assert {group.way for group in SHOP.groups} == set(Way)
    assert len({(group.namespace, group.name) for group in SHOP.groups}) == len(SHOP.groups)
    assert {name for group in SHOP.groups for name in group.topics} == set(SHOP.topics)
    assert any(topic.rate == 0 for topic in SHOP.topics.values())


async def test_the_load_stalls_survives_a_reset_and_freezes(tmp_path: Path) -> None:
    """On real processes: all commits are acknowledged, a reset is taken up by the consumers, and frozen is frozen."""
    async with Fleet.open(tmp_path, SMALL, brokers=2) as fleet:
        await fleet.start()
        load = fleet.load
        async with anyio.create_task_group() as tasks:
            await tasks.start(load.run)
            group = next(SMALL.of(Way.RESET))
            before = {key: offset for broker in load.brokers for key, offset in broker.acknowledged.items()}
            assert await fleet.reset(group, 30.0) == 3
            moving = [(broker, key) for broker in load.brokers for key in broker.acknowledged if key.group != "stalls"]
            while not all(broker.acknowledged[key] > before[key] for broker, key in moving):  # noqa: ASYNC110 - no event for it
                await anyio.sleep(0.05)
            await load.freeze()
            frozen = load.commits, [log.high for broker in load.brokers for log in broker.logs]
            for broker in load.brokers:
                stored = {OffsetKey(row.namespace, row.group, row.shard): row.offset async for row in broker.client.list()}
                assert broker.acknowledged.items() <= stored.items()
                assert broker.failures == 0
            assert frozen == (load.commits, [log.high for broker in load.brokers for log in broker.logs])
            tasks.cancel_scope.cancel()
