"""The commands that run a process, and those that read its configuration."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from adapter.cli import options
from adapter.cli.output import tell
from adapter.cli.table import LEFT, print_json, print_table
from adapter.metaservice import process as meta_process
from adapter.metaservice.config import MetaConfig
from adapter.runtime import logs
from adapter.runtime.config import load
from adapter.runtime.process import run_process
from adapter.sidecar import process
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.storage.repair import repair as repair_store
from adapter.sidecar.storage.repair import start_from_meta as set_aside

CONFIG = click.Path(path_type=Path, dir_okay=False)

_config = click.option("--config", type=CONFIG, help="A TOML file; without it every setting has its default.")


@click.command()
@_config
def serve(config: Path | None) -> None:
    """Run the adapter beside a broker.

    Exit code 0 after a complete stop, 1 when dirty offsets stayed behind (they are on disk) or the start failed.
    """
    settings = load(config, AdapterConfig) if config else AdapterConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: process.run(settings, until)))


def serve_meta(config: Path | None) -> None:
    """Run the Meta Service; does not return."""
    settings = load(config, MetaConfig) if config else MetaConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: meta_process.run(settings, until)))


@click.command("check-config")
@click.argument("path", type=CONFIG)
@click.option("--kind", type=click.Choice(["adapter", "meta"]), default="adapter", show_default=True)
@options.as_json
def check_config(path: Path, kind: str, *, as_json: bool) -> None:
    """Check a configuration file and show the settings that result. Exit code 2 names every bad one."""
    values = load(path, AdapterConfig if kind == "adapter" else MetaConfig).model_dump(mode="json")
    if as_json:
        print_json(values)
    else:
        print_table({"setting": LEFT, "value": LEFT}, _flatten(values))


@click.command()
@_config
@click.option("--start-from-meta", is_flag=True, help="Do not repair: set the store aside and begin an empty one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def repair(config: Path | None, *, start_from_meta: bool, yes: bool) -> None:
    """Repair a local store that does not open. The adapter must not be running. Nothing is deleted: a copy stays beside it."""
    settings = load(config, AdapterConfig) if config else AdapterConfig()
    logs.setup(settings.log)
    what = "be set aside; only what the Meta Service holds remains" if start_from_meta else "be copied, then repaired in place"
    if not yes:
        click.confirm(f"The store {settings.store.path} will {what}. Go on?", abort=True)
    tell(set_aside(settings.store) if start_from_meta else repair_store(settings.store))


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
