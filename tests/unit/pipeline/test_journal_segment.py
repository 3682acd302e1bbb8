"""Reading one segment: all its rows with the declared columns, or a row that says what is wrong and what to do."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from adapter.model.schemas import BROKER, JOURNAL, VERSION_OF_JOURNAL
from adapter.pipeline.journal.listing import Segment
from adapter.pipeline.journal.segment import COLUMNS, UNREADABLE, MissingSegmentError, read_segment, read_table
from adapter.pipeline.places import Place
from tests.pipeline.segments import RUN, START, commits, journal_table, write_segment

OURS = {VERSION_OF_JOURNAL: b"1", BROKER: b"broker-1"}


def segment_of(path: Path, number: int = 0) -> Segment:
    """The segment as the listing describes it."""
    date = path.parents[1].name.removeprefix("date=")
    return Segment(str(path.parents[2]), date, "broker-1", RUN, number, path.stat().st_size)


def rows_of(segment: Segment) -> list[dict[str, Any]]:
    """The rows that a task passes to Spark."""
    batches = list(read_segment(segment))
    assert all(batch.schema.equals(COLUMNS) for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, COLUMNS).to_pylist()
    return rows


def test_all_rows_come_as_they_were_written(tmp_path: Path) -> None:
    """With the columns that say which segment they are from."""
    table = journal_table([{"offset": 2**63 - 1, "problem": None}, {"offset": None, "problem": "18446744073709551615"}, {}])
    path = write_segment(tmp_path, table)
    where = {"broker": "broker-1", "run": RUN, "segment": str(path)}
    assert rows_of(segment_of(path)) == [row | where for row in table.to_pylist()]


def test_a_segment_without_rows_gives_none(tmp_path: Path) -> None:
    """It is valid, so there is no row about a problem."""
    assert rows_of(segment_of(write_segment(tmp_path, []))) == []


def test_a_file_url_reads_the_same(tmp_path: Path) -> None:
    """Only the segment's name differs: it is given as a URL."""
    segment = segment_of(write_segment(tmp_path / "a b", commits(2)))
    by_url = segment._replace(root=(tmp_path / "a b").as_uri())
    plain, url = rows_of(segment), rows_of(by_url)
    assert url == [row | {"segment": by_url.path} for row in plain]
    assert len(plain) == 200


def empty(path: Path) -> None:
    """A copy that has just begun."""
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """A file without its end."""
    path.write_bytes(path.read_bytes()[:-100])


def text(path: Path) -> None:
    """A file that is not Parquet."""
    path.write_text("offsets\n" * 100)


def flipped(path: Path) -> None:
    """One bit of the data is wrong."""
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)


def bad_footer(path: Path) -> None:
    """The end mark is there, the footer before it is damaged."""
    content = bytearray(path.read_bytes())
    content[-300:-8] = bytes(292)
    path.write_bytes(content)


def written(change: Callable[[pa.Table], pa.Table], metadata: dict[bytes, bytes]) -> Callable[[Path], None]:
    """Write another Parquet file in its place."""

    def write(path: Path) -> None:
        table = change(journal_table([{}, {}])).replace_schema_metadata(metadata)
        pq.write_table(table, path)

    return write


def same(table: pa.Table) -> pa.Table:
    """Change nothing."""
    return table


def with_text_offsets(table: pa.Table) -> pa.Table:
    """The column of offsets has another type."""
    return table.set_column(table.column_names.index("offset"), "offset", table["offset"].cast(pa.string()))


