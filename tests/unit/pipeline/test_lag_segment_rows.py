"""What is made of the rows of a segment: commits, heads, moves, and the problem of each row that is not taken as it stands."""

from typing import Any

import pyarrow as pa
import pytest

from adapter.pipeline.lag.part import Part
from adapter.pipeline.lag.runs import NULL, ints
from adapter.pipeline.lag.segment_rows import COLUMNS, Gathered, Origin, gather, unreadable
from tests.pipeline.lag_batches import at, commit
from tests.pipeline.segments import RUN, journal_table

PLANNED = int(at(100).timestamp()) * 1_000_000
ORIGIN = Origin("b1", RUN, "/journal/x.parquet")


def of(*rows: dict[str, Any], dictionaries: bool = False) -> Gathered:
    """What is gathered from a segment with these rows."""
    plain = [{name: value for name, value in row.items() if name != "broker"} for row in rows]
    table = journal_table(plain).select(COLUMNS)
    if dictionaries:
        names = [name for name in ("kind", "namespace", "group", "shard", "topic") if name in table.column_names]
        for name in names:
            table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
    return gather(table, ORIGIN, PLANNED)


def counts(part: Part) -> list[int]:
    """The rows of keys, points, heads, odds."""
    return [table.num_rows for table in (part.keys, part.points, part.heads, part.odds)]


@pytest.mark.parametrize(
    ("row", "problem", "counted"),
    [
        (commit(1, 5, 9), None, [1, 1, 1, 0]),
        (commit(1, 5), None, [1, 1, 0, 0]),
        (commit(1, 5, -1), None, [1, 1, 0, 0]),
        (commit(1, 0, 9, kind="heartbeat", group=""), None, [0, 0, 1, 0]),
        (commit(1, 0, kind="heartbeat", group="", shard=""), None, [0, 0, 0, 0]),
        (commit(1, 5, 9, kind="reset", from_offset=7, from_epoch=0), None, [1, 1, 1, 1]),
        (commit(1, 5, 9, kind="delete", live=False), None, [1, 1, 1, 0]),
        (
            commit(1, 5, 9, kind="compact"),
            "kind 'compact' is not known here: use the pipeline of the adapter's version; not counted",
            [0, 0, 0, 1],
        ),
        (
            commit(100 + 3_601.5, 5, 9),
            "the broker's clock is 3601 s ahead of this machine: set the clocks; not counted",
            [0, 0, 0, 1],
        ),
        (commit(100 + 3_600, 5, 9), None, [1, 1, 1, 0]),
        (commit(1, 5, 9, group=""), "namespace, group or shard is empty; not counted", [0, 0, 1, 1]),
        (commit(1, 5, 9, shard=""), "namespace, group or shard is empty; not counted", [0, 0, 0, 1]),
        (commit(1, -5, 9), "offset or epoch is missing or negative; not counted", [0, 0, 1, 1]),
        (commit(1, 5, 9, epoch=None), "offset or epoch is missing or negative; not counted", [0, 0, 1, 1]),
        (
            commit(1, 5, 9) | {"committed_at": at(62.5)},
            "was committed 61 s after it was journaled: set the clocks; the earlier time is taken",
            [1, 1, 1, 1],
        ),
        (commit(1, 5, 9) | {"committed_at": at(61)}, None, [1, 1, 1, 0]),
        (commit(-61, 5, 9), "the adapter's clock went back 61 s behind its start; counted as it stands", [1, 1, 1, 1]),
        (commit(-60, 5, 9), None, [1, 1, 1, 0]),
        (commit(-61, 5, 9, problem="said by the adapter"), "said by the adapter", [1, 1, 1, 1]),
    ],
)
def test_each_row_is_a_commit_a_head_a_move_or_a_problem(row: dict[str, Any], problem: str | None, counted: list[int]) -> None:
    """Also several of these; limits are inclusive."""
    found = of(commit(0, 1, 1, shard="other"), row)
    assert [one - base for one, base in zip(counts(found.part), (1, 1, 1, 0), strict=True)] == counted
    assert (found.rows, found.odd) == (2, counted[3])
    assert found.part.odds["problem"].to_pylist() == [problem] * counted[3]


def test_the_newest_time_is_that_of_rows_whose_clock_is_believed() -> None:
    """Rows with another problem count."""
    assert of(commit(5, 1), commit(9_000, 2), commit(7, -2)).newest == PLANNED - 93 * 1_000_000
    assert of(commit(9_000, 2)).newest is None
    assert (of().newest, of().rows) == (None, 0)


def test_a_commit_has_the_lag_of_its_time() -> None:
    """What could be read then, by the head and the low that its row has; its time is not after that of its row."""
    rows = [commit(1, 5, 9), commit(2, 5, 9, 7), commit(3, 11, 9), commit(4, 5), commit(5, 5) | {"committed_at": None}]
    rows.append(commit(6, 1, 9) | {"watermark_at": None, "committed_at": at(8)})
    points = of(*rows).part.points
    assert ints(points, "lag").tolist() == [4, 2, 0, NULL, NULL, 8]
    start = PLANNED - 100 * 1_000_000
    assert (ints(points, "t") - start).tolist() == [second * 1_000_000 for second in (1, 2, 3, 4, 5, 6)]
    assert (-ints(points, "near") - start).tolist()[-1] == 6_000_000


def test_texts_that_are_dictionaries_already_give_the_same() -> None:
    """As a reader of Parquet files gives them."""
    rows = [commit(1, 5, 9, group=f"g{place}", kind="reset") for place in range(3)]
    plain, coded = of(*rows), of(*rows, dictionaries=True)
    assert plain.part.tables() == coded.part.tables()
    assert plain.part.odds.num_rows == 3


def test_a_segment_that_cannot_be_read_is_one_problem() -> None:
    """Its time is 0."""
    found = unreadable(ORIGIN, "segment is torn")
    row = found.part.odds.to_pylist()[0]
    assert [row[name] for name in ("at", "broker", "run", "segment", "kind", "problem")] == [
        *(0, "b1", RUN, "/journal/x.parquet", "unreadable", "segment is torn")
    ]
    assert (found.newest, found.rows, found.odd, found.part.keys.num_rows) == (None, 1, 1, 0)


def test_more_than_one_chunk_and_dictionary() -> None:
    """As a file with several row groups gives them."""
    found = gather(pa.concat_tables([_encoded("b"), _encoded("a")]), ORIGIN, PLANNED)
    assert found.part.keys["group"].to_pylist() == ["b", "a"]


def _encoded(group: str) -> pa.Table:
    row = {name: value for name, value in commit(1, 5, 9, group=group).items() if name != "broker"}
    table = journal_table([row]).select(COLUMNS)
    return table.set_column(table.column_names.index("group"), "group", table["group"].dictionary_encode())
