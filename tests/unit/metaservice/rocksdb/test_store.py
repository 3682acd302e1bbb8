"""The embedded store: a start finds everything that was acknowledged or is refused; a repair reports what is lost."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from rocksdict import Rdict

from adapter.errors import StorageFailedError, StoreDamagedError, StoreLockedError
from adapter.metaservice.rocksdb import repair, store
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.metaservice.rocksdb.metadata import RocksDbMetadata
from adapter.metaservice.rocksdb.store import DATA, FAMILIES, REPAIRED, check, open_store
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, StoreReport
from adapter.runtime.durable import rocks
from adapter.runtime.durable.watermark import Watermark
from adapter.testing.waiting import eventually
from tests.durability.wal_damage import DAMAGE, WAL_DAMAGE
from tests.unit.helpers import key, record

CLUSTER = "c"
KEYS = [key(f"s{number:03}") for number in range(40)]
STORE = StoreReport("broker-a", "/data/adapter", bytes(range(16)), 7)
Records = dict[OffsetKey, OffsetRecord]


@contextlib.asynccontextmanager
async def running(path: Path) -> AsyncIterator[RocksDbEngine]:
    """An engine whose syncs run."""
    engine = RocksDbEngine.open(path)
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        task.cancel()
        await asyncio.wait([task])
        engine.close()


async def fill(engine: RocksDbEngine, offsets: range) -> None:
    """Save each offset for each key, each with a metadata entry; then save a reset together with a report."""
    for offset in offsets:
        for at in range(0, len(KEYS), 10):
            await engine.save(CLUSTER, [SaveEntry(each, record(offset, committed_at_ms=1)) for each in KEYS[at : at + 10]])
        await RocksDbMetadata(engine).put(CLUSTER, f"k{offset}", b"value")
    await engine.save(CLUSTER, [SaveEntry(KEYS[0], record(5, epoch=offsets.stop << 32, committed_at_ms=1))], STORE)


async def held(engine: RocksDbEngine) -> Records:
    """All records."""
    return dict((await engine.list_page(CLUSTER, (), 1_000, b"")).entries)


def copy_open(store: Path, target: Path) -> None:
    """Copy an open store, as a kill leaves it. RocksDB may remove a file that it needs no more meanwhile: then once again."""
    while True:
        try:
            shutil.copytree(store, target)
        except shutil.Error:
            shutil.rmtree(target)
        else:
            return


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a kill leaves it: a table and a log."""
    directory = tmp_path_factory.mktemp("killed")

    async def build() -> None:
        async with running(directory / "first") as engine:
            await fill(engine, range(1, 6))
            copy_open(directory / "first", directory / "second")
        async with running(directory / "second") as engine:
            await fill(engine, range(6, 11))
            copy_open(directory / "second", directory / "killed")

    asyncio.run(build())
    return directory / "killed"


