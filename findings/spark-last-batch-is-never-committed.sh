#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
PYSPARK=4.3.0
need java:openjdk-17-jre-headless
pypi "pyspark==$PYSPARK" pyarrow==26.0.1 pandas==2.3.3

statement <<TEXT
Apache Spark $PYSPARK from PyPI, streaming data source in Python: commit(end) of the last batch never comes.

Most expect: DataSourceStreamReader.commit(end) is called after each batch that the query has finished, so that the reader can
  acknowledge it to where it reads from; with trigger(availableNow=True) a query that ended has committed all.
What happens: commit(end) of a batch comes when the next batch is planned. The last batch of a query has no next one: its end is in
  the checkpoint, and commit is not called, neither before the query ends nor when it is started again without new data. It comes
  with the first new data.
Why it matters: a source that commits consumer offsets there leaves each group one batch behind, for as long as nothing new
  arrives: lag that does not fall to 0, messages that come again to another reader of the group. Take the offset from the
  checkpoint, or from a listener, too.
TEXT

cat >"$WORK/source.py" <<'PY'
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

CALLS, END = Path(sys.argv[1], "calls"), Path(sys.argv[1], "end")


class Rows(InputPartition):
    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end


class Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict:
        return {"at": 0}

    def latestOffset(self) -> dict:
        return {"at": int(END.read_text())}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        return [Rows(start["at"], end["at"])]

    def read(self, partition: Rows) -> Iterator[tuple[int]]:
        return ((row,) for row in range(partition.begin, partition.end))

    def commit(self, end: dict) -> None:
        with CALLS.open("a") as calls:
            calls.write(f"commit({end['at']}) ")


class Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number int"

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return Reader()


def run(end: int, what: str) -> None:
    END.write_text(str(end))
    CALLS.write_text("")
    stream = spark.readStream.format("numbers").load().writeStream.format("parquet").option("path", sys.argv[1] + "/out")
    query = stream.option("checkpointLocation", sys.argv[1] + "/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.read.parquet(sys.argv[1] + "/out").count()
    print(f"  {what}: rows written {rows}, calls: {CALLS.read_text().strip() or 'none'}", flush=True)


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.dataSource.register(Source)
run(10, "10 rows")
run(10, "started again, nothing new")
run(20, "10 more rows")
run(20, "started again, nothing new")
spark.stop()
PY
mkdir "$WORK/run"
# The path of Spark's own Python is that of the virtual environment.
PYSPARK_PYTHON="$WORK/venv/bin/python" SPARK_LOCAL_DIRS="$WORK/local" SPARK_LOCAL_IP=127.0.0.1 \
  "$WORK/venv/bin/python" "$WORK/source.py" "$WORK/run" >"$SEEN" 2>"$WORK/spark.log" || broken "Spark failed"

verdict <<'STATED'
  10 rows: rows written 10, calls: none
  started again, nothing new: rows written 10, calls: none
  10 more rows: rows written 20, calls: commit(10)
  started again, nothing new: rows written 20, calls: none
STATED
