"""The entry point `offset-adapter`: the table of commands, and how errors become messages and exit codes.

No command is imported before it runs. Exit code 2: an error, printed as one line; 141: the reader of the output is gone.
"""

import os
import sys

import click

from adapter.cli import terminal
from adapter.cli.lazy import Lazy, LazyGroup
from adapter.errors import AdapterError, InvalidInputError

WIDEST = 110  # columns of a help text
READER_GONE = 141  # 128 + SIGPIPE: the exit code that shells report for a command whose reader is gone

COMMANDS = {
    "serve": Lazy("adapter.cli.process.serve:serve", "Run the adapter beside a broker."),
    "status": Lazy("adapter.cli.process.status:status", "Show the adapter's state, and which offsets a crash could lose."),
    "health": Lazy(
        "adapter.cli.process.health:health",
        "Exit with 0 when the adapter or Meta Service at --address is SERVING, else with 1: for container health checks.",
    ),
    "top": Lazy(
        "adapter.cli.top.command:top",
        "Show how far groups are behind, those that got worse first: live at a terminal, else once.",
    ),
    "get": Lazy("adapter.cli.offsets.get_list:get", "Show a group's offsets."),
    "commit": Lazy("adapter.cli.offsets.commit_flush:commit", "Commit OFFSET, the next offset to read."),
    "list": Lazy("adapter.cli.offsets.get_list:list_command", "List the adapter's local offsets, or the Meta Service's."),
    "flush": Lazy("adapter.cli.offsets.commit_flush:flush", "Send every dirty offset to the Meta Service now."),
    "drain": Lazy(
        "adapter.cli.groups.drain:drain",
        "Hand over every group of the adapter, and go on until none is left: before its broker goes for good.",
    ),
    "console": Lazy(
        "adapter.cli.process.console:console", "Run the console: a web page that shows adapters, Meta Service and groups."
    ),
    "completion": Lazy("adapter.cli.completion:completion", "Print the script that completes commands and options in a SHELL."),
    "doctor": Lazy(
        "adapter.cli.doctor.command:doctor",
        "Check what an adapter needs, whether it runs or not: configuration, disk, limits, clock, Meta Service, certificates.",
    ),
    "config": Lazy(
        "adapter.cli.process.config:config",
        "Print a commented configuration file, with every setting: `offset-adapter config adapter > adapter.toml`.",
    ),
    "check-config": Lazy(
        "adapter.cli.process.check_config:check_config",
        "Check a configuration file, and the certificates, keys and tokens that it names; show the settings that result.",
    ),
    "reload": Lazy(
        "adapter.cli.process.reload:reload",
        "Have the adapter read its configuration file, certificates and token again, as SIGHUP does.",
    ),
    "repair": Lazy("adapter.cli.process.repair:repair", "Repair a local store that does not open."),
    "context": Lazy("adapter.cli.context:context", "Name the servers that commands call: list, show, use, set, remove."),
    "backup": Lazy(
        "adapter.cli.backup.command:backup",
        "Back up the adapter's store into the directory DIR while it serves: a new subdirectory, verified before it appears.",
    ),
    "restore": Lazy(
        "adapter.cli.backup.command:restore",
        "Put a backup in the place of an adapter's store, which must not be there.",
    ),
    "groups": Lazy("adapter.cli.groups.command:groups", "Consumer groups: list, describe, clone, hand over."),
    "offsets": Lazy("adapter.cli.offsets.command:offsets", "Offsets of groups: reset, delete, and what was moved."),
    "meta": Lazy("adapter.cli.process.meta:meta", "Run the Meta Service; with a subcommand, operate one that runs."),
    "import": Lazy(
        "adapter.cli.files.import_export:import_command",
        "Merge the offsets of FILE (- is standard input): only those larger than the stored ones.",
    ),
    "export": Lazy(
        "adapter.cli.files.import_export:export_command",
        "Write the offsets of the named groups, or of all at the adapter, to a file for RocketMQ, for Kafka, or in JSON.",
    ),
    "snapshot": Lazy(
        "adapter.cli.files.snapshot:snapshot",
        "Write all local offsets as they are at one instant to a Parquet file, tombstones included, while the adapter serves.",
    ),
}


class Root(LazyGroup):
    """The root command. If the reader of standard output is gone (`| head`), it exits silently with code 141."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _forget_output()
        except BaseExceptionGroup as group:
            if group.split(BrokenPipeError)[1]:
                raise
            _forget_output()
        sys.exit(READER_GONE)


def _show_version(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from adapter.runtime.version import commit, version  # noqa: PLC0415 - only this option needs it

        click.echo(f"offset-adapter, version {version()}, commit {commit()}")
        context.exit()


@click.group(cls=Root, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show version and commit."
)
@click.option("--context", "context_name", metavar="NAME", help="As behind the command: the context that says whom to call.")
def cli(**_: object) -> None:
    """Keeps a message broker's consumer offsets: durable at once, batched to the Meta Service."""


def main() -> None:
    """The console script. An AdapterError is printed, one line each, and ends the process with exit code 2."""
    # Files with offsets, metadata or tokens are readable by their owner only, whatever the umask was.
    os.umask(0o077)
    # Print characters that the terminal's encoding lacks as escapes instead of failing.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        _check_utf8(sys.argv[1:])
        try:
            cli(terminal_width=max(min(terminal.width(), WIDEST) - 2, 50))  # as click has it, without shutil
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        sys.exit(READER_GONE)
    except AdapterError as error:
        for line in str(error).splitlines():
            click.secho(f"error: {terminal.visible(line)}", err=True, fg="red", color=terminal.colour())
        sys.exit(2)


def _forget_output() -> None:
    """Redirect standard output to /dev/null, so that flushing it at exit cannot fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _check_utf8(arguments: list[str]) -> None:
    for number, text in enumerate(arguments, start=1):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidInputError(f"argument {number}: {text!r} is not UTF-8")
