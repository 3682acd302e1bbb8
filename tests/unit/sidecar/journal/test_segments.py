"""The journal's directory: names and lifetime of its files, and use by several processes."""

import errno
import os
import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from adapter.model.schemas import BROKER as BROKER_KEY
from adapter.model.schemas import JOURNAL, JOURNAL_VERSION, VERSION_OF_JOURNAL
from adapter.sidecar.config import JournalSection
from adapter.sidecar.journal.frames import framed, write_all
from adapter.sidecar.journal.segments import SegmentFiles
from tests.unit.journaling import DAY, DAY_MS, NOW_MS, batch_of, files_of, offsets_in, open_segments, rows_in, segments

KIB_64 = 65_536
MIB = 2**20


def written(path: Path, offsets: list[int], at_ms: int = NOW_MS) -> SegmentFiles:
    """A run that wrote these offsets, and has not finished its segment."""
    files = files_of(path, at_ms)
    files.open()
    files.append(batch_of(offsets, at_ms=at_ms), at_ms)
    return files


def test_a_finished_segment_is_where_spark_looks(tmp_path: Path) -> None:
    """date=/broker= directories, a name with run and number, compressed, with version and broker in its metadata."""
    files = written(tmp_path, [1, 2])
    assert segments(tmp_path) == []
    assert [found.name for found in open_segments(tmp_path)] == [f"{NOW_MS}-00000000.batches"]
    files.finish()
    files.append(batch_of([3], 2), NOW_MS)
    files.finish()
    below = tmp_path / f"date={DAY}" / "broker=b%2F1"
    assert segments(tmp_path) == [below / f"{NOW_MS}-{number:08d}.parquet" for number in range(2)]
    assert open_segments(tmp_path) == []
    found = pq.ParquetFile(segments(tmp_path)[0])
    assert found.schema_arrow == JOURNAL
    assert found.metadata.metadata[VERSION_OF_JOURNAL] == JOURNAL_VERSION.encode()
    assert found.metadata.metadata[BROKER_KEY] == b"b/1"
    assert found.metadata.row_group(0).column(0).compression == "ZSTD"
    assert [row["seq"] for row in rows_in(tmp_path)] == [0, 1, 2]
    assert not list((tmp_path / ".open").rglob("*.tmp"))


def test_a_segment_never_has_rows_of_two_dates(tmp_path: Path) -> None:
    """Over midnight UTC, and also if the clock goes back over it."""
    files = files_of(tmp_path)
    files.open()
    midnight = NOW_MS - NOW_MS % DAY_MS + DAY_MS
    for seq, at_ms in enumerate((midnight - 1, midnight, midnight + 5, midnight - 1)):
        files.append(batch_of([seq], seq, at_ms), at_ms)
    files.finish()
    assert [(found.parts[-3], found.name[-11:-8]) for found in segments(tmp_path)] == [
        (f"date={DAY}", "000"),
        ("date=2023-11-15", "001"),
        (f"date={DAY}", "002"),
    ]
    assert offsets_in(tmp_path) == [0, 1, 2, 3]


def test_a_full_segment_is_finished_before_the_next_row(tmp_path: Path) -> None:
    """Its size is measured before compression; segment numbers have no gap."""
    files = files_of(tmp_path, segment_max_bytes=KIB_64)
    files.open()
    for at in range(100):
        assert all(found.stat().st_size < KIB_64 + 20_000 for found in open_segments(tmp_path))
        files.append(batch_of(range(100 * at, 100 * at + 100), 100 * at), NOW_MS)
    files.finish()
    assert len(segments(tmp_path)) > 10
    assert [int(found.stem[-8:]) for found in segments(tmp_path)] == list(range(len(segments(tmp_path))))
    assert offsets_in(tmp_path) == list(range(10_000))


def test_what_a_killed_run_left_becomes_a_segment(tmp_path: Path) -> None:
    """Under its own run and number, up to its last complete batch."""
    killed = written(tmp_path, [1, 2])
    killed.append(batch_of([3], 2), NOW_MS)
    killed.close()
    (left,) = open_segments(tmp_path)
    with left.open("ab") as file:
        file.write(framed(batch_of([4], 3).serialize())[:-1])
    (left.parent / "1234567890123-00000000.tmp").write_bytes(b"half a Parquet file")
    with capture_logs() as logs:
        files = written(tmp_path, [5], NOW_MS + DAY_MS)
    assert [(found.parts[-3], found.stem) for found in segments(tmp_path)] == [(f"date={DAY}", f"{NOW_MS}-00000000")]
    assert offsets_in(tmp_path) == [1, 2, 3]
    assert [entry["event"] for entry in logs] == ["journal.torn", "journal.recovered"]
    files.finish()
    assert offsets_in(tmp_path) == [1, 2, 3, 5]
    assert not list((tmp_path / ".open").rglob("*.tmp"))


