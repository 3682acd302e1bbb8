"""The command `offset-adapter-spark`: one subcommand for each job. Options and settings are checked before Spark starts."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click

from adapter import __version__
from adapter.errors import AdapterError, InvalidInputError
from adapter.pipeline import jobs
from adapter.pipeline.config import JobConfig
from adapter.runtime.settings.config import LogSection, load
from adapter.runtime.telemetry import logs

Conf = Mapping[str, str]

ENTRY = Path(__file__).with_name("__main__.py")
_SPARK_LOGGING = Path(__file__).with_name("log4j2.properties")

_config = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file, see config/job.toml; without it every setting has its default.",
)
_master = click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[4], spark://HOST:7077, yarn... [default: spark.master of Spark's settings, or local[*]]",
)
_conf = click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    callback=lambda _context, _parameter, given: _settings(given),
    help="A setting of Spark, such as spark.driver.memory=4g; may be repeated. It wins over spark-submit's and the defaults.",
)
_dry_run = click.option("--dry-run", is_flag=True, help="Read, count and show; write no table, file or offset.")
_apply = click.option(
    "--apply", is_flag=True, help="Merge into the Meta Service, then read back. Without it only tables are written."
)
_available_now = click.option(
    "--available-now",
    is_flag=True,
    help="Read what the journals hold now, then end. Without it the job runs on.",
)


def _settings(given: Sequence[str]) -> Conf:
    """The options --conf as settings. Raises InvalidInputError for one that is not KEY=VALUE."""
    for text in given:
        if "=" not in text or not text.startswith("spark."):
            raise InvalidInputError(f"--conf {text}: is not KEY=VALUE with a key that begins with spark.")
    return dict(text.split("=", 1) for text in given)


def _show(text: Callable[[], object]) -> Callable[[click.Context, click.Parameter, bool], None]:
    def show(context: click.Context, _: click.Parameter, given: bool) -> None:  # noqa: FBT001 - as click calls it
        if given:
            click.echo(text())
            context.exit()

    return show


def _java_home() -> Path:
    logs.setup(LogSection())  # logs go to standard error; standard output is the path only
    return Path(jobs.spark_part("adapter.pipeline.java").java_home(os.environ))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="offset-adapter-spark")
@click.option(
    "--where",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show(lambda: ENTRY),
    help="Print the file for spark-submit.",
)
@click.option(
    "--java-home",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show(_java_home),
    help="Print the JAVA_HOME that the jobs use: for spark-submit on a machine without Java.",
)
def cli() -> None:
    """Jobs over the offsets of a whole fleet, on Spark.

    Exit codes: 0 done; 1 done, but not everything is as requested; 2 an error: nothing counts as done that was not
    reported as done; 3 done, but some rows are unreadable, see the table `rejects`; 130 interrupted by Ctrl-C.

    On a cluster: spark-submit [OPTIONS] $(offset-adapter-spark --where) JOB [OPTIONS]
    """


@cli.command()
@_config
@_master
@_conf
@_dry_run
@_available_now
def lag(config: Path | None, master: str | None, conf: Conf, *, dry_run: bool, available_now: bool) -> None:
    """Compute lag, rates, status and rewinds of every group, continuously, from the journals of all adapters."""
    _run("lag", config, master, conf, jobs.Switches(dry_run=dry_run, available_now=available_now))


@cli.command()
@_config
@_master
@_conf
@_dry_run
@_apply
def reconcile(config: Path | None, master: str | None, conf: Conf, *, dry_run: bool, apply: bool) -> None:
    """Compare snapshots of all adapters with the Meta Service, and repair it with --apply."""
    _run("reconcile", config, master, conf, jobs.Switches(dry_run=dry_run, apply=apply))


@cli.command("import")
@_config
@_master
@_conf
@_dry_run
@_apply
def import_command(config: Path | None, master: str | None, conf: Conf, *, dry_run: bool, apply: bool) -> None:
    """Import offsets from files of RocketMQ or Kafka. They are merged: no offset is lowered."""
    _run("import", config, master, conf, jobs.Switches(dry_run=dry_run, apply=apply))


@cli.command()
@_config
@_master
@_conf
@_dry_run
def export(config: Path | None, master: str | None, conf: Conf, *, dry_run: bool) -> None:
    """Write the Meta Service's offsets as files of RocketMQ or Kafka."""
    _run("export", config, master, conf, jobs.Switches(dry_run=dry_run))


@cli.command()
@_config
@_dry_run
def report(config: Path | None, *, dry_run: bool) -> None:
    """Write an HTML page from the tables of `lag`. It needs no Spark."""
    sys.exit(jobs.run_plain_job("report", _settings_of(config), jobs.Switches(dry_run=dry_run)))


def _run(name: str, path: Path | None, master: str | None, conf: Conf, switches: jobs.Switches) -> None:
    if switches.dry_run and switches.apply:
        raise InvalidInputError("--apply writes and --dry-run does not: give one of them")
    config = _settings_of(path)
    # Read by Spark's launcher. Without effect if spark-submit has started the JVM.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", shlex.quote(f"-Dlog4j2.configurationFile={_SPARK_LOGGING}"))
    sys.exit(jobs.run_job(name, config, switches, master, conf))


def _settings_of(path: Path | None) -> JobConfig:
    config = load(path, JobConfig) if path else JobConfig()
    logs.setup(config.log)
    return config


def main() -> None:
    """The console script. An AdapterError is printed, one line each, and ends the process with exit code 2."""
    try:
        cli()
    except AdapterError as error:
        for line in str(error).splitlines():
            click.secho(f"error: {line}", err=True, fg="red")
        sys.exit(2)
