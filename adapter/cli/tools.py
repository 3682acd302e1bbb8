"""What the tools of the command line print: tables for a person, JSON for a script."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.table import Table

from adapter.access import read_token
from adapter.channels import open_channel
from adapter.client import OffsetClient
from adapter.config import ClientTls, MetaSection, Section
from adapter.errors import AdapterError, InvalidInputError
from adapter.meta_client import GrpcMetaClient
from adapter.model import CommitMode
from adapter.reads import ReadMode
from adapter.requests import DEFAULT_PAGE, parse_offset
from adapter.rpc import offsets_pb
from adapter.views import shard_offset

MODES = {"memory-first": ReadMode.MEMORY_FIRST_THEN_STORE, "memory": ReadMode.MEMORY, "store": ReadMode.STORE}

_UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


class CallError(AdapterError):
    """A call of a tool failed."""


class Target(NamedTuple):
    """Which adapter a command calls, how it is verified, and the file with the token that it is shown."""

    address: str
    token_file: Path | None = None
    tls: ClientTls | None = None


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[OffsetClient]:
    """A client of an adapter. What fails while it is used is raised as a CallError, a bad file as a ConfigError."""
    token = read_token(target.token_file, "--token-file") if target.token_file else ""
    try:
        async with OffsetClient.connect(target.address, token=token, tls=target.tls) as client:
            yield client
    except grpc.aio.AioRpcError as error:
        code = error.code()
        help_text = "; is the adapter running there, and ready? (--address)" if code in _UNREACHABLE else ""
        raise CallError(f"{target.address}: {code.name}: {error.details()}{help_text}") from error


async def status(target: Target, as_json: bool) -> bool:
    """Print the status; True when the adapter is serving."""
    async with connected(target) as client:
        reply = await client.status()
    state = offsets_pb.StatusReply.State.Name(reply.state)
    if as_json:
        print_json(as_dict(reply))
    else:
        _print_status(reply, state)
    return reply.state == offsets_pb.StatusReply.SERVING


async def health(target: Target) -> bool:
    """Print the health of the server as a whole; True when it is SERVING."""
    async with open_channel(target.address, target.tls, ()) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2.0)
        except grpc.aio.AioRpcError as error:
            tell(f"{target.address}: {error.code().name}: {error.details()}")
            return False
    tell(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def get(target: Target, namespace: str, group: str, shards: Sequence[str], mode: str, as_json: bool) -> bool:
    """Print a group's offsets; True when every named shard has one."""
    async with connected(target) as client:
        found = await client.read(group, shards, namespace=namespace, mode=MODES[mode])
    _print_offsets(found.values(), as_json=as_json)
    return bool(found) and all(shard in found for shard in shards)


async def commit(
    target: Target, namespace: str, group: str, shard: str, offset: str, metadata: str, overwrite: bool, as_json: bool
) -> bool:
    """Commit one offset; True when it stands."""
    item = offsets_pb.ShardCommit(shard=shard, offset=parse_offset(offset, "OFFSET"), metadata=metadata)
    mode = CommitMode.OVERWRITE if overwrite else CommitMode.INCREASE_ONLY
    request = offsets_pb.CommitOffsetsRequest(
        groups=[offsets_pb.GroupCommits(namespace=namespace, group=group, shards=[item])],
        mode=offsets_pb.CommitMode.ValueType(mode.value),
    )
    async with connected(target) as client:
        reply = await client.store.CommitOffsets(request, timeout=5.0)
    if as_json:
        print_json(as_dict(reply))
    elif reply.superseded:
        row = reply.superseded[0]
        tell(f"not applied: {'a deletion' if row.deleted else row.offset} (epoch {row.epoch}) stands; --overwrite rewinds")
    else:
        tell("committed")
    return not reply.superseded


async def flush(target: Target, as_json: bool) -> None:
    """Flush and print how many offsets the Meta Service acknowledged."""
    async with connected(target) as client:
        flushed = await client.flush()
    if as_json:
        print_json({"flushed": flushed})
    else:
        tell(f"flushed {flushed:,} offsets")


async def list_local(target: Target, namespace: str, group: str, as_json: bool) -> None:
    """Print the adapter's local offsets."""
    async with connected(target) as client:
        rows = [row async for row in client.list(namespace, group)]
    _print_offsets(rows, as_json=as_json)


async def list_meta(address: str, tls: ClientTls | None, cluster: str, namespace: str, group: str, as_json: bool) -> None:
    """Print what the Meta Service holds."""
    rows: list[offsets_pb.ShardOffset] = []
    try:
        section = MetaSection(cluster=cluster, endpoints=(address,), tls=tls)
    except ValueError as error:
        raise InvalidInputError(f"--meta or --cluster: {error}") from error
    async with GrpcMetaClient.open(section) as client:
        token = b""
        while True:
            page, token = await client.list_page(namespace, group, DEFAULT_PAGE, token)
            rows += [shard_offset(key, record, dirty=False) for key, record in page]
            if not token:
                break
    _print_offsets(rows, as_json=as_json)


def show_config(config: Section, *, as_json: bool) -> None:
    """Print the settings in force."""
    values = config.model_dump(mode="json")
    if as_json:
        print_json(values)
        return
    table = Table("setting", "value")
    for name, value in _flatten(values):
        table.add_row(name, json.dumps(value) if not isinstance(value, str) else value)
    Console().print(table)