@pytest.mark.parametrize("left", [b"", b"\0" * 5000, framed(JOURNAL.serialize())])
def test_a_segment_without_rows_is_left_out(tmp_path: Path, left: bytes) -> None:
    """After a kill before its first batch, or when a power cut left only zeros."""
    written(tmp_path, [1]).close()
    open_segments(tmp_path)[0].write_bytes(left)
    files_of(tmp_path, NOW_MS + 1).open()
    assert (segments(tmp_path), open_segments(tmp_path)) == ([], [])


def test_killed_before_it_removed_the_open_one_a_segment_is_finished_again(tmp_path: Path) -> None:
    """The result is the same file, once."""
    written(tmp_path, [1, 2]).close()
    (left,) = open_segments(tmp_path)
    data = left.read_bytes()
    first = files_of(tmp_path, NOW_MS + 1)
    first.open()
    first.close()
    (found,) = segments(tmp_path)
    before = found.read_bytes()
    left.write_bytes(data)
    again = files_of(tmp_path, NOW_MS + 2)
    again.open()
    assert segments(tmp_path) == [found]
    assert found.read_bytes() == before
    assert again._counts.segments == 1
    assert open_segments(tmp_path) == []


def test_a_segment_of_an_older_version_keeps_it(tmp_path: Path) -> None:
    """Its schema and metadata are not changed, so readers know how to read it."""
    written(tmp_path, [1]).close()
    older = JOURNAL.remove(JOURNAL.get_field_index("problem"))
    schema = older.with_metadata({VERSION_OF_JOURNAL: "0"})
    open_segments(tmp_path)[0].write_bytes(
        framed(schema.serialize()) + framed(batch_of([1]).drop_columns(["problem"]).serialize())
    )
    files_of(tmp_path, NOW_MS + 1).open()
    found = pq.ParquetFile(segments(tmp_path)[0])
    assert (found.schema_arrow, found.metadata.metadata[VERSION_OF_JOURNAL]) == (older, b"0")


@pytest.mark.parametrize("version", ["2", "x", None])
def test_a_segment_that_a_later_version_left_open_is_left_to_it(tmp_path: Path, version: str | None) -> None:
    """Its rows may mean something else; the file stays as it is, and segments of this version are written beside it."""
    written(tmp_path, [1]).close()
    (left,) = open_segments(tmp_path)
    schema = JOURNAL.with_metadata({VERSION_OF_JOURNAL: version} if version else {})
    left.write_bytes(framed(schema.serialize()) + framed(batch_of([1]).serialize()))
    content = left.read_bytes()
    files = written(tmp_path, [2, 3], NOW_MS + 1)
    files.finish()
    files.close()
    assert (open_segments(tmp_path), left.read_bytes()) == ([left], content)
    (own,) = segments(tmp_path)
    assert pq.ParquetFile(own).metadata.num_rows == 2


def test_a_run_has_a_number_above_all_before(tmp_path: Path) -> None:
    """Also if the clock went back, or segments or the directory of open ones were deleted."""
    for at_ms, expected in ((NOW_MS, NOW_MS), (NOW_MS, NOW_MS + 1), (NOW_MS - DAY_MS, NOW_MS + 2), (NOW_MS + 9, NOW_MS + 9)):
        files = written(tmp_path, [1], at_ms)
        files.finish()
        files.close()
        (found,) = segments(tmp_path)
        assert found.stem == f"{expected}-00000000"
        if at_ms != NOW_MS + 9:
            found.unlink()
    (tmp_path / ".open" / "b%2F1" / "lock").write_bytes(b"\0\0")
    files = written(tmp_path, [1])
    files.finish()
    assert segments(tmp_path)[-1].stem == f"{NOW_MS + 10}-00000000"


def test_the_oldest_segments_are_deleted_over_the_bound(tmp_path: Path) -> None:
    """Of this broker, over all runs and dates; the open one counts. Empty directories are removed."""
    stranger = tmp_path / f"date={DAY}" / "broker=other" / f"{NOW_MS}-00000000.parquet"
    foreign = tmp_path / f"date={DAY}" / "broker=b%2F1" / "notes.parquet"
    for path in (stranger, foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * MIB)
    written(tmp_path, [1], NOW_MS - DAY_MS).finish()
    old = files_of(tmp_path, NOW_MS + 1, segment_max_bytes=KIB_64, disk_max_bytes=MIB)
    with pytest.raises(BlockingIOError):
        old.open()  # the run before has not left
    files = files_of(tmp_path / "own", NOW_MS, segment_max_bytes=KIB_64, disk_max_bytes=MIB)
    files.open()
    for at in range(300):  # whose metadata takes most of a file
        files.append(batch_of(range(at * 7919, at * 7919 + 20), at * 20, NOW_MS + at * DAY_MS), NOW_MS + at * DAY_MS)
        if at % 10 == 9:
            held = sum(found.stat().st_size for found in (*segments(tmp_path / "own"), *open_segments(tmp_path / "own")))
            assert held <= MIB
    counts = files._counts
    kept = segments(tmp_path / "own")
    assert counts.deleted_segments > 0
    assert (counts.segments, counts.bytes) == (len(kept), sum(found.stat().st_size for found in kept))
    assert [int(found.stem[-8:]) for found in kept] == list(range(counts.deleted_segments, 299))
    assert len(list((tmp_path / "own").glob("date=*"))) == len(kept)
    assert stranger.exists()
    assert foreign.exists()


