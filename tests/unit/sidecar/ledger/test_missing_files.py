"""Files of an open store that were removed or replaced are detected, whichever they are; RocksDB's own changes are no alarm."""

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from adapter.errors import StoreDamagedError
from adapter.sidecar.ledger.disk import RocksDisk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDisk]:
    """An open store with some records."""
    disk = RocksDisk.open(tmp_path / "store")
    disk.begin("interval")
    _write(disk, 1)
    yield disk
    with suppress(StoreDamagedError):
        disk.close()


def _write(disk: RocksDisk, number: int) -> None:
    batch = disk.batch()
    batch.put(b"key-%d" % number, b"value")
    disk.write(batch)


def _replaced(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    copy.rename(path)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda path: (path / "watermark").unlink(), "watermark: the file that is open is not there any more"),
        (lambda path: _replaced(path / "watermark"), "watermark: the file that is open is not there any more"),
        (lambda path: _replaced(path / "db" / "LOCK"), "db: is not the database that is open"),
        (lambda path: (path / "db" / "LOCK").unlink(), "LOCK: No such file or directory"),
        (lambda path: (path / "db" / "CURRENT").unlink(), "CURRENT: is gone"),
        (lambda path: max((path / "db").glob("*.log")).unlink(), ".log: is gone"),
        (lambda path: path.rename(path.with_name("away")), "watermark: the file that is open is not there any more"),
        (lambda path: (path / "db").rename(path / "away"), "LOCK: No such file or directory"),
    ],
)
def test_a_file_that_is_not_in_its_place_is_seen(
    store: RocksDisk, tmp_path: Path, break_it: Callable[[Path], None], says: str
) -> None:
    """What is written to it would be missing at the next open."""
    assert store.missing() == ""
    break_it(tmp_path / "store")
    assert store.missing().endswith(says)


def test_what_rocksdb_does_by_itself_is_none(store: RocksDisk, tmp_path: Path) -> None:
    """A new WAL replaces the old one; a directory was renamed, and is back."""
    before = max((tmp_path / "store" / "db").glob("*.log"))
    for number in range(3):
        _write(store, number)
        store._db.flush(wait=True)
        assert store.missing() == ""
    assert max((tmp_path / "store" / "db").glob("*.log")) != before
    (tmp_path / "store").rename(tmp_path / "away")
    assert store.missing()
    (tmp_path / "away").rename(tmp_path / "store")
    assert store.missing() == ""


def test_no_descriptor_to_look_with_says_nothing(store: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor the check is skipped, and the store, whose files are open, continues."""

    def none_left(_: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("adapter.sidecar.ledger.disk._names", none_left)
    assert store.missing() == ""
