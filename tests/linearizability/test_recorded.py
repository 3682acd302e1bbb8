"""The form of recorded histories: what is written is read again, and says the same to our own checker."""

import random
from pathlib import Path

from adapter.model.records import OffsetKey
from adapter.testing.history import META, Kind
from tests.linearizability.broken import KEY, arbitrary
from tests.linearizability.recorded import Operation, history, line, operations, recording

OTHER = OffsetKey("namespace/with slash", "g\u00e4", "1")


def test_an_operation_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Of every kind, with everything that it may have."""
    written = [
        Operation("write", 0.1, 0.25, ("a", META), (KEY,), ((2, 5, True), (3, 5, True)), told=(3, 5, True)),
        Operation("write", 0.1, None, ("a",), (OTHER,), ((0, 2**64 - 1, True),)),
        Operation("write", 0.1, 0.2, ("a",), (KEY,), ((1, 5, True),), standing=(2, 0, False)),
        Operation("read", 1.0, 1.5, ("a", META), (KEY, OTHER), found={KEY: (1, 5, True)}),
        Operation("read", 1.0, 1.5, (META,), found={KEY: (2, 0, False)}),
        Operation("read", 1.0, None, ("a",), ()),
        Operation("carry", 2.0, 2.5, ("a", META)),
    ]
    path = tmp_path / "h.jsonl"
    path.write_text("".join(map(line, written)))
    assert list(operations(path)) == written


def test_a_recorded_history_has_every_operation_with_its_answer(tmp_path: Path) -> None:
    """In the order in which they ended; those without an answer come last. A check meanwhile takes nothing away."""
    path = tmp_path / "h.jsonl"
    with recording(path) as events:
        lost = events.begin(OTHER, (1, 9))
        write = events.begin(KEY, (1, 5), (2, 5), places=["a"], at=1)
        write.acknowledged((2, 5), at=2)
        reading = events.reading("a", at=3)
        assert events.check() == []
        reading.found({KEY: (1, 4)}, at=4)
        flush = events.carrying("a", META, at=5)
        flush.done(at=6)
        found = {(each.key, each.kind) for each in events.check()}
    assert found == {(KEY, Kind.LOST)}
    recorded = list(operations(path))
    assert [(each.what, each.ended) for each in recorded] == [("write", 2), ("read", 4), ("carry", 6), ("write", None)]
    assert (recorded[0].told, recorded[1].found, recorded[3].began) == ((2, 5, True), {KEY: (1, 4, True)}, lost.began)
    assert {(each.key, each.kind) for each in history(recorded).check()} == found


def test_a_history_that_is_read_again_has_the_same_violations(tmp_path: Path) -> None:
    """Arbitrary ones, half of them impossible."""
    rng, path = random.Random(1), tmp_path / "h.jsonl"
    verdicts = set()
    for _ in range(200):
        drawn = arbitrary(rng)
        path.write_text("".join(map(line, drawn)))
        violations = [str(each) for each in history(drawn).check()]
        assert [str(each) for each in history(operations(path)).check()] == violations
        verdicts.add(bool(violations))
    assert verdicts == {False, True}
