"""Produces, and commits for all groups, as the brokers of the fleet: a request has the commits of all groups of a broker.

A broker whose adapter does not answer tries again, as real ones do, and its log grows meanwhile.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.abc
import grpc
import grpc.aio

from adapter.client import OffsetClient
from adapter.model.bounds import ShardKey
from adapter.model.records import OffsetKey, ReadMode
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from demo.fleet.consumers import Commit, Consumer
from demo.fleet.logs import BrokerLogs, PacedLog
from demo.fleet.scenario import Group, Scenario

TICK_S = 0.25
COMMIT_TIMEOUT_S = 2.0
FIRST_END = 4_000_000  # of the first partition; so that offsets look like those of a log that is years old
GENERATION = 7


@dataclass
class BrokerLoad:
    """What one broker has: its log, its consumers, and its client of the adapter."""

    name: str
    logs: BrokerLogs
    client: OffsetClient
    tells_bounds: bool  # whether its commits carry the bounds of the log
    consumers: list[Consumer] = field(default_factory=list)
    acknowledged: dict[OffsetKey, int] = field(default_factory=dict)
    commits: int = 0
    failures: int = 0
    turn: anyio.Lock = field(default_factory=anyio.Lock)


class Load:
    """The load on all adapters."""

    def __init__(
        self, scenario: Scenario, clients: Mapping[str, OffsetClient], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare the logs and consumers. `clients`: those of the adapters, by the names of their brokers."""
        self.scenario = scenario
        self.frozen = False
        self._clock = clock
        names = sorted(clients)
        self.brokers = [BrokerLoad(name, BrokerLogs(), clients[name], name != names[-1]) for name in names]
        self._member = uuid.UUID(int=uuid.getnode()).hex[-12:]
        self._place(wall_ms())

    @property
    def commits(self) -> int:
        """Acknowledged offsets of all brokers."""
        return sum(broker.commits for broker in self.brokers)

    @property
    def shards(self) -> int:
        """The number of (group, shard)."""
        return sum(len(broker.consumers) for broker in self.brokers)

    def brokers_of(self, group: Group) -> Sequence[BrokerLoad]:
        """The brokers with shards of a group."""
        return [broker for broker in self.brokers if any(consumer.group.key == group.key for consumer in broker.consumers)]

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Produce and commit until cancelled. It has started when every group has committed once."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._produce, name="producers")
            for broker in self.brokers:
                await self._commit(broker, [(consumer, Commit(consumer.offset)) for consumer in broker.consumers])
                tasks.start_soon(self._consume, broker, name=f"consumers of {broker.name}")
            task_status.started()

    async def freeze(self) -> None:
        """Stop producing and committing; returns when every commit that was sent is answered."""
        self.frozen = True
        for broker in self.brokers:
            async with broker.turn:
                pass

    def stall(self, group: Group, *, stalled: bool = True) -> None:
        """Let a group commit the same offsets from now on, or read on again."""
        for broker in self.brokers:
            for consumer in broker.consumers:
                if consumer.group.key == group.key:
                    consumer.stalled = stalled

    def thaw(self) -> None:
        """Go on after `freeze`, as if no time had passed."""
        self.frozen = False

    def _place(self, now_ms: int) -> None:
        topics: dict[tuple[str, str], None] = {}
        for group in self.scenario.groups:
            topics |= {(group.namespace, topic): None for topic in group.topics}
        at: dict[ShardKey, BrokerLoad] = {}
        for number, (namespace, name) in enumerate(topics):
            topic = self.scenario.topics[name]
            for partition, shard in enumerate(topic.shards):
                broker = self.brokers[(number + partition) % len(self.brokers)]
                end = FIRST_END + 1_000 * int(topic.rate) + 7_919 * (number + partition)
                key = ShardKey(namespace, shard)
                broker.logs.add(key, PacedLog(topic.rate / topic.partitions, topic.retention_s, now_ms, end))
                at[key] = broker
        for group in self.scenario.groups:
            for name in group.topics:
                for partition, shard in enumerate(self.scenario.topics[name].shards):
                    key = ShardKey(group.namespace, shard)
                    offset_key = OffsetKey(group.namespace, group.name, shard)
                    log = at[key].logs[key]
                    at[key].consumers.append(Consumer(group, offset_key, partition, log, self.scenario.ill_after_s))

    async def _produce(self) -> None:
        before = self._clock()
        while True:
            await anyio.sleep(TICK_S)
            now, now_ms = self._clock(), wall_ms()
            if not self.frozen:
                for broker in self.brokers:
                    for log in broker.logs:
                        log.produce(now - before, now_ms)
            before = now

    async def _consume(self, broker: BrokerLoad) -> None:
        due = {consumer.key: consumer.group.commit_s for consumer in broker.consumers}
        before = self._clock()
        while True:
            await anyio.sleep(TICK_S)
            async with broker.turn:
                now = self._clock()
                if not self.frozen:
                    await self._turn(broker, due, now - before)
                before = now

    async def _turn(self, broker: BrokerLoad, due: dict[OffsetKey, float], seconds: float) -> None:
        commits: list[tuple[Consumer, Commit]] = []
        for consumer in broker.consumers:
            commit = consumer.consume(seconds)
            due[consumer.key] -= seconds
            if commit is not None and (commit.back or due[consumer.key] <= 0):
                commits.append((consumer, commit))
                due[consumer.key] = max(due[consumer.key] + consumer.group.commit_s, 0.0)
        try:
            await self._commit(broker, [commit for commit in commits if not commit[1].back])
            await self._commit(broker, [commit for commit in commits if commit[1].back], offsets_pb.OVERWRITE)
        except grpc.aio.AioRpcError:
            broker.failures += 1

    async def _commit(
        self,
        broker: BrokerLoad,
        commits: Sequence[tuple[Consumer, Commit]],
        mode: offsets_pb.CommitMode.ValueType = offsets_pb.INCREASE_ONLY,
    ) -> None:
        if not commits:
            return
        request = offsets_pb.CommitOffsetsRequest(mode=mode)
        groups: dict[tuple[str, str], offsets_pb.GroupCommits] = {}
        for consumer, commit in commits:
            key = consumer.key
            group = groups.get((key.namespace, key.group))
            if group is None:
                group = groups[key.namespace, key.group] = request.groups.add(namespace=key.namespace, group=key.group)
                group.member_id, group.generation = f"{key.group}-1-{self._member}", GENERATION
            row = group.shards.add(shard=key.shard, offset=commit.offset, topic=consumer.topic, partition=consumer.partition)
            if broker.tells_bounds:
                row.low_watermark, row.high_watermark = consumer.log.low, max(consumer.log.high, commit.offset)
        reply = await broker.client.store.CommitOffsets(request, timeout=COMMIT_TIMEOUT_S)
        larger = {OffsetKey(row.namespace, row.group, row.shard) for row in reply.superseded}
        sent = {consumer.key: (consumer, commit.offset) for consumer, commit in commits}
        broker.acknowledged |= {key: offset for key, (_, offset) in sent.items() if key not in larger}
        broker.commits += len(commits) - len(larger)
        await self._taken_up(broker, [sent[key][0] for key in sorted(larger)])

    async def _taken_up(self, broker: BrokerLoad, consumers: Sequence[Consumer]) -> None:
        """Have consumers whose shards somebody else has moved read where to go on, as after a rebalance."""
        of_group: dict[tuple[str, str], list[Consumer]] = {}
        for consumer in consumers:
            of_group.setdefault((consumer.key.namespace, consumer.key.group), []).append(consumer)
        for (namespace, group), moved in of_group.items():
            shards = [consumer.key.shard for consumer in moved]
            found = await broker.client.read(group, shards, namespace=namespace, mode=ReadMode.STORE)
            for consumer in moved:
                row = found.get(consumer.key.shard)
                consumer.moved(row.offset if row is not None else None)
