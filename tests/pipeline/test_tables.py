"""Tables of the jobs: what is whole, what a crash leaves, and what is told of files that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from adapter.errors import AdapterError
from adapter.pipeline import tables
from adapter.pipeline.places import Place
from adapter.pipeline.tables import MANIFEST, damage, delete_table, read_table, write_table


def rows(spark: SparkSession, count: int, parts: int = 2) -> DataFrame:
    """Rows of several types in several partitions."""
    columns = ("id", "timestamp_millis(id) AS at", "array(string(id), null) AS names")
    return spark.range(0, count, 1, parts).selectExpr(*columns)


def names_in(directory: Path) -> set[str]:
    """The files of a table."""
    return {path.name for path in directory.iterdir()}


def test_a_table_is_replaced_as_a_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Files of an earlier one and of killed runs are gone; rows are the same by Spark, and by a reader of the directory."""
    place = Place.of(tmp_path / "a [table]")
    assert write_table(rows(spark, 9), place).count() == 9
    before = names_in(place.path)
    (place.path / "cut-off.parquet").write_bytes(b"PAR1")
    (place.path / "_temporary").mkdir()  # of an earlier release
    written = write_table(rows(spark, 5), place)
    assert sorted(row.id for row in written.collect()) == list(range(5))
    assert not before - {MANIFEST} & names_in(place.path)
    found = pq.read_table(place.path).sort_by("id").to_pylist()
    assert [(row["id"], row["at"].timestamp(), row["names"]) for row in found] == [
        (number, number / 1000, [str(number), None]) for number in range(5)
    ]
    assert json.loads((place / MANIFEST).read())["files"][0].keys() == {"name", "size", "groups"}


def test_a_path_is_local_whatever_the_default_file_system_is(spark: SparkSession, tmp_path: Path) -> None:
    """As on a cluster with HDFS. Our own files are read and written by path."""
    settings: Any = spark.sparkContext._jsc.hadoopConfiguration()  # as core-site.xml does
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        assert write_table(rows(spark, 9), Place.of(tmp_path / "a [table] %20")).count() == 9
    finally:
        settings.set("fs.defaultFS", before)


def test_a_table_without_rows_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    """For readers of the directory as well."""
    place = Place.of(tmp_path / "t")
    assert write_table(rows(spark, 0), place).count() == 0
    assert pq.read_table(place.path).column_names == ["id", "at", "names"]
    delete_table(place)
    delete_table(place)
    with pytest.raises(FileNotFoundError):
        read_table(spark, place, spark.range(1).schema)


def test_until_the_manifest_is_written_the_earlier_table_stands(spark: SparkSession, tmp_path: Path) -> None:
    """A run that fails in a worker, or is killed before the commit, changes nothing that is read by the manifest."""
    place = Place.of(tmp_path / "t")
    good = rows(spark, 3)
    write_table(good, place)
    failing = good.selectExpr("IF(id = 2, raise_error('x'), id) AS id", "at", "names")
    with pytest.raises(PySparkException):
        write_table(failing, place)
    assert read_table(spark, place, good.schema).count() == 3


def test_a_file_that_the_driver_does_not_see_is_no_success(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when each machine has a directory of its own; Spark would write _SUCCESS."""
    place = Place.of(tmp_path / "t")
    monkeypatch.setattr(Place, "entries", lambda _: [])
    monkeypatch.setattr(tables, "in_time", lambda _: False)
    with pytest.raises(AdapterError, match=r"the file .*, which a worker wrote, is not seen here: name a directory that"):
        write_table(rows(spark, 3), place)
    assert not (place.path / MANIFEST).exists()


@pytest.mark.parametrize(
    ("condition", "cause", "told"),
    [
        ("NO_HINT", "x is not a Parquet file", "/a b: is damaged behind its footer"),
        ("FILE_NOT_EXIST", "File does not exist", "/a b: is not seen by a machine of the cluster, or was deleted meanwhile"),
        ("NO_HINT", "/a b (Permission denied)", "/a b: may not be read by the user of Spark's workers"),
    ],
)
def test_a_file_that_is_not_there_is_not_called_damaged(condition: str, cause: str, told: str) -> None:
    """A person would move away what is whole."""
    text = f"[FAILED_READ_FILE.{condition}] Encountered error while reading file file:///a%20b. {cause}. SQLSTATE: KD001"
    assert damage(PySparkException(text)) == told
    assert damage(PySparkException("another")) is None
