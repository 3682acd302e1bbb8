"""The options of the tests' JVMs, which live for seconds; and the archive of Spark's classes, from which they start.

`python -m tests.pipeline.jvm` makes the archive (`make test` does it). A JVM that finds no archive, or one of another Java or
another Spark, loads the classes from their jars as always.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from adapter.pipeline.session import spark_session

# Class data sharing: Spark's classes, parsed and verified. Loading them is half of the CPU time of a start.
CLASSES = Path(__file__).parents[2] / "build" / "spark-classes.jsa"
# Half of a short job is the compiler's second stage.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
SHORT_LIVED = f"{_SHORT_LIVED} -XX:SharedArchiveFile={CLASSES}"


def make(archive: Path) -> None:
    """Run what the tests run, with all kinds of queries, in a JVM that writes the classes that it loaded when it ends."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        fresh = Path(directory) / archive.name
        session = spark_session(
            "classes", "local[2]", {"spark.driver.extraJavaOptions": f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={fresh}"}
        )
        jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
        _load(session, directory)
        session.stop()
        SparkContext._gateway.shutdown()  # type: ignore[union-attr]
        jvm.stdin.close()
        jvm.wait()
        shutil.move(fresh, archive)


def _load(session: SparkSession, directory: str) -> None:
    rows = session.createDataFrame([(1, "a"), (2, "b")], "id bigint, name string")
    numbers = session.range(0, 10, 1, 2).mapInArrow(_same, "id bigint")
    joined = numbers.join(rows, "id", "left").groupBy("name").agg({"id": "max"}).orderBy("name")
    joined.write.mode("overwrite").parquet(f"{directory}/tables")
    read = session.read.parquet(f"{directory}/tables")
    read.toArrow()
    stream = session.readStream.schema(read.schema).parquet(f"{directory}/tables").writeStream.format("parquet")
    stream = stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    stream.start(f"{directory}/stream").awaitTermination()
    rows.repartitionById(2, rows["id"].cast("int")).collect()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    make(CLASSES)