def tell(text: str) -> None:
    """Print a sentence."""
    Console(highlight=False).print(text, markup=False, soft_wrap=True)


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def as_dict(message: Any) -> dict[str, Any]:  # noqa: ANN401 - any protobuf message
    """Numbers as numbers: 64-bit ones too, which protobuf's own JSON writes as strings."""
    values = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {name: _plain(message, name, value) for name, value in values.items()}


def _plain(message: Any, name: str, value: Any) -> Any:  # noqa: ANN401
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is not None:
        present = getattr(message, name)
        return [as_dict(item) for item in present] if field.is_repeated else as_dict(present)
    return int(value) if field.type in {field.TYPE_UINT64, field.TYPE_INT64} and isinstance(value, str) else value


def print_json(value: Any) -> None:  # noqa: ANN401 - anything json takes
    """For a script."""
    print(json.dumps(value, indent=2, ensure_ascii=False))  # noqa: T201 - what the command is for


def _print_offsets(rows: Iterable[offsets_pb.ShardOffset], *, as_json: bool) -> None:
    if as_json:
        print_json([as_dict(row) for row in rows])
        return
    table = Table("namespace", "group", "shard")
    for name in ("offset", "epoch", "committed", "state"):
        table.add_column(name, justify="right" if name in {"offset", "epoch"} else "left")
    table.add_column("metadata", overflow="fold")
    count = 0
    for row in rows:
        count += 1
        cells = (row.namespace, row.group, row.shard, str(row.offset), str(row.epoch), when(row.committed_at_ms))
        table.add_row(*cells, "dirty" if row.dirty else "clean", row.metadata)
    console = Console()
    if count:
        console.print(table, markup=False)
    console.print(f"{count:,} offsets", highlight=False)


def _print_status(reply: offsets_pb.StatusReply, state: str) -> None:
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    meta = f"{reply.meta_endpoint} ({'answers' if reply.meta_available else 'does not answer'})"
    flush_text = (
        f"{when(reply.last_flush_at_ms)}, {reply.last_flush_seconds * 1000:.1f} ms" if reply.last_flush_at_ms else "none yet"
    )
    recovery = reply.recovery
    counts = ", ".join(f"{name} {getattr(recovery, name):,}" for name in ("compared", "pushed", "adopted", "equal", "failed"))
    rows = [
        ("state", f"{state.lower()}{f': {reply.reason}' if reply.reason else ''}"),
        ("version, up for", f"{reply.version}, {reply.uptime_seconds:,.0f} s"),
        ("mode", ", ".join([reply.mode, *reply.policies])),
        ("local store", f"{reply.cache_path}, about {reply.stored_keys:,} keys"),
        ("commits, save calls", f"{reply.commits:,}, {reply.save_calls:,}"),
        ("dirty", f"{reply.dirty_keys:,} keys, oldest {reply.oldest_dirty_seconds:.1f} s, refused {reply.refused_keys:,}"),
        ("wal_sync", f"{reply.wal_sync}: {reply.at_risk}; now {reply.unsynced_writes:,} writes"),
        ("Meta Service", meta),
        ("last flush", flush_text + (f"; {reply.last_flush_error}" if reply.last_flush_error else "")),
        ("clock", _clock_text(reply)),
        ("recovery", f"{'done' if recovery.done else 'not done'} in {recovery.seconds:.1f} s: {counts}"),
    ]
    if reply.HasField("journal"):
        rows.append(("journal", _journal_text(reply.journal)))
    if reply.HasField("store"):
        store = reply.store
        newest = f"newest write {store.seq:,}, flushed up to {store.flushed_seq:,}"
        rows.append(("store", f"{store.id} of broker {store.broker}, {newest}"))
    if reply.HasField("loss"):
        found = f"up to {reply.loss.writes:,} acknowledged writes were missing, found {when(reply.loss.found_at_ms)}"
        rows.append(("LOSS", f"{found}: {reply.loss.why}"))
    if reply.meta_losses:
        times = f"{reply.meta_losses:,} times since the start, last {when(reply.meta_loss_at_ms)}"
        rows.append(("META LOSS", f"the Meta Service held less than it had acknowledged, {times}: {reply.meta_loss}"))
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False)


def _clock_text(reply: offsets_pb.StatusReply) -> str:
    seconds = reply.clock_skew_seconds
    text = f"{abs(seconds):,.1f} s {'ahead of' if seconds > 0 else 'behind'} the Meta Service's"
    return f"WRONG here or there: {text}; nothing expires through this adapter" if reply.clock_is_off else text


def _journal_text(journal: offsets_pb.JournalStatus) -> str:
    size = f"{journal.segments:,} segments of {journal.bytes / 2**20:,.1f} MiB"
    text = f"{journal.path}, {journal.rows:,} rows since the start, {size}"
    if journal.deleted_segments:
        text += f", {journal.deleted_segments:,} old ones deleted"
    if journal.dropped_rows:
        text += f", {journal.dropped_rows:,} rows dropped"
    return f"{text}; {journal.last_error}" if journal.last_error else text


def when(unix_ms: int) -> str:
    """A Unix time in milliseconds as local time; 0 is unknown, and empty."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000)) if unix_ms else ""
