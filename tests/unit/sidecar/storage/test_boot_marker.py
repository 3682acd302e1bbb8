"""The file that stands while a store is open: it tells a machine that went down from a process that was killed."""

from pathlib import Path

import pytest

from adapter.sidecar.config import WalSync
from adapter.sidecar.storage import boot_marker
from adapter.sidecar.storage.store import LocalStore
from tests.unit.helpers import crash, key, record

OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


def left_running(directory: Path, content: str | None, wal_sync: WalSync = "interval") -> LocalStore:
    """A store that was killed, opened again with this in its file (None: as it was)."""
    store = LocalStore.open(directory, wal_sync)
    store.write({key(): record(5)})
    crash(store)
    if content is not None:
        (directory / "running").write_text(content)
    return LocalStore.open(directory, wal_sync)


def test_a_killed_process_on_a_machine_that_stayed_up_lost_nothing(tmp_path: Path) -> None:
    """What it wrote is with the kernel (1)."""
    store = left_running(tmp_path, None)
    assert store.loss is None
    store.close()


@pytest.mark.parametrize("wal_sync", ["interval", "never"])
def test_a_machine_that_went_down_may_have_lost_what_was_not_synced(tmp_path: Path, wal_sync: WalSync) -> None:
    """Acknowledged, and without a trace on the disk: alarmed once, and asked for from then on (1)."""
    store = left_running(tmp_path, f"{OTHER_BOOT} {wal_sync}\n", wal_sync)
    assert store.loss_at_open
    crash(store)
    again = LocalStore.open(tmp_path, wal_sync)
    assert (again.loss_at_open, again.loss) == (False, store.loss)
    again.close()


def test_with_always_a_machine_that_went_down_lost_nothing(tmp_path: Path) -> None:
    """Every acknowledgement came after a sync (1)."""
    store = left_running(tmp_path, f"{OTHER_BOOT} always\n", "always")
    assert store.loss is None
    store.close()


@pytest.mark.parametrize("content", ["", "\0\0\0", f"{OTHER_BOOT}"])
def test_a_file_that_cannot_be_read_is_taken_for_the_worse(tmp_path: Path, content: str) -> None:
    """It was torn by what took the machine down."""
    store = left_running(tmp_path, content)
    assert store.loss_at_open
    store.close()


def test_a_clean_close_takes_the_file_away(tmp_path: Path) -> None:
    """A reboot after it means nothing."""
    store = LocalStore.open(tmp_path, "interval")
    assert boot_marker.BOOT_ID.read_text().strip() in (tmp_path / "running").read_text()
    store.close()
    assert not (tmp_path / "running").exists()
    assert not boot_marker.machine_went_down(tmp_path / "running")
