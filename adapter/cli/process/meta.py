"""The command `offset-adapter meta`: the Meta Service itself, and the table of the commands that operate one."""

from pathlib import Path

import click

from adapter.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "copy": Lazy(
        "adapter.cli.meta.copy:copy",
        "Copy all offsets from the Meta Service SOURCE (host:port) to the one at --address, tombstones included.",
    ),
    "doctor": Lazy(
        "adapter.cli.doctor.command:meta_doctor",
        "Check what a Meta Service needs, whether it runs or not: configuration, disk, limits, clock, etcd, certificates.",
    ),
    "kv": Lazy("adapter.cli.meta.kv:kv", "Metadata by key: put, get, delete, list."),
    "placement": Lazy("adapter.cli.meta.placement:placement", "Show or balance the leaders of the etcd Raft groups."),
    "rebalance": Lazy(
        "adapter.cli.meta.rebalance:rebalance",
        "Move the offsets into the configured Raft groups while the Meta Services keep serving.",
    ),
    "repair": Lazy("adapter.cli.meta.repair:repair", "Repair an embedded store that does not start."),
    "backup": Lazy(
        "adapter.cli.backup.command:meta_backup",
        "Back up a Meta Service's embedded store into the directory DIR while it serves, as `backup` does an adapter's.",
    ),
    "restore": Lazy(
        "adapter.cli.backup.command:meta_restore",
        "Put a backup in the place of a Meta Service's embedded store, which must not be there.",
    ),
    "snapshot": Lazy(
        "adapter.cli.meta.snapshot:snapshot",
        "Write all offsets as they are at one instant as Parquet files, tombstones included, while the Meta Service serves.",
    ),
    "status": Lazy("adapter.cli.meta.status:status", "Show a Meta Service's stores, their revisions, and what they lost."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, invoke_without_command=True)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file; without it every setting has its default.",
)
@click.pass_context
def meta(context: click.Context, config: Path | None) -> None:
    """Run the Meta Service; with a subcommand, operate one that runs."""
    if context.invoked_subcommand is None:
        from adapter.cli.process.serve import serve_meta  # noqa: PLC0415 - the subcommands do not need it

        serve_meta(config)
