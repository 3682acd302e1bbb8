"""Topic and partition by the name of a shard."""

import pytest

from adapter.errors import ConfigError
from adapter.meta.config import MetaSection
from adapter.meta.labels import ShardLabels
from adapter.runtime.settings.config import parse


@pytest.mark.parametrize(
    ("shard", "labels"),
    [
        ("orders/3", ("orders", 3)),
        ("broker-a/orders/3", ("broker-a/orders", 3)),
        ("orders", ("", 0)),
        ("orders/x", ("", 0)),
        ("orders/4294967296", ("", 0)),
        ("/3", ("", 0)),
    ],
)
def test_a_shard_is_named_by_topic_and_partition(shard: str, labels: tuple[str, int]) -> None:
    """As this adapter names Kafka's partitions; any other name says nothing."""
    assert ShardLabels().of(shard) == labels


def test_a_topic_id_needs_a_name() -> None:
    """RobustMQ's own brokers name shards by the ID, and look offsets up by the name."""
    labels = ShardLabels("{topic_id}-{partition}", {"id9": "payments"})
    assert labels.of("id9-3") == ("payments", 3)
    assert labels.of("id8-3") == ("", 0)


def test_other_characters_of_a_pattern_mean_themselves() -> None:
    """It is no regular expression."""
    assert ShardLabels("q.{partition}@{topic}").of("q.3@orders") == ("orders", 3)
    assert ShardLabels("q.{partition}@{topic}").of("qx3@orders") == ("", 0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"shard_names": "{topic}"}, "meta.shard_names: needs {topic} or {topic_id}, and {partition}, each once"),
        ({"shard_names": "{topic}/{topic_id}/{partition}"}, "meta.shard_names: needs"),
        ({"shard_names": "{name}/{partition}"}, "meta.shard_names: {name} is unknown"),
        ({"topics": {"id9": ""}}, "meta.topics: id9: the name is empty"),
    ],
)
def test_a_bad_pattern_or_topic_is_refused_by_the_name_of_the_setting(settings: dict[str, object], problem: str) -> None:
    """At the start, not at the first save."""
    with pytest.raises(ConfigError) as caught:
        parse(settings, MetaSection, source="x.toml")
    assert problem.replace("meta.", "") in str(caught.value)
