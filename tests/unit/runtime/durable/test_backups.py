"""Backups on disk: what is refused, which file is damaged, and what a restore does not touch."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.errors import AdapterError, InvalidInputError, StoreDamagedError, StoreVersionError
from adapter.runtime.clocks import wall_ms
from adapter.runtime.durable import backups, format_mark
from adapter.runtime.durable.backups import ADAPTER, META, RESTORING, Backup, find, putting_back, refuse_unfinished
from adapter.runtime.durable.checkpoint import File

CONTENT = {"CURRENT": b"MANIFEST-1\n", "000001.sst": b"table", "000002.log": b""}


def made(path: Path, kind: str = ADAPTER) -> Backup:
    """A backup with these files."""
    (path / "db").mkdir(parents=True)
    files = []
    for name, data in CONTENT.items():
        (path / "db" / name).write_bytes(data)
        files.append(File(name, len(data), hashlib.sha256(data).digest()))
    backup = Backup(path, kind, bytes(16), 7, 3, wall_ms(), "b", "1.0", tuple(files))
    backup.write()
    return backup


def test_a_backup_says_what_it_is(tmp_path: Path) -> None:
    """All of it comes back."""
    backup = made(tmp_path / "b")
    assert Backup.load(tmp_path / "b") == backup
    assert find(tmp_path / "b", ADAPTER) == backup
    assert backup.damaged() == {}


def _rewritten(path: Path, **changes: object) -> None:
    values = json.loads(format_mark.unmarked((path / backups.MANIFEST).read_bytes()))
    (path / backups.MANIFEST).write_bytes(format_mark.marked(json.dumps({**values, **changes}).encode()))


def _flipped(path: Path) -> None:
    manifest = path / backups.MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"seq": 7', b'"seq": 8'))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (_flipped, StoreDamagedError, "backup.json: is damaged"),
        (lambda path: _rewritten(path, version=2, since="9.0.0"), StoreVersionError, "start offset-adapter 9.0.0 or later"),
        (lambda path: _rewritten(path, files=[{"name": "../x", "size": 1, "sha256": ""}]), StoreDamagedError, "'../x'"),
        (lambda path: _rewritten(path, store_id=None), StoreDamagedError, "backup.json: is damaged"),
        (lambda path: (path / backups.MANIFEST).unlink(), InvalidInputError, "is no backup"),
        (lambda path: (path / "db/000001.sst").write_bytes(b"other"), StoreDamagedError, "000001.sst: has other content"),
        (lambda path: (path / "db/000001.sst").write_bytes(b"tab"), StoreDamagedError, "000001.sst: has 3 bytes, not 5"),
        (lambda path: (path / "db/CURRENT").unlink(), StoreDamagedError, "CURRENT: is not there"),
        (lambda path: _rewritten(path, kind=META), InvalidInputError, "use `offset-adapter meta restore`"),
    ],
)
def test_what_cannot_be_restored_is_refused_by_name(
    tmp_path: Path, change: Callable[[Path], object], error: type[AdapterError], words: str
) -> None:
    """The error names the file."""
    made(tmp_path / "b")
    change(tmp_path / "b")
    with pytest.raises(error) as caught:
        find(tmp_path / "b", ADAPTER)
    assert words in str(caught.value)


def test_the_newest_backup_of_a_directory_is_found(tmp_path: Path) -> None:
    """By its name, which is its time; what is no backup is passed over."""
    assert backups.name_at(1_795_988_962_623) == "20261129T214922.623Z"
    for at in (1_795_988_962_623, 1_795_988_962_624):
        made(tmp_path / backups.name_at(at))
    (tmp_path / "zzz").mkdir()
    assert find(tmp_path, ADAPTER).path.name.endswith(".624Z")
    with pytest.raises(InvalidInputError, match="is no backup, and has none in it"):
        find(tmp_path / "zzz", ADAPTER)
    with pytest.raises(InvalidInputError, match="No such file"):
        find(tmp_path / "nowhere", ADAPTER)


@pytest.mark.parametrize("name", ["db", "watermark", "running", "FORMAT", "db.repaired"])
def test_a_store_that_is_there_is_left_alone(tmp_path: Path, name: str) -> None:
    """Also what is left of one."""
    backup, store = made(tmp_path / "b"), tmp_path / "store"
    (store / name).mkdir(parents=True)
    (store / name / "file").touch()
    with pytest.raises(InvalidInputError, match=rf"there is a store already \({name}\)"), putting_back(backup, store):
        pass
    assert [path.name for path in store.iterdir()] == [name]


def test_a_restore_that_fails_leaves_nothing_and_one_that_ends_leaves_the_store(tmp_path: Path) -> None:
    """Until its end the directory says that it is none."""
    backup, store = made(tmp_path / "b"), tmp_path / "store"
    store.mkdir()
    with pytest.raises(KeyError), putting_back(backup, store):
        raise KeyError
    assert [*store.iterdir()] == []
    with putting_back(backup, store) as database:
        assert database == store / RESTORING
        with pytest.raises(StoreDamagedError, match="a restore has not come to its end here"):
            refuse_unfinished(store)
    refuse_unfinished(store)
    assert {path.name: path.read_bytes() for path in (store / "db").iterdir()} == CONTENT


def test_write_counters_go_on_above_all_that_may_have_been_used(tmp_path: Path) -> None:
    """Later restores of the same backup above earlier ones, and also where the clock went back since."""
    backup = made(tmp_path / "b")
    older, newer = backup._replace(taken_at_ms=wall_ms() - 60_000), backup._replace(taken_at_ms=wall_ms() + 60_000)
    assert older.unused_seq(7) > backup.unused_seq(7) + 60_000 * 8_000
    assert newer.unused_seq(7) > 2**32
