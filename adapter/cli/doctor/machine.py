"""The versions of everything, the limit of open files, and the clock of this machine."""

import ctypes
import platform
import re
import resource
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import adapter
from adapter.cli.doctor.findings import FAIL, OK, WARN, Finding
from adapter.cli.doctor.running import holder
from adapter.runtime.descriptors import FEW
from adapter.runtime.version import install_extra

PACKAGES = ("offset-adapter", "grpcio", "protobuf", "rocksdict", "pydantic", "uvloop")
TIME_ERROR = 5  # what adjtimex returns for a clock that nothing synchronizes
_TIMEX_BYTES = 1_024  # of a struct timex, which has about 200


def versions(database: Path | None) -> Iterator[Finding]:
    """Versions of this program, Python and the libraries; and of the RocksDB that wrote the store at `database` last."""
    named = [f"{name} {_version(name)}" for name in PACKAGES]
    written = _rocksdb_version(database) if database else ""
    rocksdb = [f"the store was written by RocksDB {written}"] if written else []
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("versions", OK, ", ".join([*named, f"Python {platform.python_version()}", system, *rocksdb]))


def open_files(store: Path | None) -> Iterator[Finding]:
    """The hard limit of open files: of the process that has a store open, or of this command, which a service may not share."""
    limit, whose = _limit_of(holder(store).pid if store else None)
    seen = f"{limit:,} at most, {whose}"
    if limit < FEW:
        yield Finding(
            "open files", WARN, seen, f"raise it to 65,536: LimitNOFILE= of systemd, nofile of a container; least: {FEW}"
        )
    else:
        yield Finding("open files", OK, seen)


def clock() -> Iterator[Finding]:
    """Whether the kernel knows that something synchronizes its clock."""
    state = _clock_state()
    if state is None:
        yield Finding("clock", OK, "the kernel does not tell whether it is synchronized")
    elif state == TIME_ERROR:
        advice = "run chrony or systemd-timesyncd; expiry compares this clock with the Meta Service's (30 s apart are too many)"
        yield Finding("clock", WARN, "nothing synchronizes it", advice)
    else:
        yield Finding("clock", OK, "synchronized")


def packages(name: str, setting: str, module: str, named: str) -> Iterator[Finding]:
    """Whether the packages of an extra are installed, which a setting needs: `module` of this program imports them."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        seen = f"{setting} is set, but {error.name} is not installed"
        yield Finding(name, FAIL, seen, f"{install_extra(named)}; the process does not start without it")
    else:
        yield Finding(name, OK, f"what {setting} needs is installed")


def installed() -> str:
    """The version of this program, as a process reports it."""
    try:
        return adapter.__version__
    except PackageNotFoundError:
        return "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed as a package)"


def _rocksdb_version(database: Path) -> str:
    """From the newest OPTIONS file of a RocksDB, which is text; empty if there is none."""
    try:
        newest = max(database.glob("OPTIONS-*[0-9]"), key=lambda path: int(path.name.rpartition("-")[2]), default=None)
        found = re.search(r"^\s*rocksdb_version=(\S+)", newest.read_text(errors="replace"), re.MULTILINE) if newest else None
    except (OSError, ValueError):
        return ""
    return found[1] if found else ""


def _limit_of(pid: int | None) -> tuple[int, str]:
    if pid is not None:
        try:
            text = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8")
        except OSError:
            text = ""
        found = re.search(r"^Max open files\s+\d+\s+(\d+)", text, re.MULTILINE)
        if found:
            return int(found[1]), f"of the process {pid}"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard, "of this command; that of the process is its service's"


def _clock_state() -> int | None:
    """What adjtimex (man 2 adjtimex) returns when it only reads; None if it may not be called."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else int(state)
