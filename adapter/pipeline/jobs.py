"""Runs a job by its name: starts Spark, runs the job, translates errors of workers, returns the exit code.

A job is a module with `run(spark, config, switches) -> int`. It is imported when it is run.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from rich.console import Console

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.config import JobConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # may not be installed

# Exit codes. 2 is that of an AdapterError.
DONE = 0
NOT_AS_ASKED = 1
WITH_REJECTS = 3

MODULES: Mapping[str, str] = {
    "lag": "lag.job",
    "reconcile": "reconcile.job",
    "import": "transfer.import_job",
    "export": "transfer.export_job",
    "report": "report.job",
}

_LOG_LEVEL = "spark.log.level"

# Our errors in the last line of a traceback that a Python worker of Spark sent.
_OURS = re.compile(r"^\s*(?:\S+: )?adapter\.(?:\w+\.)+\w*Error: (.+)$", re.MULTILINE)


class JobError(AdapterError):
    """A job failed. The message is that of the error in the worker."""


@dataclass(frozen=True)
class Switches:
    """The switches of the command line. `dry_run`: read and count, but write nothing. `apply`: change the Meta Service."""

    dry_run: bool = False
    apply: bool = False
    available_now: bool = False
    # Messages go to standard error; tables for scripts are files.
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the name of a step, and its duration at the end. In between, Spark shows its progress on a terminal."""
        self.tell(f"{text} ...")
        began = time.monotonic()
        yield
        self.tell(f"{text}: {time.monotonic() - began:.1f} s")

    def tell(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, soft_wrap=True)


class Job(Protocol):
    """The interface of a job's module."""

    def run(self, spark: "SparkSession", config: JobConfig, switches: Switches) -> int:
        """Run the job; returns the exit code. Raises AdapterError."""
        ...


def run_job(name: str, config: JobConfig, switches: Switches, master: str | None) -> int:
    """Start Spark, run a job, stop Spark; returns the exit code. Raises AdapterError, also for errors in workers."""
    refuse_connect(master or os.environ.get("SPARK_REMOTE", ""))
    module = cast("Job", spark_part(f"adapter.pipeline.{MODULES[name]}"))
    session = spark_part("adapter.pipeline.session")
    settings = {"spark.ui.showConsoleProgress": str(switches.console.is_terminal).lower()}
    with switches.step("starting Spark"):
        spark = session.spark_session(f"offset-adapter {name}", master, settings)
    if not spark.sparkContext.getConf().contains(_LOG_LEVEL):  # spark-submit's default would log every step
        spark.sparkContext.setLogLevel("ERROR")
    try:
        with own_errors():
            return module.run(spark, config, switches)
    finally:
        spark.stop()


def refuse_connect(master: str) -> None:
    """Raise ConfigError for the address of a Spark Connect server: its sessions lack the SparkContext, which the jobs use."""
    if master.startswith("sc://"):
        raise ConfigError(
            f"{master}: the jobs do not run by Spark Connect: give --master the cluster itself (spark://, yarn, k8s://), or use "
            "spark-submit, and unset SPARK_REMOTE. The data sources do work in a session of Spark Connect"
        )


@contextmanager
def own_errors() -> Iterator[None]:
    """Turn an error that Spark sent from a worker, as a long traceback, into a JobError with the error's own message."""
    try:
        yield
    except spark_part("pyspark.errors").PySparkException as error:
        found = _OURS.findall(str(error))
        if not found:
            raise
        raise JobError(found[-1]) from error


def spark_part(name: str) -> Any:  # noqa: ANN401 - a module
    """Import a module that needs the extra `spark`. Raises ConfigError if that is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "adapter"}:
            raise
        raise ConfigError(f"{missing} is not installed: pip install 'offset-adapter[spark]'") from error
