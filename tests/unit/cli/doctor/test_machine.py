"""What the doctor sees of the machine: versions, limits, the clock."""

import resource
import sys
from pathlib import Path

import pytest

from adapter.cli.doctor import machine
from adapter.cli.doctor.findings import FAIL, OK, WARN
from adapter.cli.doctor.running import Holder


def test_the_version_of_everything(tmp_path: Path) -> None:
    """Also of the RocksDB that wrote the store, by the newest of its option files, which are text."""
    for number, version in (("9", "8.0.0"), ("000010", "10.4.2")):
        (tmp_path / f"OPTIONS-{number}").write_text(f"[Version]\n  rocksdb_version={version}\n")
    (tmp_path / "OPTIONS-000011.dbtmp").write_text("rocksdb_version=11\n")
    (row,) = machine.versions(tmp_path)
    assert row.state == OK
    for name in ("offset-adapter ", "grpcio ", "rocksdict ", "Python ", "the store was written by RocksDB 10.4.2"):
        assert name in row.seen
    for nothing in (None, tmp_path / "none"):
        (row,) = machine.versions(nothing)
        assert "the store" not in row.seen


@pytest.mark.parametrize(("state", "expected"), [(0, OK), (machine.TIME_ERROR, WARN), (None, OK)])
def test_a_clock_that_nothing_synchronizes(monkeypatch: pytest.MonkeyPatch, state: int | None, expected: str) -> None:
    """As the kernel tells."""
    monkeypatch.setattr(machine, "_clock_state", lambda: state)
    assert [row.state for row in machine.clock()] == [expected]


def test_the_clock_of_this_kernel_is_read() -> None:
    """By adjtimex without a change; where that is forbidden it is unknown."""
    assert machine._clock_state() in {None, 0, 1, 2, 3, 4, machine.TIME_ERROR}


@pytest.mark.parametrize(("limit", "expected"), [(1_023, WARN), (1_024, OK)])
def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch, limit: int, expected: str) -> None:
    """By the hard limit, to which a process raises its own; of the process that runs, where it can be read."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, limit))
    (row,) = machine.open_files(None)
    assert (row.state, f"{limit:,} at most, of this command" in row.seen) == (expected, True)
    monkeypatch.setattr(machine, "holder", lambda _: Holder(runs=True, pid=77))
    text = f"Limit Soft Limit Hard Limit Units\nMax open files            1024     {limit + 7}      files\n"
    monkeypatch.setattr(Path, "read_text", lambda path, **_: text if str(path) == "/proc/77/limits" else "")
    (row,) = machine.open_files(Path("/store"))
    assert row.seen == f"{limit + 7:,} at most, of the process 77"


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.delitem(sys.modules, "adapter.sidecar.journal.writer", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (row,) = machine.packages("journal", "journal.path", "adapter.sidecar.journal.writer", "journal")
    assert (row.check, row.state, row.seen) == ("journal", FAIL, "journal.path is set, but pyarrow is not installed")
    assert row.advice.startswith("pip install 'pyarrow<27,>=22'")
