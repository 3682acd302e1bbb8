"""A start that dies while it makes a store: the next one makes it, and none takes a store that lost files for a new one."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapter.errors import StoreDamagedError
from adapter.metaservice.rocksdb import store as meta_store
from adapter.sidecar.ledger.store import LocalStore

OPENS = {
    "adapter": "from adapter.sidecar.ledger.disk import RocksDisk; opened = lambda path: RocksDisk.open(path)",
    "meta": "from adapter.metaservice.rocksdb.store import open_store as opened",
}
SCRIPT = """
import os, resource, sys
from pathlib import Path
{imports}
if int(sys.argv[2]):
    highest = max(int(name) for name in os.listdir("/proc/self/fd")) + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
print("begins", flush=True)
try:
    opened(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, flush=True)
else:
    print("made", flush=True)
sys.stdin.read()
"""
LIMITS = (1, 3, 6, 9)  # open files beyond those of the process


def begun(kind: str, path: Path, more_files: int = 0) -> "subprocess.Popen[bytes]":
    """A process that makes a store and waits."""
    script = SCRIPT.format(imports=OPENS[kind])
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path), str(more_files)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def assert_opens(kind: str, path: Path) -> None:
    """The next start has no complaint."""
    if kind == "adapter":
        store = LocalStore.open(path, "always")
        assert store.loss is None
        store.close()
    else:
        opened = meta_store.open_store(path)
        assert opened.loss is None
        assert opened.state.records == 0


@pytest.mark.parametrize("kind", OPENS)
def test_a_start_without_file_descriptors_can_be_repeated(kind: str, tmp_path: Path) -> None:
    """RocksDB opens ten and more; wherever it is stopped, nothing that was stored is lost, for there was nothing."""
    processes = {limit: begun(kind, tmp_path / str(limit), limit) for limit in LIMITS}
    made = {limit: process.communicate(b"", 60)[0].decode().split() for limit, process in processes.items()}
    assert made[LIMITS[0]] == ["begins", "StorageFailedError"], "the limit has stopped nothing"
    for limit in LIMITS:
        assert_opens(kind, tmp_path / str(limit))


@pytest.mark.parametrize("kind", OPENS)
def test_a_store_that_cannot_be_opened_for_want_of_file_descriptors_is_not_called_damaged(kind: str, tmp_path: Path) -> None:
    """Who is told to repair it would lose what is intact."""
    for _ in range(2):
        assert begun(kind, tmp_path / "store").communicate(b"", 60)[0] == b"begins\nmade\n"
    for limit in LIMITS:
        said = begun(kind, tmp_path / "store", limit).communicate(b"", 60)[0].decode().split()
        assert said[1] in {"made", "StorageFailedError"}
    assert_opens(kind, tmp_path / "store")


@pytest.mark.parametrize("kind", OPENS)
def test_a_start_that_is_killed_can_be_repeated(kind: str, tmp_path: Path) -> None:
    """At instants all over the making of a store."""
    for number in range(4):
        process = begun(kind, tmp_path / str(number))
        assert process.stdout
        assert process.stdout.readline() == b"begins\n"
        time.sleep(number * 0.008)
        process.kill()
        process.communicate()
        assert_opens(kind, tmp_path / str(number))


@pytest.mark.parametrize("left", ["db", "db.new"])
def test_what_has_files_and_no_current_is_no_new_store(left: str, tmp_path: Path) -> None:
    """A store whose CURRENT is gone is refused; what was never given the name of a store is made anew."""
    process = begun("meta", tmp_path / "meta")
    assert process.stdout
    assert [process.stdout.readline(), process.stdout.readline()] == [b"begins\n", b"made\n"]
    process.kill()
    process.communicate()
    (tmp_path / "meta" / "db" / "CURRENT").unlink()
    (tmp_path / "meta" / "db").rename(tmp_path / "meta" / left)
    if left == "db":
        with pytest.raises(StoreDamagedError, match="its CURRENT file is missing"):
            meta_store.open_store(tmp_path / "meta")
    else:
        assert_opens("meta", tmp_path / "meta")
