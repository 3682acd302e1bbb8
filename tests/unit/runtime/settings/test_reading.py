"""Files that do not end, that nobody writes, and whose file system does not answer."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from adapter.errors import ConfigError
from adapter.runtime.settings.certificates import PemFilePaths
from adapter.runtime.settings.certificates import _read as read_pem
from adapter.runtime.settings.config import load_file
from adapter.runtime.settings.reading import FILE_MAX, Reader, read_file
from adapter.runtime.settings.reloading import Reloading
from adapter.runtime.settings.secret_files import read_token
from adapter.sidecar.config import LIVE, AdapterConfig
from adapter.testing.waiting import PATIENCE_S, eventually


class Hung:
    """A read that does not return until the test lets it."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def __call__(self) -> str:
        """Read."""
        self.goes_on.wait(2 * PATIENCE_S)
        return "read"


@pytest.fixture
def hung() -> Iterator[Hung]:
    """One, which ends with the test."""
    made = Hung()
    yield made
    made.goes_on.set()


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    """A pipe would be waited for; /dev/zero has no end. As configuration, as token, as certificate."""
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    said = "directory" if kind == "directory" else "is not a regular file"
    with pytest.raises(ConfigError, match=said):
        load_file(path, AdapterConfig)
    with pytest.raises(ConfigError, match=said):
        read_token(path, "admin.token_file")
    with pytest.raises(ConfigError, match=said):
        read_pem(PemFilePaths(path, None, None), "meta.tls", 0)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    """4 MiB: a configuration has some KiB."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(FILE_MAX)
    assert len(read_file(path)[0]) == FILE_MAX
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ConfigError, match=r"has more than 4,194,304 bytes"):
        load_file(path, AdapterConfig)


async def test_who_waits_for_a_read_that_hangs_is_told(hung: Hung) -> None:
    """And so is who comes next, at once: threads do not pile up."""
    reader = Reader(seconds=0.01)
    with pytest.raises(ConfigError, match="their file system does not answer"):
        await reader.read(hung)
    before = threading.active_count()
    with pytest.raises(ConfigError, match="has not ended"):
        await reader.read(lambda: "never begun")
    assert threading.active_count() == before
    hung.goes_on.set()
    await eventually(lambda: _reads(reader))


def _reads(reader: Reader) -> bool:
    with suppress(ConfigError):
        return reader.begin(lambda: "read").result(PATIENCE_S) == "read"
    return False


async def test_what_a_read_raises_is_raised() -> None:
    """In its place."""

    def fails() -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match=r"^no$"):
        await Reader().read(fails)


async def test_a_reload_whose_read_hangs_is_refused_and_later_ones_work(tmp_path: Path, hung: Hung) -> None:
    """It hung for ever, silently: no token was taken any more, and SIGTERM did not end the process."""
    path = tmp_path / "a.toml"
    path.write_text("[log]\nlevel = 'debug'\n")
    loaded = load_file(path, AdapterConfig)
    reader = Reader(seconds=0.01)
    reloading = Reloading(loaded.settings, LIVE, loaded, poll_s=0.01, reader=reader)
    running = asyncio.create_task(reloading.run())
    with pytest.raises(ConfigError):
        await reader.read(hung)
    with pytest.raises(ConfigError, match="does not answer"):
        await reloading.reload()
    assert "does not answer" in reloading.last_error
    await eventually(lambda: "does not answer" in reloading.files_error)
    assert reloading.differs
    hung.goes_on.set()
    await eventually(lambda: not reloading.files_error and not reloading.differs)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def test_a_read_that_hangs_does_not_keep_a_process_from_its_end(hung: Hung) -> None:
    """Its thread is a daemon: a process ends without it."""
    Reader().begin(hung)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "files"] == [True]
