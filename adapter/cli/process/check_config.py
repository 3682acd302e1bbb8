"""The command `check-config`: reads a configuration file as its process would, and prints the settings that result."""

import json
from collections.abc import Iterator
from pathlib import Path

import click

from adapter.cli import options
from adapter.cli.output import Form, flattened, show_object, warn
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.addresses import is_loopback
from adapter.runtime.settings.config import Section, load
from adapter.sidecar.config import AdapterConfig


@click.command("check-config")
@click.argument("path", type=options.FILE)
@click.option("--kind", type=click.Choice(["adapter", "meta", "console"]), default="adapter", show_default=True)
@options.form
def check_config(path: Path, kind: str, form: Form) -> None:
    """Check a configuration file and show the settings that result. Exit code 2 when a setting is invalid."""
    config = load(path, _kind(kind))
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


def doubts(config: AdapterConfig) -> Iterator[str]:
    """What is allowed, and may not be meant."""
    away = [endpoint for endpoint in config.meta.endpoints if not is_loopback(endpoint)]
    if away and config.meta.tls is None:
        yield f"meta.endpoints: {away[0]} is on another machine: without [meta.tls] anybody on the way can change offsets"
    if config.meta.tls is not None:
        yield "meta.tls: RobustMQ's Meta Service has no TLS, and cannot be reached with it; a Meta Service of this project has"
    if config.robustmq.listen and not config.robustmq.broker:
        yield "robustmq.broker: is empty: the RobustMQ broker is not told of resets and deletes, and goes on from what it has"
    if config.robustmq.listen in config.meta.endpoints:
        yield f"robustmq.listen: {config.robustmq.listen} is one of meta.endpoints, too: the adapter would call itself"
