"""The external sort of offsets: sorted output, each key once, no offset lost."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.cli.files.sorting import CACHE_KIB, OffsetSorter, SortingError
from adapter.formats.rows import OffsetRow
from adapter.model.records import U64_MAX


def sorted_rows(*rows: OffsetRow) -> list[OffsetRow]:
    """The sorted offsets."""
    with OffsetSorter() as sorter:
        sorter.add(rows)
        return list(sorter)


def test_queue_10_stands_behind_queue_9() -> None:
    """Groups are sorted by name, the queues of a topic by number."""
    shards = ["t/10", "u", "b/t/2", "t/9", "a/10", "a/9"]
    rows = sorted_rows(*(OffsetRow("n", group, shard, 1) for group in ("h", "g") for shard in shards))
    order = ["a/9", "a/10", "b/t/2", "t/9", "t/10", "u"]
    assert [(row.group, row.shard) for row in rows] == [(group, shard) for group in ("g", "h") for shard in order]


def test_memory_is_bounded_by_what_the_module_says() -> None:
    """SQLite ignores a setting whose name it does not know."""
    with OffsetSorter() as sorter:
        assert sorter._database.execute("PRAGMA cache_size").fetchone() == (-CACHE_KIB,)


def test_every_field_comes_back() -> None:
    """Offsets at both ends of the range are kept too."""
    row = OffsetRow("n", "g", "t/0", U64_MAX, "m\u0000\u00e4", U64_MAX, "t", 2**32 - 1, U64_MAX)
    assert sorted_rows(row, OffsetRow("n", "g", "t/1", 0)) == [row, OffsetRow("n", "g", "t/1", 0)]


def test_rows_that_are_larger_elsewhere_are_found() -> None:
    """Of the same keys alone, with offsets of 64 bits; again and again."""
    with OffsetSorter() as sorter:
        sorter.add([OffsetRow("n", "g", f"t/{queue}", 10) for queue in range(20)] + [OffsetRow("n", "g", "big", 2**63)])
        same = [OffsetRow("n", "g", "t/3", 10), OffsetRow("n", "h", "t/3", 99), OffsetRow("m", "g", "t/3", 99)]
        assert sorter.beside(same).larger is None
        larger = [OffsetRow("n", "g", "t/10", 11), OffsetRow("n", "g", "t/9", 12), OffsetRow("n", "g", "big", U64_MAX)]
        assert sorter.beside([*same, *larger]).larger == (3, OffsetRow("n", "g", "big", U64_MAX), 2**63)
        assert sorter.beside([*same, *larger[:2]]).larger == (2, OffsetRow("n", "g", "t/9", 12), 10)


def test_rows_that_are_elsewhere_alone_are_found() -> None:
    """All of them, or those of a group and topic that are here with other queues."""
    with OffsetSorter() as sorter:
        sorter.add([OffsetRow("n", "g", f"t/{queue}", 10) for queue in range(2)])
        here = [OffsetRow("n", "g", "t/0", 5), OffsetRow("n", "g", "t/1", 50)]
        assert sorter.beside(here).absent is None
        others = [OffsetRow("n", "g", "u/2", 1), OffsetRow("n", "h", "t/0", 2), OffsetRow("m", "g", "t/2", 3)]
        queues = [OffsetRow("n", "g", "t/10", 4), OffsetRow("n", "g", "t/9", 0)]
        assert sorter.beside([*here, *queues, *others]).absent == (5, OffsetRow("m", "g", "t/2", 3))
        assert sorter.beside([*here, *queues, *others], whole=False).absent == (2, OffsetRow("n", "g", "t/9", 0))
        assert sorter.beside([*here, *others], whole=False).absent is None


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)
shards = st.one_of(
    names, st.builds("{}/{}".format, names, st.sampled_from(["0", "00", "7", "07", "10", "2147483648", "\u0663", ""]))
)
offsets = st.one_of(st.integers(0, 3), st.just(U64_MAX))
some_rows = st.lists(
    st.tuples(st.just("n"), st.sampled_from("gh"), shards, offsets).map(lambda row: OffsetRow(*row)), max_size=12
)


@given(some_rows)
def test_each_key_comes_once_with_its_largest_offset(rows: list[OffsetRow]) -> None:
    """Repeated rows are dropped for all names, and counted."""
    largest: dict[tuple[str, str], int] = {}
    for row in rows:
        largest[row.group, row.shard] = max(row.offset, largest.get((row.group, row.shard), 0))
    with OffsetSorter() as sorter:
        sorter.add(rows)
        found = list(sorter)
        assert {(row.group, row.shard): row.offset for row in found} == largest
        assert (sorter.added, sorter.repeated, sorter.groups()) == (
            len(rows),
            len(rows) - len(found),
            len({row.group for row in rows}),
        )
    assert len(found) == len(largest)


def test_an_error_of_sqlite_says_where_its_file_is() -> None:
    """A failed write, such as on a full disk, is a SortingError."""
    with OffsetSorter() as sorter:
        sorter._database.execute("PRAGMA query_only = ON")  # as if there were no room
        with pytest.raises(SortingError, match="the temporary table of offsets") as raised:
            sorter.add([OffsetRow("n", "g", "t/0", 1)])
    assert isinstance(raised.value.__cause__, sqlite3.Error)
