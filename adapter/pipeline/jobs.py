"""Runs a job by its name: starts Spark if it needs it, runs the job, translates errors of workers, returns the exit code.

A job is a module with `run(spark, config, switches) -> int`, a plain one, for which no Spark is started, with
`run(config, switches) -> int`. It is imported when it is run.
"""

import logging
import os
import signal
import stat
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import structlog
from rich.console import Console

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.config import JobConfig
from adapter.pipeline.places import Place, unusable
from adapter.runtime.version import install_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # may not be installed

log = structlog.get_logger(__name__)

# Exit codes. 2 is that of an AdapterError.
DONE = 0
NOT_AS_ASKED = 1
WITH_REJECTS = 3
INTERRUPTED = 128 + signal.SIGINT  # as shells report it

MODULES: Mapping[str, str] = {
    "lag": "lag.job",
    "reconcile": "reconcile.job",
    "import": "transfer.import_job",
    "export": "transfer.export_job",
}
# Jobs that need no Spark: they read files by pyarrow.
PLAIN_MODULES: Mapping[str, str] = {"report": "report.job"}

# The work of these is done in Python, and soon over; `lag` runs on, and `reconcile` joins in Java.
SHORT = {"import", "export"}

# These call the Meta Service.
CALLING = {"reconcile", "import", "export"}

_LOG_LEVEL = "spark.log.level"


class JobError(AdapterError):
    """A job failed. The message is one line, of the error in the worker or about what Spark said."""


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


class PlainJob(Protocol):
    """The interface of a plain job's module."""

    def run(self, config: JobConfig, switches: Switches) -> int:
        """Run the job; returns the exit code. Raises AdapterError."""
        ...


def run_plain_job(name: str, config: JobConfig, switches: Switches) -> int:
    """Run a job that needs no Spark; returns the exit code. Raises AdapterError, also for errors of files."""
    try:
        return _run_plain_job(name, config, switches)
    except KeyboardInterrupt:
        return _interrupted(switches)


def _run_plain_job(name: str, config: JobConfig, switches: Switches) -> int:
    check_files(name, config)
    module = cast("PlainJob", spark_part(f"adapter.pipeline.{PLAIN_MODULES[name]}"))
    with _told(name, config, switches):
        try:
            return module.run(config, switches)
        except OSError as error:
            log.debug("job.failed", exc_info=True)
            raise JobError(f"{error.strerror}: {error.filename}" if error.filename else str(error)) from error


def run_job(name: str, config: JobConfig, switches: Switches, master: str | None, conf: Mapping[str, str]) -> int:
    """Start Spark with the settings `conf`, run a job, stop Spark; returns the exit code, after a Ctrl-C that of INTERRUPTED.

    Raises AdapterError, also for errors in workers.
    """
    try:
        with _py4j_quiet():
            return _run_job(name, config, switches, master, conf)
    except KeyboardInterrupt:
        return _interrupted(switches)


def _run_job(name: str, config: JobConfig, switches: Switches, master: str | None, conf: Mapping[str, str]) -> int:
    refuse_connect(master or conf.get("spark.remote") or os.environ.get("SPARK_REMOTE", ""))
    check_master(master or conf.get("spark.master"))
    check_files(name, config)
    module = cast("Job", spark_part(f"adapter.pipeline.{MODULES[name]}"))
    session = spark_part("adapter.pipeline.session")
    quiet = {} if switches.console.is_terminal else {"spark.ui.showConsoleProgress": "false"}
    with _told(name, config, switches), own_errors():
        with switches.step("starting Spark"):
            spark = session.spark_session(f"offset-adapter {name}", master, {**quiet, **conf}, short=name in SHORT)
        with _stopped_after(spark):
            if not spark.sparkContext.getConf().contains(_LOG_LEVEL):  # spark-submit's default would log every step
                spark.sparkContext.setLogLevel("ERROR")
            reads, writes = _places(name, config)
            spark_part("adapter.pipeline.shared").check_shared(spark, reads, {} if switches.dry_run else writes)
            return module.run(spark, config, switches)


def _interrupted(switches: Switches) -> int:
    merged = "; what was merged into the Meta Service stays" if switches.apply else ""
    switches.tell(f"interrupted: run it again{merged}")
    return INTERRUPTED


@contextmanager
def _stopped_after(spark: "SparkSession") -> Iterator[None]:
    """Stop Spark at the end. The first Ctrl-C raises KeyboardInterrupt, a second one ends the process at once.

    PySpark's own handler calls Java from within the call that it interrupts, which breaks that connection with an error.
    """

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception), warnings.catch_warnings(action="ignore"):  # its connection may have ended within a call
            spark.stop()
        raise
    except BaseException:
        spark.stop()
        raise
    else:
        spark.stop()


