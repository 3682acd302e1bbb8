"""Written RocksDB stores of RocketMQ: the same bytes as a broker's, or nothing."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.errors import InvalidInputError, MetaUnavailableError
from adapter.formats import rocksdb_copy
from adapter.formats import rocksdb_layouts as layouts
from adapter.formats.rocketmq_rocksdb import Layout, read, write
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.records import LONG_MAX
from adapter.runtime.durable import rocks
from tests.unit.rocksdb_stores import TABLE, content, each_layout, files, read_all, real


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
    """Also into an empty directory, with topics of a group in any order; no other file is left."""
    before = f"{broker}/" if broker else ""
    rows = [OffsetRow("default", f"g{number % 50:02}", f"{before}T{number % 3}/{number}", number) for number in range(300)]
    rows.sort(key=lambda row: row.group)
    (tmp_path / "store").mkdir()
    assert write(tmp_path / "store", rows, Naming(broker=broker), layout) == 300
    assert read_all(tmp_path / "store", Naming(broker=broker)) == (sorted((row.group, row.shard, row.offset) for row in rows), [])
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


@each_layout
def test_what_a_store_cannot_hold_is_refused_by_name_and_nothing_is_written(layout: Layout, tmp_path: Path) -> None:
    """All bad rows are named at once."""
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
    """The caller gets its own error."""

    def rows() -> Iterator[OffsetRow]:
        yield OffsetRow("default", "g", "T/3", 42)
        raise MetaUnavailableError

    with pytest.raises(MetaUnavailableError):
        write(tmp_path / "store", rows(), Naming(), layout)
    assert not list(tmp_path.iterdir())


@each_layout
def test_a_store_that_is_written_is_one_that_rocketmqs_rocksdb_reads(layout: Layout, tmp_path: Path) -> None:
    """RocksDB 8.4 reads table formats up to 5, ours would write newer ones. No files of rocksdict are left."""
    write(tmp_path / "store", [OffsetRow("default", "g", "T/3", 42)], Naming(), layout)
    names = {file.name for file in (tmp_path / "store").iterdir()}
    assert not [name for name in names if name.startswith(("LOG", "rocksdict"))]
    (options,) = [name for name in names if name.startswith("OPTIONS-")]
    assert set(re.findall(r"format_version=(\d+)", (tmp_path / "store" / options).read_text())) == {"5"}


def test_a_store_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """A V2 store also has topics and groups."""
    store = real("store-v2", tmp_path)
    before = files(store)
    with pytest.raises(InvalidInputError, match="exists and is not empty"):
        write(store, [OffsetRow("default", "g", "T/3", 43)], Naming(), "v2")
    assert files(store) == before


@each_layout
def test_a_store_has_a_version_that_rocketmq_counts_on_from(layout: Layout, tmp_path: Path) -> None:
    """V1: above that of any consumerOffset.json, which would win otherwise: RocksDBConsumerOffsetManager.merge."""
    store = tmp_path / "store"
    write(store, [OffsetRow("default", "g", "T/3", 42)], Naming(), layout)
    with rocksdb_copy.opened(store) as db:
        if layout == "v1":
            versions = dict(rocks.scan(db.get_column_family(layouts.VERSION_FAMILY), b"", b""))
            assert re.fullmatch(rb'\{"counter":1\d{12},"stateVersion":0,"timestamp":1\d{12}\}', versions[layouts.VERSION_KEY])
        else:
            assert len(dict(rocks.scan(db, b"", b""))[layouts.CONSUMER_VERSION]) == 24
