"""Where a consumer begins to read a queue: at its stored offset, or by RocketMQ's ConsumeFromWhere and the bounds of the log.

A stored offset outside the log is corrected to the nearest end of the log, in the store too, with a warning and a metric; one
beyond the end, of a log that was made anew, to where `beyond` says. If the
stored offset, the bounds or a time cannot be read, that queue fails without a start offset; the other queues are not affected.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

import structlog
from prometheus_client import Counter

from adapter.client.broker_log import BrokerLog
from adapter.client.offset_store.store import OffsetStore, ReadOffsetType
from adapter.errors import InvalidInputError, UnknownBoundsError
from adapter.model.queues import MessageQueue, shard_of
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.runtime.clocks import wall_ms

K = TypeVar("K")
R = TypeVar("R")

RETRY_PREFIX = "%RETRY%"  # MixAll.RETRY_GROUP_TOPIC_PREFIX; retry topics of pop consumers have it too
DEFAULT_BACK_MS = 30 * 60 * 1000  # DefaultMQPushConsumer.consumeTimestamp: half an hour before the consumer was made
TIMESTAMP_FORMAT, TIMESTAMP_LENGTH = "%Y%m%d%H%M%S", 14  # RocketMQ's yyyyMMddHHmmss

log = structlog.get_logger(__name__)

# In the default registry of Prometheus, because this runs in the consumer's process, beside its own metrics.
CORRECTIONS = Counter(
    "offset_store_corrections", "Stored offsets outside their log, moved into it.", ["group", "topic", "reason"]
)


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue without a stored offset. The values are RocketMQ's names.

    `ConsumeFromWhere("CONSUME_FROM_MIN_OFFSET")` and the two others that RocketMQ deprecated are LAST, as in its
    RebalancePushImpl.computePullFromWhereWithException.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"

    @classmethod
    def _missing_(cls, value: object) -> "ConsumeFromWhere | None":
        return cls.LAST if value in _DEPRECATED else None


_DEPRECATED = (
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
)


class ConsumeInitMode(Enum):
    """The same for pop consumers, whose positions the broker keeps. The values are those of the protocol."""

    MIN = 0
    MAX = 1


class QueueBounds(NamedTuple):
    """The bounds of a queue: `low` is the first readable offset, `high` the offset of the next message.

    `beginning_in_memory`: the message at offset 0 is still in the broker's page cache (RocketMQ's checkInMemByConsumeOffset).
    """

    low: int
    high: int
    beginning_in_memory: bool = False


class LogBounds(Protocol):
    """Access to the bounds of the broker's logs, given by the consumer. Both methods raise if the broker does not answer."""

    async def bounds(self, queues: Iterable[MessageQueue]) -> Mapping[MessageQueue, QueueBounds]:
        """The current bounds of these queues, all of one broker. A queue that the broker does not have is left out."""

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int | None:
        """The offset of the first message at or after a Unix time; None if all messages are older."""


