"""The file that exists while a store is open: it distinguishes a crash of the machine from a kill of the process."""

from pathlib import Path

import pytest

from adapter.sidecar.config import WalSync
from adapter.sidecar.ledger import boot_marker
from adapter.sidecar.ledger.store import LocalStore
from tests.unit.helpers import crash, key, record

OTHER_BOOT = "00000000-0000-0000-0000-000000000000"


def left_running(directory: Path, content: str | None, wal_sync: WalSync = "interval") -> LocalStore:
    """Open the store of a killed process again, with this content of the file (None: unchanged)."""
    store = LocalStore.open(directory, wal_sync)
    store.write({key(): record(5)})
    crash(store)
    if content is not None:
        (directory / "running").write_text(content)
    return LocalStore.open(directory, wal_sync)


def test_a_killed_process_on_a_machine_that_stayed_up_lost_nothing(tmp_path: Path) -> None:
    """Its writes are in the page cache (1)."""
    store = left_running(tmp_path, None)
    assert store.loss is None
    store.close()


@pytest.mark.parametrize("wal_sync", ["interval", "never"])
def test_a_machine_that_went_down_may_have_lost_what_was_not_synced(tmp_path: Path, wal_sync: WalSync) -> None:
    """Even without a trace on the disk: one alarm, and the recovery looks for acknowledged offsets (1)."""
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
    """It may have been torn when the machine went down."""
    store = left_running(tmp_path, content)
    assert store.loss_at_open
    store.close()


def test_a_clean_close_takes_the_file_away(tmp_path: Path) -> None:
    """A reboot after a clean close is no reason for an alarm."""
    store = LocalStore.open(tmp_path, "interval")
    assert boot_marker.BOOT_ID.read_text().strip() in (tmp_path / "running").read_text()
    store.close()
    assert not (tmp_path / "running").exists()
    assert not boot_marker.machine_went_down(tmp_path / "running")
