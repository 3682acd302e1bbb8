"""How RocketMQ's queues and Kafka's partitions map to shards. No other module maps them.

RocketMQ's (namespace, group, MessageQueue) is `OffsetKey(namespace, group, shard)`. The shard of queue 3 of topic `orders` is
`orders/3`. A queue number is unique only on its broker; where several brokers share a Meta Service, the shard starts with the
broker's name: `broker-a/orders/3`. Kafka's partition 3 is `orders/3`. A RocketMQ 5 namespace that is part of the names
(`ns%orders`, `ns%group`) stays part of them, as in RocketMQ's own brokers and files; the key's namespace is `default` unless
another is chosen.
"""

from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey

QUEUE_MAX = 2**31 - 1  # Java's int
SEPARATOR = "/"


class MessageQueue(NamedTuple):
    """A queue as RocketMQ's clients name it. `broker_name` is empty if the topic is on one broker, or for Kafka."""

    topic: str
    queue_id: int
    broker_name: str = ""


def shard_of(queue: MessageQueue) -> str:
    """The shard of a queue. Raises InvalidInputError that names the field."""
    check_name(queue.topic, "topic")
    if SEPARATOR in queue.topic:
        raise InvalidInputError(
            f"topic: {queue.topic!r} has a {SEPARATOR}, which separates broker, topic and queue in a shard's name"
        )
    if not 0 <= queue.queue_id <= QUEUE_MAX:
        raise InvalidInputError(f"queue_id: {queue.queue_id} is not a whole number from 0 to {QUEUE_MAX}")
    parts = [queue.broker_name, queue.topic] if queue.broker_name else [queue.topic]
    return check_name(SEPARATOR.join([*parts, str(queue.queue_id)]), "shard")


def queue_of(shard: str) -> MessageQueue | None:
    """The queue of a shard; the inverse of `shard_of`. None if no queue has this shard."""
    rest, _, number = shard.rpartition(SEPARATOR)
    broker, _, topic = rest.rpartition(SEPARATOR)
    if not (number.isascii() and number.isdecimal()) or len(number) > len(str(QUEUE_MAX)):
        return None
    queue = MessageQueue(topic, int(number), broker)
    try:
        return queue if shard_of(queue) == shard else None
    except InvalidInputError:
        return None


def topics_of(shard: str, label: str) -> set[str]:
    """The topics of a shard: its record's label, and the topic in its name if it is named like a queue."""
    queue = queue_of(shard)
    return {label, queue.topic if queue else ""} - {""}


def key_of(group: str, queue: MessageQueue, namespace: str = DEFAULT_NAMESPACE) -> OffsetKey:
    """The key under which a group's offset of a queue is stored. Raises InvalidInputError that names the field."""
    return OffsetKey(check_name(namespace or DEFAULT_NAMESPACE, "namespace"), check_name(group, "group"), shard_of(queue))
