"""A store of a later version is refused in one sentence, and nothing of it is changed; neither is a damaged mark an old one."""

import errno
import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from rocksdict import Rdict

from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.client.offset_store.store import OffsetStoreError
from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError, StoreVersionError
from adapter.metaservice.rocksdb import repair as meta_repair
from adapter.metaservice.rocksdb import store as meta_store
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.queues import MessageQueue
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.durable import format_mark, rocks
from adapter.runtime.durable.format_mark import ADAPTER_STORE, FILE, META_STORE, OFFSET_FILE, Form
from adapter.sidecar.config import StoreSection
from adapter.sidecar.ledger import disk
from adapter.sidecar.ledger.repair import repair as adapter_repair
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process

KEY = OffsetKey("default", "group", "0")
ROCKSDICT = "rocksdict-config.json"
LATER = "has version 2, and this program reads version 1: start "


class Kind(NamedTuple):
    """One of the two stores in RocksDB: how it is opened, and closed again, and repaired; and its mark within the database."""

    form: Form
    open: Callable[[Path], None]
    repair: Callable[[Path], str]
    family: str
    key: bytes
    later: bytes


def open_adapter_store(path: Path) -> None:
    """Open it, write, close it."""
    with closing(LocalStore.open(path, "interval")) as store:
        assert store.loss is None
        store.write({KEY: OffsetRecord(1, store.seq + 1, live=True, committed_at_ms=1)})


def open_meta_store(path: Path) -> None:
    """Open it, which writes, and close it."""
    RocksDbEngine.open(path).close()


KINDS = (
    Kind(
        ADAPTER_STORE,
        open_adapter_store,
        lambda path: adapter_repair(StoreSection(path=path)),
        "default",
        disk.FORMAT,
        format_mark.encode(ADAPTER_STORE._replace(version=2, since="0.9.0")),
    ),
    Kind(META_STORE, open_meta_store, lambda path: meta_repair.repair(path, 0), meta_store.META, meta_store.SCHEMA, b"3"),
)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.form.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each store."""
    found: Kind = request.param
    return found


@pytest.fixture
def path(kind: Kind, tmp_path: Path) -> Path:
    """A store of this version."""
    path = tmp_path / "store"
    kind.open(path)
    assert marked(kind, path)
    return path


def marked(kind: Kind, path: Path) -> bool:
    """Whether file and database both say this version."""
    file = (path / FILE).exists() and format_mark.decode((path / FILE).read_bytes()) == kind.form
    row = rewritten(kind, path, lambda row: row)
    return file and row in {format_mark.encode(kind.form), b"2"}


def rewritten(kind: Kind, path: Path, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
    """Change the mark within the database of a closed store, as another version does; returns what was there."""
    opened = {"default"} if kind.form is ADAPTER_STORE else {"default", *meta_store.FAMILIES}
    families = {name: rocks.options(create=False) for name in opened}
    db = Rdict(str(path / "db"), rocks.options(create=False), families)
    family = db.get_column_family(kind.family)
    before: bytes | None = family.get(kind.key)
    after = change(before)
    if after is None:
        family.delete(kind.key)
    elif after != before:
        family.put(kind.key, after)
    del family
    db.close()
    return before


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    """All files with their bytes and times; of rocksdict's own file only the bytes, which it writes again even to read."""
    return {
        str(file.relative_to(path)): (file.read_bytes(), 0 if file.name == ROCKSDICT else file.stat().st_mtime_ns)
        for file in path.rglob("*")
        if file.is_file()
    }


def refused(call: Callable[[Path], object], path: Path, error: type[AdapterError], text: str) -> None:
    """The call is refused with one sentence, and nothing beside or below the path has changed."""
    before = contents(path.parent)
    with pytest.raises(error) as raised:
        call(path)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert contents(path.parent) == before


def test_a_store_of_a_later_version_is_neither_opened_nor_repaired(kind: Kind, path: Path) -> None:
    """Whatever its files look like by then."""
    format_mark.write(kind.form._replace(version=2, since="0.9.0"), path)
    for call in (kind.open, kind.repair):
        refused(call, path, StoreVersionError, f"the {kind.form.name} {LATER}offset-adapter 0.9.0 or later")
    for file in [*(path / "db").iterdir(), path / "watermark"]:
        file.write_bytes(b"a form that this program does not know")
    refused(kind.open, path, StoreVersionError, LATER)
    for file in (path / "db").iterdir():
        file.unlink()
    refused(kind.open, path, StoreVersionError, LATER)


def test_without_the_file_the_database_says_that_it_is_of_a_later_version(kind: Kind, path: Path) -> None:
    """As after a backup that left the file out. The watermark may be missing as well."""
    rewritten(kind, path, lambda _: kind.later)
    (path / FILE).unlink()
    for call in (kind.open, kind.repair):
        refused(call, path, StoreVersionError, LATER)
    (path / "watermark").unlink()
    with pytest.raises(StoreVersionError):
        kind.open(path)


def test_a_file_of_an_older_copy_does_not_hide_a_later_version(kind: Kind, path: Path) -> None:
    """The database was restored without it, over another store."""
    rewritten(kind, path, lambda _: kind.later)
    with pytest.raises(StoreVersionError, match=LATER):
        kind.open(path)
    assert rewritten(kind, path, lambda row: row) == kind.later


def test_a_damaged_file_stops_the_start_and_the_database_helps(kind: Kind, path: Path) -> None:
    """It may have said any version. What the error says to do is safe: the database has the mark as well."""
    whole = (path / FILE).read_bytes()
    for damage in (whole[:-4], whole.replace(b"1", b"0"), b"", b"\0" * len(whole)):
        (path / FILE).write_bytes(damage)
        for call in (kind.open, kind.repair):
            refused(call, path, StoreDamagedError, "is damaged, so the version of what it marks is unknown. Nothing was changed.")
    (path / FILE).unlink()
    kind.open(path)
    assert marked(kind, path)


