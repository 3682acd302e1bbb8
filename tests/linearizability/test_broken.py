"""What is kept of a real history, and that each change can break one."""

import random

from adapter.model.records import OffsetKey
from adapter.testing.history import META, Value
from tests.linearizability.broken import CHANGES, KEY, of_key, window
from tests.linearizability.recorded import Operation
from tests.linearizability.verdicts import ours

OTHER = OffsetKey("default", "group", "other")


def _correct() -> list[Operation]:
    """What two consumers and two readers of everything see of an adapter and a Meta Service that work."""
    recorded = []
    here: dict[OffsetKey, Value] = {}
    for number in range(1, 400):
        key, at, there = (KEY, OTHER)[number % 2], float(number), dict(here)
        lost = number % 7 == 0
        recorded.append(Operation("write", at, None if lost else at + 0.5, ("a",), (key,), ((1, number, True),)))
        if not lost:
            here[key] = (1, number, True)
        recorded.append(Operation("read", at + 0.6, at + 0.7, ("a",), found=dict(here)))
        recorded.append(Operation("read", at + 0.75, at + 0.78, (META,), found=there))
        recorded.append(Operation("carry", at + 0.8, at + 0.9, ("a", META)))
    return recorded


def test_what_is_kept_of_a_correct_history_is_correct() -> None:
    """A key of it, and any window of that."""
    assert ours(_correct()) == frozenset()
    rng = random.Random(2)
    for key in (KEY, OTHER):
        one = of_key(_correct(), key)
        assert ours(one) == frozenset()
        assert {each.keys for each in one} == {(key,), None}
        assert all(ours(window(rng, one)) == frozenset() for _ in range(50))


def test_each_change_can_make_a_history_impossible() -> None:
    """Else it would compare nothing."""
    rng, one = random.Random(3), of_key(_correct(), KEY)
    for name, change in CHANGES.items():
        changed = (change(rng, window(rng, one)) for _ in range(300))
        assert any(ours(each) for each in changed if each), name
