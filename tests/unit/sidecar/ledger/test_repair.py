"""What `repair` does with a store that it cannot copy, that another process wants, or that belongs to another user."""

import errno
import fcntl
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapter.errors import StorageFailedError
from adapter.metaservice.rocksdb import repair as meta_repair
from adapter.sidecar.config import StoreSection
from adapter.sidecar.ledger import repair as module
from adapter.sidecar.ledger.repair import repair, start_from_meta
from adapter.sidecar.ledger.store import LocalStore

NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that no process has open."""
    found = tmp_path / "store"
    LocalStore.open(found, "interval").close()
    return found


def is_locked(path: Path) -> bool:
    """True if this process cannot lock the store, as the start of an adapter does."""
    with (path / "db" / "LOCK").open("ab") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_no_adapter_opens_the_store_while_it_is_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager starts it again and again, or for the next commit."""
    copyfile, locked = shutil.copyfile, list[bool]()
    with multiprocessing.get_context("spawn").Pool(1) as pool:

        def copy(source: Path, target: Path, *, follow_symlinks: bool = True) -> None:
            copyfile(source, target, follow_symlinks=follow_symlinks)
            locked.append(pool.apply(is_locked, (path,)))

        monkeypatch.setattr(shutil, "copyfile", copy)
        assert repair(StoreSection(path=path)).startswith("Repaired: 0 keys")
    assert set(locked) == {True}


def test_a_store_that_cannot_be_copied_stays_as_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk: the reason is told, and half a copy is no copy."""

    def full(_: Path, target: Path, **__: object) -> None:
        Path(target).touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    before = {file.name: file.read_bytes() for file in (path / "db").iterdir()}
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageFailedError, match=r"cannot be copied to .*No space left on device.*Nothing was changed"):
        repair(StoreSection(path=path))
    assert [found.name for found in path.parent.iterdir()] == ["store"]
    assert {file.name: file.read_bytes() for file in (path / "db").iterdir()} == before


def test_a_copy_that_is_there_is_never_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two repairs of one name: names are of a second, and a clock may be set back."""
    monkeypatch.setattr(module, "time", SimpleNamespace(strftime=lambda _: "20261127T220000"))
    assert repair(StoreSection(path=path)).startswith("Repaired")
    with pytest.raises(StorageFailedError, match=r"damaged-20261127T220000: cannot be made: File exists"):
        repair(StoreSection(path=path))
    assert (path.with_name("store.damaged-20261127T220000") / "db" / "CURRENT").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can repair the store of another user")
@pytest.mark.parametrize(
    "run",
    [lambda path: repair(StoreSection(path=path)), lambda path: meta_repair.repair(path, 0)],
    ids=["adapter", "Meta Service"],
)
def test_root_repairs_no_store_of_another_user(path: Path, run: Callable[[Path], str]) -> None:
    """The process could not open what root writes, which is readable to root alone."""
    os.chown(path, NOBODY, -1)
    with pytest.raises(StorageFailedError, match=r"belongs to nobody, .*: run this as nobody"):
        run(path)
    assert [found.name for found in path.parent.iterdir()] == ["store"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    "run",
    [
        lambda path: repair(StoreSection(path=path)),
        lambda path: start_from_meta(StoreSection(path=path)),
        lambda path: meta_repair.repair(path, 0),
    ],
    ids=["repair", "start_from_meta", "meta repair"],
)
def test_a_user_who_may_not_look_at_a_store_is_told_so(path: Path, run: Callable[[Path], str]) -> None:
    """In a sentence that names what is closed."""
    path.parent.chmod(0o700)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(StorageFailedError, match="Permission denied"):
            run(path)
    finally:
        os.seteuid(0)
