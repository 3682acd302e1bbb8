"""Rows in blocks: what is taken is what was put, whether a block is in use or rests."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from adapter.model.lag_rows import UNKNOWN, Commits, Ints, LagSettings
from adapter.model.records import LONG_MAX
from adapter.sidecar.lag import packed
from adapter.sidecar.lag.packed import RESTING, Packed
from adapter.sidecar.lag.view import Rows

WINDOW = LagSettings(window_points=4)
NOW = 1_764_547_200_000_000
VALUES = st.sampled_from([UNKNOWN, 0, 1, 300, 70_000, 2**40, NOW, NOW + 1_000, NOW + 86_400_000_000, NOW + 1, LONG_MAX])
FLOATS = st.sampled_from([np.nan, 0.0, 1 / 3, 1e300])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "BLOCK_ROWS", 4)
    monkeypatch.setattr(packed, "REST_S", 0)


@st.composite
def _commits(draw: st.DrawFn) -> tuple[Ints, Commits]:
    """Some rows of eleven, and their commits."""
    rows = np.array(draw(st.lists(st.integers(0, 10), unique=True, max_size=6)), np.int64)
    table = Commits.empty(len(rows), WINDOW)
    for field in fields(table):
        column = getattr(table, field.name)
        column[:] = draw(arrays.arrays(np.int64, column.shape, elements=st.integers(0, 4) if field.name == "counts" else VALUES))
    return rows, table


@given(st.lists(st.tuples(_commits(), st.integers(0, RESTING + 2)), max_size=6))
def test_what_is_taken_is_what_was_put(steps: list[tuple[tuple[Ints, Commits], int]]) -> None:
    """Up to the count of each row, and after any number of rests; a row that was not put is empty."""
    table = Packed(lambda rows: Commits.empty(rows, WINDOW))
    every = np.arange(11)
    expected = Commits.empty(11, WINDOW)
    for (rows, values), rests in steps:
        table.put(rows, values)
        for field in fields(values):
            getattr(expected, field.name)[rows] = getattr(values, field.name)
        for _ in range(rests):
            table.rest()
        found = table.take(every)
        there = np.arange(4) < expected.counts[:, None]
        for field in fields(found):
            ours, theirs = getattr(found, field.name), getattr(expected, field.name)
            assert np.array_equal(ours[there], theirs[there]) if ours.ndim > 1 else np.array_equal(ours, theirs)


@given(arrays.arrays(np.float64, 9, elements=FLOATS), arrays.arrays(np.bool_, 9), st.integers(0, RESTING + 2))
def test_floats_and_truths_keep_every_bit(floats: np.ndarray, truths: np.ndarray, rests: int) -> None:
    """Unknown ones, too."""
    table, rows = Packed(Rows.empty), Rows.empty(9)
    rows.lag_seconds[:], rows.judged[:] = floats, truths
    table.put(np.arange(9), rows)
    for _ in range(rests):
        table.rest()
    found = table.take(np.arange(9)[::-1])
    assert np.array_equal(found.lag_seconds[::-1], floats, equal_nan=True)
    assert np.array_equal(found.judged[::-1], truths)


@pytest.mark.parametrize("rests", [0, RESTING + 1])
def test_a_copy_does_not_change_with_the_rows(rests: int) -> None:
    """Nor the other copy; it has what was there when it was made."""
    table, rows = Packed(Rows.empty), Rows.empty(2)
    copies = []
    for value in (1, 2, 3):
        rows.offsets[:] = value
        table.put(np.array([1, 7]), rows)
        for _ in range(rests):
            table.rest()
        copies.append(table.copy())
    assert [copy.take(np.array([1, 7])).offsets.tolist() for copy in copies] == [[1, 1], [2, 2], [3, 3]]


def test_a_row_that_rests_takes_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece for all columns; nothing is made wide by putting the same again."""
    monkeypatch.setattr(packed, "BLOCK_ROWS", 1_000)
    table, rows, wide = Packed(Rows.empty), np.arange(1_000), Rows.empty(1_000)
    wide.times[:], wide.offsets[:] = NOW + rows * 1_000, rows * 1_000
    table.put(rows, wide)
    for _ in range(RESTING + 1):
        table.rest()
    assert _bytes(table) < 1_000 * 10
    table.put(rows, wide)
    assert _bytes(table) < 1_000 * 10


def _bytes(table: Packed[Rows]) -> int:
    return sum(len(block) if isinstance(block, bytes) else 8_000 * len(fields(block)) for block in table._blocks)