def test_where_no_segment_can_be_deleted_nothing_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator took the older directories away, as for an archive: the bound holds, and rows wait until it can be kept."""
    files = written(tmp_path, [1])
    files.finish()
    files._disk_max_bytes = files._held
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", _refused)
        for _ in range(3):
            with pytest.raises(PermissionError):
                files.append(batch_of([2], 1), NOW_MS)
    files.append(batch_of([2], 1), NOW_MS)
    files._disk_max_bytes = MIB
    files.finish()
    assert offsets_in(tmp_path) == [2]


def _refused(path: Path, *, missing_ok: bool = False) -> None:  # noqa: ARG001 - as the method
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_the_bound_holds_for_what_former_runs_left(tmp_path: Path) -> None:
    """It is enforced at the start."""
    for at in range(5):
        files = written(tmp_path, list(range(50)), NOW_MS + at)
        files.finish()
        files.close()
    size = segments(tmp_path)[0].stat().st_size
    files = files_of(tmp_path, NOW_MS + 9)
    files._disk_max_bytes = 3 * size
    files.open()
    assert [found.stem for found in segments(tmp_path)] == [f"{NOW_MS + at}-00000000" for at in (2, 3, 4)]
    assert (files._counts.segments, files._counts.deleted_segments) == (3, 2)


def test_two_adapters_of_one_name_do_not_write_to_one_directory(tmp_path: Path) -> None:
    """The second one gets an error that says what to do, until the first is gone. Other brokers have their own lock."""
    first = written(tmp_path, [1])
    second = files_of(tmp_path, NOW_MS + 1)
    for _ in range(2):
        with pytest.raises(BlockingIOError, match=r"another adapter writes here as 'b/1': give each its own broker"):
            second.open()
    assert len(open_segments(tmp_path)) == 1
    other = SegmentFiles(tmp_path, "c", JournalSection(path=tmp_path), second._counts, NOW_MS)
    other.open()
    first.finish()
    first.close()
    second.open()
    second.append(batch_of([2]), NOW_MS)
    second.finish()
    assert offsets_in(tmp_path) == [1, 2]


def test_a_write_that_failed_half_way_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch is written twice, and none follows an incomplete one."""
    files = written(tmp_path, [1])

    def half(file: int, data: bytes, at: int) -> None:
        write_all(file, data[: len(data) // 2], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("adapter.sidecar.journal.segments.write_all", half)
    with pytest.raises(OSError, match="No space left"):
        files.append(batch_of([2], 1), NOW_MS)
    with pytest.raises(OSError, match="No space left"):
        files.finish()
    assert segments(tmp_path) == []
    monkeypatch.setattr("adapter.sidecar.journal.segments.write_all", write_all)
    files.append(batch_of([2], 1), NOW_MS)
    files.append(batch_of([3], 2), NOW_MS)
    files.finish()
    assert offsets_in(tmp_path) == [1, 2, 3]
    assert [found.stem[-8:] for found in segments(tmp_path)] == ["00000000"]


def test_a_path_that_cannot_be_a_directory_is_an_error_each_time(tmp_path: Path) -> None:
    """Until it can be created."""
    (tmp_path / "file").write_text("in the way")
    files = files_of(tmp_path / "file" / "journal")
    for _ in range(2):
        with pytest.raises(NotADirectoryError):
            files.open()
    (tmp_path / "file").unlink()
    files.open()
    files.append(batch_of([1]), NOW_MS)
    files.finish()
    assert offsets_in(tmp_path / "file" / "journal") == [1]


def test_rows_outlive_a_directory_that_was_removed_under_them(tmp_path: Path) -> None:
    """Finished segments are gone; the rows of the open one are written again with the next."""
    path = tmp_path / "journal"
    files = written(path, [1])
    for found in sorted(path.rglob("*"), reverse=True):
        found.unlink() if found.is_file() else found.rmdir()
    path.rmdir()
    files.finish()
    files.append(batch_of([2], 1), NOW_MS)
    files.finish()
    assert offsets_in(path) == [1, 2]


@pytest.mark.parametrize(("root", "directories", "file"), [(0o700, 0o700, 0o600), (0o750, 0o750, 0o640), (0o2750, 0o2750, 0o640)])
def test_finished_segments_are_for_the_group_that_an_operator_made_the_directory_for(
    tmp_path: Path, root: int, directories: int, file: int
) -> None:
    """Spark may run as another user of that group; open segments are for the adapter's user only. The umask has no effect."""
    journal = tmp_path / "journal"
    journal.mkdir()
    journal.chmod(root)
    mask = os.umask(0o077)
    try:
        written(journal, [1]).finish()
    finally:
        os.umask(mask)
    (segment,) = segments(journal)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (journal, segment.parent.parent, segment.parent, segment)] == [
        root,
        directories,
        directories,
        file,
    ]
    assert stat.S_IMODE((journal / ".open").stat().st_mode) & 0o077 == 0
