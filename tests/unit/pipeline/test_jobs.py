"""How a job is run, without Spark: what is checked before, and what a Ctrl-C does."""

import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from adapter.errors import ConfigError
from adapter.pipeline import jobs
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import INTERRUPTED, Switches, run_job, run_plain_job
from adapter.runtime.settings.config import parse


class Session:
    """A session of Spark whose connection to Java a Ctrl-C has broken."""

    def __init__(self) -> None:
        self.stops = 0
        self.sparkContext = SimpleNamespace(
            master="local[1]", getConf=lambda: SimpleNamespace(contains=lambda _: True), setLogLevel=lambda _: None
        )

    def stop(self) -> None:
        """As it may end."""
        self.stops += 1
        warnings.warn("Unable to cleanly shutdown", RuntimeWarning, stacklevel=1)
        raise RuntimeError("reentrant call")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Python's own handler of Ctrl-C, which a process in the background of a shell has not; put back after the test."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def interrupt(*_: object, **__: object) -> int:
    """As Ctrl-C does; py4j logs its traces by the root logger then."""
    trace = logging.LogRecord(
        "root", logging.ERROR, "/lib/py4j/java_gateway.py", 1, "Exception while sending command", None, None
    )
    logging.getLogger().handle(trace)
    logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
    signal.raise_signal(signal.SIGINT)
    raise AssertionError


def replaced(monkeypatch: pytest.MonkeyPatch, start: Callable[..., Any], run: Callable[..., int]) -> None:
    """Let a job start Spark and run by these functions."""
    parts = {
        "adapter.pipeline.session": SimpleNamespace(spark_session=start),
        "adapter.pipeline.shared": SimpleNamespace(check_shared=lambda *_: None),
    }
    spark_part = jobs.spark_part
    job_names = {f"adapter.pipeline.{name}" for name in (*jobs.MODULES.values(), *jobs.PLAIN_MODULES.values())}
    monkeypatch.setattr(
        jobs, "spark_part", lambda name: SimpleNamespace(run=run) if name in job_names else parts.get(name) or spark_part(name)
    )


@pytest.mark.parametrize("while_it", ["starts", "runs"])
def test_ctrl_c_ends_a_job_with_one_line(
    monkeypatch: pytest.MonkeyPatch, while_it: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark is stopped, and what its broken connection says is not shown."""
    session, said = Session(), StringIO()
    replaced(monkeypatch, interrupt if while_it == "starts" else lambda *_, **__: session, interrupt)
    code = run_job("import", JobConfig(), Switches(apply=True, console=Console(file=said)), None, {})
    assert code == INTERRUPTED == 130
    assert said.getvalue().splitlines()[-1] == "interrupted: run it again; what was merged into the Meta Service stays"
    assert session.stops == (while_it == "runs")
    assert caplog.records == []


def test_ctrl_c_ends_a_job_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same line and exit code."""
    said = StringIO()
    replaced(monkeypatch, interrupt, interrupt)
    assert run_plain_job("report", JobConfig(), Switches(console=Console(file=said))) == INTERRUPTED
    assert said.getvalue() == "interrupted: run it again\n"


@pytest.mark.parametrize("name", ["lag", "reconcile", "import", "export", "report"])
def test_a_file_as_output_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """By the name of the setting."""
    (tmp_path / "x").touch()
    replaced(monkeypatch, interrupt, interrupt)
    section = {"output": str(tmp_path / "x")} | ({"journals": [str(tmp_path)]} if name == "lag" else {})
    config = parse({name: section}, JobConfig, source="job.toml")
    with pytest.raises(ConfigError, match=rf"^\[{name}\] output = '{tmp_path}/x': is a file; name a directory$"):
        run(name, config)


def test_tls_files_are_looked_at_before_spark_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the job calls the Meta Service."""
    (tmp_path / "c").touch()
    replaced(monkeypatch, interrupt, interrupt)
    tls = {"ca": str(tmp_path / "c"), "cert": str(tmp_path / "c"), "key": str(tmp_path / "nope")}
    config = parse({"meta": {"tls": tls}, "lag": {"journals": [str(tmp_path)]}}, JobConfig, source="job.toml")
    for name in ("reconcile", "import", "export"):
        with pytest.raises(ConfigError, match=rf"^meta\.tls\.key = '{tmp_path}/nope': No such file or directory$"):
            run(name, config)
    assert run("lag", config) == run("report", config) == INTERRUPTED


def test_journals_of_which_none_is_there_are_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One is enough, and storage is asked by the job."""
    (tmp_path / "file").touch()
    replaced(monkeypatch, interrupt, interrupt)

    def lag(*journals: str) -> int:
        return run("lag", parse({"lag": {"journals": journals}}, JobConfig, source="job.toml"))

    with pytest.raises(ConfigError, match=rf"^\[lag\] journals = '{tmp_path}/a': no such directory: is the path right"):
        lag(f"{tmp_path}/a")
    both = rf"^\[lag\] journals\[0\] = '{tmp_path}/file', \[lag\] journals\[1\] = '{tmp_path}/file/b': no such directory"
    with pytest.raises(ConfigError, match=both):
        lag(f"{tmp_path}/file", f"{tmp_path}/file/b")
    assert lag(f"{tmp_path}/a", f"{tmp_path}") == lag(f"{tmp_path}/a", "s3://journals/a") == INTERRUPTED


@pytest.mark.parametrize("master", ["nope", "spark:/host:7077", "yarn-client", "http://host"])
def test_what_is_no_master_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """Spark itself would show a stack trace."""
    replaced(monkeypatch, interrupt, interrupt)
    for given, conf in ((master, {}), (None, {"spark.master": master})):
        with pytest.raises(ConfigError, match=rf"^--master {master}: is no master"):
            run_job("import", JobConfig(), Switches(), given, conf)


@pytest.mark.parametrize("master", ["local", "local[4]", "spark://host:7077", "k8s://https://host:6443", "yarn", None])
def test_every_master_of_spark_is_taken(monkeypatch: pytest.MonkeyPatch, master: str | None) -> None:
    """And none, which is left to Spark's settings."""
    replaced(monkeypatch, interrupt, interrupt)
    assert run_job("import", JobConfig(), Switches(console=Console(file=StringIO())), master, {}) == INTERRUPTED


def run(name: str, config: JobConfig) -> int:
    """Run a job of either kind."""
    switches = Switches(console=Console(file=StringIO()))
    return run_plain_job(name, config, switches) if name in jobs.PLAIN_MODULES else run_job(name, config, switches, None, {})
