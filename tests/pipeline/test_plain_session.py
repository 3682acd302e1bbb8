"""The data source `offsets` in a Spark session that this project did not configure, in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.pipeline.java import java_home
from tests.pipeline.bulk_meta import BulkMeta, kill_the_caller, no_fault, serving
from tests.pipeline.jvm import SHORT_LIVED

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 550  # far above what it takes
pytestmark = pytest.mark.timeout(600)  # a JVM, and everything that it loads, on a machine that may be busy
PLAIN = """
import sys
from pyspark.sql import SparkSession

address = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
)
rows = spark.range(0, 50_000, 1, 1).selectExpr(
    "'default' as namespace", "'g' as `group`", "concat('s', id) as shard", "id as offset"
)
rows.write.format("offsets").option("endpoints", address).mode("append").save()
read = spark.read.format("offsets").option("endpoints", address).load()
print("rows, sum:", *read.filter("namespace = 'default'").selectExpr("count(*)", "sum(offset)").first())
"""


@pytest.mark.release  # test_session finds a source without registration, test_import_export has a task that is killed half way
def test_a_plain_session_knows_the_source_and_repeats_a_task_that_was_killed_half_way(tmp_path: Path) -> None:
    """Spark finds the source without registration; pushdown is off in such a session."""
    meta = BulkMeta()
    meta.faults.extend([no_fault, kill_the_caller])
    environment = {**os.environ, "JAVA_HOME": str(java_home(os.environ)), "PYSPARK_PYTHON": sys.executable}
    with serving(meta) as address:
        ran = subprocess.run(
            [sys.executable, "-c", PLAIN, address, SHORT_LIVED],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert f"rows, sum: 50000 {sum(range(50_000))}" in ran.stdout, ran.stderr[-4000:]
    assert "Python worker exited unexpectedly (crashed)" in ran.stderr
    assert sum(meta.merges) > 50_000  # a part was sent twice
