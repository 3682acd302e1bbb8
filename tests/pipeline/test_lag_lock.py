"""One driver at a time writes an output directory."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.lag.lock import only_driver
from adapter.pipeline.places import Place

_HOLD = """
import sys
from adapter.pipeline.lag.lock import only_driver
from adapter.pipeline.places import Place
with only_driver(Place(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_driver(output: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", _HOLD, str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_driver_is_refused_and_a_dead_one_does_not_block_the_next(tmp_path: Path) -> None:
    """The error names the process; kill -9 ends the lock at once."""
    with other_driver(tmp_path) as process:
        with (
            pytest.raises(ConfigError, match=rf"\[lag\] output .* process {process.pid} on .*stop that job"),
            only_driver(Place.of(tmp_path)),
        ):
            pass
        process.kill()
        process.wait()
        with only_driver(Place.of(tmp_path)) as check:
            check()
    with only_driver(Place.of(tmp_path)):
        pass


def test_an_output_that_cannot_be_made_is_told_by_its_name(tmp_path: Path) -> None:
    """A file is in its way."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"\[lag\] output = .*Not a directory"),
        only_driver(Place.of(tmp_path / "file" / "lag")),
    ):
        pass


class Remote(Place):
    """A local directory that is treated as one behind a URL."""

    @property
    def is_remote(self) -> bool:
        """Yes."""
        return True

    def opened(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        return Place(self.url).opened()

    def __truediv__(self, name: str) -> "Remote":  # noqa: D105
        return Remote(f"{self.url}/{name}")


def test_behind_a_url_a_lease_that_is_renewed_refuses_others(tmp_path: Path) -> None:
    """It is given back at the end."""
    output = Remote(str(tmp_path))
    with only_driver(output, renew_s=0.01, expire_s=30) as check:
        check()
        with pytest.raises(ConfigError, match="is being written by process"), only_driver(output, expire_s=30):
            pass
        check()
    assert not (tmp_path / "lease.json").exists()


def test_behind_a_url_the_lease_of_a_dead_driver_is_taken_over(tmp_path: Path) -> None:
    """One that only stood still finds out before its next manifest, and leaves the lease alone."""
    output = Remote(str(tmp_path))
    with only_driver(output, renew_s=3_600, expire_s=0.01) as slept:
        with only_driver(output, renew_s=0.01, expire_s=0.01) as check:
            check()
            with pytest.raises(AdapterError, match="was taken over by process"):
                slept()
        with only_driver(output, renew_s=3_600, expire_s=0.01):
            pass
        (tmp_path / "lease.json").write_text('{"id": "of another", "holder": "me"}')
    assert (tmp_path / "lease.json").exists()
    (tmp_path / "lease.json").write_text("torn")
    with only_driver(output, renew_s=0.01, expire_s=0.01) as check:
        (tmp_path / "lease.json").unlink()
        with pytest.raises(AdapterError, match=r"deleted lease\.json"):
            check()


def test_behind_a_url_a_lease_that_is_half_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDFS shows one that is being renewed as empty: its own driver must not take it for another's."""
    with only_driver(Remote(str(tmp_path)), renew_s=3_600) as check:
        shown = [b"", (tmp_path / "lease.json").read_bytes()]
        monkeypatch.setattr(Place, "read", lambda _: shown.pop(0))
        check()
        assert not shown
        monkeypatch.undo()
