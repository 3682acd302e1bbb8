"""RocketMQ's RocksDB stores: real ones of 5.3.3, and made ones with everything that may stand there."""

import errno
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import BlockBasedOptions, ChecksumType, DBCompressionType, Options, Rdict

from adapter import rocks
from adapter.errors import InvalidInputError, MetaUnavailableError
from adapter.formats import rocksdb_copy
from adapter.formats import rocksdb_layouts as layouts
from adapter.formats.rocketmq_json import Queues
from adapter.formats.rocketmq_rocksdb import Layout, read, write
from adapter.formats.rocksdb_layouts import Entry
from adapter.formats.rows import LONG_MAX, QUEUE_MAX, Naming, NotReadableError, OffsetRow, Reject

DATA = Path(__file__).parents[1] / "data/rocketmq"
TABLE = sorted(
    (group, f"{topic}/{queue}", int(offset))
    for group, topic, queue, offset in (line.split("\t") for line in (DATA / "offsets-5x.tsv").read_text().splitlines())
)
REAL = ["store-v1", "store-v2", "store-v2-killed"]
V1_KEY, V1_VALUE = b"T@g", b'{"offsetTable":{"3":42}}'
V2_KEY, V2_VALUE = bytes.fromhex("0100010200016701000154010000" + "0003"), bytes.fromhex("000000000000002a")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="@/", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
ENTRIES = st.builds(Entry, NAMES, NAMES, st.integers(0, QUEUE_MAX), st.integers(0, LONG_MAX))

each_layout = pytest.mark.parametrize("layout", get_args(Layout))
each_real = pytest.mark.parametrize("name", REAL)


def real(name: str, directory: Path) -> Path:
    """A broker's store, unpacked."""
    (directory / name).mkdir()
    with tarfile.open(DATA / f"{name}.tar.gz") as tar:
        for member in tar:
            part = tar.extractfile(member)
            assert part is not None
            (directory / name / member.name).write_bytes(part.read())
    return directory / name


def made(
    path: Path, rows: Mapping[bytes, bytes], families: tuple[str, ...] = ("default",), options: Options | None = None
) -> Path:
    """A store with these rows, in tables."""
    with Rdict(str(path), options=options or rocks.options(), column_families={name: rocks.options() for name in families}) as db:
        for key, value in rows.items():
            db[key] = value
        db.flush()
    return path


def read_all(path: Path, naming: Naming = Naming()) -> tuple[list[tuple[str, str, int]], list[Reject]]:  # noqa: B008 - frozen
    """Offsets as (group, shard, offset), sorted, and rejects."""
    found = list(read(path, naming))
    rows = sorted((row.group, row.shard, row.offset) for row in found if isinstance(row, OffsetRow))
    return rows, [reject for reject in found if isinstance(reject, Reject)]


def content(path: Path) -> dict[bytes, bytes]:
    """All rows of a store but the version of its data."""
    with rocksdb_copy.opened(path) as db:
        return {key: value for key, value in rocks.scan(db, b"", b"") if not key.endswith(b"data_version")}


def decoded_v2(key: bytes, value: bytes) -> Entry:
    """A row as an entry."""
    return Entry(*layouts.names_v2(key[: -layouts.QUEUE_BYTES]), *layouts.queue_v2(key, value))


def files(directory: Path) -> dict[str, tuple[bytes, int]]:
    """What is in a directory, and when it was changed."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}


@each_real
def test_a_brokers_store_gives_all_its_offsets_and_nothing_else(name: str, tmp_path: Path) -> None:
    """Of a killed broker too, and without what else is in a V2 store: pull offsets, topics, groups."""
    assert read_all(real(name, tmp_path)) == (TABLE, [])


@each_real
def test_reading_changes_nothing_in_a_store(name: str, tmp_path: Path) -> None:
    """No byte, no time, no file more."""
    store = real(name, tmp_path)
    before = files(store), store.stat().st_mtime_ns
    read_all(store)
    assert (files(store), store.stat().st_mtime_ns) == before


@each_real
def test_a_store_that_another_process_has_locked_is_read(name: str, tmp_path: Path) -> None:
    """RocksDB's lock is of the whole process, so that one in this process is in the way like any other."""
    store = real(name, tmp_path)
    with Rdict(
        str(store),
        options=rocks.options(),
        column_families={family: rocks.options() for family in Rdict.list_cf(str(store), rocks.options())},
    ):
        assert read_all(store) == (TABLE, [])


