"""OffsetCommitListener on a query over a real Kafka topic, in a driver that is killed and started again: `make interop`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from adapter.client import BlockingOffsetClient
from adapter.pipeline.java import java_home
from adapter.testing.sidecars import sidecar_in_thread
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.documents import ROOT
from tests.interop.spark_jars import PARTITIONS, jars, kafka_broker
from tests.pipeline.jvm import SHORT_LIVED

pytestmark = pytest.mark.timeout(900)

GROUP = "orders-etl"
MESSAGES, OF_A_BATCH = 90, 30
# The first run writes the topic, and dies in its third batch: with the work done, and when the adapter has the two before it.
DRIVER = f"""
import json, os, signal, sys, time
from pathlib import Path

from adapter.client import BlockingOffsetClient
from adapter.pipeline.listener import OffsetCommitListener
from adapter.pipeline.session import spark_session

jars, broker, address, directory, dying = *sys.argv[1:4], Path(sys.argv[4]), sys.argv[5] == "dying"
spark = spark_session("driver", "local[2]", {{"spark.jars": jars, "spark.ui.showConsoleProgress": "false"}})
kafka = {{"kafka.bootstrap.servers": broker}}
if dying:
    messages = spark.range(0, {MESSAGES}, 1, 2).selectExpr("string(id) AS key", "string(id) AS value")
    messages.write.format("kafka").options(**kafka, topic="orders").save()
written = spark.read.format("kafka").options(**kafka, subscribe="orders").load()
ends = written.groupBy("partition").agg({{"offset": "max"}}).collect()
(directory / "ends.json").write_text(json.dumps({{f"orders/{{partition}}": last + 1 for partition, last in ends}}))

def committed():
    with BlockingOffsetClient(address) as client:
        return sum(row.offset for row in client.read("{GROUP}").values())

def batch(rows, number):
    before = spark.read.parquet(str(directory / "out")).count() if number else 0
    rows.select("partition", "offset").coalesce(1).write.mode("overwrite").parquet(str(directory / f"out/batch={{number}}"))
    if dying and number == 2:
        while committed() < before:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

listener = OffsetCommitListener(address, flush_s=60)
spark.streams.addListener(listener)
limits = {{"startingOffsets": "earliest", "maxOffsetsPerTrigger": {OF_A_BATCH}}}
orders = spark.readStream.format("kafka").options(**kafka, **limits, subscribe="orders").load()
query = orders.writeStream.queryName("{GROUP}").option("checkpointLocation", str(directory / "checkpoint"))
query.trigger(availableNow=True).foreachBatch(batch).start().awaitTermination()
spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
spark.streams.removeListener(listener)
listener.close()
"""


def drive(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the driver."""
    environment = {**os.environ, "JAVA_HOME": str(java_home(os.environ)), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", DRIVER, jars("kafka"), *arguments],
        env={**environment, "JDK_JAVA_OPTIONS": SHORT_LIVED},
        capture_output=True,
        text=True,
        check=False,
    )


def lag(address: str) -> int:
    """The lag of the query's group, as `offset-adapter groups describe` tells it."""
    command = [sys.executable, "-m", "adapter", "groups", "describe", GROUP, "--address", address, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (group,) = json.loads(ran.stdout)
    return sum(shard["lag"] for shard in group["shards"])


def test_a_query_over_kafka_is_seen_as_a_consumer_group(tmp_path: Path) -> None:
    """A kill -9 and a restart: nothing is skipped, no offset goes back, and at the end all of Kafka's ends are committed."""
    with kafka_broker(tmp_path / "kafka") as broker, sidecar_in_thread(tmp_path) as address:
        killed = drive(broker, address, tmp_path, "dying")
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
        ends = json.loads((tmp_path / "ends.json").read_text())
        with BlockingOffsetClient(address, PATIENCE_S) as client:
            before = {shard: row.offset for shard, row in client.read(GROUP).items()}
            assert sum(before.values()) == pq.read_table(tmp_path / "out", filters=[("batch", "<", 2)]).num_rows
            assert lag(address) == MESSAGES - sum(before.values())
            again = drive(broker, address, tmp_path, "living")
            assert again.returncode == 0, again.stderr[-4000:]
            after = {shard: row.offset for shard, row in client.read(GROUP).items()}
        assert lag(address) == 0
    assert len(ends) == PARTITIONS
    assert sum(ends.values()) == MESSAGES
    assert after == ends
    assert all(before[shard] <= after[shard] for shard in before)
    rows = pq.read_table(tmp_path / "out").select(["partition", "offset"]).to_pylist()
    expected = {(int(shard.removeprefix("orders/")), offset) for shard, end in ends.items() for offset in range(end)}
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(expected)
