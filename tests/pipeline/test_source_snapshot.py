"""`spark.read.format("offsets").option("snapshot", ...)`: the rows of a snapshot, and errors for what is none."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, In, StringStartsWith

from adapter.cli.meta import snapshot_directory
from adapter.cli.meta.snapshot_directory import SnapshotDirectory
from adapter.errors import AdapterError, ConfigError, StoreDamagedError
from adapter.metaservice.engine import Columns
from adapter.model.codec import encode_record, pack_names
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.model.schemas import RECORDS
from adapter.model.snapshots import MANIFEST, Manifest
from adapter.pipeline.offsets.options import ReadOptions, parse_options
from adapter.pipeline.offsets.snapshot import FilteringSnapshotReader, RowGroups
from adapter.pipeline.offsets.source import OffsetsDataSource
from adapter.pipeline.places import Place
from tests.unit.helpers import tombstone

STORED = {
    OffsetKey(namespace, group, f"s{shard}"): OffsetRecord(1, shard, committed_at_ms=1, metadata="m", topic="t", partition=3)
    for namespace in ("default", "tenant")
    for group in ("g", "gg", "\u00e4")
    for shard in range(7)
}
GONE = OffsetKey("tenant", "\u00e4", "z")


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot of STORED and a tombstone, in files of ten records and row groups of about five."""
    monkeypatch.setattr(snapshot_directory, "FILE_ROWS", 10)
    monkeypatch.setattr(snapshot_directory, "ROW_GROUP", 5)
    entries = sorted(((pack_names("c", *key), encode_record(found)) for key, found in STORED.items()))
    entries.append((pack_names("c", *GONE), encode_record(tombstone(5))))
    with SnapshotDirectory(tmp_path / "s", "c", 1_700_000_000_000) as directory:
        for at in range(0, len(entries), 3):
            columns = Columns()
            columns.add(*zip(*entries[at : at + 3], strict=True))
            directory.add(columns.page().packed)
    return tmp_path / "s"


def reader_of(taken: Path, **options: str) -> FilteringSnapshotReader:
    """A reader of the snapshot, as Spark's worker for filters makes it."""
    return FilteringSnapshotReader(
        parse_options(ReadOptions, {"snapshot": str(taken), **options}), OffsetsDataSource({}).schema()
    )


def rows_of(reader: FilteringSnapshotReader) -> list[OffsetKey]:
    """The keys of all rows, in order."""
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert all(batch.schema.names == RECORDS.names and batch.schema.types == RECORDS.types for batch in batches)
    return [OffsetKey(row["namespace"], row["group"], row["shard"]) for batch in batches for row in batch.to_pylist()]


def groups_of(reader: FilteringSnapshotReader) -> int:
    """How many row groups are read."""
    return sum(len(part.numbers) for part in reader.partitions() if isinstance(part, RowGroups))


@pytest.mark.parametrize("options", [{}, {"partitions": "1"}, {"partitions": "4"}, {"partitions": "99", "pagesize": "1"}])
def test_each_record_is_read_once_however_it_is_parted(taken: Path, options: dict[str, str]) -> None:
    """In key order; tombstones only when asked for."""
    wanted = sorted(STORED, key=lambda key: pack_names(*key))
    assert rows_of(reader_of(taken, **options)) == wanted
    assert rows_of(reader_of(taken, tombstones="true", **options)) == [*wanted, GONE]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(("namespace",), "tenant")], lambda key: key.namespace == "tenant"),
        ([EqualTo(("group",), "gg")], lambda key: key.group == "gg"),
        (
            [In(("group",), ("g", "\u00e4")), EqualTo(("namespace",), "default")],
            lambda key: key.group != "gg" and key.namespace == "default",
        ),
        ([EqualTo(("group",), "nobody")], lambda _: False),
        ([StringStartsWith(("group",), "\u00e4")], lambda key: key.group == "\u00e4"),
        (
            [StringStartsWith(("group",), "g"), EqualTo(("namespace",), "tenant")],
            lambda key: key.group != "\u00e4" and key.namespace == "tenant",
        ),
    ],
)
def test_filters_leave_out_row_groups(taken: Path, filters: list[Filter], wanted: Callable[[OffsetKey], bool]) -> None:
    """Also of a group without a namespace; what stands is what Spark would find."""
    reader = reader_of(taken)
    everything = groups_of(reader)
    assert reader.pushFilters(filters) == []
    assert rows_of(reader) == sorted(filter(wanted, STORED), key=lambda key: pack_names(*key))
    assert groups_of(reader) < everything


