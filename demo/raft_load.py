"""The load of the demo on etcd: consumer groups that commit through an adapter, and a ledger of acknowledged commits.

Some shards advance with each commit. Others get a single commit ever, so that no later commit can hide its loss.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.abc

from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, OffsetKey
from demo.raft_fleet import Broker

GROUPS = 4  # of each broker
SHARDS = 50  # advancing shards of each group
MOVED = 20  # advancing shards in each commit, in turn
TICK_S = 0.05  # between two commits of a group


@dataclass
class Ledger:
    """The acknowledged commits, and how long brokers wait for answers."""

    clock: Callable[[], float] = time.monotonic  # seconds
    offsets: dict[OffsetKey, int] = field(default_factory=dict)
    once: int = 0  # number of shards with a single commit
    commits: int = 0
    slowest_s: float = 0.0  # the slowest commit that was answered since `measure`
    _waiting: dict[str, float] = field(default_factory=dict)  # group -> start time of its commit in flight

    def measure(self) -> None:
        """Start to measure the slowest commit."""
        self.slowest_s = 0.0

    def waiting_s(self) -> float:
        """The seconds that the oldest commit in flight has taken so far."""
        now = self.clock()
        return now - min(self._waiting.values(), default=now)

    def began(self, group: str) -> None:
        """Note that a group sends a commit."""
        self._waiting[group] = self.clock()

    def acknowledged(self, group: str, offsets: dict[str, int]) -> float:
        """Note that its commit was answered; returns the seconds it took."""
        took_s = self.clock() - self._waiting.pop(group)
        self.offsets.update((OffsetKey(DEFAULT_NAMESPACE, group, shard), offset) for shard, offset in offsets.items())
        self.once += 1
        self.commits += len(offsets)
        self.slowest_s = max(self.slowest_s, took_s)
        return took_s

    @property
    def positions(self) -> dict[OffsetKey, tuple[int, int]]:
        """Key -> (epoch, offset) of the acknowledged commits."""
        return {key: (FIRST_EPOCH, offset) for key, offset in self.offsets.items()}


class Load:
    """The load of all brokers. Each group belongs to one broker."""

    def __init__(self, brokers: Sequence[Broker], ledger: Ledger) -> None:
        self._brokers = brokers
        self._ledger = ledger
        self._stopping = False
        self.running = 0

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start committing."""
        for broker in self._brokers:
            for number in range(1, GROUPS + 1):
                self.running += 1
                tasks.start_soon(self._consume, broker, f"{broker.name}-group-{number}", name=f"load of {broker.name}")

    def stop(self) -> None:
        """Stop every group after its current commit is answered."""
        self._stopping = True

    async def _consume(self, broker: Broker, group: str) -> None:
        """Commit repeatedly. The client sends a commit that is lost with its adapter again until it is answered."""
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
    """The commit of a group in its n-th tick: some shards advance by one, and one shard gets its only commit."""
    moved = {f"shard-{number % SHARDS}": number // SHARDS + 1 for number in range(tick * MOVED, (tick + 1) * MOVED)}
    return {**moved, f"once-{tick}": tick}
