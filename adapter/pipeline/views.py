"""Tables of the jobs as temporary views, for questions in SQL: see examples/sql.

A view has the files that were complete when it was made; make it again for newer ones. The lag job deletes batches meanwhile:
those of `shards` a minute after the next but one is complete.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from adapter.errors import ConfigError
from adapter.pipeline.lag import schemas
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.places import Place
from adapter.pipeline.tables import MANIFEST, literal, read_table

_LAG_TABLES = {"groups": schemas.GROUPS, "shards": schemas.SHARDS, "rewinds": schemas.REWINDS, "rejects": schemas.REJECTS}
_ALL_HOURS_US = 876_000 * 3_600_000_000
_BATCH = StructField("batch", LongType(), nullable=True, metadata={"comment": "the number of the batch"})


def lag_views(spark: SparkSession, output: str) -> None:
    """Make the views `lag_shards` of the newest batch, and `lag_groups`, `lag_rewinds`, `lag_rejects` of all that are kept.

    `output`: the path or URL that `[lag] output` is. Columns are those of the tables, with their comments, and `batch`. Spark
    reads the files itself: of an object store it needs the URL (s3a://) and the credentials of its own file system. Raises
    ConfigError if there is no batch, or the URL has credentials, which plans would show; AdapterError for a damaged manifest;
    OSError.
    """
    place = Place.of(output)
    if str(place) != place.url:
        raise ConfigError(f"{place}: has credentials in the URL; give them to Spark, as by fs.s3a.access.key")
    files = LagFiles(place)
    history = files.history(_ALL_HOURS_US)
    if not history:
        raise ConfigError(f"{place}: has no complete batch; it is `output` of [lag], run the job `lag` first")
    chosen = {
        "groups": history,
        "shards": history[-1:],
        "rewinds": [info for info in history if info.odd],
        "rejects": [info for info in history if info.rejects],
    }
    for name, infos in chosen.items():
        _view(spark, files, name, infos)


def reconcile_views(spark: SparkSession, output: str) -> None:
    """Make the view `differences` of the last run of `reconcile`.

    `output`: the path or URL that `[reconcile] output` is. Raises ConfigError if there is none, OSError.
    """
    place = Place.of(output) / "differences"
    try:
        first = place / json.loads((place / MANIFEST).read())["files"][0]["name"]
        system, path = first.opened()
        schema = from_arrow_schema(pq.read_schema(path, filesystem=system))
        table = read_table(spark, place, schema)
    except FileNotFoundError as error:
        raise ConfigError(f"{place}: there is no such table; run the job `reconcile` first") from error
    table.createOrReplaceTempView("differences")


def _view(spark: SparkSession, files: LagFiles, name: str, infos: list[BatchInfo]) -> None:
    schema = StructType([*(_field(field) for field in _LAG_TABLES[name]), _BATCH])
    urls = [literal(place.for_spark) for info in infos for place in files.places(info, name)]
    if urls:
        # The base gives the column `batch`. A batch that the lag job deletes meanwhile is too old to matter.
        reader = spark.read.schema(schema).option("basePath", (files.output / name).for_spark)
        table = reader.option("ignoreMissingFiles", value=True).parquet(*urls)
    else:
        table = spark.createDataFrame([], schema)
    table.createOrReplaceTempView(f"lag_{name}")


def _field(field: pa.Field) -> StructField:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return StructField(
        field.name, from_arrow_type(kind), nullable=True, metadata={"comment": field.metadata[b"comment"].decode()}
    )