def test_an_empty_snapshot_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Neither has one in which no row group can have the names."""
    with SnapshotDirectory(tmp_path / "s", "c", 1):
        pass
    assert rows_of(reader_of(tmp_path / "s")) == []
    assert spark.read.format("offsets").option("snapshot", str(tmp_path / "s")).load().isEmpty()
    assert spark.read.parquet(str(tmp_path / "s")).isEmpty()


def test_what_is_no_whole_snapshot_is_refused(taken: Path, tmp_path: Path) -> None:
    """By its path: no manifest, a file that is missing, and one that is damaged."""
    with pytest.raises(ConfigError, match=r"none has no _snapshot\.json"):
        reader_of(tmp_path / "none").partitions()
    reader, last = reader_of(taken), max(taken.glob("*.parquet"))
    parts = reader.partitions()
    data = bytearray(last.read_bytes())
    data[20:60] = bytes(40)
    last.write_bytes(data)
    with pytest.raises(StoreDamagedError, match="cannot be read"):
        [list(reader.read(part)) for part in parts]
    last.unlink()
    with pytest.raises(StoreDamagedError, match=r"is not there, (and|though) _snapshot\.json lists it"):
        reader.partitions()
    with pytest.raises(AdapterError, match="is not seen by the machine"):
        [list(reader.read(part)) for part in parts]


def test_a_snapshot_that_cannot_be_read_is_told_by_its_option(taken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file instead of the directory, and a storage that does not answer. The credentials in a URL are not shown."""
    with pytest.raises(ConfigError, match=r"option snapshot: \S+ is no directory: .* `offset-adapter meta snapshot` writes$"):
        reader_of(next(taken.glob("*.parquet"))).partitions()

    def away(place: Place) -> bytes:
        raise OSError(f"{place.url}: AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(Place, "read", away)
    options = parse_options(ReadOptions, {"snapshot": "s3://KEY:SECRET@b/s"})
    with pytest.raises(ConfigError, match=r"^offsets: option snapshot: s3://b/s/_snapshot\.json: cannot be read: ") as raised:
        FilteringSnapshotReader(options, OffsetsDataSource({}).schema()).partitions()
    assert "SECRET" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_snapshot_with_other_records_than_its_manifest_says_is_refused(taken: Path) -> None:
    """As when a file is of another copy."""
    manifest = Manifest.decode((taken / MANIFEST).read_bytes(), "s")
    (taken / MANIFEST).write_bytes(manifest._replace(records=manifest.records + 1).encode())
    with pytest.raises(StoreDamagedError, match=r"has 43 records, and _snapshot\.json says 44: copy the snapshot again"):
        reader_of(taken).partitions()


def test_a_snapshot_of_another_cluster_is_refused(taken: Path) -> None:
    """If the option says which; a snapshot is of one cluster."""
    assert reader_of(taken, cluster="c").partitions()
    with pytest.raises(ConfigError, match=r"option cluster = 'other': \S+ is of the cluster 'c'"):
        reader_of(taken, cluster="other").partitions()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"snapshot": "s", "endpoints": "a:1"}, "give one of them"),
        ({"snapshot": ""}, "option snapshot: String should have at least 1 character"),
        ({"snapshot": "s", "report": "x"}, "report: is no option of reading"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, str], told: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=told):
        parse_options(ReadOptions, options)


def test_spark_reads_a_snapshot_by_either_format(spark: SparkSession, taken: Path) -> None:
    """The rows and columns are those of the Parquet files, which a cluster reads without Python."""
    offsets = spark.read.format("offsets").options(snapshot=str(taken), tombstones="true").load()
    files = spark.read.parquet(str(taken))
    assert [field.name for field in files.schema] == [field.name for field in offsets.schema]
    assert [field.dataType for field in files.schema] == [field.dataType for field in offsets.schema]
    assert offsets.exceptAll(files).isEmpty()
    assert files.count() == len(STORED) + 1
    assert files.filter("live").count() == spark.read.format("offsets").options(snapshot=str(taken)).load().count()
    few = offsets.filter("`group` in ('g', 'gg') and namespace = 'default'")
    assert few.count() == 14
    assert pq.read_table(taken).num_rows == len(STORED) + 1
    assert (taken / MANIFEST).exists()
