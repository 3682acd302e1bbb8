"""The local store: its content after a close, a crash, a loss and a failed sync."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Rdict

from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError, StoreLockedError
from adapter.model.codec import encode_key, encode_record, group_prefix
from adapter.model.records import GroupKey, Member, OffsetKey, OffsetRecord
from adapter.runtime.durable import rocks
from adapter.runtime.durable.watermark import Loss, Watermark
from adapter.sidecar.ledger import disk
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.write_batch import Stored
from adapter.testing.waiting import eventually
from tests.unit.helpers import KEYS, RECORDS, WatchedStore, crash, key, record, rocks_of, tombstone

A, B, C = key("a"), key("b"), key("c")


def opened(path: Path) -> LocalStore:
    """Open the store of a test."""
    return LocalStore.open(path, "interval")


def behind_its_back(path: Path, change: dict[OffsetKey, bytes | None]) -> None:
    """Change the files of a closed store as damage does, without its bookkeeping."""
    db = Rdict(str(path / "db"), options=rocks.options())
    for where, value in change.items():
        if value is None:
            db.delete(encode_key(where))
        else:
            db.put(encode_key(where), value)
    db.close()


def advance_watermark(path: Path, by: int) -> None:
    """Let the watermark file say that more was acknowledged than the store holds."""
    mark = Watermark.open(path / "watermark")
    mark.advance(mark.value + by)
    mark.close()


def test_every_bit_of_the_tables_counts(tmp_path: Path) -> None:
    """Wherever a bit is flipped, in records or bookkeeping: the open is refused, or the store can be read and compacted."""
    killed = tmp_path / "killed"
    store = opened(tmp_path / "first")
    store.write(
        {A: record(1), B: record(2)}, {GroupKey("ns", f"{number:04}"): Member(1, f"member-{number}") for number in range(500)}
    )
    shutil.copytree(tmp_path / "first", killed)
    store.close()
    for number in range(2):  # starts without a commit: a table with nothing but bookkeeping
        source = killed
        store = opened(source)
        store.write({})
        killed = tmp_path / f"killed-{number}"
        shutil.copytree(source, killed)
        store.close()
    refused: list[str] = []
    path = tmp_path / "store"
    for number, table in enumerate(sorted((killed / "db").glob("*.sst"))):
        data = table.read_bytes()
        step = max(len(data) // 12, 1)
        for at in range(number % 3 * step, len(data), 3 * step):
            shutil.copytree(killed, path)
            (path / "db" / table.name).write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            try:
                store = opened(path)
            except StoreDamagedError as error:
                refused.append(str(error))
            else:
                assert [stored.key for stored in store.scan()] == [A, B]
                rocks_of(store)._db.compact_range(None, None)
                store.write({A: record(3)})  # fails after a compaction that failed
                store.close()
            shutil.rmtree(path)
    assert refused
    assert not [text for text in refused if "offset-adapter repair" not in text]


def test_what_was_written_is_there_with_growing_counters(tmp_path: Path) -> None:
    """Each stored record has a write counter of its own, above all before it."""
    store = opened(tmp_path)
    assert store.write({A: record(1), B: tombstone(2)}).stored == [Stored(A, record(1), 1), Stored(B, tombstone(2), 2)]
    assert store.write({A: record(5)}).stored == [Stored(A, record(5), 3)]
    assert (store.get(A), store.seq_of(A)) == (record(5), 3)
    assert (store.get(B), store.seq_of(B)) == (tombstone(2), 2)
    assert (store.get(C), store.seq_of(C), store.find(C)) == (None, 0, (None, 0))
    assert store.find(B) == (tombstone(2), 2)
    assert (store.seq, store.keys) == (3, 2)
    store.close()


@pytest.mark.parametrize("end", [LocalStore.close, crash], ids=["close", "kill"])
def test_a_store_that_is_opened_again_has_everything(tmp_path: Path, end: object) -> None:
    """Records, counters and count; no loss is reported (1)."""
    store = opened(tmp_path)
    store.write({A: record(1, metadata="m"), B: record(2)})
    store.write({B: None, C: record(3)})
    assert callable(end)
    end(store)
    again = opened(tmp_path)
    assert list(again.scan()) == [Stored(A, record(1, metadata="m"), 1), Stored(C, record(3), 3)]
    assert (again.seq, again.keys, again.loss, again.loss_at_open) == (3, 2, None, False)
    again.write({A: record(9)})
    assert again.seq == 4
    again.close()


BATCHES = st.lists(st.dictionaries(KEYS, st.none() | RECORDS, max_size=4), max_size=8)


@settings(max_examples=settings().max_examples // 2)
@given(batches=BATCHES)
def test_the_bookkeeping_agrees_with_any_sequence_of_batches(
    tmp_path_factory: pytest.TempPathFactory, batches: list[dict[OffsetKey, OffsetRecord | None]]
) -> None:
    """After puts, replacements and removals, a kill and an open find no loss and the right number of keys."""
    path = tmp_path_factory.mktemp("b")
    store = opened(path)
    expected: dict[OffsetKey, OffsetRecord] = {}
    for batch in batches:
        store.write(batch)
        expected = {where: found for where, found in {**expected, **batch}.items() if found is not None}
    crash(store)
    again = opened(path)
    assert {stored.key: stored.record for stored in again.scan()} == expected
    assert (again.keys, again.loss) == (len(expected), None)
    again.close()


def test_a_scan_is_in_key_order_below_its_prefix_and_behind_its_start(tmp_path: Path) -> None:
    """It shows neither the bookkeeping nor other groups."""
    store = opened(tmp_path)
    keys = [key(shard, group) for group in ("g", "gg", "g/") for shard in ("1", "2", "3")]
    store.write({where: record(at) for at, where in enumerate(keys)})
    assert [stored.key for stored in store.scan()] == sorted(keys, key=encode_key)
    prefix = group_prefix(GroupKey("default", "g"))
    assert [stored.key.shard for stored in store.scan(prefix)] == ["1", "2", "3"]
    assert [stored.key.shard for stored in store.scan(prefix, key("1"))] == ["2", "3"]
    assert len(list(store.scan(after=sorted(keys, key=encode_key)[3]))) == 5
    store.close()


def test_the_flushed_watermark_rides_on_the_next_write(tmp_path: Path) -> None:
    """It may be too low, never too high: after a kill, more keys count as dirty, not fewer (3)."""
    store = opened(tmp_path)
    store.write({A: record(1)})
    store.advance_flushed(1)
    crash(store)
    again = opened(tmp_path)
    assert again.flushed_seq == 0
    again.advance_flushed(1)
    again.write({B: record(1)})
    crash(again)
    third = opened(tmp_path)
    assert (third.flushed_seq, third.seq) == (1, 2)
    third.advance_flushed(2)
    third.close()
    last = opened(tmp_path)
    assert last.flushed_seq == 2
    last.close()


def test_a_second_open_is_told_that_the_store_is_in_use(tmp_path: Path) -> None:
    """The first one is not affected."""
    store = opened(tmp_path)
    with pytest.raises(StoreLockedError, match="this process has not yet closed this store"):
        opened(tmp_path)
    store.write({A: record(1)})
    store.close()


def test_a_file_that_is_removed_while_the_room_is_counted_is_no_error(tmp_path: Path) -> None:
    """RocksDB removes logs at any time. Whether there is room is asked again."""
    store = opened(tmp_path)
    assert store._disk.has_room()
    (tmp_path / "db" / "999999.log").symlink_to(tmp_path / "removed")
    assert not store._disk.has_room()
    store.close()


SLOW_FIRST_OPEN = """
import sys, time
from pathlib import Path
from adapter.errors import AdapterError
from adapter.runtime.durable import rocks
from adapter.sidecar.ledger.store import LocalStore

