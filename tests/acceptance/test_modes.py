"""Who may read what the processes and the command create: their user alone, whatever the umask was."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process

OPEN = ("sh", "-c", 'umask 0; exec "$@"', "sh")  # how no service manager should start it
PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600


def modes(*roots: Path) -> dict[str, int]:
    """What is open to others than the owner, and what the owner may do more than read and write."""
    found = {}
    for path in [below for root in roots for below in (root, *root.rglob("*"))]:
        mode = path.lstat().st_mode
        if stat.S_IMODE(mode) != (PRIVATE_DIRECTORY if stat.S_ISDIR(mode) else PRIVATE_FILE):
            found[str(path)] = stat.S_IMODE(mode)
    return found


def command(service: ServiceProcess, *arguments: str | Path) -> None:
    """Run a command with a umask that leaves everything open."""
    address = ("--address", service.address)
    subprocess.run([*OPEN, sys.executable, "-m", "adapter", *arguments, *address], check=True, capture_output=True, timeout=60)


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one: a Unix socket is below it."""
    return tmp_path_factory.mktemp("m")


def test_what_is_created_is_for_its_owner_alone(directory: Path) -> None:
    """Stores, watermark, journal, socket and the directories above; then what the command writes."""
    made = directory / "made"
    meta = meta_process(directory)
    journal = f"[journal]\npath = '{made}/journal'\nsegment_max_age_ms = 100"
    adapter = adapter_process(directory, meta.address, top="broker = 'b'", extra=journal, store=made / "adapter")
    adapter.settings = adapter.settings.replace(str(adapter.socket), str(made / "sockets/a.sock"))
    adapter.socket = made / "sockets/a.sock"
    adapter.prefix = meta.prefix = OPEN
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        command(adapter, "commit", "g", "t/0", "1")
        command(adapter, "flush")
        written = directory / "written"
        written.mkdir(PRIVATE_DIRECTORY)
        command(adapter, "export", "-o", written / "offsets.csv")
        command(adapter, "export", "--format", "rocketmq-rocksdb", "-o", written / "store")
        command(adapter, "snapshot", "--output", written)
        command(adapter, "offsets", "reset", "g", "--to-offset", "0", "--export", written / "plan.json")
        assert adapter.stop() == 0
    assert list(made.glob("journal/.open/b/*")) != []
    assert (made / "adapter/watermark").exists()
    assert len(list(written.iterdir())) == 4
    assert modes(made, directory / "meta", written) == {}


def test_a_file_that_is_replaced_keeps_its_mode(directory: Path) -> None:
    """Who could read the last export can read the next one."""
    meta = meta_process(directory)
    adapter = adapter_process(directory, meta.address)
    path = directory / "offsets.csv"
    path.touch(0o640)
    path.chmod(0o640)
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        command(adapter, "commit", "g", "t/0", "1")
        command(adapter, "export", "-o", path)
    assert path.read_text() == "g,t,0,1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