def files(path: Path) -> dict[str, bytes]:
    """The contents of the files in a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_store_is_refused_as_it_is_until_it_is_repaired(damage: str, killed: Path, tmp_path: Path) -> None:
    """At every start. After the repair the loss is recorded, and the mark shows it to adapters (1, 2)."""
    path = tmp_path / "meta"
    shutil.copytree(killed, tmp_path / "intact")
    async with running(tmp_path / "intact") as engine:
        before, (mark,) = await held(engine), engine.marks()
    shutil.copytree(killed, path)
    DAMAGE[damage](path / "db")
    damaged = files(path)
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="meta repair"):
            RocksDbEngine.open(path)
    assert files(path) == damaged
    told = repair.repair(path, 0)
    (kept,) = path.glob("damaged-*")
    assert str(kept) in told
    assert {name: data for name, data in files(kept).items() if name.startswith("db")} == {
        name: data for name, data in damaged.items() if name.startswith("db")
    }
    async with running(path) as engine:
        after, (repaired,) = await held(engine), engine.marks()
        loss = engine.loss()
        await fill(engine, range(11, 12))
    assert all(record <= before[each] for each, record in after.items())
    assert repaired.revision > mark.revision
    assert (repaired.store_id, repaired.incarnation) != (mark.store_id, mark.incarnation)
    assert after == before or loss
    if damage in {*WAL_DAMAGE} - {"wal missing", "wal truncated to half", "zeroed page in the middle of the wal"}:
        assert len(after) == len(before)  # what is behind the damage is found
    RocksDbEngine.open(path).close()


async def test_no_revision_of_the_metadata_is_given_twice_after_a_loss(tmp_path: Path) -> None:
    """A compare-and-set with a lost revision must not succeed by chance."""
    async with running(tmp_path / "meta") as engine:
        for _ in range(3):
            await RocksDbMetadata(engine).put(CLUSTER, "k", b"kept")
        copy_open(tmp_path / "meta" / "db", tmp_path / "older")
        last = [await RocksDbMetadata(engine).put(CLUSTER, "k", b"lost") for _ in range(3)][-1]
        copy_open(tmp_path / "meta", tmp_path / "damaged")
    shutil.rmtree(tmp_path / "damaged" / "db")
    shutil.copytree(tmp_path / "older", tmp_path / "damaged" / "db")
    repair.repair(tmp_path / "damaged", 0)
    async with running(tmp_path / "damaged") as engine:
        found = await RocksDbMetadata(engine).get(CLUSTER, "k")
        assert found
        assert (found.value, found.revision) == (b"kept", 3)
        assert await RocksDbMetadata(engine).put(CLUSTER, "k", b"new") > last


@pytest.mark.parametrize("damage", ["CURRENT missing", "bit flipped in the MANIFEST", "MANIFEST truncated to half"])
async def test_a_repair_finds_everything_when_only_the_list_of_files_is_damaged(
    damage: str, killed: Path, tmp_path: Path
) -> None:
    """In the tables and in the logs; the newest logs have rows of column families without a table."""
    shutil.copytree(killed, tmp_path / "intact")
    async with running(tmp_path / "intact") as engine:
        before = await held(engine)
        metadata = (await RocksDbMetadata(engine).list_page(CLUSTER, "", 100, "")).entries
        known = await engine.report_store(CLUSTER, STORE, b"", 9)
    shutil.copytree(killed, tmp_path / "meta")
    DAMAGE[damage](tmp_path / "meta" / "db")
    repair.repair(tmp_path / "meta", 0)
    async with running(tmp_path / "meta") as engine:
        assert await held(engine) == before
        assert (await RocksDbMetadata(engine).list_page(CLUSTER, "", 100, "")).entries == metadata
        assert await engine.report_store(CLUSTER, STORE, b"", 9) == known


async def test_every_bit_of_the_log_counts(killed: Path, tmp_path: Path) -> None:
    """Wherever a bit of the log is flipped: the start is refused, or everything is there."""
    (log,) = [file for file in (killed / "db").glob("*.log") if file.stat().st_size]
    data = log.read_bytes()
    path = tmp_path / "meta"
    shutil.copytree(killed, path)
    whole, _ = check(path, 1)
    for at in (*range(3, len(data), max(len(data) // 40, 1)), *range(len(data) - 60, len(data), 7)):
        (path / "db" / log.name).write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(StoreDamagedError):
            assert check(path, whole.seq)[0] == whole


@pytest.fixture
def restarted(killed: Path, tmp_path: Path) -> Path:
    """A store that was started twice and killed at once: tables with nothing but bookkeeping."""
    path = killed
    for number in range(2):
        copy = tmp_path / f"start-{number}"
        shutil.copytree(path, copy)
        engine = RocksDbEngine.open(copy)
        path = tmp_path / f"killed-{number}"
        copy_open(copy, path)
        engine.close()
    return path


async def test_every_bit_of_the_tables_counts(restarted: Path, tmp_path: Path) -> None:
    """Wherever a bit is flipped: the start is refused and a repair helps, or the store can be read and compacted."""
    path = tmp_path / "meta"
    refused: list[str] = []
    for table in sorted((restarted / "db").glob("*.sst")):
        data = table.read_bytes()
        for at in (*range(0, 300, 60), *range(300, len(data), max(len(data) // 5, 1))):
            shutil.copytree(restarted, path)
            (path / "db" / table.name).write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            try:
                RocksDbEngine.open(path).close()
            except StoreDamagedError as error:
                refused.append(str(error))
                repair.repair(path, 0)
            async with running(path) as engine:
                assert len(await held(engine)) == len(KEYS)
                for family in (engine._data, engine._meta):
                    family.compact_range(None, None)
                await fill(engine, range(20, 21))  # fails after a compaction that failed
            shutil.rmtree(path)
    assert refused
    assert not [text for text in refused if "meta repair" not in text]


def rewritten(killed: Path, path: Path, change: Callable[[Rdict], None]) -> Path:
    """A copy of a store with a change that RocksDB cannot detect."""
    shutil.copytree(killed, path)
    opened = rocks.open_store(path / "db", FAMILIES, "")
    data = opened.db.get_column_family(DATA)
    change(data)
    data.close()
    opened.close()
    return path


def test_rows_that_vanished_are_missed_though_the_newest_write_is_there(killed: Path, tmp_path: Path) -> None:
    """As if one of several log files were missing."""
    path = rewritten(killed, tmp_path / "meta", lambda data: data.delete(next(iter(data.keys()))))
    with pytest.raises(StoreDamagedError, match="rows are there, and"):
        open_store(path)


def test_rows_that_went_back_are_missed_though_all_are_there(killed: Path, tmp_path: Path) -> None:
    """Their older values have lower sequence numbers."""

    def go_back(data: Rdict) -> None:
        first = next(iter(data.keys()))
        data.put(first, encode_record(record(1), 2))

    with pytest.raises(StoreDamagedError, match="older than what was acknowledged"):
        open_store(rewritten(killed, tmp_path / "meta", go_back))


async def test_a_mark_tells_only_of_what_is_synced(tmp_path: Path) -> None:
    """Also in replies to other calls: what a power cut removes must not look like a loss."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    (before,) = engine.marks()
    await engine._write(CLUSTER, [(KEYS[0], record(5))], lambda found: found)
    assert engine.marks() == [before]
    engine.close()


