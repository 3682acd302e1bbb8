"""The jobs by name, what all of them are given beside their settings, and how they end.

A job is a module with `run(spark, config, switches) -> int`. It is imported only when it is run.
"""

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

# Exit codes. 2 is an error that was raised.
DONE = 0
NOT_AS_ASKED = 1
WITH_REJECTS = 3

MODULES: Mapping[str, str] = {
    "lag": "lag_job",
    "reconcile": "reconcile_job",
    "import": "imports_job",
    "export": "exports_job",
    "report": "report_job",
}

_LOG_LEVEL = "spark.log.level"

# The last line of a trace that a Python worker of Spark sent: our own errors are told by their text.
_OURS = re.compile(r"^\s*(?:\S+: )?adapter\.(?:\w+\.)+\w*Error: (.+)$", re.MULTILINE)


class JobError(AdapterError):
    """A job failed; the text is that of the error that a worker raised."""


@dataclass(frozen=True)
class Switches:
    """What the command line says. `dry_run`: read and count, write nothing. `apply`: change the Meta Service."""

    dry_run: bool = False
    apply: bool = False
    available_now: bool = False
    # Standard error; tables for a script go to files.
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Say what is being done, and at its end how long it took. Between the two Spark shows its progress on a terminal."""
        self.tell(f"{text} ...")
        began = time.monotonic()
        yield
        self.tell(f"{text}: {time.monotonic() - began:.1f} s")

    def tell(self, text: str) -> None:
        """Print a sentence."""
        self.console.print(text, markup=False, soft_wrap=True)


class Job(Protocol):
    """A module of a job."""

    def run(self, spark: "SparkSession", config: JobConfig, switches: Switches) -> int:
        """Do it; returns the exit code. Raises AdapterError."""
        ...


def run_job(name: str, config: JobConfig, switches: Switches, master: str | None) -> int:
    """Start Spark, run a job, stop Spark; returns the exit code. Raises AdapterError, also for one that a worker raised."""
    module = cast("Job", spark_part(f"adapter.pipeline.{MODULES[name]}"))
    session = spark_part("adapter.pipeline.session")
    settings = {"spark.ui.showConsoleProgress": str(switches.console.is_terminal).lower()}
    with switches.step("starting Spark"):
        spark = session.spark_session(f"offset-adapter {name}", master, settings)
    if not spark.sparkContext.getConf().contains(_LOG_LEVEL):  # what spark-submit began logs every step, if nobody said more
        spark.sparkContext.setLogLevel("ERROR")
    try:
        with own_errors():
            return module.run(spark, config, switches)
    finally:
        spark.stop()


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise an error that Spark sent from a worker, in a long trace, as what it was there: a JobError with its text."""
    try:
        yield
    except spark_part("pyspark.errors").PySparkException as error:
        found = _OURS.findall(str(error))
        if not found:
            raise
        raise JobError(found[-1]) from error


def spark_part(name: str) -> Any:  # noqa: ANN401 - a module
    """A module that needs the extra `spark`. Raises ConfigError when that is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "adapter"}:
            raise
        raise ConfigError(f"{missing} is not installed: pip install 'offset-adapter[spark]'") from error
