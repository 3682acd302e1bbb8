"""The commands `meta kv`: put, get, delete and list metadata in a Meta Service.

Exit codes: 0 done; 1 nothing was changed, because the key is absent or its revision is not that of --if-revision; 2 an error.
"""

import base64
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
import grpc
import grpc.aio

from adapter.cli import options
from adapter.cli.connection import CallError, Target, run_or_exit
from adapter.cli.output import CSV, JSON, TABLE, Form, listing, note, tell
from adapter.cli.table import LEFT, RIGHT, CsvRows, Side, print_json, print_table
from adapter.errors import InvalidInputError
from adapter.metaservice.metadata import REVISION_MAX
from adapter.rpc import metadata_grpc, metadata_pb
from adapter.runtime.channels import open_channel
from adapter.runtime.wording import counted

if TYPE_CHECKING:  # exists only in the stubs
    from adapter.rpc.metadata_pb2_grpc import MetadataStoreAsyncStub as Stub

R = TypeVar("R")

TIMEOUT_S = 10.0  # of one call

_NOT_THERE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED}
_CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1),)

_COLUMNS: dict[str, Side] = {"key": LEFT, "revision": RIGHT, "bytes": RIGHT, "value": LEFT}

FIELDS = ("key", "revision", "value", "value_base64")

_cluster = click.option("--cluster", default="default", show_default=True, help="The cluster whose keys are meant.")
_key = click.argument("key")
_if_revision = click.option(
    "--if-revision",
    type=click.IntRange(0, REVISION_MAX),
    help="Only if the key has this revision; 0: only if it is absent. Otherwise exit code 1.",
)


@click.group()
def kv() -> None:
    """Metadata by key: put, get, delete, list."""


@kv.command()
@_key
@click.argument("value")
@_cluster
@_if_revision
@options.meta_target
@options.as_json
def put(key: str, value: str, cluster: str, if_revision: int | None, target: Target, *, as_json: bool) -> None:
    """Write VALUE, at most 1 MiB; `-` reads the bytes from standard input. Prints the new revision."""
    data = sys.stdin.buffer.read() if value == "-" else value.encode()
    run_or_exit(
        _put, target, metadata_pb.PutRequest(cluster_name=cluster, key=key, value=data, expected_revision=if_revision), as_json
    )


@kv.command()
@_key
@_cluster
@click.option("--value-only", is_flag=True, help="Write only the value's bytes to standard output.")
@options.meta_target
@options.form
def get(key: str, cluster: str, value_only: bool, target: Target, form: Form) -> None:
    """Show a value and its revision. Exit code 1 when the key is absent."""
    if value_only and form != TABLE:
        raise InvalidInputError(f"--value-only and --output {form}: name one of them")
    show = _show_value if value_only else {JSON: _show_json, CSV: _show_csv, TABLE: _show_row}[form]
    run_or_exit(_get, target, metadata_pb.GetRequest(cluster_name=cluster, key=key), show)


@kv.command()
@_key
@_cluster
@_if_revision
@options.meta_target
@options.as_json
def delete(key: str, cluster: str, if_revision: int | None, target: Target, *, as_json: bool) -> None:
    """Delete a key. Exit code 1 when it was absent."""
    run_or_exit(_delete, target, metadata_pb.DeleteRequest(cluster_name=cluster, key=key, expected_revision=if_revision), as_json)


@kv.command("list")
@click.argument("prefix", default="")
@_cluster
@options.meta_target
@options.form
def list_command(prefix: str, cluster: str, target: Target, form: Form) -> None:
    """List the keys that start with PREFIX, sorted by their bytes, with values and revisions."""
    run_or_exit(_list, target, metadata_pb.ListRequest(cluster_name=cluster, prefix=prefix, page_size=1_000), form)


async def _put(target: Target, request: metadata_pb.PutRequest, as_json: bool) -> bool:
    async with _connected(target) as stub:
        reply = await _unless_conflict(stub.Put(request, timeout=TIMEOUT_S))
    if reply is None:
        return False
    if as_json:
        print_json({"revision": reply.revision})
    else:
        tell(f"written, revision {reply.revision}")
    return True


async def _get(target: Target, request: metadata_pb.GetRequest, show: Callable[[metadata_pb.Entry], None]) -> bool:
    async with _connected(target) as stub:
        reply = await stub.Get(request, timeout=TIMEOUT_S)
    if not reply.HasField("entry"):
        note(f"key {request.key!r}: it is absent")
        return False
    show(reply.entry)
    return True


async def _delete(target: Target, request: metadata_pb.DeleteRequest, as_json: bool) -> bool:
    async with _connected(target) as stub:
        reply = await _unless_conflict(stub.Delete(request, timeout=TIMEOUT_S))
    if reply is None:
        return False
    if as_json:
        print_json({"deleted": reply.deleted})
    else:
        tell("deleted" if reply.deleted else "it was absent")
    return reply.deleted


async def _list(target: Target, request: metadata_pb.ListRequest, form: Form) -> bool:
    async with _connected(target) as stub:
        with listing(form, _COLUMNS, _cells, FIELDS, _json) as rows:
            while True:
                reply = await stub.List(request, timeout=TIMEOUT_S)
                for entry in reply.entries:
                    rows.add(entry)
                request.page_token = reply.next_page_token
                if not reply.next_page_token:
                    break
    if form == TABLE:
        note(counted(rows.count, "key"))
    return True


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator["Stub"]:
    """The metadata stub of a Meta Service. Raises CallError for a failed call in the block, ConfigError for a bad TLS file."""
    async with open_channel(target.address, target.tls, _CHANNEL_OPTIONS) as channel:
        try:
            yield metadata_grpc.MetadataStoreStub(channel)
        except grpc.aio.AioRpcError as error:
            help_text = "; is a Meta Service that serves metadata there? (--address)" if error.code() in _NOT_THERE else ""
            raise CallError(f"{target.address}: {error.code().name}: {error.details()}{help_text}") from error


async def _unless_conflict(call: Awaitable[R]) -> R | None:
    """The reply to a call; None, after printing the reason, if the key has another revision."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ABORTED:
            raise
        note(error.details() or error.code().name)
        return None


def _show_value(entry: metadata_pb.Entry) -> None:
    sys.stdout.buffer.write(entry.value)
    sys.stdout.buffer.flush()


def _show_json(entry: metadata_pb.Entry) -> None:
    print_json(_json(entry))


def _show_csv(entry: metadata_pb.Entry) -> None:
    with CsvRows[metadata_pb.Entry](FIELDS, _json) as rows:
        rows.add(entry)


def _show_row(entry: metadata_pb.Entry) -> None:
    print_table(_COLUMNS, [_cells(entry)])


def _cells(entry: metadata_pb.Entry) -> Sequence[str]:
    return entry.key, str(entry.revision), f"{len(entry.value):,}", entry.value.decode(errors="surrogateescape")


def _json(entry: metadata_pb.Entry) -> dict[str, Any]:
    """The entry for JSON: `value` if it is UTF-8, otherwise `value_base64`."""
    shown: dict[str, Any] = {"key": entry.key, "revision": entry.revision}
    try:
        return {**shown, "value": entry.value.decode()}
    except UnicodeDecodeError:
        return {**shown, "value_base64": base64.b64encode(entry.value).decode()}