@pytest.mark.parametrize("damage", ["missing", "zeroed", "garbage"])
async def test_a_watermark_that_cannot_be_read_is_damage(damage: str, killed: Path, tmp_path: Path) -> None:
    """It is then unknown how much the store must hold. A repair records a loss."""
    path = tmp_path / "meta"
    shutil.copytree(killed, path)
    changes: dict[str, Callable[[Path], object]] = {
        "missing": lambda file: file.unlink(),
        "zeroed": lambda file: file.write_bytes(bytes(64)),
        "garbage": lambda file: file.write_bytes(b"x" * 64),
    }
    changes[damage](path / "watermark")
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="watermark is missing or unreadable"):
            RocksDbEngine.open(path)
    repair.repair(path, 0)
    engine = RocksDbEngine.open(path)
    assert engine.loss()
    engine.close()


async def test_a_torn_end_of_the_log_that_nobody_was_told_of_is_no_damage(tmp_path: Path) -> None:
    """It was written but not synced when the machine failed; no reply had been sent."""
    async with running(tmp_path / "meta") as engine:
        await engine.save(CLUSTER, [SaveEntry(KEYS[0], record(5))])
        await engine._write(CLUSTER, [(KEYS[0], record(6))], lambda found: found)
        shutil.copytree(tmp_path / "meta", tmp_path / "killed")
    (log,) = [file for file in (tmp_path / "killed" / "db").glob("*.log") if file.stat().st_size]
    log.write_bytes(log.read_bytes()[:-20])
    async with running(tmp_path / "killed") as engine:
        assert await held(engine) == {KEYS[0]: record(5)}


async def test_the_watermark_follows_the_sync_and_goes_before_the_reply(tmp_path: Path) -> None:
    """Earlier, a power cut would raise a false alarm; later, a loss would go undetected."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    saving = asyncio.create_task(engine.save(CLUSTER, [SaveEntry(KEYS[0], record(5))]))
    await eventually(lambda: engine._state.seq == 2)
    assert _watermark(tmp_path / "meta") == 1
    running_engine = asyncio.create_task(engine.run())
    await saving
    assert _watermark(tmp_path / "meta") == engine.marks()[0].revision == 2
    running_engine.cancel()
    await asyncio.wait([running_engine])
    engine.close()


def _watermark(path: Path) -> int:
    watermark = Watermark.open(path / "watermark")
    watermark.close()
    return watermark.value


async def test_every_change_keeps_the_bookkeeping(tmp_path: Path) -> None:
    """Saves, merges, deletes, expiries, sweeps, metadata, reports: the bookkeeping is right after each."""
    path = tmp_path / "meta"
    async with running(path) as engine:
        metadata = RocksDbMetadata(engine)
        changes: list[Callable[[], Awaitable[object]]] = [
            lambda: engine.save(CLUSTER, [SaveEntry(each, record(5)) for each in (*KEYS, KEYS[0])]),
            lambda: engine.merge(CLUSTER, [*map(encode_key, KEYS)], [encode_record(record(6))] * len(KEYS), STORE),
            lambda: engine.merge(CLUSTER, [*map(encode_key, KEYS)], [encode_record(record(6))] * len(KEYS), STORE),
            lambda: engine.delete(CLUSTER, "default", "g", [KEYS[0].shard]),
            lambda: engine.expire(CLUSTER, "default", "g", 2**60, 2**60),
            lambda: engine.drop_tombstones(2**62),
            lambda: metadata.put(CLUSTER, "k", b"1"),
            lambda: metadata.put(CLUSTER, "k", b"2"),
            lambda: metadata.delete(CLUSTER, "k"),
            lambda: engine.report_store(CLUSTER, STORE, b"", 5),
            lambda: engine.forget_stores(2**62),
            lambda: engine.save(CLUSTER, [SaveEntry(KEYS[0], record(7))], STORE),
        ]
        revision = 0
        for number, change in enumerate(changes):
            await change()
            (mark,) = engine.marks()
            assert mark.revision >= revision
            revision = mark.revision
            shutil.copytree(path, tmp_path / str(number))
            assert check(tmp_path / str(number), revision)[0] == engine._state


async def test_the_log_goes_when_its_rows_are_in_a_table(tmp_path: Path) -> None:
    """`meta` has one row per batch, which would never fill a table alone: a start would replay the whole log."""
    async with running(tmp_path / "meta") as engine:
        for number in range(6):
            rows = [(key(f"s{at}"), record(number, metadata="m" * 4096)) for at in range(2_000)]
            await engine._write(CLUSTER, rows, lambda found: found)
        logs = tmp_path / "meta" / "db"
        await eventually(lambda: sum(file.stat().st_size for file in logs.glob("*.log")) < rocks.WRITE_BUFFER_BYTES * 2)


async def test_only_one_process_has_a_store(tmp_path: Path) -> None:
    """Checked before anything is read: another process's writes would look like damage."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    with pytest.raises(StoreLockedError, match="another process"):
        open_store(tmp_path / "meta")
    with pytest.raises(StoreLockedError, match="another process"):
        repair.repair(tmp_path / "meta", 0)
    engine.close()
    RocksDbEngine.open(tmp_path / "meta").close()


