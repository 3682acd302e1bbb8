"""An acknowledgement window compared with its definition: two sets of offsets, and the time of each take."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adapter.client.ack_window import AGE_STEP_S, AckWindow
from tests.unit.client.ack_windows import Clock


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_an_age_is_never_too_small_and_hardly_too_large(waits: list[float], rnd: random.Random) -> None:
    """Compared with the time of each take, even if takes come faster than the step of stored times."""
    clock = Clock()
    window = AckWindow(0, clock=clock)
    taken: dict[int, float] = {}
    for offset, wait in enumerate(waits):
        clock.now += wait
        window.try_take(offset)
        taken[offset] = clock.now
        if rnd.random() < 0.7:
            window.ack(done := rnd.choice(list(taken)))
            del taken[done]
        status = window.status()
        true = clock.now - taken[min(taken)] if taken else 0
        assert true <= status.oldest_age_s <= true + AGE_STEP_S + 1e-9


class Naive(RuleBasedStateMachine):
    """A window and its model of two sets. Each step compares everything that is visible."""

    def __init__(self) -> None:
        super().__init__()
        self.max_span = 12
        self.begin(AckWindow(3, self.max_span), 3)

    def begin(self, window: AckWindow, start: int) -> None:
        """A new window and a new model."""
        self.window, self.start, self.next = window, start, start
        self.taken: set[int] = set()
        self.finished: set[int] = set()

    @property
    def committable(self) -> int:
        """The committable offset by its definition."""
        return min(self.taken - self.finished, default=self.next)

    @rule(gaps=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 5, 12, 13, 14, 500]), min_size=1, max_size=12))
    def take(self, gaps: list[int]) -> None:
        """A take fits exactly when nothing is unfinished, or the span stays within its bound."""
        for gap in gaps:
            offset = self.next + gap
            fits = self.taken == self.finished or offset - self.committable <= self.max_span
            assert self.window.try_take(offset) == fits
            if fits:
                self.taken.add(offset)
                self.next = offset + 1

    @rule(back=st.integers(-2, 16))
    def ack(self, back: int) -> None:
        """Any offset around the window, taken or not."""
        offset = self.next - back
        if offset in self.taken:
            assert self.window.ack(offset) == (offset not in self.finished)
            self.finished.add(offset)
        elif offset < self.start or offset >= self.committable:
            with pytest.raises(ValueError, match=f"offset {offset} was never taken"):
                self.window.ack(offset)
        else:
            assert not self.window.ack(offset)

    @rule(back=st.integers(0, 16), length=st.integers(0, 16))
    def ack_range(self, back: int, length: int) -> None:
        """A range within what was taken, whatever of it is finished."""
        first = max(self.next - back, self.start)
        end = min(first + length, self.next)
        inside = {offset for offset in self.taken - self.finished if first <= offset < end}
        assert self.window.ack_range(first, end) == len(inside)
        self.finished |= inside

    @rule(gap=st.sampled_from([0, 1, 3, 40]))
    def skip(self, gap: int) -> None:
        """Skip to an offset, as when the consumer's position passes what is not a message."""
        self.next += gap
        self.window.skip_to(self.next)

    @precondition(lambda self: len(self.taken) > 20)
    @rule(start=st.integers(0, 30), epoch=st.integers(1, 3))
    def reset(self, start: int, epoch: int) -> None:
        """Reset the window; later acknowledgements of the old one have no effect."""
        old, late = self.window, self.taken
        self.begin(old.reset(start, epoch=old.epoch + epoch), start)
        assert not any(old.ack(offset) for offset in late)

    @invariant()
    def is_equal(self) -> None:
        """The window and the model agree in everything."""
        unfinished = self.taken - self.finished
        status = self.window.status()
        assert self.window.committable == status.committable == self.committable
        assert status.next_offset == self.next
        assert status.unfinished == len(unfinished)
        assert status.ahead == sum(offset > self.committable for offset in self.finished)
        assert status.oldest == min(unfinished, default=None)
        assert len(self.window._states) <= self.max_span + 1


TestNaive = Naive.TestCase
TestNaive.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
