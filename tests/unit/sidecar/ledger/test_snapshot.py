"""A snapshot of the local store: one instant, complete or an error, and no obstacle to closing the store."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.errors import StorageFailedError, StoreDamagedError
from adapter.model.codec import decode_key, decode_record, decode_seq, encode_key, encode_record
from adapter.model.records import GroupKey, Member, OffsetKey, OffsetRecord
from adapter.runtime.durable import rocks
from adapter.sidecar.ledger import snapshot
from adapter.sidecar.ledger.snapshot import PAGE_BYTES, PAGE_RECORDS, Snapshot, Snapshots
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.waiting import eventually
from tests.unit.helpers import crash, key, record, tombstone

A, B, C = key("a"), key("b"), key("c")
ROWS = [(encode_key(key(name)), encode_record(record(1), seq)) for seq, name in enumerate("abcde", start=1)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """An open, empty store."""
    made = LocalStore.open(tmp_path, "interval")
    yield made
    made.close()


def rest(taken: Snapshot) -> dict[OffsetKey, tuple[OffsetRecord, int]]:
    """The remaining pages of a snapshot, each record with its write counter."""
    found = {}
    while (page := taken.read()).keys:
        rows = zip(page.keys, page.records, strict=True)
        found.update({decode_key(name): (decode_record(value), decode_seq(value)) for name, value in rows})
    return found


def of(rows: list[tuple[bytes, bytes]], records: int) -> Snapshot:
    """A snapshot of these rows that claims to have this many records."""
    return Snapshots().take(iter(rows), records, 0)


def test_a_snapshot_shows_what_was_written_before_it_and_nothing_from_behind_it(store: LocalStore) -> None:
    """Records changed, removed or added later are as they were; bookkeeping and members are left out."""
    store.write({A: record(1, metadata="m"), B: tombstone(2)}, {GroupKey("default", "g"): Member(3)})
    store.advance_flushed(1)
    with store.snapshot() as taken:
        store.write({A: record(9), B: None, C: record(1)})
        assert (taken.records, taken.flushed_seq) == (2, 1)
        assert rest(taken) == {A: (record(1, metadata="m"), 1), B: (tombstone(2), 2)}
    with store.snapshot() as taken:
        assert rest(taken) == {A: (record(9), 3), C: (record(1), 4)}
    assert len(store.snapshots) == 0


async def test_commits_have_their_turns_between_pages(store: LocalStore) -> None:
    """A large store does not block the event loop, and commits between pages are not in the snapshot."""
    keys = [key(f"{number:06}") for number in range(3 * PAGE_RECORDS + 1)]
    store.write({name: record(7) for name in keys})
    turns: list[int] = []

    async def commits() -> None:
        while True:
            store.write({keys[-1]: record(8 + len(turns))})
            turns.append(len(shown))
            await asyncio.sleep(0)

    shown: list[bytes] = []
    with store.snapshot() as taken:
        others = asyncio.create_task(commits())
        async for page in taken.pages():
            assert len(page.keys) <= PAGE_RECORDS
            shown += page.keys
            assert {decode_record(value).offset for value in page.records} == {7}
        others.cancel()
    assert shown == [encode_key(name) for name in keys]
    assert {PAGE_RECORDS, 2 * PAGE_RECORDS, 3 * PAGE_RECORDS} <= set(turns)


async def test_pages_of_long_metadata_stay_small(store: LocalStore) -> None:
    """A page has to fit into a message, so large records make it shorter."""
    store.write({key(f"{number:04}"): record(1, metadata="x" * 4096) for number in range(PAGE_RECORDS)})
    with store.snapshot() as taken:
        sizes = [sum(map(len, page.records)) async for page in taken.pages()]
    assert max(sizes) < PAGE_BYTES + 5_000
    assert sum(sizes) > 3 * PAGE_BYTES


async def test_an_empty_store_has_an_empty_snapshot(store: LocalStore) -> None:
    """It is not taken for damage."""
    with store.snapshot() as taken:
        assert (taken.records, [page async for page in taken.pages()]) == (0, [])


def test_the_store_closes_and_opens_under_a_snapshot(tmp_path: Path) -> None:
    """RocksDB keeps its lock while an iterator exists, so a failed store could not be opened again (1)."""
    store = LocalStore.open(tmp_path, "interval")
    store.write({A: record(1), B: record(2)})
    taken = store.snapshot()
    store.failure = "the disk is gone"
    store.close()
    LocalStore.open(tmp_path, "interval").close()
    with pytest.raises(StorageFailedError, match=r"cannot be read to its end: the disk is gone"):
        taken.read()
    taken.close("again")


def test_a_store_that_failed_gives_no_snapshot(tmp_path: Path) -> None:
    """It might contain writes that are lost."""
    store = LocalStore.open(tmp_path, "interval")
    store.failure = "the sync failed"
    with pytest.raises(StorageFailedError, match="the sync failed"):
        store.snapshot()
    crash(store)


class WatchedLock:
    """A lock that reports the second attempt to acquire it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._comers = 0
        self.contended = threading.Event()

    def __enter__(self) -> None:
        """Acquire it."""
        self._comers += 1
        if self._comers > 1:
            self.contended.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        """Release it."""
        self._lock.release()


