"""What the doctor sees of directories and file systems."""

import errno
import os
from pathlib import Path

import pytest

from adapter.cli.doctor import disk
from adapter.cli.doctor.findings import FAIL, OK, WARN

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
30 27 0:30 / /data\040of\040broker rw - xfs /dev/sdb rw,nobarrier
31 27 0:31 / /run rw,nosuid - tmpfs tmpfs rw,size=1g
32 27 0:32 / /srv ro,relatime shared:2 master:3 - nfs4 server:/srv rw,vers=4.2
33 27 0:33 / /srv rw,relatime - fuse.sshfs me@there: rw
"""
NOBODY = 65_534


@pytest.mark.parametrize(
    ("path", "kind", "point"),
    [
        ("/var/lib/x", "ext4", "/"),
        ("/run/x", "tmpfs", "/run"),
        ("/runx", "ext4", "/"),
        ("/data of broker/x", "xfs", "/data of broker"),
        ("/srv/x", "fuse.sshfs", "/srv"),  # mounted over the NFS
    ],
)
def test_the_mount_of_a_path(path: str, kind: str, point: str) -> None:
    """The deepest one, and of those at one place the last."""
    found = disk.mount_of(Path(path), MOUNTS)
    assert found
    assert (found.kind, found.point) == (kind, point)
    assert disk.mount_of(Path(path), "") is None


@pytest.mark.parametrize(
    ("kind", "options", "state", "text"),
    [
        ("ext4", "rw", OK, "ext4 at /"),
        ("xfs", "rw,nobarrier", WARN, "without barriers"),
        ("tmpfs", "rw", WARN, "a reboot empties it"),
        ("overlay", "rw", WARN, "it goes with its container"),
        ("nfs4", "rw", WARN, "over a network"),
        ("fuse", "rw", WARN, "over a network or another program"),
        ("ext4", "ro", FAIL, "read-only"),
    ],
)
def test_file_systems_that_keep_less_than_a_disk(
    monkeypatch: pytest.MonkeyPatch, kind: str, options: str, state: str, text: str
) -> None:
    """The text of mountinfo is what the kernel would give."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"27 1 254:0 / / {options} - {kind} /dev/x rw\n")
    (row,) = disk.file_system("store file system", "store.path", Path("/"))
    assert (row.state, text in row.seen, bool(row.advice)) == (state, True, state != OK)


def test_a_directory_that_is_there_or_can_be_made(tmp_path: Path) -> None:
    """Nothing is created."""
    (row,) = disk.directory("store directory", "store.path", tmp_path)
    assert (row.state, str(tmp_path) in row.seen) == (OK, True)
    (row,) = disk.directory("store directory", "store.path", tmp_path / "a" / "b")
    assert (row.state, "is not there yet" in row.seen) == (OK, True)
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """In place of the directory, or of one above it."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        (row,) = disk.directory("store directory", "store.path", path)
        assert (row.state, row.seen, row.advice) == (
            FAIL,
            f"{tmp_path}/file is not a directory",
            "name another one in store.path",
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_rights_are_those_of_the_user_who_asks(tmp_path: Path) -> None:
    """Root may do everything, and is told whose the directory is; others are told what to do."""
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    closed = [tmp_path, *tmp_path.parents][:-2]
    modes = {path: path.stat().st_mode for path in closed}
    try:
        for path in closed:  # pytest keeps them to its user
            path.chmod(0o755)
        os.seteuid(NOBODY)
        try:
            (row,) = disk.directory("store directory", "store.path", store)
            (above,) = disk.directory("store directory", "store.path", tmp_path / "none")
        finally:
            os.seteuid(0)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert (row.state, above.state) == (FAIL, FAIL)
    assert f"{store} (drwx------ root) is closed to nobody" in row.seen
    assert "as root: chown -R nobody" in row.advice
    os.chown(store, NOBODY, -1)
    (row,) = disk.directory("store directory", "store.path", store)
    assert (row.state, "run this as nobody" in row.advice) == (OK, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_that_another_user_left_in_the_store(tmp_path: Path) -> None:
    """As after one start by root: the next one of the service is refused by its own files."""
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "000012.sst").touch()
    os.chown(tmp_path / "db" / "000012.sst", NOBODY, -1)
    (row,) = disk.directory("store directory", "store.path", tmp_path)
    assert (row.state, row.advice) == (FAIL, f"as root: chown -R root {tmp_path}")
    assert "000012.sst in it to nobody" in row.seen


def test_others_may_not_write_into_the_store(tmp_path: Path) -> None:
    """A warning: it works, and anybody may delete it."""
    tmp_path.chmod(0o777)
    (row,) = disk.directory("store directory", "store.path", tmp_path)
    assert (row.state, row.advice.startswith(f"chmod 0700 {tmp_path}")) == (WARN, True)


def test_a_sync_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    """Not even a file that a kill could leave: it never has a name."""
    took = disk.sync_times(tmp_path)
    assert 1 <= len(took) <= disk.SYNCS
    assert not list(tmp_path.iterdir())
    (row,) = disk.sync_time("store sync", tmp_path / "not" / "there")
    assert "fdatasync of 4 KiB" in row.seen
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("took", "state"), [([0.001] * 19 + [5.0], OK), ([0.02, 0.02, 0.001], WARN)], ids=["one slow sync", "a slow disk"]
)
def test_a_slow_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, took: list[float], state: str) -> None:
    """By the middle of the times: one outlier says nothing."""
    monkeypatch.setattr(disk, "sync_times", lambda _: took)
    assert [row.state for row in disk.sync_time("store sync", tmp_path)] == [state]


@pytest.mark.parametrize(
    ("number", "state", "text"),
    [
        (errno.EOPNOTSUPP, WARN, "not measured"),
        (errno.EISDIR, WARN, "not measured"),
        (errno.ENOSPC, FAIL, "No space left"),
        (errno.EROFS, FAIL, "Read-only"),
    ],
)
def test_a_disk_that_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, state: str, text: str
) -> None:
    """A file system without unnamed files gets no named one instead; a full disk is a failure."""

    def fails(_: Path) -> list[float]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, "sync_times", fails)
    (row,) = disk.sync_time("store sync", tmp_path)
    assert (row.state, text in row.seen) == (state, True)


@pytest.mark.parametrize(
    ("free_bytes", "files", "journal", "state"),
    [
        (2**40, 2**20, 0, OK),
        (2**40, 0, 0, OK),  # btrfs counts no files
        (2**29, 2**20, 0, WARN),
        (2**26, 2**20, 0, FAIL),
        (2**40, 10, 0, WARN),
        (2**31, 2**20, 2**32, WARN),
        (2**31, 2**20, 2**31 + 100, OK),  # 100 bytes of it are used already
    ],
)
def test_free_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, files: int, journal: int, state: str
) -> None:
    """Bytes, files, and what the journal may still take."""
    (tmp_path / "segment").write_bytes(b"x" * 100)
    found = os.statvfs_result((4096, 4096, 2**40 // 4096, 0, free_bytes // 4096, files, 0, files, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert [row.state for row in disk.free_space("space", tmp_path, journal)] == [state]
