"""The command `repair`: repairs the adapter's local store, or sets it aside. `meta repair` is in `adapter.cli.meta.repair`."""

from pathlib import Path

import click

from adapter.cli import options
from adapter.cli.output import tell
from adapter.runtime.settings.config import load
from adapter.runtime.telemetry import logs
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.ledger.repair import repair as repair_store
from adapter.sidecar.ledger.repair import start_from_meta as set_aside


@click.command()
@options.config
@click.option("--start-from-meta", is_flag=True, help="Do not repair: set the store aside and start with an empty one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def repair(config: Path | None, *, start_from_meta: bool, yes: bool) -> None:
    """Repair a local store that does not open. The adapter must not be running. The damaged store is kept as a copy."""
    settings = load(config, AdapterConfig) if config else AdapterConfig()
    logs.setup(settings.log)
    what = "be set aside; only what the Meta Service holds remains" if start_from_meta else "be copied, then repaired in place"
    if not yes:
        click.confirm(f"The store {settings.store.path} will {what}. Go on?", abort=True)
    tell(set_aside(settings.store) if start_from_meta else repair_store(settings.store))
