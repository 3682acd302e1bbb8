"""Which files `reconcile` accepts as snapshots, by their Parquet footers. Spark is not needed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapter.errors import ConfigError
from adapter.model.schemas import BROKER, JOURNAL, JOURNAL_VERSION, SNAPSHOT, TAKEN_AT_MS, VERSION_OF_JOURNAL, VERSION_OF_SNAPSHOT
from adapter.pipeline.places import Place
from adapter.pipeline.reconcile.snapshots import find_snapshots

GOOD = {VERSION_OF_SNAPSHOT: "1", BROKER: "b", TAKEN_AT_MS: "5"}


def write(path: Path, schema: pa.Schema = SNAPSHOT, **changes: str | None) -> Path:
    """A file without rows whose metadata is GOOD with these changes."""
    names = {"version": VERSION_OF_SNAPSHOT, "broker": BROKER, "taken_at": TAKEN_AT_MS}
    metadata = GOOD | {names[name]: value for name, value in changes.items()}
    said = {name: value for name, value in metadata.items() if value is not None}
    pq.write_table(schema.empty_table().replace_schema_metadata(said), path)
    return path


def test_of_each_broker_the_newest_snapshot_is_read(tmp_path: Path) -> None:
    """Older ones are listed; hidden files and other file types are ignored."""
    (tmp_path / "more").mkdir()
    write(tmp_path / "1.parquet", broker="b", taken_at="7")
    write(tmp_path / "2.parquet", broker="b", taken_at="10")
    write(tmp_path / "3.parquet", broker="a", taken_at="1")
    write(tmp_path / ".4.parquet.123", broker="c")
    write(tmp_path / "_5.parquet", broker="c")
    (tmp_path / "notes.txt").write_text("x")
    named = write(tmp_path / "more" / "named", broker="d")
    found = find_snapshots([Place.of(tmp_path), Place.of(named), Place.of(tmp_path / "2.parquet")])
    assert [(file.broker, file.taken_at_ms, file.place.name) for file in found.newest] == [
        ("a", 1, "3.parquet"),
        ("b", 10, "2.parquet"),
        ("d", 5, "named"),
    ]
    assert [file.place.name for file in found.older] == ["1.parquet"]
    assert found.unreadable == []


def torn(path: Path) -> None:
    """A file as an interrupted copy leaves it."""
    whole = write(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def of_the_journal(path: Path) -> None:
    """A journal segment in the wrong directory."""
    table = JOURNAL.empty_table().replace_schema_metadata({VERSION_OF_JOURNAL: JOURNAL_VERSION, BROKER: "b"})
    pq.write_table(table, path)


BAD = {
    "torn": (torn, "is torn or no Parquet file: take it again with `offset-adapter snapshot` ("),
    "empty": (lambda path: path.write_bytes(b""), "is torn or no Parquet file"),
    "text": (lambda path: path.write_text("group,topic,0,1\n" * 99), "is torn or no Parquet file"),
    "journal": (of_the_journal, "is a Parquet file, but no snapshot of an adapter: move it away"),
    "version": (lambda path: write(path, version="2\n"), "is a snapshot of version 2\N{REPLACEMENT CHARACTER}, this is for 1: "),
    "columns": (lambda path: write(path, SNAPSHOT.remove(3)), "says that it is a snapshot, but has other columns"),
    "types": (lambda path: write(path, SNAPSHOT.set(5, pa.field("epoch", pa.int32()))), "but has other columns"),
    "no broker": (lambda path: write(path, broker=None), "does not say of which broker it is, or when it was taken"),
    "no time": (lambda path: write(path, taken_at="soon"), "does not say of which broker it is, or when it was taken"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_file_that_is_no_snapshot_is_named_with_the_reason(fault: str, tmp_path: Path) -> None:
    """Other snapshots are still read."""
    make, reason = BAD[fault]
    make(tmp_path / "bad.parquet")
    write(tmp_path / "good.parquet")
    found = find_snapshots([Place.of(tmp_path)])
    assert [file.place.name for file in found.newest] == ["good.parquet"]
    ((place, problem),) = found.unreadable
    assert place == Place.of(tmp_path / "bad.parquet")
    assert reason in problem


@pytest.mark.parametrize("name", ["", "bad.parquet"])
def test_without_any_snapshot_nothing_is_compared(name: str, tmp_path: Path) -> None:
    """An empty comparison would look like success."""
    if name:
        (tmp_path / name).write_text("x")
    with pytest.raises(ConfigError, match="there is no snapshot to compare; take it again with `offset-adapter snapshot`"):
        find_snapshots([Place.of(tmp_path)])


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Even if another one has snapshots: its brokers would be missing without notice."""
    write(tmp_path / "good.parquet")
    with pytest.raises(ConfigError, match="no-such-place: is not there"):
        find_snapshots([Place.of(tmp_path), Place.of(tmp_path / "no-such-place")])
