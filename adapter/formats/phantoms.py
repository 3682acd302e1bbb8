"""The phantoms that resets leave in RocketMQ's stores V2, recognized by their names. Pure.

ConsumerOffsetManagerV2.assignResetOffset stores a reset a second time with group and topic swapped. A broker accepts a commit
only of a group and a topic that it knows, so an entry whose group is no group and whose topic is no topic, but a group, is the
phantom of its mirror, if that is there. (The mirror's topic may be unknown: V2 forgets topics that it made by itself when it is
killed.) Light groups and topics (LMQ) are in no table: for them only the other name counts, and where both are light nothing can
be told.
"""

from collections.abc import Collection
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.formats.rocketmq_json import LMQ
from adapter.formats.rows import OffsetRow
from adapter.model.queues import queue_of, shard_of
from adapter.model.records import OffsetKey


class Names(NamedTuple):
    """The groups and topics that a broker knows; whether light ones are among them does not matter."""

    groups: Collection[str]
    topics: Collection[str]


def is_phantom(group: str, topic: str, names: Names) -> bool:
    """True if no group of this name can have an offset of this topic, while there is a group that is named like the topic."""
    light_group, light_topic = group.startswith(LMQ), topic.startswith(LMQ)
    if group == topic or (light_group and light_topic):
        return False
    cannot_be = (light_group or group not in names.groups) and (light_topic or topic not in names.topics)
    return cannot_be and (light_topic or topic in names.groups)


def mirror_of(row: OffsetRow) -> OffsetKey | None:
    """The offset of which this row, of a queue of a topic, would be the phantom; None if it can be of none."""
    queue = queue_of(row.shard)
    if queue is None:
        return None
    try:
        return OffsetKey(row.namespace, row.topic, shard_of(queue._replace(topic=row.group)))
    except InvalidInputError:
        return None
