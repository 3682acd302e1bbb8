"""The command `offset-adapter`: the two processes, and tools for a person. Tables by default, `--json` for scripts."""

import sys
from pathlib import Path

import anyio
import click

from adapter import __version__, logs, repairing, sidecar, tools
from adapter.config import AdapterConfig, MetaConfig, load
from adapter.errors import AdapterError
from adapter.metaservice import process as meta_process
from adapter.process import run_process

CONFIG = click.Path(path_type=Path, dir_okay=False)

_config = click.option("--config", type=CONFIG, help="A TOML file; without it every setting has its default.")
_address = click.option(
    "--address",
    default="127.0.0.1:9520",
    show_default=True,
    envvar="OFFSET_ADAPTER_ADDRESS",
    help="The adapter: host:port or unix:/path. [env: OFFSET_ADAPTER_ADDRESS]",
)
_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
_namespace = click.option("--namespace", "-n", default="default", show_default=True)


def _load(path: Path | None, kind: type[AdapterConfig | MetaConfig]) -> AdapterConfig | MetaConfig:
    return load(path, kind) if path else kind()


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


@cli.command()
@_config
def meta(config: Path | None) -> None:
    """Run the Meta Service."""
    settings = load(config, MetaConfig) if config else MetaConfig()
    logs.setup(settings.log)
    sys.exit(run_process(lambda until: meta_process.run(settings, until)))


@cli.command()
@_address
@_json
def status(address: str, *, as_json: bool) -> None:
    """Show what the adapter does, and what is at risk. Exit code 1 unless it is serving."""
    if not anyio.run(tools.status, address, as_json):
        sys.exit(1)


@cli.command()
@_address
def health(address: str) -> None:
    """Exit with 0 when the adapter or Meta Service at ADDRESS is SERVING, else with 1: for container health checks."""
    sys.exit(0 if anyio.run(tools.health, address) else 1)


@cli.command()
@click.argument("group")
@click.argument("shards", nargs=-1)
@_namespace
@click.option(
    "--mode",
    type=click.Choice(["memory-first", "memory", "store"]),
    default="memory-first",
    show_default=True,
    help="memory: local only. store: ask the Meta Service. memory-first: ask it for what is not local.",
)
@_address
@_json
def get(group: str, shards: tuple[str, ...], namespace: str, mode: str, address: str, *, as_json: bool) -> None:
    """Show a group's offsets. Exit code 1 when a named shard has none."""
    if not anyio.run(tools.get, address, namespace, group, shards, mode, as_json):
        sys.exit(1)


@cli.command()
@click.argument("group")
@click.argument("shard")
@click.argument("offset")
@_namespace
@click.option("--overwrite", is_flag=True, help="A lower offset is a rewind, stored under the next epoch.")
@click.option("--metadata", default="", help="At most 4,096 bytes.")
@_address
@_json
def commit(
    group: str, shard: str, offset: str, namespace: str, metadata: str, address: str, *, overwrite: bool, as_json: bool
) -> None:
    """Commit OFFSET, the next offset to read. Exit code 1 when a larger one stands."""
    if not anyio.run(tools.commit, address, namespace, group, shard, offset, metadata, overwrite, as_json):
        sys.exit(1)


@cli.command("list")
@click.option("--namespace", "-n", default="", help="Only this namespace.")
@click.option("--group", "-g", default="", help="Only this group; needs --namespace.")
@click.option("--meta", "meta_address", default="", help="List what the Meta Service at host:port holds instead.")
@click.option("--cluster", default="default", show_default=True, help="With --meta: the cluster.")
@_address
@_json
def list_command(namespace: str, group: str, meta_address: str, cluster: str, address: str, *, as_json: bool) -> None:
    """List the adapter's local offsets, or the Meta Service's."""
    if meta_address:
        anyio.run(tools.list_meta, meta_address, cluster, namespace, group, as_json)
    else:
        anyio.run(tools.list_local, address, namespace, group, as_json)


@cli.command()
@_address
@_json
def flush(address: str, *, as_json: bool) -> None:
    """Send every dirty offset to the Meta Service now."""
    anyio.run(tools.flush, address, as_json)


@cli.command("check-config")
@click.argument("path", type=CONFIG)
@click.option("--kind", type=click.Choice(["adapter", "meta"]), default="adapter", show_default=True)
@_json
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


def main() -> None:
    """The console script. Errors that were raised on purpose are one line each, and exit code 2."""
    try:
        cli()
    except AdapterError as error:
        for line in str(error).splitlines():
            click.secho(f"error: {line}", err=True, fg="red")
        sys.exit(2)
