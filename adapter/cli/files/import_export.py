"""The commands `import` and `export`: their options and checks. `import_run` and `export_run` do the work."""

import shlex
from pathlib import Path
from typing import get_args

import click

from adapter.cli import completing, options
from adapter.cli.connection import Target, run_or_exit
from adapter.cli.files import export_run, import_run
from adapter.cli.output import Form, warn
from adapter.errors import InvalidInputError
from adapter.formats.broker_places import SINGLE_STORE, V1_STORE
from adapter.formats.files import Format
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming
from adapter.runtime.durable import files

_FORMATS = click.Choice([kind.value for kind in Format])

# Formats that name a shard TOPIC/QUEUE, without its broker. The others name whole shards, or hold the broker.
_WITH_BROKER = (Format.ROCKETMQ_BROKER, Format.ROCKETMQ_ROCKSDB)


@click.command("import")
@click.argument("file")
@click.option("--format", "name", type=_FORMATS, help="[default: by FILE's name]")
@click.option("--group", "-g", default="", help="The group of a file that names none; else import only this group.")
@click.option("--broker", default="", help="RocketMQ's broker: shards become BROKER/TOPIC/QUEUE instead of TOPIC/QUEUE.")
@options.accept_unterminated
@options.execute
@options.namespace
@options.target
@options.as_json
def import_command(
    file: str,
    name: str | None,
    group: str,
    broker: str,
    namespace: str,
    target: Target,
    *,
    accept_unterminated: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Merge the offsets of FILE (- is standard input): only those larger than the stored ones. A dry run unless --execute.

    FILE is RocketMQ's consumerOffset.json, offsets.json or RocksDB directory, Kafka's CSV, or JSON. A truncated file is
    refused before anything is sent; of a CSV this shows only where it is cut within a line. An unreadable entry is reported with
    its place; the others are imported.

    An import may be killed and repeated at any time. Exit code 1 when a larger offset is stored, or an entry is unreadable.
    """
    kind = _kind(name, file, "FILE")
    if kind is Format.ROCKETMQ_CLIENT and not group:
        raise InvalidInputError(f"--group: is missing, and a {kind.value} file names no group{_group_by_path(file)}")
    if kind in _WITH_BROKER and not broker:
        warn(
            "shards are named TOPIC/QUEUE; RocketMQ's consumers, the bridge and the plugin name them BROKER/TOPIC/QUEUE: "
            "--broker NAME imports them so (brokerName in broker.conf)"
        )
    source = import_run.Source(file, kind, _naming(kind, namespace, group, broker), accept_unterminated)
    run_or_exit(import_run.import_file, target, source, execute=execute, as_json=as_json)


@click.command("export", cls=options.MetaCommand)
@click.argument("groups", metavar="[GROUP]...", nargs=-1, shell_complete=completing.group)
@click.option("--format", "name", type=_FORMATS, help="[default: by the name of -o]")
@click.option(
    "--output", "-o", default=files.STDIO, metavar="FILE", help="Written completely or not at all; - is standard output."
)
@click.option("--broker", default="", help="RocketMQ's broker: export only its shards, BROKER/TOPIC/QUEUE.")
@click.option("--layout", type=click.Choice(get_args(Layout)), help="The layout of rocketmq-rocksdb. [default: v1]")
@click.option("--skip-unnamed", is_flag=True, help="Leave out shards that the format has no name for: those without /NUMBER.")
@click.option("--all-namespaces", is_flag=True, help="Of every namespace; in JSON, which alone tells them apart.")
@options.meta_instead
@options.cluster
@options.namespace
@options.target
def export_command(
    groups: tuple[str, ...],
    name: str | None,
    output: str,
    broker: str,
    layout: Layout | None,
    cluster: str,
    namespace: str,
    target: Target,
    *,
    skip_unnamed: bool,
    all_namespaces: bool,
    meta: str | None,
) -> None:
    """Write the offsets of the named groups, or of all at the adapter, to a file for RocketMQ, for Kafka, or in JSON.

    With --meta, of all that stand in the Meta Service. What stands there and is not in the file is counted and told.

    Kafka's CSV has no group column if exactly one group is named. If the format cannot hold an offset, the offset is
    reported and nothing is written; JSON can hold every offset.

    Exit code 1 when a named group has no offsets, or the Meta Service has groups that are not in the file.
    """
    if output in get_args(Form):
        raise InvalidInputError(
            f"-o: {output!r} is a form of listings; here it names a file: --format sets its format, -o ./{output} names it so"
        )
    kind = _kind(name, output, "-o")
    if layout and kind is not Format.ROCKETMQ_ROCKSDB:
        raise InvalidInputError(f"--layout: {kind.value} has none; only {Format.ROCKETMQ_ROCKSDB.value} has")
    if kind is Format.ROCKETMQ_CLIENT and len(groups) != 1:
        raise InvalidInputError(f"{kind.value}: such a file is of one group; name exactly one")
    if kind is Format.ROCKETMQ_ROCKSDB and Path(output).name == SINGLE_STORE:
        raise InvalidInputError(
            f"-o: {SINGLE_STORE} is a broker's store of topics and groups as well; write {V1_STORE} beside it with --layout v1, "
            "which the broker takes over at its next start"
        )
    if all_namespaces and (groups or kind is not Format.JSON):
        raise InvalidInputError("--all-namespaces: is for --format json, and names no groups")
    naming = _naming(kind, "" if all_namespaces else namespace, groups[0] if len(groups) == 1 else "", broker)
    to = export_run.Destination(output, kind, naming, layout or "v1", skip_unnamed)
    run_or_exit(export_run.export, export_run.Origin(target, groups, "" if meta is None else cluster), to)


def _group_by_path(file: str) -> str:
    """A suggestion, by RocketMQ's own path .../<clientId>/<group>/offsets.json."""
    name = "" if file == files.STDIO else Path(file).resolve().parent.name
    return f"; its directory is {name}: if that is the group, --group {shlex.quote(name)}" if name else ""


def _kind(name: str | None, path: str, argument: str) -> Format:
    kind = Format(name) if name else Format.of(Path(path))
    if kind is Format.ROCKETMQ_ROCKSDB and path == files.STDIO:
        raise InvalidInputError(f"{argument}: {kind.value} is a directory; name it")
    return kind


def _naming(kind: Format, namespace: str, group: str, broker: str) -> Naming:
    if broker and kind not in _WITH_BROKER:
        raise InvalidInputError(
            f"--broker: {kind.value} names shards as they are; only {' and '.join(kind.value for kind in _WITH_BROKER)} need it"
        )
    return Naming(namespace, group, broker)