def test_what_is_flushed_while_a_store_is_read_again_and_again_is_never_lost(tmp_path: Path) -> None:
    """Each read sees at least what was there before it, through new logs, tables and compactions."""
    store = tmp_path / "store"
    with Rdict(str(store), options=rocks.options()) as db:
        for offset in range(1, 20):
            db[V2_KEY] = offset.to_bytes(8, "big")
            if offset % 3 == 0:
                db.flush()
            if offset % 7 == 0:
                db.compact_range(None, None)
            assert read_all(store)[0] == [("g", "T/3", offset)]


def test_a_store_that_changes_during_each_try_is_not_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is gone before it was copied would be rows that are missing without a word."""
    store = made(tmp_path / "store", {V2_KEY: V2_VALUE})
    copy = shutil.copyfile

    def flushing(source: Path, target: Path) -> None:
        copy(source, target)
        with source.open("ab") as file:
            file.write(b"\0")

    monkeypatch.setattr(shutil, "copyfile", flushing)
    with pytest.raises(NotReadableError, match="changed in each of 10 tries to read it; stop its broker"):
        read_all(store)


def test_the_broker_and_the_namespace_are_as_they_were_named(tmp_path: Path) -> None:
    """A store tells neither."""
    rows, rejects = read_all(made(tmp_path / "store", {V2_KEY: V2_VALUE}), Naming("ours", "", "broker-a"))
    assert (rows, rejects) == ([("g", "broker-a/T/3", 42)], [])


@each_real
def test_with_a_group_all_others_are_rejects(name: str, tmp_path: Path) -> None:
    """Each with its place."""
    rows, rejects = read_all(real(name, tmp_path), Naming(group="g"))
    assert rows == [row for row in TABLE if row[0] == "g"]
    assert sorted(reject.place for reject in rejects) == sorted(
        f'{shard.rpartition("/")[0]}@{group}["{shard.rpartition("/")[2]}"]' for group, shard, _ in TABLE if group != "g"
    )


@pytest.mark.parametrize(
    ("value", "offsets"),
    [
        (b'{"offsetTable":{"0":1,"3":42}}', [0, 3]),
        (b'{"offsetTable":{0:1,3:42}}', [0, 3]),
        (b'{ "offsetTable" : { 0 : "1" , "3":"42" } }', [0, 3]),
        (b'{"dataVersion":{"counter":1},"offsetTable":{"0":1,"3":42}}', [0, 3]),
        (b'{"offsetTable":{}}', []),
    ],
)
def test_fastjsons_ways_to_write_a_table_are_all_read(value: bytes, offsets: list[int]) -> None:
    """Keys and longs with quotes or without: RocksDBConsumerOffsetManager.putWriteBatch, SerializerFeature."""
    found = list(layouts.decode_v1(V1_KEY, value))
    assert found == ([Queues(0, "T@g", "g", "T", "", [(0, 1), (3, 42)], keyed=True)] if offsets else [])


@pytest.mark.parametrize(
    ("key", "value", "place", "reason"),
    [
        (b"T", V1_VALUE, "T", "key: is not topic@group"),
        (b"T@g@h", V1_VALUE, "T@g@h", "key: is not topic@group"),
        (b"T@g\xff", V1_VALUE, "544067ff", "key: is not UTF-8 at byte 4"),
        (b"T@\x01", V1_VALUE, '544001["3"]', "group has the control character"),
        (b"T@", V1_VALUE, 'T@["3"]', "group is missing"),
        (b"a/T@g", V1_VALUE, 'a/T@g["3"]', "topic: 'a/T' has a /"),
        (V1_KEY, b"", "T@g", "is not JSON"),
        (V1_KEY, V1_VALUE[:-1], "T@g", "is not JSON"),
        (V1_KEY, b'{"offsetTable":{"3":\xff}}', "T@g", "is not JSON"),
        (V1_KEY, b"[" * 100_000, "T@g", "is not JSON"),
        (V1_KEY, b"[]", "T@g", "is not a JSON object"),
        (V1_KEY, b'{"topicName":"T"}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":{"3":42},"lmqOffsetTable":{}}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":{"3":42},"offsetTable":{"4":42}}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":null}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":{"x":42}}', 'T@g["x"]', "queue: 'x' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{2147483648:42}}', 'T@g["2147483648"]', "queue: '2147483648' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":-1}}', 'T@g["3"]', "offset: '-1' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":9223372036854775808}}', 'T@g["3"]', "offset: '9223372036854775808' is not a whole"),
        (V1_KEY, b'{"offsetTable":{"3":4.2}}', 'T@g["3"]', "offset: '4.2' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":true}}', 'T@g["3"]', "offset: 'True' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":null}}', 'T@g["3"]', "offset: 'None' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"\\ud800":42}}', 'T@g["\\ud800"]', r"queue: '\ud800' is not a whole number"),
    ],
)
def test_what_is_no_offset_in_v1_is_a_reject_and_the_rest_is_read(
    key: bytes, value: bytes, place: str, reason: str, tmp_path: Path
) -> None:
    """Each with its place and its reason."""
    rows, rejects = read_all(made(tmp_path / "store", {key: value, b"other@g": b'{"offsetTable":{"0":1}}'}, layouts.FAMILIES))
    assert rows == [("g", "other/0", 1)]
    assert [(reject.place, reason in reject.reason) for reject in rejects] == [(place, True)], rejects


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("00", "", "key: is of no table that is known here"),
        ("010000" + "02" + "0000", "", "key: is of no table that is known here"),
        ("010005" + "02" + "0000", "", "key: is of no table that is known here"),
        ("ff", "", "key: is of no table that is known here"),
        ("010001", "", "key: is not that of an offset"),
        ("010001" + "01" + "78", "", "key: is not that of an offset"),
        ("010001" + "03" + "0000", "", "key: is not that of an offset"),
        ("010001" + "02", "", "key: is not that of an offset"),
        ("010001" + "02" + "0002" + "67" + "01", "", "key: the group is not as long as it says"),
        ("010001" + "02" + "0001" + "67" + "02", "", "key: the group is not as long as it says"),
        ("010001" + "02" + "0001" + "67" + "01" + "0009" + "54" + "00000003", "", "key: the topic is not as long as it says"),
        (V2_KEY.hex()[:-2], V2_VALUE.hex(), "key: the topic is not as long as it says"),
        (V2_KEY.hex() + "00", V2_VALUE.hex(), "key: has 1 bytes too many behind the topic"),
        (V2_KEY.hex()[:-8] + "ffffffff", V2_VALUE.hex(), "queue: -1 is below 0"),
        (V2_KEY.hex(), V2_VALUE.hex()[:-2], "offset: has 7 bytes instead of 8"),
        (V2_KEY.hex(), V2_VALUE.hex() + "00", "offset: has 9 bytes instead of 8"),
        (V2_KEY.hex(), "ffffffffffffffff", "offset: -1 is below 0"),
        (V2_KEY.hex().replace("67", "ff"), V2_VALUE.hex(), "group: is not UTF-8 at byte 1"),
    ],
)
def test_what_is_no_offset_in_v2_is_a_reject_and_the_rest_is_read(key: str, value: str, reason: str, tmp_path: Path) -> None:
    """Each with its key in hex, and the value."""
    good, offset = layouts.encode_v2(Entry("other", "T", 0, 1))
    rows, rejects = read_all(made(tmp_path / "store", {bytes.fromhex(key): bytes.fromhex(value), good: offset}))
    assert rows == [("other", "T/0", 1)]
    assert [(reject.place, reject.text, reason in reject.reason) for reject in rejects] == [(key, value, True)], rejects


def test_a_column_family_that_is_not_known_is_a_reject(tmp_path: Path) -> None:
    """A layout to come may keep offsets there."""
    store = made(tmp_path / "store", {V1_KEY: V1_VALUE}, ("default", "kvDataVersion", "forbidden", "consumerOffset"))
    rows, rejects = read_all(store)
    assert rows == [("g", "T/3", 42)]
    assert rejects == [Reject(0, "consumerOffset", "", "is a column family that is not known here: what is in it is not read")]


def test_v1_is_known_without_its_other_column_families(tmp_path: Path) -> None:
    """As before RocketMQ 5.3. V2's keys begin with a byte that no topic has."""
    assert read_all(made(tmp_path / "store", {V1_KEY: V1_VALUE})) == ([("g", "T/3", 42)], [])


