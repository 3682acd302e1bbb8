"""Looks at a database that is not opened for writing: what they leave on disk."""

from pathlib import Path

import pytest
from rocksdict import Rdict

from adapter.metaservice.rocksdb import store
from adapter.runtime.durable import rocks

OWN = "rocksdict-config.json"


def files(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Of each file: content, time of change, inode."""
    found = {}
    for file in directory.iterdir():
        facts = file.stat()
        found[file.name] = (file.read_bytes(), facts.st_mtime_ns, facts.st_ino)
    return found


def database(directory: Path) -> Path:
    """One with a row that is only in its log."""
    db = Rdict(str(directory / "db"), options=rocks.options())
    db[b"key"] = b"value"
    db.flush_wal(sync=True)
    db.close()
    return directory / "db"


def look(path: Path) -> None:
    """As the start of an adapter, and a Meta Service, a repair and its check look."""
    assert rocks.peek(path, b"key") == b"value"
    db = store.read_only(path, ("default",))
    assert db[b"key"] == b"value"
    db.close()


def test_a_look_changes_no_file_but_rocksdicts_own_which_it_writes_anew(tmp_path: Path) -> None:
    """The same content."""
    path = database(tmp_path)
    before = files(path)
    look(path)
    after = files(path)
    assert after[OWN][0] == before[OWN][0]
    assert {**after, OWN: ()} == {**before, OWN: ()}


@pytest.mark.parametrize("torn", [b"", b'{"raw_mode":fal'])
def test_a_torn_file_of_rocksdicts_own_is_no_harm(torn: bytes, tmp_path: Path) -> None:
    """A process that was killed while it looked, or a full disk, may leave one: no open of ours reads it."""
    path = database(tmp_path)
    (path / OWN).write_bytes(torn)
    look(path)
    (path / OWN).write_bytes(torn)
    with Rdict(str(path), options=rocks.options(), column_families={"default": rocks.options()}) as db:
        assert db[b"key"] == b"value"
