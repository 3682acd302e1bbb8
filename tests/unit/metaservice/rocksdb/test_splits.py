"""Large listings are divided by a sample of the store's keys, which every start and every write keeps true."""

from contextlib import suppress
from pathlib import Path

import pytest

from adapter.errors import StoreDamagedError
from adapter.metaservice.engine import Parts
from adapter.metaservice.rocksdb import engine as rocksdb_engine
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.records import OffsetRecord
from tests.embedded_engine import opened
from tests.unit.helpers import key, record, tombstone

CLUSTER = "c"
COUNT = 6_000
KEYS = [encode_key(key(f"{at:05}")) for at in range(COUNT)]


@pytest.fixture(autouse=True)
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of more than ten records counts as large."""
    monkeypatch.setattr(rocksdb_engine, "EXACT", 10)


async def fill(engine: RocksDbEngine, keys: list[bytes], offered: OffsetRecord) -> None:
    """Merge one record under all of these keys."""
    await engine.merge(CLUSTER, keys, [encode_record(offered)] * len(keys))


async def parts(engine: RocksDbEngine, *names: str) -> Parts:
    """Four parts."""
    return await engine.split(CLUSTER, names, 4)


def cuts(*at: int) -> list[bytes]:
    """The tokens that end parts after so many keys."""
    return [pack_names(CLUSTER) + KEYS[number - 1] for number in at]


async def test_a_sample_has_what_was_written_and_what_a_start_found(tmp_path: Path) -> None:
    """Each key once, whether it was merged, merged again, merged beside what stands, or there before the start."""
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS[::2], record(1))
        await fill(engine, KEYS[::2], record(2))
        assert (await parts(engine)).records == COUNT // 2
    async with opened(tmp_path) as engine:
        assert (await parts(engine)).records == COUNT // 2
        await fill(engine, KEYS, record(3))
        assert await parts(engine, "default", "g") == Parts(cuts(1_500, 3_000, 4_500), COUNT)


async def test_a_sample_loses_what_leaves_the_store(tmp_path: Path) -> None:
    """Otherwise parts would end up with nothing in them."""
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS, record(1))
        await fill(engine, KEYS[1_200:], tombstone(2))
        assert await engine.drop_tombstones(1 << 40) == COUNT - 1_200
        assert await parts(engine) == Parts(cuts(300, 600, 900), 1_200)


async def test_a_damaged_table_fails_a_scan_and_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets an error, never a part of the rows as if that were all."""
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS, record(1))
        engine._data.flush()
    async with opened(tmp_path) as engine:
        for table in (tmp_path / "meta" / "db").glob("*.sst"):
            with suppress(FileNotFoundError):  # RocksDB removes those that nobody needs any more, behind the open
                data = bytearray(table.read_bytes())
                data[len(data) // 2] ^= 1
                table.write_bytes(data)
        with pytest.raises(StoreDamagedError, match="block checksum mismatch"):
            await engine.scan_page(CLUSTER, (), COUNT, b"", b"")
        monkeypatch.setattr(rocksdb_engine, "EXACT", COUNT)
        with pytest.raises(StoreDamagedError, match="block checksum mismatch"):
            await parts(engine)
