"""Finding segments: which names match, what is logged, and which directories are not listed again."""

import os
import shutil
import time
from pathlib import Path

import pytest
from pyarrow import fs
from structlog.testing import capture_logs

from adapter.errors import ConfigError
from adapter.pipeline.journal.listing import Lister, Listing, parse_run_key, roots_of, run_key
from tests.pipeline.segments import RUN, segment_path, write_segment

DAY = "2025-12-01"
STRANGE = "north/ä b%.*=1"


def names(listing: Listing) -> list[str]:
    """The found segments as date, broker and number."""
    return sorted(f"{s.date} {s.broker} {s.number}" for run in listing.runs.values() for s in run.values())


def touch(path: Path) -> None:
    """A file that is not Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")


def test_a_segment_is_found_with_all_that_its_name_tells(tmp_path: Path) -> None:
    """Also with a broker whose name is quoted in the path."""
    written = write_segment(tmp_path, [{}], 7, broker=STRANGE)
    (segment,) = Lister([str(tmp_path)]).list().runs[run_key(STRANGE, RUN)].values()
    assert (segment.date, segment.broker, segment.run, segment.number) == (DAY, STRANGE, RUN, 7)
    assert segment.path == str(written)
    assert segment.size == written.stat().st_size
    assert parse_run_key(segment.key) == (STRANGE, RUN)


@pytest.mark.parametrize(
    "other",
    [
        f".open/{RUN}-00000001.parquet",
        f"date={DAY}/broker=b/.{RUN}-00000001.parquet.Xy12Za",  # rsync's temporary name
        f"date={DAY}/broker=b/{RUN}-00000001.parquet.tmp",
        f"date={DAY}/broker=b/{RUN}-1.parquet",
        f"date={DAY}/broker=b/{RUN}-00000001.parquet/{RUN}-00000001.parquet",
        f"date={DAY}/broker=b/sub/{RUN}-00000001.parquet",
        f"date={DAY}/broker=b c/{RUN}-00000001.parquet",  # not quoted
        f"date={DAY}/broker=/{RUN}-00000001.parquet",
        f"date=2025-13-01/broker=b/{RUN}-00000001.parquet",
        f"date=today/broker=b/{RUN}-00000001.parquet",
        f"{RUN}-00000001.parquet",
        f"date={DAY}/note.txt",
    ],
)
def test_what_is_no_finished_segment_does_not_match(tmp_path: Path, other: str) -> None:
    """Open, temporary, renamed or misplaced files."""
    write_segment(tmp_path, [{}], 0, broker="b")
    touch(tmp_path / other)
    assert names(Lister([str(tmp_path)]).list()) == [f"{DAY} b 0"]


def test_a_segment_in_two_directories_is_one(tmp_path: Path) -> None:
    """That of the first directory is read."""
    first = write_segment(tmp_path / "one", [{}], 0)
    write_segment(tmp_path / "two", [{}], 0)
    write_segment(tmp_path / "two", [{}], 1)
    listing = Lister([str(tmp_path / "one"), str(tmp_path / "two")]).list()
    assert names(listing) == [f"{DAY} broker-1 0", f"{DAY} broker-1 1"]
    assert listing.runs[run_key("broker-1", RUN)][0].path == str(first)


def test_a_path_and_a_file_url_find_the_same(tmp_path: Path) -> None:
    """Both are read by pyarrow's file systems."""
    root = tmp_path / "with space"
    write_segment(root, [{}], 0)
    plain, url = Lister([str(root)]).list(), Lister([root.as_uri()]).list()
    assert names(plain) == names(url) == [f"{DAY} broker-1 0"]
    (segment,) = url.runs[run_key("broker-1", RUN)].values()
    assert segment.path.startswith("file:///")


