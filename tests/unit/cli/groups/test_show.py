"""The state of a shard in `groups describe`."""

import pytest

from adapter.cli.groups.show import Described, state_of
from adapter.rpc import offsets_pb


def at(offset: int, epoch: int = 1, *, deleted: bool = False) -> offsets_pb.Position:
    """A position."""
    return offsets_pb.Position(epoch=epoch, offset=offset, deleted=deleted)


@pytest.mark.parametrize(
    ("local", "remote", "dirty", "state"),
    [
        (at(5), at(5), False, "clean"),
        (at(5), at(4), True, "dirty"),
        (at(5), None, True, "dirty"),
        (at(5), at(6), True, "dirty"),
        (at(5), at(6), False, "behind"),
        (at(5), at(1, epoch=2), False, "behind"),
        (None, at(5), False, "behind"),
        (at(5), at(0, epoch=2, deleted=True), False, "behind"),
        (at(5), at(4), False, "ahead"),
        (at(5), None, False, "ahead"),
        (at(0, deleted=True), at(0, deleted=True), False, "deleted"),
        (at(5, deleted=True), at(5), False, "behind"),
    ],
)
def test_the_state_of_a_shard(
    local: offsets_pb.Position | None, remote: offsets_pb.Position | None, dirty: bool, state: str
) -> None:
    """Positions are compared by (epoch, offset)."""
    assert state_of(Described.Shard(local=local, remote=remote, dirty=dirty), remote_known=True) == state


def test_when_the_meta_service_was_not_asked_nothing_is_ahead_of_it() -> None:
    """Without an answer of the Meta Service, a shard is not `ahead`."""
    assert state_of(Described.Shard(local=at(5)), remote_known=False) == "clean"