def test_what_is_not_a_store_says_where_one_is(tmp_path: Path) -> None:
    """A directory above is easily named instead."""
    made(tmp_path / "config/rdb", {})
    for path in (tmp_path, tmp_path / "config", tmp_path / "missing", tmp_path / "config/rdb/IDENTITY"):
        with pytest.raises(NotReadableError, match="is not a RocksDB store: it has no file CURRENT") as error:
            read_all(path)
        below = {tmp_path: "config/rdb below it is one", tmp_path / "config": "rdb below it is one"}
        assert below.get(path, "config/consumerOffsets and config/rdb below its storePathRootDir") in str(error.value)


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_a_damaged_store_is_not_readable(pattern: str, tmp_path: Path) -> None:
    """RocksDB's checksums tell it, and a silent end of the rows is not taken for their end."""
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
    """A log can be a gigabyte, and a directory for temporary files small."""
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
    """And no more than that is done."""
    with pytest.raises(InvalidInputError, match="cannot be written: No such file or directory"):
        write(tmp_path / "missing/store", [OffsetRow("default", "g", "T/3", 42)], Naming(), "v2")


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_a_store_with_a_file_missing_is_not_readable(pattern: str, tmp_path: Path) -> None:
    """After a few tries: a broker that runs may have taken it away."""
    store = made(tmp_path / "store", {V2_KEY: V2_VALUE})
    for file in store.glob(pattern):
        file.unlink()
    with pytest.raises(NotReadableError, match="No such file or directory"):
        read_all(store)


