"""The load of the demo on etcd: consumer groups that commit through an adapter, and a ledger of what was acknowledged.

Some shards move on with each commit. Others get one commit in their life: no later one can hide that it was lost.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.abc

from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, OffsetKey
from demo.raft_fleet import Broker

GROUPS = 4  # of each broker
SHARDS = 50  # of each group, that move on
MOVED = 20  # of them with each commit, one after the other
TICK_S = 0.05  # between two commits of a group


@dataclass
class Ledger:
    """What was acknowledged, and how long brokers wait for it."""

    clock: Callable[[], float] = time.monotonic  # seconds
    offsets: dict[OffsetKey, int] = field(default_factory=dict)
    once: int = 0  # shards that got one commit only
    commits: int = 0
    slowest_s: float = 0.0  # the slowest commit that was answered since `measure`
    _waiting: dict[str, float] = field(default_factory=dict)  # group -> since when its commit is under way

    def measure(self) -> None:
        """Look for the slowest commit from now on."""
        self.slowest_s = 0.0

    def waiting_s(self) -> float:
        """How long the oldest commit is under way."""
        now = self.clock()
        return now - min(self._waiting.values(), default=now)

    def began(self, group: str) -> None:
        """A group commits."""
        self._waiting[group] = self.clock()

    def acknowledged(self, group: str, offsets: dict[str, int]) -> float:
        """Its commit was answered; returns how long that took, in seconds."""
        took_s = self.clock() - self._waiting.pop(group)
        self.offsets.update((OffsetKey(DEFAULT_NAMESPACE, group, shard), offset) for shard, offset in offsets.items())
        self.once += 1
        self.commits += len(offsets)
        self.slowest_s = max(self.slowest_s, took_s)
        return took_s

    @property
    def positions(self) -> dict[OffsetKey, tuple[int, int]]:
        """Key -> (epoch, offset)."""
        return {key: (FIRST_EPOCH, offset) for key, offset in self.offsets.items()}


class Load:
    """One for all brokers. Every group is its broker's alone."""

    def __init__(self, brokers: Sequence[Broker], ledger: Ledger) -> None:
        self._brokers = brokers
        self._ledger = ledger
        self._stopping = False
        self.running = 0

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Begin to commit."""
        for broker in self._brokers:
            for number in range(1, GROUPS + 1):
                self.running += 1
                tasks.start_soon(self._consume, broker, f"{broker.name}-group-{number}", name=f"load of {broker.name}")

    def stop(self) -> None:
        """Every group ends once the commit in hand is answered."""
        self._stopping = True

    async def _consume(self, broker: Broker, group: str) -> None:
        """Commit again and again. A commit that is lost with its adapter is sent again, by the client, until it is answered."""
        tick = 0
        while not self._stopping:
            tick += 1
            offsets = commit_of(tick)
            self._ledger.began(group)
            await broker.client.commit(group, offsets)
            took_s = self._ledger.acknowledged(group, offsets)
            await anyio.sleep(max(0.0, TICK_S - took_s))
        self.running -= 1


def commit_of(tick: int) -> dict[str, int]:
    """What a group commits in its n-th tick: some of its shards one further, and one shard for the only time."""
    moved = {f"shard-{number % SHARDS}": number // SHARDS + 1 for number in range(tick * MOVED, (tick + 1) * MOVED)}
    return {**moved, f"once-{tick}": tick}
