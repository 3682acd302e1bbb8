"""The command `check-config`: reads a configuration file as its process would, and prints the settings that result."""

import json
from pathlib import Path

import click

from adapter.cli import options
from adapter.cli.doctor import secrets
from adapter.cli.doctor.doubts import doubts
from adapter.cli.doctor.findings import FAIL, WARN, gather
from adapter.cli.output import Form, flattened, show_object, warn
from adapter.errors import ConfigError
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.config import Section, load
from adapter.sidecar.config import AdapterConfig


@click.command("check-config")
@click.argument("path", type=options.FILE)
@click.option("--kind", type=click.Choice(["adapter", "meta", "console"]), default="adapter", show_default=True)
@click.option("--syntax-only", is_flag=True, help="Leave the files alone that the settings name: certificates, keys, tokens.")
@options.form
def check_config(path: Path, kind: str, syntax_only: bool, form: Form) -> None:
    """Check a configuration file, and the certificates, keys and tokens that it names; show the settings that result.

    Run it as the user of the process, in its working directory. Exit code 2 when the process would not start with it.
    """
    config = load(path, _kind(kind))
    found = [] if syntax_only else gather(secrets.files_of(config))
    if refused := [row for row in found if row.state == FAIL]:
        raise ConfigError("\n".join(f"{path}: {row.check}: {row.seen}: {row.advice}" for row in refused))
    for row in found:
        if row.state == WARN:
            warn(f"{row.check}: {row.seen}: {row.advice}")
    for text in doubts(config) if isinstance(config, AdapterConfig) else ():
        warn(text)
    values = config.model_dump(mode="json")
    rows = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in flattened(values))
    show_object(form, values, rows, ("setting", "value"))


def _kind(name: str) -> type[Section]:
    if name == "console":
        from adapter.console.config import ConsoleConfig  # noqa: PLC0415 - the others do not need it

        return ConsoleConfig
    return AdapterConfig if name == "adapter" else MetaConfig
