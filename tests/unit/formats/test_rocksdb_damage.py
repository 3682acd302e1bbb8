"""RocketMQ's RocksDB stores that are damaged, or cannot be read or copied."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
from rocksdict import BlockBasedOptions, ChecksumType, DBCompressionType, Rdict

from adapter.errors import InvalidInputError
from adapter.formats import rocksdb_layouts as layouts
from adapter.formats.rocketmq_rocksdb import write
from adapter.formats.rocksdb_layouts import Entry
from adapter.formats.rows import Naming, NotReadableError, OffsetRow
from adapter.runtime.durable import rocks
from tests.unit.rocksdb_stores import (
    TABLE,
    V1_VALUE,
    V2_KEY,
    V2_VALUE,
    made,
    read_all,
    real,
)


def test_what_is_not_a_store_says_where_one_is(tmp_path: Path) -> None:
    """A parent directory is easily named by mistake."""
    made(tmp_path / "config/rdb", {})
    for path in (tmp_path, tmp_path / "config", tmp_path / "missing", tmp_path / "config/rdb/IDENTITY"):
        with pytest.raises(NotReadableError, match="is not a RocksDB store: it has no file CURRENT") as error:
            read_all(path)
        below = {tmp_path: "config/rdb below it is one", tmp_path / "config": "rdb below it is one"}
        assert below.get(path, "config/consumerOffsets, config/rdb and config/metadata below its storePathRootDir") in str(
            error.value
        )


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_a_damaged_store_is_not_readable(pattern: str, tmp_path: Path) -> None:
    """RocksDB's checksums detect damage; an early end of the rows is detected too."""
    rows = {f"T{number}@g".encode(): V1_VALUE for number in range(200)}
    store = made(tmp_path / "store", rows, layouts.FAMILIES)
    for file in store.glob(pattern):
        data = bytearray(file.read_bytes())
        data[20] ^= 0xFF
        file.write_bytes(data)
    with pytest.raises(NotReadableError, match=r"is damaged: .*; restore it from a copy"):
        read_all(store)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_file_that_cannot_be_copied_is_told_with_what_to_do(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log can be a gigabyte, and the directory for temporary files too small."""
    store = made(tmp_path / "store", {V2_KEY: V2_VALUE})

    def failing(source: Path, _target: Path) -> None:
        raise OSError(number, os.strerror(number), str(source))

    monkeypatch.setattr(shutil, "copyfile", failing)
    reasons = {
        errno.ENOSPC: "needs room for a copy of its log in .*; TMPDIR names",
        errno.EACCES: "cannot be read: .*: Permission denied",
    }
    with pytest.raises(NotReadableError, match=reasons[number]):
        read_all(store)


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error is reported, and nothing is left behind."""
    with pytest.raises(InvalidInputError, match="cannot be written: No such file or directory"):
        write(tmp_path / "missing/store", [OffsetRow("default", "g", "T/3", 42)], Naming(), "v2")


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_a_store_with_a_file_missing_is_not_readable(pattern: str, tmp_path: Path) -> None:
    """Only after a few attempts: a running broker may have removed the file."""
    store = made(tmp_path / "store", {V2_KEY: V2_VALUE})
    for file in store.glob(pattern):
        file.unlink()
    with pytest.raises(NotReadableError, match="No such file or directory"):
        read_all(store)


def test_a_path_in_place_of_the_manifests_name_is_damage(tmp_path: Path) -> None:
    """A store from somebody else must not cause files from elsewhere to be copied."""
    store = made(tmp_path / "store", {V2_KEY: V2_VALUE})
    (store / "CURRENT").write_text("../../MANIFEST-000005\n")
    with pytest.raises(NotReadableError, match=r"is damaged: its file CURRENT names '../../MANIFEST-000005'"):
        read_all(store)


def log_of(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """A killed broker's store, its log, and the rows in the log."""
    store = real("store-v2-killed", tmp_path)
    (log,) = store.glob("*.log")
    return store, log, log.read_bytes()


def test_a_log_that_is_torn_at_its_end_gives_what_is_before(tmp_path: Path) -> None:
    """The torn end is an unfinished write, which RocksDB drops too."""
    store, log, data = log_of(tmp_path)
    log.write_bytes(data[: len(data) // 2])
    rows, rejects = read_all(store)
    assert 0 < len(rows) < len(TABLE)
    assert set(rows) < set(TABLE)
    assert not rejects


def test_a_log_that_is_damaged_before_its_end_is_not_readable(tmp_path: Path) -> None:
    """RocketMQ's recovery skips damaged records (WALRecoveryMode.SkipAnyCorruptedRecords): rows are lost silently."""
    store, log, data = log_of(tmp_path)
    log.write_bytes(data[:100] + bytes([data[100] ^ 0xFF]) + data[101:])
    with pytest.raises(NotReadableError, match="is damaged"):
        read_all(store)


def test_a_compression_that_is_not_known_is_told(tmp_path: Path) -> None:
    """Compression 9 does not exist. Checksums are off here, or it would count as damage."""
    table = BlockBasedOptions()
    table.set_format_version(5)
    table.set_checksum_type(ChecksumType.no_checksum())
    options = rocks.options()
    options.set_compression_type(DBCompressionType.zstd())
    options.set_block_based_table_factory(table)
    rows = dict(layouts.encode_v2(Entry("g", "T", queue, 42)) for queue in range(200))
    store = tmp_path / "store"
    with Rdict(str(store), options=options, column_families={"default": options}) as db:
        for key, value in rows.items():
            db[key] = value
        db.flush()
    (file,) = store.glob("*.sst")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"\x07\0\0\0\0", b"\x09\0\0\0\0", 1))
    with pytest.raises(NotReadableError, match="ompression"):
        read_all(store)


@pytest.mark.parametrize("compression", ["none", "snappy", "zlib", "bz2", "lz4", "lz4hc", "zstd"])
def test_each_compression_that_a_broker_can_have_is_read(compression: str, tmp_path: Path) -> None:
    """MessageStoreConfig.rocksdbCompressionType."""
    options = rocks.options()
    options.set_compression_type(getattr(DBCompressionType, compression)())
    rows = {f"T{number}@g".encode(): V1_VALUE for number in range(200)}
    assert len(read_all(made(tmp_path / "store", rows, (), options))[0]) == 200


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.log", "*.sst"])
def test_a_link_in_a_store_is_refused_by_its_name(pattern: str, tmp_path: Path) -> None:
    """Whoever may write there must not choose which of the importer's files are read. The store's path may be a link."""
    rows = {f"T{number}@g".encode(): V1_VALUE for number in range(20)}
    store = made(tmp_path / "store", rows, layouts.FAMILIES)
    (tmp_path / "named").symlink_to(store)
    assert len(read_all(tmp_path / "named")) == len(read_all(store)) > 0
    file = max(store.glob(pattern))
    elsewhere = file.rename(tmp_path / "elsewhere")
    file.symlink_to(elsewhere)
    why = re.escape(f"its file {file.name} is a symbolic link to {elsewhere}, which is not followed")
    with pytest.raises(NotReadableError, match=why):
        read_all(store)