def with_null_groups(table: pa.Table) -> pa.Table:
    """The column of groups has nulls."""
    return table.set_column(table.column_names.index("group"), "group", pa.array(["g", None]))


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (empty, "is empty, 0 bytes"),
    "cut": (cut, "is torn"),
    "text": (text, "is torn, or no Parquet file"),
    "flipped": (flipped, "is torn"),
    "footer": (bad_footer, "is torn"),
    "foreign": (written(same, {}), "is no segment of a journal"),
    "version": (written(same, {**OURS, VERSION_OF_JOURNAL: b"2"}), "has version '2' of the journal, this reads '1'"),
    "bytes": (written(same, {**OURS, VERSION_OF_JOURNAL: b"\xff"}), "has version"),
    "broker": (written(same, {**OURS, BROKER: b"other"}), "is of broker 'other'"),
    "lacks": (written(lambda table: table.drop_columns(["offset", "kind"]), OURS), "lacks columns.*: kind, offset;"),
    "type": (written(with_text_offsets, OURS), "lacks columns.*: offset;"),
    "nulls": (written(with_null_groups, OURS), "has nulls where a journal has none: group;"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_segment_gives_one_row_that_tells_what_is_wrong(tmp_path: Path, kind: str) -> None:
    """The stream continues, and the loss is visible."""
    path = write_segment(tmp_path, [{}, {}])
    segment = segment_of(path)
    spoil, told = BAD[kind]
    spoil(path)
    (row,) = rows_of(segment)
    assert row["kind"] == UNREADABLE
    assert (row["broker"], row["run"], row["segment"]) == ("broker-1", RUN, str(path))
    assert (row["at"].timestamp(), row["namespace"], row["group"], row["shard"]) == (0, "", "", "")
    assert row["offset"] is None
    assert "\n" not in row["problem"]
    assert pa.compute.match_substring_regex(pa.scalar(row["problem"]), told).as_py(), row["problem"]


def test_the_rows_before_a_damage_are_kept(tmp_path: Path) -> None:
    """The last row says after how many rows the damage begins."""
    path = write_segment(tmp_path, [])
    table = commits(700).replace_schema_metadata(OURS)
    pq.write_table(table, path, row_group_size=65_536, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[-len(content) // 40] ^= 1
    path.write_bytes(content)
    *whole, last = read_segment(segment_of(path))
    count = sum(batch.num_rows for batch in whole)
    assert last["kind"].to_pylist() == [UNREADABLE]
    assert f"after {count} rows: is torn" in last["problem"][0].as_py()
    assert 65_536 <= count < table.num_rows
    assert pa.Table.from_batches(whole).select(table.column_names) == table.slice(0, count).replace_schema_metadata()
    kept, problem = read_table(segment_of(path), JOURNAL.names)
    assert (kept.num_rows, problem) == (count, last["problem"][0].as_py())
    assert kept["seq"].to_pylist() == list(range(count))


@pytest.mark.parametrize("removed", ["the file", "its directory", "the root"])
def test_a_segment_that_a_task_does_not_find_fails_the_task(tmp_path: Path, removed: str) -> None:
    """A machine may lack the mount: no row may say that the segment is lost."""
    path = write_segment(tmp_path / "j", [{}, {}])
    segment = segment_of(path)
    path.unlink()
    if removed != "the file":
        shutil.rmtree(path.parent if removed == "its directory" else tmp_path / "j")
    for read in (lambda: list(read_segment(segment)), lambda: read_table(segment, ["at"])):
        with pytest.raises(MissingSegmentError, match=r"00000000.parquet: was listed by the driver, but .* does not find it"):
            read()


class Storage:
    """A storage whose files cannot be opened; it lists them, unless it is away."""

    def __init__(self, number: int, *, away: bool = False) -> None:
        self._error = OSError(number, "no")
        self._away = away

    def open_input_file(self, _: str) -> object:
        """Refuses."""
        raise self._error

    def get_file_info(self, _: object) -> list[fs.FileInfo]:
        """List the directory of the only segment."""
        if self._away:
            raise self._error
        return [fs.FileInfo(f"/j/{SEGMENT.relative}", type=fs.FileType.File)]


SEGMENT = Segment("/j", "2025-12-01", "broker-1", RUN, 0, 1)


@pytest.mark.parametrize(("number", "told"), [(errno.EACCES, "change its mode"), (errno.EIO, "cannot be read from its disk")])
def test_a_file_that_may_not_or_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, number: int, told: str) -> None:
    """Simulated, because root may read everything."""
    monkeypatch.setattr(Place, "opened", lambda _: (Storage(number), "/j"))
    (row,) = rows_of(SEGMENT)
    assert told in row["problem"]


@pytest.mark.parametrize(("number", "lists"), [(errno.ETIMEDOUT, True), (errno.EIO, False), (errno.EACCES, False)])
def test_a_storage_that_is_away_is_not_taken_for_a_bad_segment(
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    lists: bool,
) -> None:
    """The task fails, Spark repeats it, and no row is lost. NFS answers EIO when its server is away."""
    monkeypatch.setattr(Place, "opened", lambda _: (Storage(number, away=not lists), "/j"))
    with pytest.raises(OSError, match="no"):
        list(read_segment(SEGMENT))
    with pytest.raises(OSError, match="no"):
        read_table(SEGMENT, ["at"])


def test_a_table_has_the_rows_of_the_chosen_columns(tmp_path: Path) -> None:
    """In their order, strings dictionary-encoded; a segment without rows gives an empty table of the same schema."""
    names = ["offset", "group", "at", "problem"]
    table, problem = read_table(segment_of(write_segment(tmp_path, commits(3))), names)
    assert problem is None
    assert table.to_pylist() == commits(3).select(names).to_pylist()
    assert [pa.types.is_dictionary(field.type) for field in table.schema] == [False, True, False, True]
    empty_table, problem = read_table(segment_of(write_segment(tmp_path, [], 1), 1), names)
    assert (empty_table.num_rows, empty_table.schema, problem) == (0, table.schema, None)


@pytest.mark.parametrize("kind", BAD)
def test_a_table_of_a_bad_segment_is_empty_and_has_the_same_problem(tmp_path: Path, kind: str) -> None:
    """So whoever reads tables tells the same as whoever reads rows."""
    path = write_segment(tmp_path, [{}, {}])
    segment = segment_of(path)
    BAD[kind][0](path)
    table, problem = read_table(segment, JOURNAL.names)
    assert table.num_rows == 0
    assert problem == rows_of(segment)[0]["problem"]


@pytest.mark.parametrize("names", [["offset", "at"], ["segment", "problem"], ["broker"]])
def test_fewer_columns_have_the_same_rows(tmp_path: Path, names: list[str]) -> None:
    """Also if only columns about the segment are selected, and for a bad segment. Columns may be nullable."""
    segment = segment_of(write_segment(tmp_path, commits(3)))
    columns = pa.schema([COLUMNS.field(name).with_nullable(nullable=True) for name in names])
    chosen = pa.Table.from_batches(read_segment(segment, columns))
    assert chosen.schema == columns
    assert chosen.to_pylist() == [{name: row[name] for name in names} for row in rows_of(segment)]
    assert chosen.num_rows == 300
    Path(segment.path).write_text("torn")
    (bad,) = read_segment(segment, columns)
    assert (bad.schema, bad.num_rows) == (columns, 1)


@pytest.mark.parametrize("names", [JOURNAL.names, ["log_id"], ["offset", "log_id", "problem"]])
def test_a_segment_of_an_earlier_release_has_null_where_it_lacks_a_column(tmp_path: Path, names: list[str]) -> None:
    """Which log the bounds are of. Nothing else may be missing."""
    older = commits(3).drop_columns(["log_id"])
    segment = segment_of(write_segment(tmp_path, older))
    table, problem = read_table(segment, names)
    assert (problem, table.num_rows) == (None, 300)
    assert table.to_pylist() == commits(3).select(names).to_pylist()
    rows = pa.Table.from_batches(read_segment(segment, COLUMNS))
    assert rows.select(names).to_pylist() == table.to_pylist()


def test_declared_columns_are_the_journal_and_where_it_is_from() -> None:
    """First the columns of the journal, then those about the segment."""
    assert COLUMNS.names == [*JOURNAL.names, "broker", "run", "segment"]
    assert START.timestamp() * 1000 == RUN
