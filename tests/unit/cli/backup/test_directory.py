"""The directory of backups: what it refuses, shares, deletes, and how it mends a damaged file. The store is a real one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from adapter.cli.backup.directory import BackupDirectory
from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.rpc import backup_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.durable.backups import ADAPTER, META, Backup, backups_in
from adapter.runtime.durable.checkpoint import Sent
from adapter.sidecar.ledger.store import LocalStore
from tests.unit.helpers import key, record

Reply = backup_pb.BackupStoreReply


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """An open store with some records."""
    opened = LocalStore.open(tmp_path / "store", "interval")
    opened.write({key(str(at)): record(at) for at in range(100)})
    yield opened
    opened.close()


async def take(
    store: LocalStore, path: Path, *, kind: str = ADAPTER, store_id: bytes = b"", keep: int = 0, taken_at_ms: int = 0
) -> BackupDirectory:
    """A backup as the command takes it, without the call."""
    with BackupDirectory.opened(path) as directory:
        known = directory.known()
        head = Reply.Store(
            kind=kind, id=store_id or store.store_id, seq=store.seq, taken_at_ms=taken_at_ms or wall_ms(), broker="b", version="1"
        )
        directory.begin(head, ADAPTER)
        async for part in store.checkpoints.read(known):
            if isinstance(part, bytes):
                directory.add(Reply(data=part))
            else:
                file = backup_pb.BackupFile(**part.file._asdict())
                directory.add(Reply(sent=file) if isinstance(part, Sent) else Reply(known=file))
        directory.finish()
        if keep:
            directory.keep(keep)
        return directory


def receive(path: Path, head: Reply.Store, replies: Sequence[Reply]) -> None:
    """Take what a server sends."""
    with BackupDirectory.opened(path) as directory:
        directory.begin(head, ADAPTER)
        for reply in replies:
            directory.add(reply)
        directory.finish()


async def test_backups_share_what_did_not_change_and_each_can_be_deleted(tmp_path: Path, store: LocalStore) -> None:
    """The file is there once, under as many names as there are backups with it."""
    path = tmp_path / "b"
    assert (await take(store, path)).sent
    assert not (await take(store, path)).sent
    store.write({key("new"): record(1)})
    assert (await take(store, path, keep=2)).sent
    older, newest = map(Backup.load, backups_in(path))
    assert (older.rows, newest.rows) == (100, 101)
    (shared,) = [file.name for file in newest.files if file.name.endswith(".sst") and file in older.files][:1]
    assert (newest.database / shared).stat().st_nlink == 2
    assert sorted(entry.name for entry in newest.database.iterdir()) == [file.name for file in newest.files]
    newest.check_files()


async def test_the_new_backup_is_kept_where_the_clock_went_back(tmp_path: Path, store: LocalStore) -> None:
    """It is the one that was asked for, though its name says that it is the oldest."""
    for at in (3_000, 2_000, 1_000):
        await take(store, tmp_path / "b", taken_at_ms=at, keep=2)
    assert [path.name[-11:] for path in backups_in(tmp_path / "b")] == ["000001.000Z", "000003.000Z"]


async def test_a_damaged_file_is_told_and_sent_again(
    tmp_path: Path, store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """So the next backup is whole. One whose list is damaged is passed over."""
    path = tmp_path / "b"
    await take(store, path)
    (first,) = map(Backup.load, backups_in(path))
    table = next(file.name for file in first.files if file.name.endswith(".sst"))
    (first.database / table).write_bytes(b"rotten")
    assert [file.name for file in (await take(store, path)).sent] == [table]
    assert f"{table}: has 6 bytes" in capsys.readouterr().err
    first_path, second = backups_in(path)
    Backup.load(second).check_files()
    (second / "backup.json").write_text("rotten")
    assert [file.name for file in (await take(store, path)).sent] == [table]
    assert "the next older one is used" in capsys.readouterr().err
    assert first_path == first.path


async def test_what_a_directory_cannot_take_is_refused(tmp_path: Path, store: LocalStore) -> None:
    """And nothing is left of it."""
    path = tmp_path / "b"
    await take(store, path)
    with pytest.raises(InvalidInputError, match="use `offset-adapter meta backup`"):
        await take(store, path, kind=META)
    with pytest.raises(InvalidInputError, match="has backups of another store"):
        await take(store, path, store_id=b"another one's id")
    with pytest.raises(StoreDamagedError, match="is the store"):
        await take(store, tmp_path / "new", store_id=b"another one's id")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(InvalidInputError, match=r"has no backups, but other files \(file\)"):
        await take(store, tmp_path / "full")
    with BackupDirectory.opened(path), pytest.raises(InvalidInputError, match="another command takes a backup"):
        await take(store, path)
    with pytest.raises(InvalidInputError, match="Not a directory"):
        await take(store, tmp_path / "full/file")
    assert [entry.name for entry in path.iterdir()] == [found.name for found in backups_in(path)]


async def test_what_was_not_received_as_it_was_sent_is_no_backup(tmp_path: Path, store: LocalStore) -> None:
    """Other bytes, a name that leaves the directory, and files that are not all of a store."""
    head = Reply.Store(kind=ADAPTER, id=store.store_id, seq=store.seq, taken_at_ms=1)
    for replies, words in (
        ([Reply(data=b"a"), Reply(sent=backup_pb.BackupFile(name="x", size=1, sha256=bytes(32)))], "was not received"),
        ([Reply(sent=backup_pb.BackupFile(name="../x"))], "is not a name"),
        ([Reply(known=backup_pb.BackupFile(name="x"))], "was told as known"),
        ([], "cannot be used"),
    ):
        with pytest.raises(StoreDamagedError, match=words):
            receive(tmp_path / "b", head, replies)
        assert [*(tmp_path / "b").iterdir()] == []
