"""The command `offset-adapter`: the two processes, and tools for a person. Tables by default, `--json` for scripts."""

import sys
from pathlib import Path

import anyio
import click

from adapter import __version__, logs, repairing, sidecar
from adapter.cli import offsets, options, tools
from adapter.cli.meta_copy import copy
from adapter.cli.meta_kv import kv
from adapter.cli.meta_placement import placement
from adapter.cli.meta_rebalance import rebalance
from adapter.cli.meta_store import repair as meta_repair
from adapter.cli.meta_store import status as meta_status
from adapter.cli.moving import export_command, import_command
from adapter.cli.snapshot import snapshot
from adapter.config import AdapterConfig, load
from adapter.errors import AdapterError, InvalidInputError
from adapter.metaservice import process as meta_process
from adapter.metaservice.config import MetaConfig
from adapter.process import run_process

CONFIG = click.Path(path_type=Path, dir_okay=False)

_config = click.option("--config", type=CONFIG, help="A TOML file; without it every setting has its default.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="offset-adapter")
def cli() -> None:
    """Keeps a message broker's consumer offsets: durable at once, batched to the Meta Service."""


@cli.command()
@_config
def serve(config: Path | None) -> None:
    """Run the adapter beside a broker.

    Exit code 0 after a complete stop, 1 when dirty offsets stayed behind (they are on disk) or the start failed.
    """
    settings = load(config, AdapterConfig) if config else AdapterConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: sidecar.run(settings, until)))


@cli.group(invoke_without_command=True)
@_config
@click.pass_context
def meta(context: click.Context, config: Path | None) -> None:
    """Run the Meta Service; with a command, look after the one that runs."""
    if context.invoked_subcommand is None:
        settings = load(config, MetaConfig) if config else MetaConfig()
        logs.setup(settings.log)
        sys.exit(run_process(lambda until: meta_process.run(settings, until)))


@cli.command()
@options.target
@options.as_json
def status(target: tools.Target, *, as_json: bool) -> None:
    """Show what the adapter does, and what is at risk. Exit code 1 unless it is serving."""
    if not anyio.run(tools.status, target, as_json):
        sys.exit(1)


@cli.command()
@options.target_without_token
def health(target: tools.Target) -> None:
    """Exit with 0 when the adapter or Meta Service at --address is SERVING, else with 1: for container health checks."""
    sys.exit(0 if anyio.run(tools.health, target) else 1)


@cli.command()
@click.argument("group")
@click.argument("shards", nargs=-1)
@options.namespace
@click.option(
    "--mode",
    type=click.Choice(["memory-first", "memory", "store"]),
    default="memory-first",
    show_default=True,
    help="memory: local only. store: ask the Meta Service. memory-first: ask it for what is not local.",
)
@options.target_without_token
@options.as_json
def get(group: str, shards: tuple[str, ...], namespace: str, mode: str, target: tools.Target, *, as_json: bool) -> None:
    """Show a group's offsets. Exit code 1 when a named shard has none."""
    if not anyio.run(tools.get, target, namespace, group, shards, mode, as_json):
        sys.exit(1)


@cli.command()
@click.argument("group")
@click.argument("shard")
@click.argument("offset")
@options.namespace
@click.option("--overwrite", is_flag=True, help="A lower offset is a rewind, stored under the next epoch.")
@click.option("--metadata", default="", help="At most 4,096 bytes.")
@options.target_without_token
@options.as_json
def commit(
    group: str, shard: str, offset: str, namespace: str, metadata: str, target: tools.Target, *, overwrite: bool, as_json: bool
) -> None:
    """Commit OFFSET, the next offset to read. Exit code 1 when a larger one stands."""
    if not anyio.run(tools.commit, target, namespace, group, shard, offset, metadata, overwrite, as_json):
        sys.exit(1)


@cli.command("list")
@click.option("--namespace", "-n", default="", help="Only this namespace.")
@click.option("--group", "-g", default="", help="Only this group; needs --namespace.")
@click.option("--meta", "meta_address", default="", help="List what the Meta Service at host:port holds instead.")
@click.option("--cluster", default="default", show_default=True, help="With --meta: the cluster.")
@options.target
@options.as_json
def list_command(namespace: str, group: str, meta_address: str, cluster: str, target: tools.Target, *, as_json: bool) -> None:
    """List the adapter's local offsets, or the Meta Service's."""
    if meta_address:
        anyio.run(tools.list_meta, meta_address, target.tls, cluster, namespace, group, as_json)
    else:
        anyio.run(tools.list_local, target, namespace, group, as_json)


@cli.command()
@options.target
@options.as_json
def flush(target: tools.Target, *, as_json: bool) -> None:
    """Send every dirty offset to the Meta Service now."""
    anyio.run(tools.flush, target, as_json)


@cli.command("check-config")
@click.argument("path", type=CONFIG)
@click.option("--kind", type=click.Choice(["adapter", "meta"]), default="adapter", show_default=True)
@options.as_json
def check_config(path: Path, kind: str, *, as_json: bool) -> None:
    """Check a configuration file and show the settings that result. Exit code 2 names every bad one."""
    tools.show_config(load(path, AdapterConfig if kind == "adapter" else MetaConfig), as_json=as_json)


@cli.command()
@_config
@click.option("--start-from-meta", is_flag=True, help="Do not repair: set the store aside and begin an empty one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def repair(config: Path | None, *, start_from_meta: bool, yes: bool) -> None:
    """Repair a local store that does not open. The adapter must not be running. Nothing is deleted: a copy stays beside it."""
    settings = load(config, AdapterConfig) if config else AdapterConfig()
    logs.setup(settings.log)
    what = "be set aside; only what the Meta Service holds remains" if start_from_meta else "be copied, then repaired in place"
    if not yes:
        click.confirm(f"The store {settings.cache.path} will {what}. Go on?", abort=True)
    tools.tell(repairing.start_from_meta(settings.cache) if start_from_meta else repairing.repair(settings.cache))


cli.add_command(offsets.groups)
cli.add_command(offsets.offsets)
cli.add_command(import_command)
cli.add_command(export_command)
cli.add_command(snapshot)
meta.add_command(copy)
meta.add_command(kv)
meta.add_command(placement)
meta.add_command(rebalance)
meta.add_command(meta_repair)
meta.add_command(meta_status)


def main() -> None:
    """The console script. Errors that were raised on purpose are one line each, and exit code 2."""
    try:
        _check_utf8(sys.argv[1:])
        cli()
    except AdapterError as error:
        for line in str(error).splitlines():
            click.secho(f"error: {line}", err=True, fg="red")
        sys.exit(2)


def _check_utf8(arguments: list[str]) -> None:
    for number, text in enumerate(arguments, start=1):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidInputError(f"argument {number}: {text!r} is not UTF-8")
