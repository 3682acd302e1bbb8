"""The SQL of docs/spark.md that keeps a history of the groups, on Parquet in place of Iceberg."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.lag.schemas import GROUPS
from adapter.pipeline.places import Place
from tests.acceptance.documents import ROOT, blocks

RECIPE = blocks((ROOT / "docs" / "spark.md").read_text(), "sql")[0]


def write_groups(files: LagFiles, batch: int, name: str, *groups: str) -> str:
    """A file of the table `groups`; returns its path below the output."""
    directory = files.directory("groups", batch).path
    directory.mkdir(parents=True, exist_ok=True)
    columns = {field.name: pa.nulls(len(groups), field.type) for field in GROUPS} | {"group": pa.array(groups)}
    pq.write_table(pa.table(columns, schema=GROUPS), directory / name)
    return f"groups/batch={batch}/{name}"


def complete(files: LagFiles, batch: int, *paths: str) -> None:
    """The manifest of a batch."""
    info = BatchInfo(batch, rows=1, now=1, settled=1, files={"groups": list(paths)})
    files.manifest(batch).path.parent.mkdir(exist_ok=True)
    files.manifest(batch).path.write_bytes(info.to_json())


@pytest.fixture
def history(spark: SparkSession) -> Iterator[None]:
    """No table before and after."""
    spark.sql("DROP TABLE IF EXISTS lag_groups")
    yield
    spark.sql("DROP TABLE lag_groups")


@pytest.mark.usefixtures("history")
def test_the_history_has_every_complete_batch_once_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    """Not the files of a repeated task, nor of a batch that is not complete; those are appended when it is."""
    files = LagFiles(Place.of(tmp_path / "lag"))
    complete(files, 0, write_groups(files, 0, "0-a.parquet", "a"), write_groups(files, 0, "1-a.parquet", "b"))
    write_groups(files, 0, "0-repeated.parquet", "a")
    unfinished = write_groups(files, 1, "0-b.parquet", "a", "c")
    append(spark, tmp_path)
    assert rows(spark) == [(0, "a"), (0, "b")]
    complete(files, 1, unfinished)
    append(spark, tmp_path)
    append(spark, tmp_path)
    assert rows(spark) == [(0, "a"), (0, "b"), (1, "a"), (1, "c")]


def append(spark: SparkSession, directory: Path) -> None:
    """Run the recipe."""
    for statement in RECIPE.replace("USING iceberg", "USING parquet").replace("/data", str(directory)).split(";"):
        if statement.strip():
            spark.sql(statement)


def rows(spark: SparkSession) -> list[tuple[int, str]]:
    """(batch, group) of the history."""
    return [(row["batch"], row["group"]) for row in spark.table("lag_groups").orderBy("batch", "group").collect()]
