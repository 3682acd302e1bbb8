"""The commands `backup` and `restore` of an adapter's store, and `meta backup` and `meta restore` of a Meta Service's."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from adapter.cli import options
from adapter.cli.connection import Target, run
from adapter.cli.output import note, tell
from adapter.cli.table import print_json
from adapter.errors import ConfigError
from adapter.runtime.wording import counted

if TYPE_CHECKING:
    from adapter.cli.backup.receiving import Taken

MB = 1_000_000

_directory = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_keep = click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Delete all but the newest N backups in DIR then.")
_backup = click.argument("backup", metavar="BACKUP", type=click.Path(path_type=Path))


@click.command("backup")
@_directory
@_keep
@options.target
@options.as_json
def backup(directory: Path, keep: int | None, target: Target, *, as_json: bool) -> None:
    """Back up the adapter's store into the directory DIR while it serves: a new subdirectory, verified before it appears.

    Only files are sent that the backup before does not have.
    """
    from adapter.cli.backup.receiving import take_of_adapter  # noqa: PLC0415 - loads gRPC

    _tell(run(take_of_adapter, target, directory, keep), as_json=as_json)


@click.command("backup")
@_directory
@_keep
@options.meta_target
@options.as_json
def meta_backup(directory: Path, keep: int | None, target: Target, *, as_json: bool) -> None:
    """Back up a Meta Service's embedded store into the directory DIR while it serves, as `backup` does an adapter's.

    With etcd use etcdctl: docs/etcd.md.
    """
    from adapter.cli.backup.receiving import take_of_meta  # noqa: PLC0415 - as above

    _tell(run(take_of_meta, target, directory, keep), as_json=as_json)


@click.command("restore")
@_backup
@options.config
def restore(backup: Path, config: Path | None) -> None:
    """Put a backup in the place of an adapter's store, which must not be there. The adapter must not be running.

    BACKUP is what `backup` printed, or the directory of backups: then the newest one.
    """
    from adapter.runtime.durable.backups import ADAPTER, find  # noqa: PLC0415 - loads RocksDB
    from adapter.runtime.settings.config import load  # noqa: PLC0415
    from adapter.runtime.telemetry import logs  # noqa: PLC0415
    from adapter.sidecar.config import AdapterConfig  # noqa: PLC0415
    from adapter.sidecar.ledger.restore import restore as put_back  # noqa: PLC0415

    settings = load(config, AdapterConfig) if config else AdapterConfig()
    logs.setup(settings.log)
    tell(put_back(find(backup, ADAPTER), settings.store.path.absolute()))


@click.command("restore")
@_backup
@click.option("--config", type=options.FILE, help="The Meta Service's TOML file.")
def meta_restore(backup: Path, config: Path | None) -> None:
    """Put a backup in the place of a Meta Service's embedded store, which must not be there. It must not be running.

    BACKUP is what `meta backup` printed, or the directory of backups: then the newest one.
    """
    from adapter.metaservice.config import MetaConfig  # noqa: PLC0415 - loads pydantic
    from adapter.metaservice.rocksdb.restore import restore as put_back  # noqa: PLC0415 - loads RocksDB
    from adapter.runtime.durable.backups import META, find  # noqa: PLC0415
    from adapter.runtime.settings.config import load  # noqa: PLC0415
    from adapter.runtime.telemetry import logs  # noqa: PLC0415

    settings = load(config, MetaConfig) if config else MetaConfig()
    logs.setup(settings.log)
    if settings.engine != "rocksdb":
        raise ConfigError('engine: "etcd" keeps nothing here; docs/etcd.md tells how to restore an etcd cluster')
    tell(put_back(find(backup, META), settings.store.path.absolute()))


def _tell(taken: "Taken", *, as_json: bool) -> None:
    backup, sent, deleted = taken
    sent_bytes = sum(file.size for file in sent)
    if as_json:
        print_json(
            {
                "path": str(backup.path),
                "kind": backup.kind,
                "store_id": backup.store_id.hex(),
                "broker": backup.broker,
                "taken_at_ms": backup.taken_at_ms,
                "seq": backup.seq,
                "rows": backup.rows,
                "files": len(backup.files),
                "bytes": backup.size,
                "sent_files": len(sent),
                "sent_bytes": sent_bytes,
                "deleted": [str(path) for path in deleted],
            }
        )
        return
    tell(
        f"{backup.path}: {counted(backup.rows, 'row')} as of {backup.taken_at}, in {counted(len(backup.files), 'file')} "
        f"({backup.size / MB:.1f} MB), of which {len(sent):,} ({sent_bytes / MB:.1f} MB) were sent; read back and verified"
    )
    for path in deleted:
        note(f"deleted {path}")
