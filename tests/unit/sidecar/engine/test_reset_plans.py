"""The effect of a reset, delete or clone on each shard, computed without I/O."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError, UnknownBoundsError
from adapter.model.bounds import Bounds
from adapter.model.records import ERA_BITS, U64_MAX, OffsetKey, OffsetRecord, expired
from adapter.sidecar.engine.reset_plans import Known, Reset, To, active_warning, plan_clone, plan_delete, plan_reset
from tests.unit.helpers import key, record, tombstone

A = key("a")
ERA = 1 << ERA_BITS
BOUNDS = {"a": Bounds(10, 90, 0)}
STANDING = {A: record(50, 3, committed_at_ms=7, metadata="m", topic="t", partition=4)}


def _to(reset: Reset, standing: Mapping[OffsetKey, OffsetRecord] = STANDING, **known: object) -> tuple[int, str]:
    (change,) = plan_reset(reset, [A], Known(standing, **{"bounds": BOUNDS, **known}))  # type: ignore[arg-type]
    assert change.after is not None
    return change.after.offset, change.warning


@pytest.mark.parametrize(
    ("reset", "offset"),
    [
        (Reset(To.OFFSET, 20), 20),
        (Reset(To.OFFSET, 10), 10),
        (Reset(To.OFFSET, 90), 90),
        (Reset(To.EARLIEST), 10),
        (Reset(To.LATEST), 90),
        (Reset(To.CURRENT), 50),
        (Reset(To.SHIFT, 5), 55),
        (Reset(To.SHIFT, -5), 45),
        (Reset(To.TARGETS, targets={"a": 30}), 30),
    ],
)
def test_a_reset_goes_where_it_was_asked_to(reset: Reset, offset: int) -> None:
    """The same targets as in kafka-consumer-groups."""
    assert _to(reset) == (offset, "")


@pytest.mark.parametrize("reset", [Reset(To.OFFSET, 5), Reset(To.SHIFT, -1000), Reset(To.TARGETS, targets={"a": 0})])
def test_a_target_below_the_shard_is_corrected_with_a_warning(reset: Reset) -> None:
    """To the first offset that can be read."""
    offset, warning = _to(reset)
    assert offset == 10
    assert "the shard has 10 to 90" in warning


def test_a_target_above_the_shard_is_corrected_with_a_warning() -> None:
    """To the offset that the next message will get."""
    offset, warning = _to(Reset(To.SHIFT, 100))
    assert offset == 90
    assert warning.startswith("150 is outside")


def test_without_bounds_only_the_number_itself_has_limits() -> None:
    """0 to 2^64 - 1."""
    assert _to(Reset(To.SHIFT, -51), bounds={}) == (0, "-1 is outside: offsets go from 0 to 2^64 - 1")
    assert _to(Reset(To.OFFSET, U64_MAX), bounds={}) == (U64_MAX, "")


@pytest.mark.parametrize(("found", "offset"), [(33, 33), (None, 90)])
def test_a_time_after_the_last_message_is_the_end(found: int | None, offset: int) -> None:
    """As in Kafka's tool."""
    assert _to(Reset(To.TIMESTAMP, 1), by_time={"a": found}) == (
        offset,
        "" if found else "no message is at or after this time: the end of the shard",
    )


def test_a_shard_without_an_answer_for_a_time_is_not_sent_to_the_end() -> None:
    """A shard missing in the reply differs from one without a message that young."""
    with pytest.raises(UnknownBoundsError, match="default/g/a: the broker gave no offset"):
        _to(Reset(To.TIMESTAMP, 1), by_time={})


@pytest.mark.parametrize("to", [To.EARLIEST, To.LATEST, To.TIMESTAMP])
def test_a_reset_that_needs_bounds_names_the_shard_without(to: To) -> None:
    """It is refused; no offset is guessed."""
    with pytest.raises(UnknownBoundsError, match=rf"default/g/a: .*{to.value}"):
        _to(Reset(to), bounds={})