def test_a_repair_without_file_descriptors_leaves_nothing_out(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be opened now is not damaged: the repair fails, and the store is unchanged."""
    shutil.copytree(killed, tmp_path / "meta")
    DAMAGE["bit flipped in the middle of the wal"](tmp_path / "meta" / "db")
    before = files(tmp_path / "meta")

    def fails(*_arguments: object, **_named: object) -> None:
        raise StorageFailedError("IO error: While open a file for random read: 000013.sst: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(store, "read_only", fails)
        patch.setattr(repair, "_is_whole", lambda *_: False)
        with pytest.raises(StorageFailedError, match="raise the limit of open files, and repair again"):
            repair.repair(tmp_path / "meta", 0)
    assert {name: data for name, data in files(tmp_path / "meta").items() if not name.startswith("db.new")} == before
    assert "is kept in" in repair.repair(tmp_path / "meta", 0)


async def test_an_intact_store_is_not_repaired(killed: Path, tmp_path: Path) -> None:
    """A new incarnation would make every adapter resend everything for nothing."""
    shutil.copytree(killed, tmp_path / "meta")
    before = files(tmp_path / "meta")
    assert "nothing was done" in repair.repair(tmp_path / "meta", 0)
    assert files(tmp_path / "meta") == before


@pytest.mark.parametrize("step", ["built", "set aside", "advanced"])
async def test_a_repair_that_is_killed_is_run_again(
    step: str, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then no start accepts the directory."""
    path = tmp_path / "meta"
    shutil.copytree(killed, path)
    DAMAGE["bit flipped in the middle of the wal"](path / "db")

    class KilledError(Exception):
        """Ends the repair where the test says."""

    def ends(*_arguments: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        if step == "built":
            patch.setattr(repair, "_install", ends)
        elif step == "set aside":
            patch.setattr(Watermark, "advance", ends)
        else:
            patch.setattr(Watermark, "sync", ends)
        with pytest.raises(KilledError):
            repair.repair(path, 0)
    assert (path / REPAIRED).exists()
    with pytest.raises(StoreDamagedError, match="Run `offset-adapter meta repair"):
        RocksDbEngine.open(path)
    repair.repair(path, 0)
    async with running(path) as engine:
        assert len(await held(engine)) == len(KEYS)
        assert engine.loss()
    assert len([*path.glob("damaged-*/db")]) == 1


async def test_a_second_store_at_the_same_place_changes_nothing_unless_it_replaces_the_first(tmp_path: Path) -> None:
    """A new store in place of the old one, or an older copy: the adapter is informed, and says when it replaces it."""
    other = STORE._replace(store_id=b"another store id", flushed_seq=1)
    async with running(tmp_path / "meta") as engine:
        assert await engine.report_store(CLUSTER, STORE, b"", 1) is None
        await engine.save(CLUSTER, [SaveEntry(KEYS[0], record(5))], STORE._replace(flushed_seq=9))
        await engine.save(CLUSTER, [SaveEntry(KEYS[0], record(6))], STORE._replace(flushed_seq=8))
        await engine.save(CLUSTER, [SaveEntry(KEYS[0], record(7))], other)
        for _ in range(2):
            known = await engine.report_store(CLUSTER, other, b"", 3)
            assert known
            assert known.store == STORE._replace(flushed_seq=9)
        assert (await engine.report_store(CLUSTER, other, STORE.store_id, 4)) == known
        assert (await engine.report_store(CLUSTER, other, b"", 5)) == (other, 4)
        assert await engine.report_store(CLUSTER, other._replace(path="/elsewhere"), b"", 5) is None
        assert await engine.report_store("d", other, b"", 5) is None
        assert await engine.forget_stores(6) == 3
    async with running(tmp_path / "meta") as engine:
        assert await engine.report_store(CLUSTER, other, b"", 5) is None
