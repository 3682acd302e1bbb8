"""Delta, Iceberg and OpenLineage, by their own libraries: `make interop`.

None of Delta 4.4.0 (for Spark 4.2) and Iceberg 1.12.0 (for 4.1) loads in Spark 4.3: they read what the jobs write in a Spark 4.1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adapter.pipeline.cli import ENTRY
from adapter.pipeline.config import HistorySection
from adapter.pipeline.java import java_home
from adapter.pipeline.lag.files import TABLES, LagFiles
from adapter.pipeline.lag.history import History
from adapter.pipeline.places import Place
from adapter.testing.processes import ended, meta_process
from tests.acceptance.documents import ROOT, blocks
from tests.interop.spark_jars import CACHE, jars
from tests.pipeline.jvm import SHORT_LIVED
from tests.pipeline.segments import commits, write_segment
from tests.pipeline.test_reconcile_job import live, merge
from tests.unit.pipeline.test_lag_history import batch

pytestmark = pytest.mark.timeout(900)

RECIPE = next(block for block in blocks((ROOT / "docs" / "spark.md").read_text(), "sql") if "lag_groups" in block)
READER = """
import json, sys
from pyspark.sql import SparkSession

jars, settings, *statements = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
for name, value in json.loads(settings).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for statement in statements:
    found = [list(row) for row in spark.sql(statement).collect()]
print("FOUND", json.dumps(found, default=str))
"""
SOURCE = """
import sys
from adapter.pipeline.session import spark_session
spark = spark_session("lineage of offsets", "local[2]")
spark.read.format("offsets").option("endpoints", sys.argv[1]).load().write.parquet(sys.argv[2])
spark.stop()
"""


def run(python: Path | str, *arguments: str | Path, **environment: str) -> str:
    """Run a program with the Java that the jobs use; what it printed."""
    java = {"JAVA_HOME": str(java_home(os.environ)), "JDK_JAVA_OPTIONS": SHORT_LIVED, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [python, *arguments], env={**os.environ, **java, **environment}, capture_output=True, text=True, check=False
    )
    assert ran.returncode in {0, 3}, ran.stderr[-4_000:]
    return ran.stdout


def asked(library: str, settings: dict[str, str], *statements: str) -> list[list[Any]]:
    """The rows of the last of these statements, in a Spark 4.1 with this library."""
    python = CACHE / "spark-4.1" / "bin" / "python"
    (line,) = [
        line
        for line in run(python, "-c", READER, jars(library), json.dumps(settings), *statements).splitlines()
        if line.startswith("FOUND ")
    ]
    rows: list[list[Any]] = json.loads(line.removeprefix("FOUND "))
    return rows


def test_the_history_is_a_table_of_delta(tmp_path: Path) -> None:
    """With comments, and with each batch once although the job repeated one."""
    files = LagFiles(Place.of(tmp_path / "lag"))
    for number in (0, 1, 1):
        History(files, HistorySection(delta=Place.of(tmp_path / "history"))).add(batch(files, number), "stream")
    table = f"delta.`{tmp_path / 'history' / 'groups'}`"
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    rows = asked("delta", settings, f"SELECT date, batch, `group`, total_lag FROM {table} ORDER BY batch, `group`")  # noqa: S608
    assert rows == [["2026-01-01", number, group, number] for number in (0, 1) for group in ("g", "h")]
    described = {row[0]: row[1:] for row in asked("delta", settings, f"DESCRIBE {table}")}
    assert described["max_lag_seconds"] == ["double", "seconds: the largest known one of a shard"]


def test_the_recipe_keeps_a_history_in_iceberg(tmp_path: Path) -> None:
    """The SQL of docs/spark.md, twice: each batch once."""
    files = LagFiles(Place.of(tmp_path / "lag"))
    for number in (0, 1):
        files.manifest(number).write(batch(files, number).to_json())
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(tmp_path / "warehouse"),
    }
    recipe = RECIPE.replace("lag_groups", "ice.db.lag_groups").replace("/data", str(tmp_path))
    statements = [statement for statement in recipe.split(";") if statement.strip()]
    question = "SELECT batch, `group` FROM ice.db.lag_groups ORDER BY batch, `group`"
    rows = asked("iceberg", settings, *statements, *statements, question)
    assert rows == [[number, group] for number in (0, 1) for group in ("g", "h")]


def test_openlineage_hears_of_the_jobs(tmp_path: Path) -> None:
    """By the settings of docs/spark.md: by Spark's listener what Spark itself writes, by ours what a job reads and writes."""
    settings = {
        "spark.jars": jars("openlineage"),
        "spark.extraListeners": "io.openlineage.spark.agent.OpenLineageSparkListener",
        "spark.openlineage.transport.type": "file",
        "spark.openlineage.transport.location": str(tmp_path / "events"),
        "spark.openlineage.namespace": "offsets",
    }
    write_segment(tmp_path / "journal", commits(1, 3, 4), 0)
    (tmp_path / "job.toml").write_text(f"[lag]\njournals = ['{tmp_path / 'journal'}']\noutput = '{tmp_path / 'lag'}'\n")
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    lag: list[str | Path] = [ENTRY, "lag", "--available-now", "--config", tmp_path / "job.toml", "--master", "local[2]", *options]
    transport = {"TYPE": "file", "LOG_FILE_PATH": str(tmp_path / "own-events"), "APPEND": "true"}
    ours = {f"OPENLINEAGE__TRANSPORT__{name}": value for name, value in transport.items()}
    run(sys.executable, *lag, PYTHONPATH=str(ROOT), OPENLINEAGE_NAMESPACE="offsets", **ours)
    assert LagFiles(Place.of(tmp_path / "lag")).complete() == [0]
    last = json.loads((tmp_path / "own-events").read_text().splitlines()[-1])
    assert (last["eventType"], last["job"]["name"]) == ("COMPLETE", "offset-adapter.lag")
    assert [each["name"] for each in last["inputs"]] == [str(tmp_path / "journal")]
    assert {each["name"] for each in last["outputs"]} == {str(tmp_path / "lag" / name) for name in TABLES}
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    meta = meta_process(tmp_path)
    with ended(meta):
        meta.start()
        merge(meta.address, {"t/0": live(1, 5)})
        run(sys.executable, "-c", SOURCE, meta.address, tmp_path / "out", SPARK_CONF_DIR=str(tmp_path), PYTHONPATH=str(ROOT))
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert {event["job"]["namespace"] for event in events} == {"offsets"}
    ended_jobs = {event["job"]["name"] for event in events if event["eventType"] == "COMPLETE"}
    assert {"offset_adapter_lag", "lineage_of_offsets"} <= ended_jobs
    written = {output["name"] for event in events for output in event["outputs"]}
    assert str(tmp_path / "out") in written