def slowly(path, families, new=rocks.new):
    made = new(path, families)
    time.sleep(1)
    return made

rocks.new = slowly
try:
    store = LocalStore.open(Path(sys.argv[1]), "interval")
except AdapterError as error:
    sys.exit(type(error).__name__)
sys.stderr.write("opened\\n")
sys.stdin.read()
"""


def test_of_two_first_opens_at_once_one_is_told_that_the_store_is_in_use(tmp_path: Path) -> None:
    """Neither process takes the half-made files of the other for damage."""
    command = [sys.executable, "-c", SLOW_FIRST_OPEN, str(tmp_path / "store")]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.stderr.readline() for process in both if process.stderr]
    for process in both:
        process.communicate()
    assert sorted(told) == ["StoreLockedError\n", "opened\n"]


def test_a_process_that_hangs_while_it_opens_the_store_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one says so, and changes nothing."""
    monkeypatch.setattr(disk, "OPENING_S", 0.1)
    hanging = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(hanging, fcntl.LOCK_EX)
    with pytest.raises(StoreLockedError, match=r"another process has been opening this store for 0\.1 s: stop it"):
        opened(tmp_path)
    assert list(tmp_path.iterdir()) == []
    os.close(hanging)
    opened(tmp_path).close()


def test_a_watermark_ahead_of_the_store_is_a_loss(tmp_path: Path) -> None:
    """It is reported at this open and recorded for ever; counters continue above the lost writes (1)."""
    store = opened(tmp_path)
    store.write({A: record(1), B: record(2)})
    crash(store)
    advance_watermark(tmp_path, 5)
    again = opened(tmp_path)
    assert again.loss is not None
    assert (again.loss.writes, again.loss_at_open, again.seq) == (5, True, 7)
    found = again.loss
    crash(again)
    third = opened(tmp_path)
    assert (third.loss, third.loss_at_open, third.seq) == (found, False, 7)
    third.close()


