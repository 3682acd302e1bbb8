"""The session of the jobs in a separate process: whose settings win, and that it starts without a warning of our making."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.pipeline.java import java_home

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)  # two JVMs, and everything that they load, on a machine that may be busy

SESSION = """
import json
import sys
from adapter.pipeline.session import spark_session

if __name__ == "__main__":
    spark = spark_session("the name", None, {"spark.ui.port": "4141"}, short=True)
    conf = dict(spark.sparkContext.getConf().getAll())
    conf["rows"] = spark.read.format("offset-journal").load(sys.argv[1]).count()
    conf["memory"] = spark._jvm.Runtime.getRuntime().maxMemory() >> 20
    listeners = spark.sparkContext._jsc.sc().listenerBus().listeners()
    conf["listeners"] = [listeners.get(number).getClass().getSimpleName() for number in range(listeners.size())]
    conf["java"] = list(spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    conf["zone"] = spark.conf.get("spark.sql.session.timeZone")
    print(json.dumps(conf))
"""
DEFAULTS = """
spark.driver.memory              700m
spark.sql.shuffle.partitions     3
spark.sql.session.timeZone       Asia/Tokyo
spark.ui.port                    4242
spark.extraListeners             org.apache.spark.scheduler.StatsReportListener
spark.driver.extraJavaOptions    -XX:TieredStopAtLevel=2 -XX:+UseSerialGC
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Spark's own settings in a directory, as an administrator has them."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    (tmp_path / "session.py").write_text(SESSION)
    (tmp_path / "journal").mkdir()
    spark = {"SPARK_CONF_DIR": str(tmp_path / "conf"), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**{name: value for name, value in os.environ.items() if "SPARK" not in name}, **spark}


def test_settings_of_spark_win_over_our_defaults(tmp_path: Path, environment: dict[str, str]) -> None:
    """And those of the caller over both."""
    command = [sys.executable, str(tmp_path / "session.py"), str(tmp_path / "journal")]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    conf = json.loads(answer.stdout.splitlines()[-1])
    expected = {
        "spark.app.name": "the name",
        "spark.master": "local[*]",
        "spark.ui.port": "4141",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "zone": "Asia/Tokyo",
        "rows": 0,
    }
    assert {name: conf[name] for name in expected} == expected
    assert 600 < conf["memory"] <= 700
    assert "StatsReportListener" in conf["listeners"]  # as OpenLineage's would be
    assert [option for option in conf["java"] if "Tiered" in option] == ["-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=2"]
    assert "incubator" not in answer.stderr
    assert "replaced a statically registered data source" not in answer.stderr


def test_settings_of_spark_submit_win_over_our_defaults(tmp_path: Path, environment: dict[str, str]) -> None:
    """Also its name and its memory; the sources are found although the JVM does not know our Python."""
    options = ["--name", "mine", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=5"]
    driver = {"PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java_home(os.environ))}
    answer = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), *options, tmp_path / "session.py", tmp_path / "journal"],
        env={**environment, **driver},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    conf = json.loads(answer.stdout.splitlines()[-1])
    assert (conf["spark.app.name"], conf["spark.sql.shuffle.partitions"], conf["rows"]) == ("mine", "5", 0)
    assert "StatsReportListener" in conf["listeners"]
    assert 600 < conf["memory"] <= 700
    assert "replaced a statically registered data source" not in answer.stderr