@contextmanager
def _py4j_quiet() -> Iterator[None]:
    """Leave out py4j's traces of interrupted and failed calls: it logs them, mostly by the root logger, and raises as well."""

    def is_not_py4j(record: logging.LogRecord) -> bool:
        return f"{os.sep}py4j{os.sep}" not in record.pathname

    root, own = logging.getLogger(), logging.getLogger("py4j")
    level = own.level
    root.addFilter(is_not_py4j)
    own.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.removeFilter(is_not_py4j)
        own.setLevel(level)


def _told(name: str, config: JobConfig, switches: Switches) -> AbstractContextManager[None]:
    """Tell OpenLineage of the run, unless it is a dry one."""
    if switches.dry_run:
        return nullcontext()
    told: AbstractContextManager[None] = spark_part("adapter.pipeline.lineage").told(name, config, apply=switches.apply)
    return told


def _places(name: str, config: JobConfig) -> tuple[dict[str, Place], dict[str, Place]]:
    """The places that the workers of a job read, and those that they write, by the names of their settings."""
    section = getattr(config, "import_" if name == "import" else name)
    reads: dict[str, Place] = {}
    writes: dict[str, Place] = {}
    for field_name, value in section:
        if field_name == "checkpoint":  # only the driver sees it
            continue
        places = [place for place in (value if isinstance(value, tuple) else (value,)) if isinstance(place, Place)]
        for number, place in enumerate(places):
            where = f"[{name}] {field_name}" + (f"[{number}]" if len(places) > 1 else "")
            (writes if field_name == "output" else reads)[where] = place
    return reads, writes


def check_files(name: str, config: JobConfig) -> None:
    """Check the journals, the directory that a job writes, and the TLS files by which it calls.

    Raises ConfigError with the setting's name.
    """
    reads, writes = _places(name, config)
    if name == "lag":
        _check_journals(reads)
    for field_name, place in writes.items():
        try:
            is_file = not place.is_remote and place.path.is_file()
        except OSError as error:  # as of a directory above it that this user may not search
            raise unusable(place, field_name, error) from error
        if is_file:
            raise ConfigError(f"{field_name} = {str(place)!r}: is a file; name a directory")
    if name not in CALLING:
        return
    for tls_name, path in config.meta.tls or ():
        try:
            if path:
                path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"meta.tls.{tls_name} = {str(path)!r}: {error.strerror}") from error


def _check_journals(journals: Mapping[str, Place]) -> None:
    """Raise ConfigError if none is there. One that comes later, beside others, is read from then on."""
    for where, place in journals.items():
        try:
            if place.is_remote or stat.S_ISDIR(place.path.stat().st_mode):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise unusable(place, where, error) from error
    told = ", ".join(f"{where} = {str(place)!r}" for where, place in journals.items())
    raise ConfigError(f"{told}: no such directory: is the path right, and its disk mounted?")


def check_master(master: str | None) -> None:
    """Raise ConfigError for what Spark does not take as a master."""
    if master and master != "yarn" and not master.startswith(("local", "spark://", "k8s://")):
        raise ConfigError(f"--master {master}: is no master: give local[4], spark://HOST:7077, k8s://HOST:PORT or yarn")


def refuse_connect(master: str) -> None:
    """Raise ConfigError for the address of a Spark Connect server: its sessions lack the SparkContext, which the jobs use."""
    if master.startswith("sc://"):
        raise ConfigError(
            f"{master}: the jobs do not run by Spark Connect: give --master the cluster itself (spark://, yarn, k8s://), or use "
            "spark-submit, and unset SPARK_REMOTE. The data sources do work in a session of Spark Connect"
        )


@contextmanager
def own_errors() -> Iterator[None]:
    """Turn an error of Spark, of its workers or of a file into a JobError of one line. Its trace is logged at level debug."""
    errors = spark_part("adapter.pipeline.spark_errors")
    try:
        yield
    except (*errors.SPARK_ERRORS, OSError) as error:
        log.debug("job.failed", exc_info=True)
        raise JobError(errors.in_one_line(error)) from error


def spark_part(name: str) -> Any:  # noqa: ANN401 - a module
    """Import a module that needs the extra `spark`. Raises ConfigError if that is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "adapter"}:
            raise
        raise ConfigError(f"{missing} is not installed: {install_extra('spark')}") from error
