"""Writing files atomically: a file has its old or its new content, never a part."""

import errno
import io
import os
from pathlib import Path

import pytest

from adapter.errors import InvalidInputError
from adapter.runtime.durable import files


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """An existing file is replaced, and no temporary file is left."""
    path = tmp_path / "f"
    for data in (b"first", b"second, and longer", b""):
        files.write(str(path), data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_who_reads_the_old_file_reads_all_of_it(tmp_path: Path) -> None:
    """The new file is renamed over the old one, so a reader that opened the old one is not affected."""
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        files.write(str(path), b"new")
        assert reader.read() == b"old"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The file that it points to is replaced."""
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    files.write(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_device_is_not_replaced_by_a_file() -> None:
    """A rename over /dev/null would break the machine."""
    with pytest.raises(InvalidInputError, match="/dev/null: is neither a regular file nor a new one"):
        files.write("/dev/null", b"x")
    assert Path("/dev/null").is_char_device()


def _no_space(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is reported, and no temporary file is left."""
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _no_space)
        with pytest.raises(InvalidInputError, match="f: cannot be written: No space left on device"):
            files.write(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InvalidInputError, match="no/f: cannot be written: No such file or directory"):
        files.write(str(tmp_path / "no" / "f"), b"new")


def test_standard_input_is_a_file_while_it_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is copied to a file that can be read several times at any position; a path is used as it is."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped")))
    with files.on_disk(files.STDIO) as path:
        assert [path.read_bytes(), path.read_bytes()] == [b"piped", b"piped"]
    assert not path.exists()
    with files.on_disk(str(tmp_path / "f")) as path:
        assert path == tmp_path / "f"


def test_who_fails_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    """No temporary file is left."""
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with files.replacing(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
