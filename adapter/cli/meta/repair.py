"""The command `meta repair`: repairs an embedded store of a Meta Service that does not open."""

from pathlib import Path

import click

from adapter.cli.output import tell
from adapter.errors import ConfigError
from adapter.metaservice.config import MetaConfig
from adapter.metaservice.process import HOUR_MS
from adapter.metaservice.rocksdb.repair import repair as repair_store
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.config import load
from adapter.runtime.telemetry import logs


@click.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="The Meta Service's TOML file.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def repair(config: Path | None, *, yes: bool) -> None:
    """Repair an embedded store that does not start. The Meta Service must not be running. The damaged store is kept.

    Unreadable records are counted as lost, and the store's incarnation is raised, so that adapters push their offsets again.
    """
    settings = load(config, MetaConfig) if config else MetaConfig()
    logs.setup(settings.log)
    if settings.engine != "rocksdb":
        raise ConfigError('engine: "etcd" keeps nothing here; an etcd cluster is repaired or restored by its own tools')
    if not yes:
        click.confirm(f"A new store of all that can be read will take the place of {settings.store.path}. Go on?", abort=True)
    retention_ms = settings.tombstones.retention_hours * HOUR_MS
    tell(repair_store(settings.store.path.absolute(), wall_ms() - retention_ms if retention_ms else 0))
