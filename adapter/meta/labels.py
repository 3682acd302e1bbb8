"""The labels, topic and partition, that a shard's name gives, for a Meta Service that requires them (RobustMQ).

RobustMQ's own brokers name a shard `{topic_id}-{partition}`, label it with the topic's name and the partition, and look offsets
up by these labels for Kafka's OffsetFetch.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

DEFAULT_SHARD_NAMES = "{topic}/{partition}"
PARTITION_MAX = 2**32 - 1

_PLACES = {"{topic}": r"(?P<topic>.+)", "{topic_id}": r"(?P<topic_id>.+)", "{partition}": r"(?P<partition>[0-9]{1,10})"}
_PLACE = re.compile(r"(\{[^{}]*\})")


def pattern_of(shard_names: str) -> re.Pattern[str]:
    """The pattern of shards that are named so. Raises ValueError that says what is wrong."""
    parts = _PLACE.split(shard_names)
    places = parts[1::2]
    unknown = [place for place in places if place not in _PLACES]
    if unknown:
        raise ValueError(f"{unknown[0]} is unknown; the parts are {{topic}} or {{topic_id}}, and {{partition}}")
    if places.count("{partition}") != 1 or places.count("{topic}") + places.count("{topic_id}") != 1:
        raise ValueError("needs {topic} or {topic_id}, and {partition}, each once")
    return re.compile("".join(_PLACES.get(part, re.escape(part)) for part in parts), re.ASCII)


class ShardLabels:
    """Labels by the name of the shard. `topics` has the topic of each topic ID."""

    def __init__(self, shard_names: str = DEFAULT_SHARD_NAMES, topics: Mapping[str, str] = MappingProxyType({})) -> None:
        self._pattern = pattern_of(shard_names)
        self._topics = topics

    def of(self, shard: str) -> tuple[str, int]:
        """Topic and partition of a shard; no topic if its name says none, or has a topic ID that is not known."""
        found = self._pattern.fullmatch(shard)
        if found is None or int(found["partition"]) > PARTITION_MAX:
            return "", 0
        parts = found.groupdict()
        topic = parts["topic"] if "topic" in parts else self._topics.get(parts["topic_id"], "")
        return (topic, int(found["partition"])) if topic else ("", 0)