class BrokerLogBounds:
    """LogBounds of a broker that serves `offsets.v1.BrokerLog`, which has no `beginning_in_memory`."""

    def __init__(self, broker: BrokerLog, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._broker = broker
        self._namespace = namespace

    async def bounds(self, queues: Iterable[MessageQueue]) -> Mapping[MessageQueue, QueueBounds]:
        """The current bounds of these queues. Raises BrokerLogError."""
        shards = {shard_of(queue): queue for queue in queues}
        found = await self._broker.bounds(self._namespace, shards)
        return {shards[shard]: QueueBounds(bounds.low, bounds.high) for shard, bounds in found.items()}

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int | None:
        """The first offset at or after a Unix time. Raises BrokerLogError, UnknownBoundsError for a queue that does not exist."""
        shard = shard_of(queue)
        found = await self._broker.offsets_for_time(self._namespace, [shard], timestamp_ms)
        if shard not in found:
            raise _unknown(queue)
        return found[shard]


class Start(NamedTuple):
    """Where to begin, and the offset that was stored: None if there was none; if it differs from `offset`, it was corrected."""

    offset: int
    stored: int | None


class Starts(NamedTuple):
    """The start of each queue that can be read, and the error of each that cannot."""

    starts: dict[MessageQueue, Start]
    failed: dict[MessageQueue, Exception]


class StartPositions:
    """Determines where a consumer begins.

    Without `timestamp_ms`, TIMESTAMP means half an hour before this object was created. `beyond`: where it begins when the
    stored offset is beyond the end of the log, because that was made anew or has lost its end. LAST, as RocketMQ does, leaves
    out what is in the new log already; with FIRST nothing of it is missed, and a log that has lost its end is read again.
    """

    def __init__(
        self,
        store: OffsetStore,
        logs: LogBounds,
        where: ConsumeFromWhere = ConsumeFromWhere.LAST,
        timestamp_ms: int | None = None,
        *,
        beyond: ConsumeFromWhere = ConsumeFromWhere.LAST,
    ) -> None:
        self._store = store
        self._logs = logs
        self._where = where
        self._beyond = beyond
        self._timestamp_ms = wall_ms() - DEFAULT_BACK_MS if timestamp_ms is None else timestamp_ms

    async def of(self, queues: Iterable[MessageQueue]) -> Starts:
        """Where to begin in each of these queues. The failure of one queue does not affect the others.

        The store is read before the bounds, and these before a time is looked up, because both only grow. In the other order, a
        commit by another consumer in between would look like an offset beyond the end, and a message would be skipped.
        """
        stored, failed = await each(queues, self._read)
        bounds, unknown = await self._bounds(stored)
        starts, unfinished = await each(bounds, lambda queue: self._start(queue, stored[queue], bounds[queue]))
        return Starts(starts, {**failed, **unknown, **unfinished})

    async def _read(self, queue: MessageQueue) -> int | None:
        return await self._store.read_offset(queue, ReadOffsetType.READ_FROM_STORE)

    async def _bounds(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[dict[MessageQueue, QueueBounds], dict[MessageQueue, Exception]]:
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        answers, silent = await each(by_broker, lambda broker: self._logs.bounds(by_broker[broker]))
        bounds = {queue: found for answer in answers.values() for queue, found in answer.items()}
        unknown: dict[MessageQueue, Exception] = {
            queue: silent.get(broker) or _unknown(queue)
            for broker, asked in by_broker.items()
            for queue in asked
            if queue not in bounds
        }
        return bounds, unknown

    async def _start(self, queue: MessageQueue, stored: int | None, bounds: QueueBounds) -> Start:
        if stored is not None:
            offset = await self._beyond_end(queue, bounds) if stored > bounds.high else within(stored, bounds)
            if offset != stored:
                await self._correct(queue, stored, offset, bounds)
            return Start(offset, stored)
        by_rule = first_start(queue.topic, self._where, bounds)
        offset = await self._by_time(queue, bounds) if by_rule is None else by_rule
        # Stored by the next persist, as RocketMQ does after an empty first pull (DefaultMQPushConsumerImpl's correctTagsOffset):
        # a consumer that gets the queue before its first message must not begin at a later end of the log.
        self._store.update_offset(queue, offset, increase_only=True)
        return Start(offset, None)

    async def _beyond_end(self, queue: MessageQueue, bounds: QueueBounds) -> int:
        if self._beyond is ConsumeFromWhere.TIMESTAMP:
            return await self._by_time(queue, bounds)
        return bounds.low if self._beyond is ConsumeFromWhere.FIRST else bounds.high

    async def _by_time(self, queue: MessageQueue, bounds: QueueBounds) -> int:
        found = await self._logs.offset_for_time(queue, self._timestamp_ms)
        return bounds.high if found is None else within(found, bounds)

    async def _correct(self, queue: MessageQueue, stored: int, offset: int, bounds: QueueBounds) -> None:
        # In the store too, as DefaultMQPushConsumerImpl does on OFFSET_ILLEGAL (updateAndFreezeOffset, persist). Otherwise an
        # offset beyond the end would supersede every later commit: the negative lag of apache/rocketmq#4774.
        self._store.update_offset(queue, offset, increase_only=False)
        await self._store.force_persist([queue])
        reason = "too_small" if stored < offset else "too_large"
        CORRECTIONS.labels(self._store.group, queue.topic, reason).inc()
        where = {"group": self._store.group, "shard": shard_of(queue)}
        log.warning("start.corrected", **where, stored=stored, corrected=offset, low=bounds.low, high=bounds.high)


def within(offset: int, bounds: QueueBounds) -> int:
    """The offset, moved to the nearest end if it is outside the log (DefaultMessageStore.getMessage: nextOffsetCorrection)."""
    return min(max(offset, bounds.low), bounds.high)


def first_start(topic: str, where: ConsumeFromWhere, bounds: QueueBounds) -> int | None:
    """Where a group without an offset begins; None if that depends on a time.

    While the beginning of a log is still in memory, RocketMQ's broker answers 0 as if it were stored, so that a new group misses
    no message, whatever `where` is (ConsumerManageProcessor.queryConsumerOffset). A retry topic is read from its beginning, with
    TIMESTAMP from its end (RebalancePushImpl.computePullFromWhereWithException).
    """
    if bounds.low == 0 and bounds.beginning_in_memory:
        return 0
    retries = topic.startswith(RETRY_PREFIX)
    if where is ConsumeFromWhere.TIMESTAMP:
        return bounds.high if retries else None
    return bounds.low if retries or where is ConsumeFromWhere.FIRST else bounds.high


def pop_start(topic: str, mode: ConsumeInitMode, bounds: QueueBounds) -> int:
    """Where a broker begins for a pop group without an offset; MAX means the last message (PopMessageProcessor.getInitOffset)."""
    if mode is ConsumeInitMode.MIN or topic.startswith(RETRY_PREFIX):
        return bounds.low
    return 0 if bounds.low == 0 and bounds.beginning_in_memory else max(bounds.high - 1, bounds.low)


def consume_timestamp_ms(text: str) -> int:
    """RocketMQ's `consumeTimestamp`, such as 20131223171201, in this machine's time zone, as Unix time in milliseconds.

    Raises InvalidInputError. Stricter than Java's SimpleDateFormat, which takes month 13 for January.
    """
    try:
        if len(text) == TIMESTAMP_LENGTH and text.isascii() and text.isdecimal():
            local = datetime.strptime(text, TIMESTAMP_FORMAT)  # noqa: DTZ007 - RocketMQ's time is in the machine's zone
            return max(int(local.timestamp()) * 1000, 0)
    except (ValueError, OverflowError):
        pass
    raise InvalidInputError(f"consumeTimestamp: {text!r} is not a time of the form yyyyMMddHHmmss")


async def each(keys: Iterable[K], work: Callable[[K], Awaitable[R]]) -> tuple[dict[K, R], dict[K, Exception]]:
    """Run `work` for all keys concurrently; returns results and errors by key."""
    wanted = list(dict.fromkeys(keys))
    done: dict[K, R] = {}
    failed: dict[K, Exception] = {}
    for key, outcome in zip(wanted, await asyncio.gather(*map(work, wanted), return_exceptions=True), strict=True):
        if isinstance(outcome, Exception):
            failed[key] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            done[key] = outcome
    return done, failed


def _unknown(queue: MessageQueue) -> UnknownBoundsError:
    # RocketMQ's broker refuses it too (PullMessageProcessor.processRequest: TOPIC_NOT_EXIST, and the check of the queue's id).
    return UnknownBoundsError(f"shard {shard_of(queue)!r}: the broker has no such queue: check the topic's name and its queues")
