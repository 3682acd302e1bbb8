"""Spark Connect: the data sources and the listener in a session without a JVM of its own, and the jobs, which need one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.client import BlockingOffsetClient
from adapter.errors import ConfigError
from adapter.pipeline.config import JobConfig
from adapter.pipeline.java import java_home
from adapter.pipeline.jobs import Switches, run_job
from adapter.testing.sidecars import sidecar_in_thread
from adapter.testing.waiting import PATIENCE_S
from tests.pipeline.bulk_meta import BulkMeta, serving
from tests.pipeline.jvm import SHORT_LIVED
from tests.pipeline.segments import commits, write_segment

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 550  # far above what it takes
CLIENT = """
import json, sys, threading
from pyspark.sql import SparkSession
from adapter.pipeline.listener import OffsetCommitListener, Position

meta, adapter, directory = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
found = {"session": type(spark).__module__}

rows = spark.range(100).selectExpr("'default' as namespace", "'g' as `group`", "concat('s', id) as shard", "id as offset")
rows.write.format("offsets").option("endpoints", meta).mode("append").save()
offsets = spark.read.format("offsets").option("endpoints", meta).load()
found["offsets"] = list(offsets.filter("namespace = 'default'").selectExpr("count(*)", "sum(offset)").first())
found["journal"] = spark.read.format("offset-journal").load(f"{directory}/journal").count()

def positions(source):
    return [Position(run, 0, at["next"]) for run, at in json.loads(source.endOffset).items()]

class Listener(OffsetCommitListener):
    ended = threading.Event()

    def onQueryTerminated(self, event):
        super().onQueryTerminated(event)
        self.ended.set()

listener = Listener(adapter, shard="{topic}:{partition}", positions=positions, flush_s=60)
spark.streams.addListener(listener)
stream = spark.readStream.format("offset-journal").load(f"{directory}/journal").writeStream.queryName("remote").format("noop")
stream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start().awaitTermination()
listener.ended.wait(60)
spark.streams.removeListener(listener)
spark.stop()
print("found:", json.dumps(found))
"""


@pytest.mark.release  # the same sources in a plain session: test_plain_session.py
@pytest.mark.timeout(600)
def test_the_sources_and_the_listener_work_in_a_session_of_spark_connect(journal: Path, tmp_path: Path) -> None:
    """A plain session, whose server knows the sources without registration."""
    rows = [write_segment(journal, commits(1, 3, 4, first_cycle=number), number) for number in range(2)]
    meta = BulkMeta()
    with serving(meta) as meta_address, sidecar_in_thread(tmp_path / "adapter") as address:
        ran = client(meta_address, address, tmp_path)
        assert ran.returncode == 0, ran.stderr[-4000:]
        with BlockingOffsetClient(address, PATIENCE_S) as adapter:
            committed = {shard: row.offset for shard, row in adapter.read("remote").items()}
    found = json.loads(ran.stdout.partition("found:")[2])
    assert found == {"session": "pyspark.sql.connect.session", "offsets": [100, sum(range(100))], "journal": len(rows) * 3 * 4}
    assert len(meta.records) == 100
    assert list(committed.values()) == [2]


def client(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run CLIENT with a server of its own."""
    environment = {**os.environ, "JAVA_HOME": str(java_home(os.environ)), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments],
        env={
            **environment,
            "JDK_JAVA_OPTIONS": SHORT_LIVED,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("master", "conf", "environment"),
    [
        ("sc://spark:15002", {}, {}),
        (None, {"spark.remote": "sc://spark:15002"}, {}),
        (None, {}, {"SPARK_REMOTE": "sc://spark:15002"}),
    ],
)
def test_a_job_says_that_it_does_not_run_by_spark_connect(
    master: str | None, conf: dict[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it starts anything."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"sc://spark:15002: the jobs do not run by Spark Connect"):
        run_job("lag", JobConfig(), Switches(), master, conf)