def test_the_store_of_the_other_process_is_refused(kind: Kind, path: Path) -> None:
    """The two settings with each other's directories."""
    (other,) = [each for each in KINDS if each is not kind]
    refused(other.open, path, StoreVersionError, f"belongs to another form, '{kind.form.name}'")


@pytest.mark.parametrize("lacking", ["file", "row", "both"])
def test_a_store_without_a_mark_is_of_version_1_and_gets_it(kind: Kind, path: Path, lacking: str) -> None:
    """As a program before the marks, or a kill -9 between the two, leaves it. A Meta Service's store always had the row."""
    if lacking in {"file", "both"}:
        (path / FILE).unlink()
    if lacking in {"row", "both"} and kind.form is ADAPTER_STORE:
        rewritten(kind, path, lambda _: None)
    kind.open(path)
    assert marked(kind, path)


@pytest.mark.parametrize("left", ["FORMAT.new", "db.new/CURRENT", "db/"])
def test_a_creation_that_was_killed_is_begun_again(kind: Kind, tmp_path: Path, left: str) -> None:
    """Before the store is there, nothing counts; when it is there, it has the mark within it."""
    path = tmp_path / "store"
    (path / left).parent.mkdir(parents=True)
    if left.endswith("/"):
        (path / left).mkdir()
    else:
        (path / left).write_bytes(b"torn")
    kind.open(path)
    assert marked(kind, path)


def full(*_: object) -> None:
    """What a write raises on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_adapter_store_has_its_mark_when_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill -9 behind its creation leaves no store whose version nobody knows."""
    (kind,) = [kind for kind in KINDS if kind.form is ADAPTER_STORE]
    monkeypatch.setattr(disk.RocksDisk, "begin", full)
    with pytest.raises(OSError, match="No space left"):
        kind.open(tmp_path / "store")
    assert rewritten(kind, tmp_path / "store", lambda row: row) == format_mark.encode(ADAPTER_STORE)


def test_a_store_is_marked_from_its_first_moment(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, or out of space, before the file is written: the database says its version already, and the next start goes on."""
    path = tmp_path / "store"
    with monkeypatch.context() as patched:
        patched.setattr(format_mark, "write", full)
        with pytest.raises((DiskFullError, StorageFailedError), match="No space left"):
            kind.open(path)
    assert not (path / FILE).exists()
    assert rewritten(kind, path, lambda row: row) in {format_mark.encode(kind.form), b"2"}
    kind.open(path)
    assert marked(kind, path)


def test_a_store_that_is_refused_is_not_marked(kind: Kind, path: Path) -> None:
    """The mark is the last thing: a store whose files are damaged stays as it is."""
    (path / FILE).unlink()
    (path / "db" / "CURRENT").unlink()
    refused(kind.open, path, StoreDamagedError, "CURRENT file is missing")


@pytest.mark.parametrize("command", ["serve", "meta"])
def test_a_process_ends_with_the_sentence(tmp_path: Path, command: str) -> None:
    """Exit code 1 and one line of the log, as of any start that cannot work; the directory is as it was."""
    services: dict[str, ServiceProcess] = {"serve": adapter_process(tmp_path, "127.0.0.1:1"), "meta": meta_process(tmp_path)}
    service, (form, store) = services[command], {"serve": (ADAPTER_STORE, "adapter"), "meta": (META_STORE, "meta")}[command]
    (tmp_path / store).mkdir()
    format_mark.write(form._replace(version=2, since="0.9.0"), tmp_path / store)
    before = contents(tmp_path / store)
    (tmp_path / "config.toml").write_text(service.settings)
    with ended(service):
        run = [*service.program, command, "--config", str(tmp_path / "config.toml")]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "process.failed" in line]
    assert f"{tmp_path / store / FILE}: the {form.name} {LATER}offset-adapter 0.9.0 or later; docs/upgrade.md tells" in line
    assert contents(tmp_path / store) == before


async def test_an_offset_file_of_a_later_version_is_neither_read_nor_written(tmp_path: Path) -> None:
    """Nor does its .bak stand for it, which may be older. The mark may be missing: a later form has other members."""
    store, queue = LocalFileOffsetStore(tmp_path, "c", "g"), MessageQueue("t", 0, "b")
    for offset in (1, 2):
        store.update_offset(queue, offset)
        await store.persist(queue)
    directory, file = store.path.parent, store.path.read_bytes()
    later = format_mark.encode(OFFSET_FILE._replace(version=2, since="0.9.0"))
    changes: dict[str, tuple[str, bytes, str]] = {
        "mark": (FILE, later, LATER),
        "damaged": (FILE, later[:-2], "is damaged, so the version"),
        "member": ("offsets.json", file.replace(b"{", b'{"version":2,', 1), "is not of version 1: 'version' is an unknown table"),
    }
    for name, data, text in changes.values():
        before = (directory / name).read_bytes()
        (directory / name).write_bytes(data)
        kept = contents(directory)
        again = LocalFileOffsetStore(tmp_path, "c", "g")
        with pytest.raises(OffsetStoreError, match=text):
            await again.load()
        again.update_offset(queue, 3)
        with pytest.raises(OffsetStoreError, match=text):
            await again.persist(queue)
        assert contents(directory) == kept
        (directory / name).write_bytes(before)
    await again.persist(queue)
    await store.load()
