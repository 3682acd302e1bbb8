"""What install-spark-libraries.sh fetched, and servers of it: HDFS, Google Cloud Storage, a Kafka broker."""

import base64
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from adapter.pipeline.java import java_home
from adapter.testing.processes import free_port
from benchmarks.peers.server import Server

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
PARTITIONS = 3  # of a topic that is written to for the first time


def jars(name: str) -> str:
    """The jars of a library, as the setting spark.jars takes them."""
    found = sorted((CACHE / f"spark-{name}").glob("*.jar"))
    assert found, f"run tests/interop/install-spark-libraries.sh: it fetches {name}"
    return ",".join(map(str, found))


def java() -> str:
    """The program."""
    return str(java_home(os.environ) / "bin" / "java")


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """A name node and a data node in one process; the URL of their root."""
    directory.mkdir()
    spark = Path(pyspark.__file__).parent / "jars"
    classes = ":".join(
        str(path)
        for path in (*(CACHE / "spark-hdfs").glob("*.jar"), *spark.glob("hadoop-client-*.jar"), *spark.glob("slf4j-api-*.jar"))
    )
    program = Path(__file__).with_name("spark_hdfs_java") / "Dfs.java"
    port, ready = free_port(), free_port()
    options = ["-XX:TieredStopAtLevel=1", "-cp", classes]
    server = Server(directory, [java(), *options, str(program), str(port), "data", str(ready)])
    try:
        server.wait_listening(ready)
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        server.stop()


@contextmanager
def google_storage(directory: Path) -> Iterator[str]:
    """An emulator of Google Cloud Storage; the URL of its bucket."""
    directory.mkdir()
    port = free_port()
    program = str(CACHE / "gcs" / "bin" / "gcp-storage-emulator")
    command = [program, "start", "--host=127.0.0.1", f"--port={port}", "--in-memory", "--default-bucket=bucket"]
    server = Server(directory, command)
    try:
        server.wait_listening(port)
        yield f"gs://anonymous@bucket?scheme=http&endpoint_override=127.0.0.1:{port}"
    finally:
        server.stop()


@contextmanager
def kafka_broker(directory: Path) -> Iterator[str]:
    """A broker and controller in one process; its address."""
    port, controller = free_port(), free_port()
    directory.mkdir()
    settings = directory / "server.properties"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "log"),
        "num.partitions": str(PARTITIONS),
        "offsets.topic.replication.factor": "1",
    }
    settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    classes = [java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{CACHE / 'spark-kafka-broker'}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatting = [*classes, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
    subprocess.run(formatting, cwd=directory, check=True, capture_output=True)
    server = Server(directory, [*classes, "kafka.Kafka", str(settings)])
    try:
        server.wait_listening(port)
        yield f"127.0.0.1:{port}"
    finally:
        server.stop()