@pytest.mark.parametrize("to", [To.CURRENT, To.SHIFT])
@pytest.mark.parametrize("standing", [{}, {A: tombstone(ERA)}])
def test_what_starts_from_an_offset_needs_one(to: To, standing: Mapping[OffsetKey, OffsetRecord]) -> None:
    """An absent or deleted offset is not 0."""
    with pytest.raises(InvalidInputError, match="default/g/a: has no offset"):
        _to(Reset(to, 1, create=True), standing)


def test_to_current_changes_nothing_that_is_within_the_bounds() -> None:
    """The epoch is not changed either."""
    (change,) = plan_reset(Reset(To.CURRENT), [A], Known(STANDING, BOUNDS))
    assert not change.changes


@given(epoch=st.integers(0, 2**40), offset=st.integers(0, U64_MAX), target=st.integers(0, U64_MAX))
def test_a_reset_is_above_whatever_stands_and_all_its_rewinds(epoch: int, offset: int, target: int) -> None:
    """Even to the same offset: another adapter may hold a higher one that it has not flushed (7)."""
    before = record(offset, epoch)
    (change,) = plan_reset(Reset(To.OFFSET, target), [A], Known({A: before}, now_ms=9))
    assert change.after is not None
    assert change.changes
    assert change.after > record(U64_MAX, epoch | (ERA - 1))
    assert (change.after.offset, change.after.live, change.after.committed_at_ms) == (target, True, 9)


def test_a_reset_keeps_the_labels_and_not_the_metadata() -> None:
    """The metadata belongs to the former offset; Kafka's tool clears it too."""
    (change,) = plan_reset(Reset(To.OFFSET, 20), [A], Known(STANDING))
    assert change.after is not None
    assert (change.after.topic, change.after.partition, change.after.metadata) == ("t", 4, "")


def test_a_reset_of_a_shard_without_offset_gives_it_one_above_any_first_commit() -> None:
    """Another adapter may have such a commit that it has not flushed."""
    (change,) = plan_reset(Reset(To.OFFSET, 20, create=True), [A], Known({}))
    assert change.before is None
    assert change.after is not None
    assert change.after.epoch == ERA


def test_a_delete_leaves_what_is_deleted_alone_and_says_so() -> None:
    """A repeated delete raises no epoch."""
    changes = plan_delete([A, key("b"), key("c")], Known({A: record(5, 2), key("b"): tombstone(ERA)}, now_ms=4))
    assert [change.changes for change in changes] == [True, False, False]
    assert changes[0].after == OffsetRecord(ERA, 0, live=False, committed_at_ms=4)
    assert [change.warning for change in changes] == ["", "has no offset", "has no offset"]


def test_a_delete_raises_the_epoch_of_an_expired_offset() -> None:
    """The tombstone of an expiry lets late commits apply; that of a delete must not (7)."""
    (change,) = plan_delete([A], Known({A: expired(record(5, 2), 1)}))
    assert change.after is not None
    assert change.after.epoch == ERA


def test_a_clone_takes_offset_and_metadata_and_leaves_the_epoch() -> None:
    """Each key has its own epoch."""
    target = key("a", "copy")
    (change,) = plan_clone(STANDING, {A: target}, Known({target: record(70, 9)}, now_ms=8))
    assert change.key == target
    assert change.after == STANDING[A]._replace(epoch=ERA, committed_at_ms=8)


def test_a_group_that_just_committed_is_warned_of() -> None:
    """Its running consumers would overwrite the change."""
    (change,) = plan_reset(Reset(To.OFFSET, 20), [A], Known(STANDING))
    assert "0.5 s ago: stop its consumers" in active_warning([change], 507)
    assert not active_warning([change], 100_000)


def test_a_time_that_a_former_change_gave_is_no_commit() -> None:
    """An operator's own reset does not mean that consumers are running."""
    (change,) = plan_reset(Reset(To.OFFSET, 20), [A], Known(STANDING))
    assert not active_warning([change], 507, {7})
    assert active_warning([change], 507, {6})
