"""How many consumers a group could use: KEDA's metadata of a trigger, and what is answered by a group's lag.

The rules are those of KEDA's own scaler for Kafka (pkg/scalers/kafka_scaler.go), with two differences: shards that stand still
are left out by default, and nothing is answered by what is not known.

- A group is active if any shard has lag, also one that stands still: at 0 replicas nobody commits, so all shards with lag stand
  still, and only a consumer can change that. It is inactive only if the lag of every shard is known.
- The metric is the lag that more consumers could work on: without shards that are STALL or STOP.
- A lag that is unknown has no number. That is an error, on which KEDA keeps the number of replicas, or takes its `fallback`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import NamedTuple, TypeVar

from adapter.errors import InvalidInputError, NotReadyError
from adapter.model.names import NAME_MAX_BYTES, check_name, check_topic
from adapter.model.queues import topics_of
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.rpc import lag_pb

LAG_METRIC = "offset-adapter-lag"
SECONDS_METRIC = "offset-adapter-lag-seconds"
METRIC_MAX = 9_000_000_000_000_000  # KEDA multiplies by 1,000 in 64 bits
DIGITS_MAX = 20
NUMBER_MAX = 40  # characters of a number with a fraction
STANDING = frozenset({lag_pb.STALL, lag_pb.STOP})
LIMITS = ("all", "lagging", "none")
TOPICS_MAX = 100
VALUE_MAX = TOPICS_MAX * (NAME_MAX_BYTES + 2)  # characters of a value: of the longest, which is `topics`
FROM_ENV = "FromEnv"  # KEDA sends a value that it took from the environment under the name with this suffix

# What KEDA itself reads of a trigger of type `external`; it sends all keys.
KEDAS_OWN = frozenset({"scalerAddress", "enableTLS", "unsafeSsl", "tlsCertFile", "caCert", "tlsClientCert", "tlsClientKey"})

T = TypeVar("T")


@dataclass(frozen=True)
class Trigger:
    """The metadata of a trigger, checked. `topics`: empty for all."""

    namespace: str
    group: str
    lag_threshold: int | None = None
    seconds_threshold: float | None = None
    activation_lag: int = 0
    exclude_stalled: bool = True
    limit_to_shards: str = "all"
    topics: frozenset[str] = frozenset()
    bounds_max_age_s: float = 300.0

    @property
    def metrics(self) -> Mapping[str, float]:
        """The names of its metrics, and how much of each a replica is for."""
        both = {LAG_METRIC: self.lag_threshold, SECONDS_METRIC: self.seconds_threshold}
        return {name: float(threshold) for name, threshold in both.items() if threshold is not None}


class ShardState(NamedTuple):
    """A shard, and how old the bounds are that its lag was computed with, in seconds; None if it has none."""

    lag: lag_pb.ShardLag
    bounds_age_s: float | None


class GroupState(NamedTuple):
    """What is known of a group.

    `unknown`: why its lag is not known, or not all of it. `incomplete`: why there may be more shards of it than are known. Both
    are sentences for a person, and empty if there is no such reason.
    """

    shards: Sequence[ShardState]
    unknown: str = ""
    incomplete: str = ""


def parse_trigger(metadata: Mapping[str, str]) -> Trigger:
    """Check the metadata of a trigger. Raises InvalidInputError that names the key, and what it may be."""
    values: dict[str, str] = {}
    for key, value in metadata.items():
        name = key.removesuffix(FROM_ENV)
        if name in KEDAS_OWN or key in KEDAS_OWN:
            continue
        if len(value) > VALUE_MAX:
            raise InvalidInputError(
                f"scalerMetadata: {name:.100} has {len(value):,} characters; at most {VALUE_MAX:,} are allowed"
            )
        if name not in _KEYS:
            raise InvalidInputError(f"scalerMetadata: {key[:100]!r} is not known; there are {', '.join(_KEYS)}")
        if name in values:
            raise InvalidInputError(f"scalerMetadata: {name} and {name}{FROM_ENV}: give one of them")
        values[name] = value
    if "group" not in values:
        raise InvalidInputError("scalerMetadata: group is missing: the name of a consumer group")
    fields = {field: read(key, values[key]) for key, (field, read) in _KEYS.items() if key in values}
    if not {"lag_threshold", "seconds_threshold"} & {*fields}:
        raise InvalidInputError(
            "scalerMetadata: lagThreshold or lagSecondsThreshold is missing: messages, or seconds, of lag for each replica"
        )
    return Trigger(**{"namespace": DEFAULT_NAMESPACE, **fields})  # type: ignore[arg-type]


def is_active(trigger: Trigger, state: GroupState) -> bool:
    """Whether the group needs a consumer: it has lag, or that is not known."""
    if _unknown(trigger, state) or state.incomplete:
        return True
    shards = _of_topics(trigger, state.shards)
    return (
        any(_unknown_lag(trigger, shard) for shard in shards) or sum(shard.lag.lag for shard in shards) > trigger.activation_lag
    )


def values(trigger: Trigger, state: GroupState) -> Mapping[str, float]:
    """The metrics of a trigger. Raises NotReadyError, with the reason, while one of them is not known."""
    if reason := _unknown(trigger, state):
        raise NotReadyError(reason)
    shards = _of_topics(trigger, state.shards)
    if trigger.exclude_stalled:
        shards = [shard for shard in shards if shard.lag.status not in STANDING]
    for shard in shards:
        if reason := _unknown_lag(trigger, shard):
            raise NotReadyError(f"group {trigger.group!r}: {reason}")
    found = {}
    if trigger.lag_threshold is not None:
        found[LAG_METRIC] = _limited(trigger, shards, sum(shard.lag.lag for shard in shards), trigger.lag_threshold)
    if trigger.seconds_threshold is not None:
        late = [_seconds(trigger, shard) for shard in shards]
        found[SECONDS_METRIC] = _limited(trigger, shards, max(late, default=0.0), trigger.seconds_threshold)
    return found


def target_of(threshold: float) -> int:
    """The threshold as a whole number, for KEDA before 2.17, which does not read the other one."""
    return max(ceil(threshold), 1)


def _unknown(trigger: Trigger, state: GroupState) -> str:
    """Why the lag of the group as a whole is not known; empty if it is."""
    if state.unknown:
        return state.unknown
    missing = sorted(trigger.topics.difference(*map(_topics_of, state.shards)))
    if missing:
        return f"group {trigger.group!r}: no shard of topic {missing[0]!r} was ever committed here"
    return "" if state.shards else f"group {trigger.group!r}: no shard of it was ever committed here"


def _unknown_lag(trigger: Trigger, shard: ShardState) -> str:
    """Why the lag of a shard is not known; empty if it is."""
    if shard.lag.status == lag_pb.BEYOND:
        where = f"its offset, {shard.lag.offset}, is none of its log, which ends at {shard.lag.high_watermark}"
        return f"shard {shard.lag.shard!r}: {where}"
    if not shard.lag.HasField("lag") or shard.bounds_age_s is None:
        return f"shard {shard.lag.shard!r}: nobody told the end of its log"
    if shard.bounds_age_s > trigger.bounds_max_age_s:
        return (
            f"shard {shard.lag.shard!r}: the end of its log was told {shard.bounds_age_s:.0f} seconds ago; "
            f"boundsMaxAgeSeconds is {trigger.bounds_max_age_s:g}"
        )
    return ""


def _seconds(trigger: Trigger, shard: ShardState) -> float:
    """The lag of a shard in seconds. Raises NotReadyError."""
    if not shard.lag.lag:
        return 0.0
    if not shard.lag.HasField("lag_seconds"):
        raise NotReadyError(f"group {trigger.group!r}: shard {shard.lag.shard!r}: its lag in seconds is not known yet")
    return shard.lag.lag_seconds


def _of_topics(trigger: Trigger, shards: Sequence[ShardState]) -> Sequence[ShardState]:
    return [shard for shard in shards if trigger.topics & _topics_of(shard)] if trigger.topics else shards


def _topics_of(shard: ShardState) -> set[str]:
    return topics_of(shard.lag.shard, shard.lag.topic)


def _limited(trigger: Trigger, shards: Sequence[ShardState], value: float, threshold: float) -> float:
    """At most what as many replicas as shards are for."""
    if trigger.limit_to_shards == "all":
        value = min(value, threshold * len(shards))
    elif trigger.limit_to_shards == "lagging":
        value = min(value, threshold * sum(shard.lag.lag > 0 for shard in shards))
    return float(min(value, METRIC_MAX))


def _name(key: str, value: str) -> str:
    return check_name(value, f"scalerMetadata: {key}")


def _whole(least: int) -> Callable[[str, str], int]:
    def read(key: str, value: str) -> int:
        # Python refuses to convert thousands of digits.
        digits = value.isascii() and value.isdecimal() and len(value) <= DIGITS_MAX
        if not (digits and least <= int(value) <= METRIC_MAX):
            raise InvalidInputError(
                f"scalerMetadata: {key} is {value[:100]!r}: it is a whole number from {least} to {METRIC_MAX}"
            )
        return int(value)

    return read


def _number(key: str, value: str) -> float:
    try:
        number = float(value) if len(value) <= NUMBER_MAX else -1.0
    except ValueError:
        number = -1.0
    if not (isfinite(number) and 0 < number <= METRIC_MAX):
        raise InvalidInputError(f"scalerMetadata: {key} is {value[:100]!r}: it is a number of seconds above 0")
    return number


def _switch(key: str, value: str) -> bool:
    return _one_of(key, value.lower(), {"true": True, "false": False})


def _limit(key: str, value: str) -> str:
    return _one_of(key, value, {limit: limit for limit in LIMITS})


def _one_of(key: str, value: str, allowed: Mapping[str, T]) -> T:
    if value not in allowed:
        raise InvalidInputError(f"scalerMetadata: {key} is {value[:100]!r}: it is one of {', '.join(allowed)}")
    return allowed[value]


def _topics(key: str, value: str) -> frozenset[str]:
    few = value.count(",") < TOPICS_MAX  # before anything is made of them
    topics = [check_topic(topic.strip(), f"scalerMetadata: {key}") for topic in value.split(",")] if few else []
    if not topics or not all(topics):
        raise InvalidInputError(
            f"scalerMetadata: {key} is {value[:100]!r}: it is 1 to {TOPICS_MAX} names of topics, with commas between"
        )
    return frozenset(topics)


_KEYS: Mapping[str, tuple[str, Callable[[str, str], object]]] = {
    "group": ("group", _name),
    "namespace": ("namespace", _name),
    "lagThreshold": ("lag_threshold", _whole(1)),
    "lagSecondsThreshold": ("seconds_threshold", _number),
    "activationLagThreshold": ("activation_lag", _whole(0)),
    "excludeStalled": ("exclude_stalled", _switch),
    "limitToShards": ("limit_to_shards", _limit),
    "topics": ("topics", _topics),
    "boundsMaxAgeSeconds": ("bounds_max_age_s", _number),
}

KEYS: Collection[str] = _KEYS.keys()