def test_a_path_in_place_of_the_manifests_name_is_damage(tmp_path: Path) -> None:
    """A store that somebody sent must not have a file copied from anywhere to anywhere."""
    store = made(tmp_path / "store", {V2_KEY: V2_VALUE})
    (store / "CURRENT").write_text("../../MANIFEST-000005\n")
    with pytest.raises(NotReadableError, match=r"is damaged: its file CURRENT names '../../MANIFEST-000005'"):
        read_all(store)


def log_of(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """A killed broker's store, its log, and what is in that."""
    store = real("store-v2-killed", tmp_path)
    (log,) = store.glob("*.log")
    return store, log, log.read_bytes()


def test_a_log_that_is_torn_at_its_end_gives_what_is_before(tmp_path: Path) -> None:
    """A write that was not finished; RocksDB forgets it too."""
    store, log, data = log_of(tmp_path)
    log.write_bytes(data[: len(data) // 2])
    rows, rejects = read_all(store)
    assert 0 < len(rows) < len(TABLE)
    assert set(rows) < set(TABLE)
    assert not rejects


def test_a_log_that_is_damaged_before_its_end_is_not_readable(tmp_path: Path) -> None:
    """RocketMQ's own recovery skips what is damaged (WALRecoveryMode.SkipAnyCorruptedRecords): rows lost without a word."""
    store, log, data = log_of(tmp_path)
    log.write_bytes(data[:100] + bytes([data[100] ^ 0xFF]) + data[101:])
    with pytest.raises(NotReadableError, match="is damaged"):
        read_all(store)


def test_a_compression_that_is_not_known_is_told(tmp_path: Path) -> None:
    """Compression 9 does not exist. Without checksums, or it would be damage."""
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


def test_v2s_key_is_the_one_that_rocketmq_makes() -> None:
    """ConsumerOffsetManagerV2.keyOfConsumerOffset."""
    assert layouts.encode_v2(Entry("g", "T", 3, 42)) == (V2_KEY, V2_VALUE)
    assert layouts.encode_v1("g", "T", {3: 42, 0: 2**53 - 1, 1: 2**53}) == (
        V1_KEY,
        b'{"offsetTable":{"3":42,"0":9007199254740991,"1":"9007199254740992"}}',
    )


@pytest.mark.parametrize(("name", "layout"), [("store-v1", "v1"), ("store-v2-killed", "v2")])
def test_what_is_written_is_byte_for_byte_what_the_broker_has(name: str, layout: Layout, tmp_path: Path) -> None:
    """Keys and values of offsets; `make interop` has RocketMQ load it."""
    theirs = real(name, tmp_path)
    rows = sorted(row for row in read(theirs, Naming()) if isinstance(row, OffsetRow))
    assert write(tmp_path / "ours", rows, Naming(), layout) == len(TABLE)
    offsets = {key: value for key, value in content(theirs).items() if layout == "v1" or key.startswith(layouts.CONSUMER)}
    assert content(tmp_path / "ours") == offsets


@each_layout
@pytest.mark.parametrize("broker", ["", "broker-a"])
def test_what_is_written_is_read_again(layout: Layout, broker: str, tmp_path: Path) -> None:
    """Into an empty directory too; topics of a group in any order; and nothing is left beside it."""
    before = f"{broker}/" if broker else ""
    rows = [OffsetRow("default", f"g{number % 50:02}", f"{before}T{number % 3}/{number}", number) for number in range(300)]
    rows.sort(key=lambda row: row.group)
    (tmp_path / "store").mkdir()
    assert write(tmp_path / "store", rows, Naming(broker=broker), layout) == 300
    assert read_all(tmp_path / "store", Naming(broker=broker)) == (sorted((row.group, row.shard, row.offset) for row in rows), [])
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


@each_layout
def test_what_a_store_cannot_hold_is_refused_by_name_and_nothing_is_written(layout: Layout, tmp_path: Path) -> None:
    """All of it at once."""
    good = OffsetRow("default", "g", "T/3", LONG_MAX)
    bad = [
        good._replace(offset=LONG_MAX + 1),
        good._replace(shard="T"),
        good._replace(shard="broker-a/T/3"),
        good._replace(namespace="other"),
        good._replace(shard="a@b/3"),
        good._replace(group="g@h"),
    ]
    with pytest.raises(InvalidInputError) as error:
        write(tmp_path / "store", [good, *bad], Naming(), layout)
    lines = str(error.value).splitlines()
    assert len(lines) == len(bad)
    assert all(repr(row.shard) in line and repr(row.group) in line for row, line in zip(bad, lines, strict=True))
    assert not list(tmp_path.iterdir())


@each_layout
def test_rows_that_end_in_an_error_write_nothing(layout: Layout, tmp_path: Path) -> None:
    """And the error is the caller's own."""

    def rows() -> Iterator[OffsetRow]:
        yield OffsetRow("default", "g", "T/3", 42)
        raise MetaUnavailableError

    with pytest.raises(MetaUnavailableError):
        write(tmp_path / "store", rows(), Naming(), layout)
    assert not list(tmp_path.iterdir())


@each_layout
def test_a_store_that_is_written_is_one_that_rocketmqs_rocksdb_reads(layout: Layout, tmp_path: Path) -> None:
    """8.4 knows tables up to format version 5; ours would make others. And what is only ours is not left in it."""
    write(tmp_path / "store", [OffsetRow("default", "g", "T/3", 42)], Naming(), layout)
    names = {file.name for file in (tmp_path / "store").iterdir()}
    assert not [name for name in names if name.startswith(("LOG", "rocksdict"))]
    (options,) = [name for name in names if name.startswith("OPTIONS-")]
    assert set(re.findall(r"format_version=(\d+)", (tmp_path / "store" / options).read_text())) == {"5"}


def test_a_store_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """A V2 store has topics and groups too."""
    store = real("store-v2", tmp_path)
    before = files(store)
    with pytest.raises(InvalidInputError, match="is there and not empty"):
        write(store, [OffsetRow("default", "g", "T/3", 43)], Naming(), "v2")
    assert files(store) == before


@each_layout
def test_a_store_has_a_version_that_rocketmq_counts_on_from(layout: Layout, tmp_path: Path) -> None:
    """V1: over that of any consumerOffset.json beside it, which would win otherwise: RocksDBConsumerOffsetManager.merge."""
    store = tmp_path / "store"
    write(store, [OffsetRow("default", "g", "T/3", 42)], Naming(), layout)
    with rocksdb_copy.opened(store) as db:
        if layout == "v1":
            versions = dict(rocks.scan(db.get_column_family(layouts.VERSION_FAMILY), b"", b""))
            assert re.fullmatch(rb'\{"counter":1\d{12},"stateVersion":0,"timestamp":1\d{12}\}', versions[layouts.VERSION_KEY])
        else:
            assert len(dict(rocks.scan(db, b"", b""))[layouts.CONSUMER_VERSION]) == 24


@given(ENTRIES)
def test_an_offset_is_the_same_after_v2_and_back(entry: Entry) -> None:
    """Any names and numbers."""
    assert decoded_v2(*layouts.encode_v2(entry)) == entry


@given(
    st.one_of(
        st.binary(),
        st.tuples(
            ENTRIES.map(lambda entry: layouts.encode_v2(entry)[0]), st.integers(4, 40), st.integers(0, 2), st.binary(max_size=2)
        ).map(lambda cut: cut[0][: cut[1]] + cut[3] + cut[0][cut[1] + cut[2] :]),
    ),
    st.binary(min_size=8, max_size=8) | st.binary(max_size=9),
)
def test_any_bytes_are_an_offset_of_v2_or_an_error(key: bytes, value: bytes) -> None:
    """And such an offset is written as the same bytes."""
    try:
        entry = decoded_v2(key, value)
    except InvalidInputError:
        return
    assert layouts.encode_v2(entry) == (key, value)


@given(NAMES, NAMES, st.dictionaries(st.integers(0, QUEUE_MAX), st.integers(0, LONG_MAX), min_size=1), st.booleans())
def test_a_table_is_the_same_after_v1_and_back(group: str, topic: str, offsets: dict[int, int], bare: bool) -> None:
    """Any names and numbers, with quotes or without."""
    key, value = layouts.encode_v1(group, topic, offsets)
    if bare:
        value = re.sub(rb'"(\d+)"', rb"\1", value)
    (found,) = layouts.decode_v1(key, value)
    assert isinstance(found, Queues)
    assert (found.group, found.topic, dict(found.offsets)) == (group, topic, offsets)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("offsetTable"), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.binary() | NAMES.map(lambda name: f"T@{name}".encode()),
    st.binary() | JSON.map(lambda value: str(value).encode(errors="replace")),
)
def test_any_bytes_of_v1_are_offsets_or_rejects_that_can_be_shown(key: bytes, value: bytes) -> None:
    """Nothing is lost in silence: only a table that is empty gives nothing."""
    found = list(layouts.decode_v1(key, value))
    assert found or b"offsetTable" in value
    for reject in found:
        if isinstance(reject, Reject):
            f"{reject.place}{reject.text}{reject.reason}".encode()
