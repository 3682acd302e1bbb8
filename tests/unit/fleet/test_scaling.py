"""The rules of the external scaler: metadata, activity, metrics."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError, NotReadyError
from adapter.fleet.scaling import (
    KEYS,
    LAG_METRIC,
    METRIC_MAX,
    SECONDS_METRIC,
    GroupState,
    ShardState,
    Trigger,
    is_active,
    parse_trigger,
    values,
)
from adapter.rpc import lag_pb
from adapter.testing.lag_adapters import shard_lag

REQUIRED = {"group": "g", "lagThreshold": "10"}


def trigger(**metadata: str) -> Trigger:
    """A trigger of group g with 10 messages for each replica, unless the metadata say otherwise."""
    return parse_trigger({**REQUIRED, **metadata})


def state(*shards: lag_pb.ShardLag, age_s: float | None = 1.0, unknown: str = "", incomplete: str = "") -> GroupState:
    """A group with these shards, whose bounds are all of this age."""
    return GroupState([ShardState(shard, age_s) for shard in shards], unknown, incomplete)


def lagging(lag: int, shard: str = "s", **fields: object) -> lag_pb.ShardLag:
    """A shard with this lag."""
    return shard_lag(shard, 100, 100 + lag, **fields)


STALLED = {"status": lag_pb.STALL}
STOPPED = {"status": lag_pb.STOP}


def test_what_keda_sends_besides_is_passed_over() -> None:
    """KEDA sends all keys of the trigger, also its own."""
    found = trigger(scalerAddress="a:1", enableTLS="true", unsafeSsl="false", namespace="orders", topics="a, b")
    assert found == Trigger("orders", "g", 10, topics=frozenset({"a", "b"}))


def test_a_value_from_the_environment_comes_under_a_name_with_a_suffix() -> None:
    """KEDA resolves it, and keeps the key (external_scaler.go:154-163)."""
    assert parse_trigger({"groupFromEnv": "g", "lagThreshold": "1"}).group == "g"
    with pytest.raises(InvalidInputError, match="groupFromEnv: give one of them"):
        parse_trigger({"group": "g", "groupFromEnv": "h", "lagThreshold": "1"})


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"group": None}, "group is missing"),
        ({"lagThreshold": None}, "lagThreshold or lagSecondsThreshold is missing"),
        ({"group": ""}, "group is empty"),
        ({"group": "a\nb"}, "group has the control character"),
        ({"group": "g" * 256}, "group is 256 bytes long"),
        ({"namespace": ""}, "namespace is empty"),
        ({"lagThreshold": "0"}, "lagThreshold is '0': it is a whole number from 1"),
        ({"lagThreshold": "-1"}, "lagThreshold"),
        ({"lagThreshold": "1.5"}, "lagThreshold"),
        ({"lagThreshold": "٣"}, "lagThreshold"),
        ({"lagThreshold": "9" * 40}, "lagThreshold"),
        ({"lagSecondsThreshold": "0"}, "lagSecondsThreshold is '0': it is a number of seconds above 0"),
        ({"lagSecondsThreshold": "nan"}, "lagSecondsThreshold"),
        ({"lagSecondsThreshold": "inf"}, "lagSecondsThreshold"),
        ({"lagSecondsThreshold": "x"}, "lagSecondsThreshold"),
        ({"activationLagThreshold": "0" * 5_000}, "activationLagThreshold is '000"),
        ({"activationLagThreshold": "-1"}, "activationLagThreshold is '-1': it is a whole number from 0"),
        ({"excludeStalled": "maybe"}, "excludeStalled is 'maybe': it is one of true, false"),
        ({"limitToShards": "true"}, "limitToShards is 'true': it is one of all, lagging, none"),
        ({"topics": ""}, "topics is '': it is 1 to 100 names of topics"),
        ({"topics": "a,,b"}, "topics"),
        ({"topics": ",".join(["a"] * 101)}, "it is 1 to 100 names of topics"),
        ({"topics": "t" * 30_000}, "topics has 30,000 characters; at most 25,700 are allowed"),
        ({"lagSecondsThreshold": "0." + "1" * 40}, "lagSecondsThreshold"),
        ({"boundsMaxAgeSeconds": "0"}, "boundsMaxAgeSeconds"),
        ({"lagTreshold": "5"}, "'lagTreshold' is not known; there are group, namespace, lagThreshold"),
    ],
)
def test_metadata_that_cannot_be_right_name_the_key_and_what_it_may_be(metadata: dict[str, str | None], said: str) -> None:
    """A trigger with a typing error must not scale by something else."""
    given = {key: value for key, value in {**REQUIRED, **metadata}.items() if value is not None}
    with pytest.raises(InvalidInputError, match=re.escape(said)):
        parse_trigger(given)


@given(st.dictionaries(st.sampled_from([*KEYS, "other", "scalerAddress"]), st.text(max_size=20), max_size=6))
def test_any_metadata_are_a_trigger_or_an_error_that_names_them(metadata: dict[str, str]) -> None:
    """Nothing else is raised."""
    problem = ""
    try:
        assert parse_trigger(metadata).metrics
    except InvalidInputError as error:
        problem = str(error)
    assert not problem or "scalerMetadata" in problem


def test_the_metric_is_the_lag_of_all_shards() -> None:
    """In messages, over all shards that move."""
    assert values(trigger(), state(lagging(7, "a"), lagging(5, "b"))) == {LAG_METRIC: 12.0}


def test_shards_that_stand_still_are_left_out() -> None:
    """More replicas would not help them (KEDA #2612, #3904, #7516)."""
    group = state(lagging(7, "a"), lagging(1_000, "b", **STALLED), lagging(1_000, "c", **STOPPED))
    assert values(trigger(limitToShards="none"), group) == {LAG_METRIC: 7.0}
    assert values(trigger(excludeStalled="false", limitToShards="none"), group) == {LAG_METRIC: 2_007.0}


def test_shards_that_stand_still_keep_a_group_active() -> None:
    """At 0 replicas nobody commits, so that all shards with lag stand still: only a consumer can change that."""
    group = state(lagging(7, "a", **STOPPED))
    assert is_active(trigger(), group)
    assert values(trigger(), group) == {LAG_METRIC: 0.0}


def test_there_are_never_more_replicas_than_shards() -> None:
    """As with KEDA's scaler for Kafka: those that are too many would have nothing to do."""
    group = state(lagging(1_000, "a"), lagging(0, "b"))
    assert values(trigger(), group) == {LAG_METRIC: 20.0}
    assert values(trigger(limitToShards="lagging"), group) == {LAG_METRIC: 10.0}
    assert values(trigger(limitToShards="none"), group) == {LAG_METRIC: 1_000.0}


def test_a_shard_that_is_left_out_does_not_count_for_the_limit() -> None:
    """One shard that moves needs one replica, however many stand still."""
    group = state(lagging(1_000, "a"), lagging(5, "b", **STALLED))
    assert values(trigger(), group) == {LAG_METRIC: 10.0}


def test_seconds_are_those_of_the_latest_shard() -> None:
    """At most what as many replicas as shards are for."""
    group = state(lagging(70, "a"), lagging(25, "b"))
    assert values(trigger(lagSecondsThreshold="20", limitToShards="none"), group)[SECONDS_METRIC] == 70.0
    assert values(trigger(lagSecondsThreshold="20"), group)[SECONDS_METRIC] == 40.0


def test_a_group_without_lag_is_inactive() -> None:
    """If that is known of every shard."""
    assert not is_active(trigger(), state(lagging(0, "a"), lagging(0, "b")))


def test_a_group_is_active_above_the_activation_threshold() -> None:
    """Not at it, as in KEDA."""
    assert not is_active(trigger(activationLagThreshold="5"), state(lagging(5)))
    assert is_active(trigger(activationLagThreshold="5"), state(lagging(6)))
    assert is_active(trigger(activationLagThreshold="5"), state(lagging(3, "a"), lagging(3, "b")))


NO_LAG = shard_lag("s", 100, None)


@pytest.mark.parametrize(
    "group",
    [
        state(),
        state(lagging(0), unknown="adapter b does not answer"),
        state(lagging(0, "a"), NO_LAG),
        state(lagging(0), age_s=None),
        state(lagging(0), age_s=301.0),
    ],
    ids=["never seen", "an adapter is away", "no bounds of a shard", "no bounds", "old bounds"],
)
def test_what_is_unknown_is_active_and_has_no_number(group: GroupState) -> None:
    """Neither 0 replicas nor any other number follows from it."""
    assert is_active(trigger(), group)
    with pytest.raises(NotReadyError):
        values(trigger(), group)


def test_a_group_of_which_there_may_be_more_is_active_and_has_the_number_that_is_known() -> None:
    """An adapter that is away, and had nothing of the group, may have something now."""
    group = state(lagging(0), incomplete="adapter b does not answer")
    assert is_active(trigger(), group)
    assert values(trigger(), group) == {LAG_METRIC: 0.0}


def test_bounds_may_be_as_old_as_the_metadata_say() -> None:
    """An end of the log that was told long ago says nothing of now."""
    assert not is_active(trigger(boundsMaxAgeSeconds="600"), state(lagging(0), age_s=599))
    assert is_active(trigger(boundsMaxAgeSeconds="60"), state(lagging(0), age_s=61))


def test_a_shard_that_is_left_out_needs_no_known_lag_for_the_metric() -> None:
    """It is not counted in any case."""
    group = state(lagging(7, "a"), shard_lag("b", 1, None, **STOPPED))
    assert values(trigger(), group) == {LAG_METRIC: 7.0}
    assert is_active(trigger(), group)


def test_unknown_seconds_have_no_number() -> None:
    """Of a shard with lag; one without is 0 seconds behind."""
    late = lag_pb.ShardLag(shard="s", offset=1, high_watermark=5, lag=4)
    with pytest.raises(NotReadyError, match="in seconds is not known"):
        values(trigger(lagSecondsThreshold="5"), state(late))
    late.lag = 0
    assert values(trigger(lagSecondsThreshold="5"), state(late))[SECONDS_METRIC] == 0.0
    assert values(trigger(), state(late)) == {LAG_METRIC: 0.0}


def test_only_the_named_topics_count() -> None:
    """Of a group that reads several."""
    group = state(lagging(7, "a"), lagging(90, "b", topic="other"))
    assert values(trigger(topics="orders"), group) == {LAG_METRIC: 7.0}
    assert not is_active(trigger(topics="orders"), state(lagging(0, "a"), lagging(90, "b", topic="other")))


def test_a_topic_counts_by_the_name_of_its_shard() -> None:
    """Clients that send no label name their shards like queues; `offsets reset --topic` finds the same ones."""
    group = state(lagging(7, "orders/0", topic=""), lagging(5, "broker-a/orders/1", topic=""), lagging(90, "other/0", topic=""))
    assert values(trigger(topics="orders"), group) == {LAG_METRIC: 12.0}
    caught_up = state(lagging(0, "orders/0", topic=""), lagging(90, "other/0", topic=""))
    assert not is_active(trigger(topics="orders"), caught_up)


def test_a_named_topic_without_a_shard_is_unknown() -> None:
    """Nobody committed there: its lag may be anything."""
    group = state(lagging(0, "a"))
    assert is_active(trigger(topics="orders,other"), group)
    with pytest.raises(NotReadyError, match="'other'"):
        values(trigger(topics="orders,other"), group)


def test_a_number_that_keda_cannot_multiply_by_1000_is_cut() -> None:
    """It computes in thousandths, in 64 bits."""
    assert values(trigger(limitToShards="none"), state(lagging(2**62))) == {LAG_METRIC: float(METRIC_MAX)}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50),
            st.sampled_from([lag_pb.OK, lag_pb.WARN, lag_pb.STALL, lag_pb.STOP]),
            st.sampled_from([1.0, 1_000.0, None]),
        ),
        max_size=6,
    ),
    st.sampled_from(["", "away"]),
    st.sampled_from(["", "away"]),
)
def test_a_group_is_inactive_only_if_every_shard_is_known_to_have_no_lag(
    shards: list[tuple[int, int, float | None]], unknown: str, incomplete: str
) -> None:
    """Whatever else holds."""
    rows = [ShardState(lagging(lag, str(number), status=status), age_s) for number, (lag, status, age_s) in enumerate(shards)]
    group = GroupState(rows, unknown, incomplete)
    caught_up = bool(shards) and all(lag == 0 and age_s == 1.0 for lag, _, age_s in shards)
    assert is_active(trigger(), group) is not (caught_up and not unknown and not incomplete)