def test_roots_are_absolute_and_each_one_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The working directory of a task may differ from that of the driver."""
    monkeypatch.chdir(tmp_path)
    assert roots_of(["j/", str(tmp_path / "j"), "s3a://b/j/", "s3a://b/j"]) == [str(tmp_path / "j"), "s3a://b/j"]


@pytest.mark.parametrize("url", ["nosuch://host/journal", "file://relative"])
def test_a_url_that_pyarrow_does_not_know_is_refused_by_its_name(url: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=url):
        Lister([url])


def test_no_path_at_all_is_refused() -> None:
    """The error says how to give one."""
    with pytest.raises(ConfigError, match="no path"):
        Lister([])


def test_when_no_directory_is_there_at_first_all_are_named(tmp_path: Path) -> None:
    """A mistyped path ends the job at its start."""
    (tmp_path / "file").touch()
    lister = Lister([str(tmp_path / "typo"), str(tmp_path / "file")])
    with pytest.raises(ConfigError, match=r"typo: does not exist.*file: is no directory"):
        lister.list()


def test_one_directory_that_is_not_there_is_told_once_until_it_comes(tmp_path: Path) -> None:
    """It is not logged again at every trigger."""
    write_segment(tmp_path / "one", [{}], 0)
    lister = Lister([str(tmp_path / "one"), str(tmp_path / "two")])
    with capture_logs() as logs:
        assert lister.list().troubles.keys() == {str(tmp_path / "two")}
        lister.list()
    assert [(entry["event"], entry["path"]) for entry in logs] == [("journal.not_listed", str(tmp_path / "two"))]
    assert "does not exist" in logs[0]["trouble"]
    write_segment(tmp_path / "two", [{}], 1)
    assert not lister.list().troubles


def test_an_empty_directory_is_no_error_but_told(tmp_path: Path) -> None:
    """Its adapter may not have written anything yet; this is logged."""
    lister = Lister([str(tmp_path)])
    with capture_logs() as logs:
        listing = lister.list()
    assert not listing.runs
    assert not listing.failures
    assert [entry["event"] for entry in logs] == ["journal.not_listed"]


def test_all_directories_may_go_away_later(tmp_path: Path) -> None:
    """A running stream waits for them."""
    root = tmp_path / "journal"
    root.mkdir()
    lister = Lister([str(root)])
    lister.list()
    root.rmdir()
    assert not lister.list().runs


def test_what_cannot_be_listed_does_not_hide_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker's directory may not be readable for the job's user."""
    write_segment(tmp_path, [{}], 0, broker="closed")
    write_segment(tmp_path, [{}], 0, broker="open")
    lister = Lister([str(tmp_path)])
    entries = fs.LocalFileSystem.get_file_info

    class Refusing:
        """A file system that refuses: root may read everything."""

        type_name = "refusing"

        def get_file_info(self, what: object) -> object:
            if isinstance(what, fs.FileSelector) and what.base_dir.endswith("broker=closed"):
                raise PermissionError(13, "Permission denied")
            return entries(fs.LocalFileSystem(), what)

    monkeypatch.setattr(lister, "_roots", [(str(tmp_path), Refusing(), str(tmp_path))])
    listing = lister.list()
    assert names(listing) == [f"{DAY} open 0"]
    (trouble,) = listing.failures.values()
    assert "Permission denied" in trouble


class Vanishing(fs.LocalFileSystem):  # type: ignore[misc] # pyarrow has no types
    """A file system where the date directory goes away after its parent was listed."""

    def __init__(self, root: Path, *, with_its_parent: bool) -> None:
        super().__init__()
        self._root = root
        self._with_its_parent = with_its_parent

    def get_file_info(self, what: object) -> object:
        """List, and remove then."""
        found = super().get_file_info(what)
        if isinstance(what, fs.FileSelector) and what.base_dir == str(self._root) and (self._root / f"date={DAY}").exists():
            if self._with_its_parent:
                self._root.rename(self._root.with_name("unmounted"))
                self._root.mkdir()
            else:
                shutil.rmtree(self._root / f"date={DAY}")
        return found


@pytest.mark.parametrize("unmounted", [False, True])
def test_a_directory_that_goes_away_while_it_is_listed_is_listed_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unmounted: bool,
) -> None:
    """If the adapter deleted it, nothing is wrong. If the disk was unmounted, its segments do not count as gone."""
    root = tmp_path / "j"
    write_segment(root, [{}], 0)
    write_segment(root, [{}], 1, date="2025-12-02")
    lister = Lister([str(root)])
    monkeypatch.setattr(lister, "_roots", [(str(root), Vanishing(root, with_its_parent=unmounted), str(root))])
    listing = lister.list()
    assert names(listing) == ([] if unmounted else ["2025-12-02 broker-1 1"])
    assert list(listing.hiding("broker-1")) == ([str(root)] if unmounted else [])


def test_a_directory_that_settled_is_not_read_again_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each trigger would list all segments of all days."""
    write_segment(tmp_path, [{}], 0)
    folder = segment_path(tmp_path, DAY, "broker-1", 0).parent
    read: list[str] = []
    settled = time.time_ns() - 120 * 10**9
    os.utime(folder, ns=(settled, settled))
    lister = Lister([str(tmp_path)])
    monkeypatch.setattr("adapter.pipeline.journal.listing.fs.FileSelector", selecting(read))
    for _ in range(3):
        assert names(lister.list()) == [f"{DAY} broker-1 0"]
    assert read.count(str(folder)) == 1
    write_segment(tmp_path, [{}], 1)
    assert names(lister.list()) == [f"{DAY} broker-1 0", f"{DAY} broker-1 1"]


def test_a_directory_that_changed_just_now_is_read_again(tmp_path: Path) -> None:
    """A second rename within one tick of the file system's clock does not change its modification time."""
    write_segment(tmp_path, [{}], 0)
    folder = segment_path(tmp_path, DAY, "broker-1", 0).parent
    changed = folder.stat().st_mtime_ns
    lister = Lister([str(tmp_path)])
    lister.list()
    write_segment(tmp_path, [{}], 1)
    os.utime(folder, ns=(changed, changed))
    assert names(lister.list()) == [f"{DAY} broker-1 0", f"{DAY} broker-1 1"]


def selecting(read: list[str]) -> object:
    """A FileSelector that records the directories it lists."""
    real = fs.FileSelector

    def select(path: str, **options: bool) -> fs.FileSelector:
        read.append(path)
        return real(path, **options)

    return select
