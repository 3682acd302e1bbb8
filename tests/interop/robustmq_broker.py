"""The front beside a real RobustMQ broker with a Kafka consumer: `make interop`, where `ROBUSTMQ_BROKER` names the binary.

The same is tested without it, against a double, in `tests/integration/test_robustmq_front.py` and
`tests/durability/test_robustmq_kills.py`. This shows that the double is right.
"""

import asyncio
import importlib
import random
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.testing.robustmq import BROKER, missing
from adapter.testing.waiting import PATIENCE_S
from tests.interop.robustmq_kills import CASES, GROUP, KAFKA, TOPIC, Stack, Tally, kafka, partition, play, stack

ROUNDS = 2
CONTROLS = 20  # rounds in which an unmodified broker loses something in one at least

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture(autouse=True)
def binary() -> None:
    """Skip, by name, where RobustMQ's broker or the Kafka client is not there."""
    if reason := missing(BROKER):
        pytest.skip(reason)
    if not find_spec(KAFKA):
        pytest.skip(
            f"RobustMQ's broker is not tested: {KAFKA} is not installed; `make interop` does that, from requirements/bench.lock"
        )


async def test_the_ledger_sees_what_a_broker_without_the_front_loses(tmp_path: Path) -> None:
    """Without this, the next test would show nothing."""
    tally = Tally()
    async with stack(tmp_path, CASES["bare-away"]) as made:
        while not sum(tally.again) and tally.kills < CONTROLS:
            await play(made, tally, random.Random(tally.kills))
    assert sum(tally.again)
    assert not tally.skipped, tally.skipped


async def test_what_the_front_has_taken_survives_kills_and_nothing_is_skipped(tmp_path: Path) -> None:
    """Of the broker, the adapter, both, and while RobustMQ's Meta Service cannot be reached."""
    tally = Tally()
    async with stack(tmp_path, CASES["front"]) as made:
        for name, case in CASES.items():
            if case.adapter == "front":
                made.case = case
                for seed in range(ROUNDS):
                    await play(made, tally, random.Random(f"{name} {seed}"))
    assert tally.commits
    assert not tally.lost, tally.lost
    assert not tally.skipped, tally.skipped


async def test_what_others_change_reaches_the_brokers_consumers(tmp_path: Path) -> None:
    """A reset and a delete by the command, of which the broker is told; and a delete by a Kafka client, which comes here."""
    async with stack(tmp_path, CASES["front"]) as made:
        await made.produce(0)
        assert await _consumed(made, 100) == list(range(100))
        await _changed(made, "reset", GROUP, "--to-offset", "40")
        assert await _consumed(made, 5) == list(range(40, 45))
        await _changed(made, "delete", GROUP)
        assert await _consumed(made, 5) == list(range(5))
        await _deleted_by_kafka(made)
        assert await made.at_adapter() == 0
        assert not made.node.offsets(GROUP)
        assert await _consumed(made, 3) == list(range(3))


async def _consumed(made: Stack, count: int) -> list[int]:
    """Join the group, read and commit so many messages, and leave it; their offsets. The adapter has the commit then."""
    consumer = made.consumer(TOPIC)
    await consumer.start()
    try:
        found = [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).offset for _ in range(count)]
        await consumer.commit({partition(): found[-1] + 1})
    finally:
        await consumer.stop()
    async with asyncio.timeout(PATIENCE_S):
        while await made.at_adapter() != found[-1] + 1:  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.02)
    return found


async def _changed(made: Stack, *arguments: str) -> None:
    """Run a command that moves offsets, and wait until the broker has been told."""
    assert made.adapter
    async with OffsetClient.connect(made.adapter.address, PATIENCE_S) as client:
        before = (await client.status()).robustmq.told_groups
        command = [sys.executable, "-m", "adapter", "offsets", *arguments, "--execute", "--address", made.adapter.address]
        changing = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        assert await changing.wait() == 0
        async with asyncio.timeout(PATIENCE_S):
            while (await client.status()).robustmq.told_groups == before:  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.02)


async def _deleted_by_kafka(made: Stack) -> None:
    client = kafka().client.AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{made.kafka_port}")
    await client.bootstrap()
    try:
        (node,) = client.cluster.brokers()
        reply = await client.send(node.nodeId, importlib.import_module(f"{KAFKA}.protocol.admin").DeleteGroupsRequest([GROUP]))
    finally:
        await client.close()
    assert reply.results == [(GROUP, 0)]