@pytest.mark.parametrize(
    "damage",
    [{A: None}, {A: encode_record(record(1), 1)}, {C: encode_record(record(1), 9)}],
    ids=["vanished", "went back", "appeared"],
)
def test_a_record_that_changed_behind_the_stores_back_is_a_loss(tmp_path: Path, damage: dict[OffsetKey, bytes | None]) -> None:
    """The watermark does not show it, but the sum of the write counters does (1)."""
    store = opened(tmp_path)
    store.write({A: record(1), B: record(2)})
    store.write({A: record(3)})
    store.close()
    behind_its_back(tmp_path, damage)
    again = opened(tmp_path)
    assert isinstance(again.loss, Loss)
    assert again.loss_at_open
    again.write({B: record(7)})
    crash(again)
    third = opened(tmp_path)
    assert not third.loss_at_open
    third.close()


@pytest.mark.parametrize("what", ["db", "files"])
def test_a_store_that_vanished_is_refused_however_often_it_is_started(tmp_path: Path, what: str) -> None:
    """A restart by a supervisor does not create an empty store."""
    store = opened(tmp_path)
    store.write({A: record(1)})
    store.close()
    for file in (tmp_path / "db").iterdir():
        file.unlink()
    if what == "db":
        (tmp_path / "db").rmdir()
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match=r"1 writes were acknowledged here.*offset-adapter repair"):
            opened(tmp_path)


async def test_unsynced_writes_are_counted_until_the_sync(tmp_path: Path) -> None:
    """The number of writes that a power cut could lose now."""
    store = opened(tmp_path)
    store.write({A: record(1), B: record(1)})
    assert (store.unsynced_writes, store.synced_seq) == (2, 0)
    await store.sync()
    assert (store.unsynced_writes, store.synced_seq) == (0, 2)
    store.close()


async def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    """No write, sync or acknowledgement follows, even if RocksDB would report success again."""
    store = opened(tmp_path)
    store.write({A: record(1)})
    disk = rocks_of(store)
    disk._opened.close()
    with pytest.raises(StorageFailedError, match="the sync of the local store failed"):
        await store.sync()
    assert store.failed.is_set()
    assert store.synced_seq == 0
    disk._opened = rocks.open_store(tmp_path / "db", ("default",), "")
    disk._db = disk._opened.db
    for attempt in (store.check, lambda: store.write({B: record(1)})):
        with pytest.raises(StorageFailedError, match="the sync of the local store failed"):
            attempt()
    with pytest.raises(StorageFailedError):
        await store.sync()
    with pytest.raises(StorageFailedError):
        await store.watch()
    store.close()
    again = opened(tmp_path)
    assert [stored.key for stored in again.scan()] == [A]
    assert again.loss is None
    again.close()


def test_a_refused_write_leaves_nothing_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory equals the disk, so the next commit is decided correctly (1)."""
    store = opened(tmp_path)
    store.write({A: record(1)})

    def full(_: object) -> None:
        raise DiskFullError("full by the test")

    with monkeypatch.context() as patched:
        patched.setattr(rocks_of(store), "write", full)
        with pytest.raises(DiskFullError):
            store.write({A: record(2), B: record(1)})
    assert (store.find(A), store.get(B)) == ((record(1), 1), None)
    assert store.states.records(A.group_key).keys() == {"a"}
    store.close()


async def test_a_sync_that_finds_no_space_means_a_full_disk_until_the_store_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later writes are refused as well: a sync that succeeded then would vouch for what the first one did not write (1)."""
    store = opened(tmp_path)
    store.write({A: record(1)})

    async def full() -> None:
        raise DiskFullError("full by the test")

    with monkeypatch.context() as patched:
        patched.setattr(rocks_of(store), "sync", full)
        with pytest.raises(DiskFullError):
            await store.sync()
    assert store.failure == ""
    with pytest.raises(DiskFullError):
        store.write({A: record(2)})
    with pytest.raises(DiskFullError):
        await store.sync()
    assert store.get(A) == record(1)
    with pytest.raises(StorageFailedError, match="has space again"):
        await store.watch()
    store.close()
    again = opened(tmp_path)
    again.write({A: record(2)})
    assert again.get(A) == record(2)
    again.close()


