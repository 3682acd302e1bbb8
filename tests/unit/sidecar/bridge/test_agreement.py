"""What is done about one offset, case by case."""

import pytest

from adapter.model.records import FIRST_EPOCH, OffsetRecord, deleted, expired, next_era
from adapter.sidecar.bridge.agreement import Act, Agreed, Memory, on_meeting, when_broker_moved, when_store_moved

RESET = next_era(FIRST_EPOCH)


def stored(offset: int, epoch: int = FIRST_EPOCH) -> OffsetRecord:
    """A live record."""
    return OffsetRecord(epoch, offset)


SAME = Memory(same_life=True, known=True)
ANOTHER = Memory(known=True)


@pytest.mark.parametrize(
    ("at_broker", "record", "memory", "act"),
    [
        # Unknown to one of them.
        (None, None, ANOTHER, Act.NOTHING),
        (7, None, ANOTHER, Act.COMMIT),
        (None, stored(7), ANOTHER, Act.GIVE),
        (None, stored(7), SAME, Act.GIVE),
        # The same.
        (7, stored(7), ANOTHER, Act.NOTHING),
        (7, stored(7, RESET), ANOTHER, Act.NOTHING),
        # The broker was killed, and lost what came last; or it had written something that the sidecar has not seen.
        (5, stored(7), ANOTHER, Act.GIVE),
        (9, stored(7), ANOTHER, Act.COMMIT),
        (5, stored(7), Memory(), Act.GIVE),
        (9, stored(7), Memory(), Act.COMMIT),
        # It was not: what is lower there went back on purpose, while the sidecar was away.
        (5, stored(7), SAME, Act.REWIND),
        (9, stored(7), SAME, Act.COMMIT),
        # It came back with a value from before a rewind that it had acknowledged.
        (90, stored(7, 2), ANOTHER._replace(ceiling=100), Act.PLACE),
        (101, stored(7, 2), ANOTHER._replace(ceiling=100), Act.COMMIT),
        (5, stored(7, 2), ANOTHER._replace(ceiling=100), Act.GIVE),
        (90, stored(7, 2), SAME._replace(ceiling=100), Act.COMMIT),
        # A reset that it has not got yet.
        (90, stored(7, RESET), SAME, Act.RESET),
        (90, stored(7, RESET), ANOTHER, Act.RESET),
        (90, stored(7, RESET), ANOTHER._replace(era=1), Act.COMMIT),
        (90, stored(7, RESET), SAME._replace(era=1), Act.COMMIT),
        (5, stored(7, RESET), SAME._replace(era=1), Act.REWIND),
        # Nothing is known of this broker: a reset of long ago is no reason to move its consumers.
        (90, stored(7, RESET), Memory(), Act.COMMIT),
        # Deleted, and expired.
        (5, deleted(stored(7), 1), ANOTHER, Act.NOTHING),
        (5, deleted(stored(7), 1), Memory(), Act.COMMIT),
        (5, expired(stored(7), 1), ANOTHER, Act.COMMIT),
        (None, deleted(stored(7), 1), ANOTHER, Act.NOTHING),
    ],
)
def test_a_meeting(at_broker: int | None, record: OffsetRecord | None, memory: Memory, act: Act) -> None:
    """After a start of the broker or of the bridge."""
    assert on_meeting(at_broker, record, memory) is act


@pytest.mark.parametrize(
    ("at_broker", "agreed", "record", "act"),
    [
        (9, Agreed.on(7, stored(7)), stored(7), Act.COMMIT),
        (5, Agreed.on(7, stored(7)), stored(7), Act.REWIND),
        (7, Agreed.on(7, stored(7)), stored(7), Act.NOTHING),
        (9, Agreed.on(None, None), None, Act.COMMIT),
        # It was agreed that they differ: another log, in which the broker goes on from 0.
        (5, Agreed.on(0, stored(300)), stored(300), Act.REWIND),
        # Deleted here, and the group goes on.
        (9, Agreed.on(7, deleted(stored(7), 1)), deleted(stored(7), 1), Act.COMMIT),
        # Somebody else went forward as well: the larger stands, unless the broker went back on purpose.
        (9, Agreed.on(7, stored(7)), stored(20), Act.COMMIT),
        (5, Agreed.on(7, stored(7)), stored(20), Act.REWIND),
        # A reset came between: it wins.
        (9, Agreed.on(7, stored(7)), stored(3, RESET), Act.RESET),
        (5, Agreed.on(7, stored(7)), stored(3, RESET), Act.RESET),
        (9, Agreed.on(7, stored(7)), deleted(stored(7), 1), Act.NOTHING),
    ],
)
def test_the_broker_moved(at_broker: int, agreed: Agreed, record: OffsetRecord | None, act: Act) -> None:
    """While the bridge follows it."""
    assert when_broker_moved(at_broker, agreed, record) is act


@pytest.mark.parametrize(
    ("record", "agreed", "act"),
    [
        (stored(7), Agreed.on(7, stored(7)), Act.NOTHING),
        (stored(7)._replace(committed_at_ms=5), Agreed.on(7, stored(7)), Act.NOTHING),
        (stored(9), Agreed.on(7, stored(7)), Act.GIVE),
        (stored(3, RESET), Agreed.on(7, stored(7)), Act.RESET),
        (stored(9, RESET), Agreed.on(7, stored(7)), Act.RESET),
        (stored(3, 2), Agreed.on(7, stored(7)), Act.RESET),
        (deleted(stored(7), 1), Agreed.on(7, stored(7)), Act.NOTHING),
        (expired(stored(7), 1), Agreed.on(7, stored(7)), Act.NOTHING),
        (None, Agreed.on(7, stored(7)), Act.NOTHING),
        # Its epoch was not known yet, and is now.
        (stored(7, RESET), Agreed.on(7, stored(7, 0)), Act.GIVE),
    ],
)
def test_the_store_moved(record: OffsetRecord | None, agreed: Agreed, act: Act) -> None:
    """By a reset, another adapter, an import, another client."""
    assert when_store_moved(record, agreed) is act
