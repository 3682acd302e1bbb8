"""A standalone Spark cluster of real processes on this machine: a master, and workers with directories of their own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from adapter.pipeline.cli import ENTRY
from adapter.pipeline.java import java_home
from adapter.testing.processes import free_port
from tests.pipeline.jvm import SHORT_LIVED

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0  # until a JVM is there, on a machine that may be busy
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@dataclass(frozen=True)
class Cluster:
    """A running cluster; each worker has the directory `worker-N` below `directory`."""

    url: str
    directory: Path

    def job(
        self, *arguments: str, program: Sequence[str | Path] = (sys.executable, ENTRY), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `offset-adapter-spark` with these arguments on the cluster, in the directory of the driver."""
        conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.executor.extraJavaOptions": SHORT_LIVED}
        options = [f"--conf={name}={value}" for name, value in conf.items()]
        return subprocess.run(
            [*program, *arguments, "--master", self.url, *options],
            env={**_environment(), **environment},
            cwd=self.driver,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def driver(self) -> Path:
        """The working directory of the driver."""
        directory = self.directory / "driver"
        directory.mkdir(exist_ok=True)
        return directory


@contextmanager
def spark_cluster(directory: Path, private: Path | None = None, modules: Path = ROOT) -> Iterator[Cluster]:
    """A cluster with two workers of one core.

    `private`: a directory that the second worker does not share (needs root). `modules`: where the Python of the workers finds
    the adapter; an empty directory if it is to be shipped.
    """
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        log = running.enter_context(_process(directory / "master", modules, [_SPARK_CLASS, *master]))
        for number in (1, 2):
            place = directory / f"worker-{number}"
            worker = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "600m", "--webui-port", "0"]
            command: list[str | Path] = [_SPARK_CLASS, *worker, "--host", "127.0.0.1", "--work-dir", place, url]
            if private and number > 1:
                command = _apart(command, private, f"worker-{number}")
            running.enter_context(_process(place, modules, command))
        _wait_for(log, r"Registering worker", 2)
        yield Cluster(url, directory)


def _apart(command: Sequence[str | Path], private: Path, name: str) -> list[str | Path]:
    """The command with another file system at a directory, and another host name."""
    script = f'mount -t tmpfs none "$0" && hostname {name} && exec "$@"'
    return ["unshare", "--mount", "--uts", "sh", "-c", script, private, *command]


@contextmanager
def _process(directory: Path, modules: Path, command: Sequence[str | Path]) -> Iterator[Path]:
    """A process in a directory; its log is `log` there."""
    directory.mkdir(parents=True)
    log = directory / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=directory, env={**_environment(), "PYTHONPATH": str(modules)}, stdout=out, stderr=out
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    java = {"JAVA_HOME": str(java_home(os.environ)), "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED, "SPARK_DAEMON_MEMORY": "256m"}
    return {**kept, **java, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), "SPARK_NO_DAEMONIZE": "1"}


def _wait_for(log: Path, pattern: str, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while len(re.findall(pattern, log.read_text(errors="replace"))) < count:
        if time.monotonic() > until:
            raise TimeoutError(log.read_text(errors="replace")[-2_000:])
        time.sleep(0.1)