@pytest.mark.parametrize(("has_room", "expected"), [(False, DiskFullError), (True, StorageFailedError)])
def test_a_write_behind_a_sync_that_has_not_told_its_error_yet_asks_whether_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool, expected: type[AdapterError]
) -> None:
    """RocksDB (9.8.4, in rocksdict 0.3.29) names a full disk once: findings/rocksdict-full-disk-is-named-once."""
    store = opened(tmp_path)

    refusing = Mock(get=Mock(return_value=None))
    refusing.write.side_effect = Exception("IO error: Writer has previous error.")
    monkeypatch.setattr(rocks_of(store), "has_room", lambda: has_room)
    with monkeypatch.context() as patched:
        patched.setattr(rocks_of(store), "_db", refusing)
        with pytest.raises(expected):
            store.write({A: record(1)})
    assert bool(store.failure) is has_room
    store.close()


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    """Neither counters nor count; the store has to be opened again (4)."""
    store = opened(tmp_path)
    store.write({A: record(1)})
    rocks_of(store)._db.close()
    with pytest.raises(StorageFailedError, match="a write of the local store failed"):
        store.write({A: record(2)})
    assert (store.seq, store.keys, rocks_of(store).watermark) == (1, 1, 1)
    assert store.failed.is_set()
    store.close()


def test_a_write_that_meets_damage_fails_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As each one does behind a compaction that has met a flipped bit: the store has to be opened again, which says so (4)."""
    store = opened(tmp_path)

    def damaged(_: object) -> None:
        raise StoreDamagedError("Corruption: block checksum mismatch")

    monkeypatch.setattr(rocks_of(store), "write", damaged)
    with pytest.raises(StorageFailedError, match="a write of the local store failed: Corruption"):
        store.write({A: record(2)})
    assert store.failed.is_set()
    assert store.damaged
    store.close()


def test_a_watermark_that_cannot_be_written_fails_the_store(tmp_path: Path) -> None:
    """Without it a later loss would not be detected, so nothing more is acknowledged."""
    store = opened(tmp_path)
    disk = rocks_of(store)
    healthy, disk._watermark = disk._watermark, Watermark.open(tmp_path / "other")
    disk._watermark.close()
    with pytest.raises(StorageFailedError, match="the watermark could not be written"):
        store.write({A: record(1)})
    with pytest.raises(StorageFailedError):
        store.write({B: record(1)})
    disk._watermark = healthy
    store.close()


async def test_the_interval_syncs_once_after_writes_and_not_without(tmp_path: Path) -> None:
    """One sync covers all writes before it; an idle store is not synced."""
    store = WatchedStore.open(tmp_path, "interval")
    task = asyncio.create_task(store.run_sync(partial(anyio.sleep, 0.001)))
    await asyncio.sleep(0)
    for offset in range(3):
        store.write({A: record(offset)})
    await eventually(lambda: store.unsynced_writes == 0)
    assert store.syncs == 1
    store.write({A: record(9)})
    await eventually(lambda: store.unsynced_writes == 0)
    assert store.syncs == 2
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    store.close()


async def test_never_leaves_the_sync_to_the_kernel(tmp_path: Path) -> None:
    """The sync task ends immediately."""
    store = WatchedStore.open(tmp_path, "never")
    store.write({A: record(1)})
    await store.run_sync(partial(anyio.sleep, 0.001))
    assert (store.syncs, store.unsynced_writes) == (0, 1)
    store.close()


async def test_with_always_the_watermark_follows_the_sync(tmp_path: Path) -> None:
    """A power cut between a write and its sync loses nothing acknowledged, and must not raise an alarm (1)."""
    store = LocalStore.open(tmp_path, "always")
    store.write({A: record(1)})
    assert rocks_of(store).watermark == 0
    await store.sync()
    assert rocks_of(store).watermark == store.seq == 1
    store.close()


async def test_a_sync_behind_a_failed_one_proves_nothing(tmp_path: Path) -> None:
    """The kernel has marked the pages as clean, so callers of the second sync get an error too (1)."""
    store = opened(tmp_path)
    store.write({A: record(1)})
    disk, sync = rocks_of(store), rocks_of(store).sync

    async def sync_after_a_failed_one() -> None:
        store.failure = "the sync of another caller failed"
        await sync()

    disk.sync = sync_after_a_failed_one  # type: ignore[method-assign]
    with pytest.raises(StorageFailedError, match="the sync of another caller failed"):
        await store.sync()
    assert store.synced_seq == 0
    crash(store)
