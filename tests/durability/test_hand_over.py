"""Queues change hands between two consumers, each beside its own adapter: what is skipped, and what comes twice.

Real processes, over one Meta Service. `HAND_OVERS=500 HAND_OVER_KILLS=50` in the environment: so many of them. The output tells
how many messages came again.
"""

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adapter.model.queues import MessageQueue, shard_of
from adapter.model.records import OffsetKey
from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import PATIENCE_S
from tests.durability.hand_over_consumer import FORCE_EVERY, GROUP, PERSIST_EVERY
from tests.durability.load import random_instants
from tests.integration.helpers import rpc, stored_in, wait_until

HAND_OVERS = int(os.environ.get("HAND_OVERS", "8"))
KILLS = int(os.environ.get("HAND_OVER_KILLS", "2"))
QUEUES = 6
# A queue is taken over by a read of the Meta Service, which has half a second by default: too little for a busy machine.
PATIENT = f"timeout_ms = {int(PATIENCE_S * 1000)}\nload_timeout_ms = {int(PATIENCE_S * 1000)}\n"
MESSAGES_BETWEEN = 120  # of all queues, from one rebalance to the next


@dataclass
class Member:
    """A consumer process and its adapter."""

    adapter: ServiceProcess
    ledger: Path
    high: int
    reads: frozenset[str] = frozenset()
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """A new consumer, which knows nothing."""
        module = "tests.durability.hand_over_consumer"
        command = [sys.executable, "-m", module, self.adapter.address, str(self.ledger), str(self.high)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reads = frozenset()

    def tell(self, **command: Any) -> None:
        """Send a command."""
        assert self.process
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to a command."""
        assert self.process
        assert self.process.stdout
        return dict(json.loads(self.process.stdout.readline()))

    def kill(self) -> None:
        """SIGKILL, in the middle of everything."""
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


class Ledger:
    """What consumers have processed: a line for each message, in the order of time, also of those that were killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._topics: dict[str, list[str]] = defaultdict(list)
        self._read = 0

    def of(self, topic: str) -> list[str]:
        """The lines of a topic: `topic/queue offset`."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        for line in new.decode().splitlines():
            self._topics[line.partition("/")[0]].append(line)
        return self._topics[topic]


@dataclass
class World:
    """All processes, and what was processed."""

    meta: ServiceProcess
    members: list[Member]
    ledger: Ledger
    rng: random.Random = field(default_factory=random_instants)

    def progress(self, topic: str) -> None:
        """Wait until some more messages were processed, or all."""
        enough = len(self.ledger.of(topic)) + self.rng.randrange(1, 2 * MESSAGES_BETWEEN)
        enough = min(enough, QUEUES * self.members[0].high)
        wait_until(lambda: len(self.ledger.of(topic)) >= enough, f"{enough} messages of {topic} were processed")

    def split(self, topic: str) -> list[frozenset[str]]:
        """Every queue to somebody."""
        shards = shards_of(topic)
        first = frozenset(self.rng.sample(shards, self.rng.randrange(QUEUES + 1)))
        return [first, frozenset(shards) - first]

    def move(self, assignments: Collection[frozenset[str]]) -> None:
        """One step of a rebalance, of all members at the same time. Nothing may fail."""
        for member, assignment in zip(self.members, assignments, strict=True):
            member.tell(to=sorted(assignment))
        for member, assignment in zip(self.members, assignments, strict=True):
            assert member.answer()["errors"] == {}
            member.reads = assignment

    def hand_over(self, assignments: Collection[frozenset[str]]) -> None:
        """A clean one: first everybody gives up what goes, then everybody begins what came."""
        self.move([member.reads & assignment for member, assignment in zip(self.members, assignments, strict=True)])
        self.move(assignments)

    def finish(self, topic: str) -> int:
        """Read everything to its end, and give it up. Nothing was skipped; returns how many messages came again."""
        for member in self.members:
            member.tell(finish=True)
        for member in self.members:
            member.answer()
        self.hand_over([frozenset()] * len(self.members))
        high = self.members[0].high
        lines = self.ledger.of(topic)
        found = set(lines)
        assert found == {f"{shard} {offset}" for shard in shards_of(topic) for offset in range(high)}
        stored = stored_in(self.meta)
        assert {stored[OffsetKey("default", GROUP, shard)][1] for shard in shards_of(topic)} == {high}
        return len(lines) - len(found)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two consumers, two adapters, one Meta Service."""
    directory = tmp_path_factory.mktemp("h")
    ledger, high = Ledger(directory / "ledger"), max(HAND_OVERS, 4 * KILLS) * MESSAGES_BETWEEN // QUEUES
    ledger.path.touch()
    meta = meta_process(directory / "m")
    adapters = [adapter_process(directory / name, meta.address, extra=PATIENT) for name in "ab"]
    members = [Member(adapter, ledger.path, high) for adapter in adapters]
    with ended(meta, *adapters):
        for service in (meta, *adapters):
            service.launch()
        for service in (meta, *adapters):
            service.wait_ready()
        for member in members:
            member.start()
        try:
            yield World(meta, members, ledger)
        finally:
            for member in members:
                member.kill()


def test_in_clean_hand_overs_nothing_is_skipped_and_nothing_comes_twice(world: World) -> None:
    """Over random rebalances at random instants, while messages finish out of order."""
    for _ in range(HAND_OVERS):
        world.hand_over(world.split("clean"))
        world.progress("clean")
    assert world.finish("clean") == 0


def test_where_the_new_owner_does_not_wait_for_the_old_one_nothing_is_skipped(world: World) -> None:
    """As RocketMQ's consumers rebalance: each by itself. What the old one had not stored yet comes twice."""
    for _ in range(HAND_OVERS):
        world.move(world.split("unordered"))
        world.progress("unordered")
    again = world.finish("unordered")
    sys.stdout.write(f"unordered: {again} messages came again in {HAND_OVERS} rebalances\n")


def test_a_killed_consumer_s_queues_go_on_where_it_had_stored_them(world: World) -> None:
    """Without and with its adapter: nothing is skipped, and only what was not stored yet comes again."""
    most = 0
    for kill in range(KILLS):
        world.hand_over(world.split("killed"))
        world.progress("killed")
        victim, survivor = world.rng.sample(world.members, 2)
        if kill % 2 == 0:
            killed_with_its_adapter(victim)
            most += len(victim.reads) * FORCE_EVERY
        else:
            victim.kill()
            with rpc(victim.adapter.address) as adapter:
                adapter.admin.Flush(offsets_pb.FlushRequest())
            most += len(victim.reads) * PERSIST_EVERY
        take_over(survivor, shards_of("killed"))
        world.progress("killed")
        if kill == KILLS - 1:
            world.members = [survivor]  # which ends it alone
            break
        if kill % 2 == 0:
            victim.adapter.start()
        victim.start()
    again = world.finish("killed")
    sys.stdout.write(f"killed: {again} messages came again after {KILLS} kills, of at most {most}\n")
    assert again <= most


def killed_with_its_adapter(victim: Member) -> None:
    """Both at once; the adapter stays away."""
    assert victim.adapter.process
    victim.adapter.process.kill()
    victim.kill()
    victim.adapter.kill()


def take_over(survivor: Member, shards: Collection[str]) -> None:
    """The survivor gets everything, at once."""
    survivor.tell(to=sorted(shards))
    assert survivor.answer()["errors"] == {}
    survivor.reads = frozenset(shards)


def shards_of(topic: str) -> list[str]:
    """All queues of a topic."""
    return [shard_of(MessageQueue(topic, number)) for number in range(QUEUES)]