def test_a_close_in_a_thread_waits_for_the_slice_that_is_read() -> None:
    """A worker thread closes the store, and RocksDB's iterator must not be in use by then."""
    lock, inside, gone = WatchedLock(), threading.Event(), threading.Event()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        try:
            yield ROWS[0]
            inside.set()
            assert lock.contended.wait(10), "the close does not wait"
            yield ROWS[1]
            yield ROWS[2]
        finally:
            gone.set()

    def close() -> None:
        assert inside.wait(10)
        taken.close("it is over")
        gone_in_time.append(gone.is_set())

    gone_in_time: list[bool] = []
    taken = Snapshots().take(rows(), 3, 0)
    taken._lock = lock  # type: ignore[assignment]
    closing = threading.Thread(target=close)
    closing.start()
    assert len(taken.read().keys) == 3
    closing.join()
    assert gone_in_time == [True]
    with pytest.raises(StorageFailedError, match="it is over"):
        taken.read()


@pytest.mark.parametrize("records", [0, 1, 4, 6, 99])
def test_a_snapshot_of_another_length_than_the_store_is_damage(records: int) -> None:
    """An iterator that ends too early, or records missing in the bookkeeping, make the snapshot fail."""
    with pytest.raises(StoreDamagedError, match=rf"the store has 5 records, not {records} as it should"):
        rest(of(ROWS, records))
    assert len(rest(of(ROWS, len(ROWS)))) == len(ROWS)


def test_a_block_that_cannot_be_read_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    """RocksDB's own iterators end there without an error."""
    whole = rocks.open_store(tmp_path, ("default",), "")
    records = 20_000
    for number in range(records):
        whole.db.put(encode_key(key(f"{number:06}")), encode_record(record(number), number + 1))
    whole.close()
    (file,) = tmp_path.glob("*.sst")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    damaged = rocks.open_store(tmp_path, ("default",), "")
    taken = Snapshots().take(rocks.scan(damaged.db, b"\1", b""), records, 0)
    with pytest.raises(StoreDamagedError, match="Corruption"):
        rest(taken)
    damaged.close()


async def test_a_reader_that_stands_still_loses_its_snapshot(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would keep files on the disk for ever."""
    monkeypatch.setattr(snapshot, "IDLE_S", 0.001)
    store.write({A: record(1), B: record(2)})
    taken = store.snapshot()
    pages = taken.pages()
    assert len((await anext(pages)).keys) == 2
    await eventually(lambda: not len(store.snapshots))
    with pytest.raises(StorageFailedError, match=r"its reader did nothing for 0\.001 s"):
        await anext(pages)


async def test_a_reader_that_goes_on_keeps_its_snapshot(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit is for each page."""
    monkeypatch.setattr(snapshot, "IDLE_S", 30.0)
    loop = asyncio.get_running_loop()
    store.write({A: record(1)})
    with store.snapshot() as taken:
        assert [len(page.keys) async for page in taken.pages()] == [1]
        timers = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        assert timers == []
