"""The work of `offsets reset`, `offsets delete` and `groups clone`: changes that may lower or remove offsets. Dry by default.

A large change is split into several requests. All of them are planned before the first is executed, so that a change that cannot
be made is refused as a whole. A row counts as done only if the adapter has read it back from the Meta Service.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import grpc
import grpc.aio

from adapter.cli.connection import Target, connected
from adapter.cli.offsets.reading import PIECE, TIMEOUT_S, exported, groups_of, position_text
from adapter.cli.output import as_dict, note, progress, tell, warn
from adapter.cli.table import LEFT, RIGHT, Side, print_json, print_table
from adapter.client.client import OffsetClient
from adapter.formats.rows import OffsetRow
from adapter.model.queues import topics_of
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

Reply: TypeAlias = offsets_pb.ChangeReply
Row: TypeAlias = offsets_pb.ChangeReply.Row
EVERY_GROUP_TIMEOUT_S = 600.0  # for deleting shards of all groups: the adapter goes through the namespace group by group
WARNINGS_SHOWN = 5  # of a large change, whose every request may have one

Request: TypeAlias = offsets_pb.ResetOffsetsRequest | offsets_pb.DeleteOffsetsRequest | offsets_pb.CloneGroupRequest


class ChangeOptions(NamedTuple):
    """How a change is made and shown.

    `export` is a file for the plan, `create` allows shards that have no offset yet, `every_group`: the plan names the groups.
    """

    execute: bool = False
    as_json: bool = False
    export: str = ""
    timeout_s: float = TIMEOUT_S  # of each request
    create: bool = False
    every_group: bool = False


class Shards(NamedTuple):
    """Selected shards of a group: those named and those of the topics; all shards if both are empty."""

    names: Sequence[str] = ()
    topics: Sequence[str] = ()


Call: TypeAlias = Callable[..., Awaitable[Reply]]  # a stub method; each takes its own type of request


async def reset(target: Target, group: GroupKey, shards: Shards, to: Mapping[str, Any], change: ChangeOptions) -> bool:
    """Move shards of a group, or of all groups if its name is empty; `to` is the destination as a field of the request.

    True if all were moved.
    """
    async with connected(target) as client:
        requests = await reset_requests(client, group, shards, to, create=change.create)
        return await _change(client.admin.ResetOffsets, requests, "moved", change)


async def reset_requests(
    client: OffsetClient, group: GroupKey, shards: Shards, to: Mapping[str, Any], *, create: bool
) -> list[offsets_pb.ResetOffsetsRequest]:
    """The requests of a reset, as dry runs."""
    if group.group:
        pieces = [(group, piece) for piece in await _pieces(client, group, shards)]
    else:
        pieces = await _pieces_of_all(client, group.namespace, shards)
    return [
        offsets_pb.ResetOffsetsRequest(**key._asdict(), shards=names, topics=topics, create=create, **to)
        for key, (names, topics) in pieces
    ]


async def reset_to_rows(target: Target, rows: Sequence[OffsetRow], change: ChangeOptions) -> bool:
    """Move each shard of a plan file to its own offset; True if all were moved."""
    requests = []
    for group, of_group in groupby(sorted(rows, key=_group_of), _group_of):
        for piece in _cut(list(of_group)):
            targets = [offsets_pb.ResetOffsetsRequest.Target(shard=row.shard, offset=row.offset) for row in piece]
            to_targets = offsets_pb.ResetOffsetsRequest.Targets(targets=targets)
            requests.append(offsets_pb.ResetOffsetsRequest(**group._asdict(), to_targets=to_targets, create=change.create))
    async with connected(target) as client:
        return await _change(client.admin.ResetOffsets, requests, "moved", change)


async def delete(target: Target, group: GroupKey, shards: Shards, change: ChangeOptions) -> bool:
    """Delete shards of a group; an empty group name means every group. True if each had an offset and has none now."""
    async with connected(target) as client:
        pieces = await _pieces(client, group, shards) if group.group else _named(shards.names)
        requests = [offsets_pb.DeleteOffsetsRequest(**group._asdict(), shards=names, topics=topics) for names, topics in pieces]
        whole = not (shards.names or shards.topics) and len(pieces) > 1
        # Only a request for the whole group deletes its generation too.
        last = [offsets_pb.DeleteOffsetsRequest(**group._asdict())] if whole else []
        change = change if group.group else change._replace(timeout_s=EVERY_GROUP_TIMEOUT_S)
        return await _change(client.admin.DeleteOffsets, requests, "deleted", change, last)


async def clone(target: Target, source: GroupKey, to_group: str, shards: Shards, change: ChangeOptions) -> bool:
    """Copy the offsets of a group's shards to `to_group`; True if all were copied."""
    async with connected(target) as client:
        requests = [
            offsets_pb.CloneGroupRequest(
                namespace=source.namespace, from_group=source.group, to_group=to_group, shards=named, topics=topics
            )
            for named, topics in await _pieces(client, source, shards)
        ]
        return await _change(client.admin.CloneGroup, requests, "cloned", change)


async def _pieces(client: OffsetClient, group: GroupKey, shards: Shards) -> list[Shards]:
    """The shards of each request. Up to PIECE shards that are not all named: one request, which the adapter resolves itself."""
    if shards.names and not shards.topics:
        return _named(shards.names)
    topics = {*shards.topics}
    found = [row.shard async for row in exported(client, [group]) if not topics or topics & topics_of(row.shard, row.topic)]
    names = list(dict.fromkeys([*shards.names, *found]))
    return [shards._replace(names=list(dict.fromkeys(shards.names)))] if len(names) <= PIECE else _named(names)


async def _pieces_of_all(client: OffsetClient, namespace: str, shards: Shards) -> list[tuple[GroupKey, Shards]]:
    """The groups and shards of each request: of every local group of a namespace what is selected and has an offset."""
    groups = [GroupKey(row.namespace, row.group) async for row in groups_of(client, namespace)]
    names, topics = {*shards.names}, {*shards.topics}
    found: dict[GroupKey, list[str]] = {}
    async for row in exported(client, groups):
        if not (names or topics) or row.shard in names or topics & topics_of(row.shard, row.topic):
            found.setdefault(row.key.group_key, []).append(row.shard)
    return [(group, piece) for group, named in found.items() for piece in _named(named)]


def _group_of(row: OffsetRow) -> GroupKey:
    return row.key.group_key


def _named(shards: Sequence[str]) -> list[Shards]:
    return [Shards(piece) for piece in _cut(list(dict.fromkeys(shards)))]


def _cut(items: Sequence[Any], size: int = PIECE) -> list[Sequence[Any]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


async def _change(
    call: Call, requests: Sequence[Request], done: str, change: ChangeOptions, last: Sequence[Request] = ()
) -> bool:
    """Plan, save the plan, execute, show; True if everything was done as requested."""
    plan: list[Reply] = []
    if not change.execute or change.export or len(requests) > 1:
        await send(call, requests, plan, change._replace(execute=False))
    if change.export:
        save_plan(change, plan)
    if not change.execute:
        return show(plan, done, change)
    replies: list[Reply] = []
    try:
        await send(call, [*requests, *last], replies, change)
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        # Also of one that Ctrl-C ends.
        if replies:
            show(replies, done, change, whole=False)
            warn(f"this is what was done before the error: {len(replies)} of {counted(len(requests), 'request')}")
        if isinstance(error, asyncio.CancelledError) or error.code() is not grpc.StatusCode.ABORTED:
            raise
        note(f"not as it was asked for: {error.details()}", style="red")
        return False
    return show(replies, done, change)


async def send(call: Call, requests: Sequence[Request], replies: list[Reply], change: ChangeOptions) -> None:
    """Send the requests in order and append each reply to `replies`, which keeps the earlier ones if a call fails."""
    with progress("executing" if change.execute else "planning", len(requests)) as advance:
        for request in requests:
            request.execute = change.execute
            replies.append(await call(request, timeout=change.timeout_s))
            advance(1)


def save_plan(change: ChangeOptions, plan: Iterable[Reply]) -> None:
    """Write the plan of a dry run to the file that `change` names."""
    rows = [
        OffsetRow(row.namespace, row.group, row.shard, row.after.offset)
        for reply in plan
        for row in reply.rows
        if row.HasField("after") and not row.after.deleted
    ]
    if rows:
        from adapter.formats import reset_plan_file  # noqa: PLC0415 - the file formats load RocksDB

        group = rows[0].key.group_key
        reset_plan_file.write(change.export, rows, group._replace(group="") if change.every_group else group)
        note(f"the plan is in {change.export}; --from-file reads it")


def show(replies: Sequence[Reply], done: str, change: ChangeOptions, *, whole: bool = True) -> bool:
    """Print what was done, or in a dry run would be; True if it is what was requested."""
    rows = [row for reply in replies for row in reply.rows]
    warnings = list(dict.fromkeys(warning for reply in replies for warning in reply.warnings))
    executed = all(reply.executed for reply in replies)
    if change.as_json:
        print_json({"executed": executed and whole, "rows": [as_dict(row) for row in rows], "warnings": warnings})
    else:
        print_rows(rows)
        for warning in warnings[:WARNINGS_SHOWN]:
            warn(warning)
        if len(warnings) > WARNINGS_SHOWN:
            warn(f"and {len(warnings) - WARNINGS_SHOWN} more; --json shows all")
        planned_ms = max((reply.planned_at_ms for reply in replies), default=0)
        if planned_ms:
            when = datetime.fromtimestamp(planned_ms / 1000, UTC).isoformat(timespec="seconds")
            note(f"planned at {when}; what was done of it by then is not done again")
        _print_headline(rows, done, executed=executed, execute=change.execute)
    return executed == change.execute and bool(rows) and all(row.changed or not row.warning for row in rows)


def _print_headline(rows: Sequence[Row], done: str, *, executed: bool, execute: bool) -> None:
    changed = sum(row.changed and moves(row) for row in rows)
    kept = sum(row.changed for row in rows) - changed  # in a new epoch, at the same offset
    if not rows:
        tell("nothing to do: there is no such offset; `groups list` shows the groups that have offsets")
    elif not execute:
        of = counted(len(rows), "offset")
        tell(f"dry run: {changed:,} of {of} would be {done}{_kept(kept)}" + ("; --execute does it" if changed or kept else ""))
    elif executed and not changed and not kept:
        tell(f"done: nothing had to be {done}, {_unchanged(len(rows))}")
    elif executed:
        unchanged = len(rows) - changed - kept
        rest = f"; {_unchanged(unchanged)}" if unchanged else ""
        tell(f"done: {counted(changed, 'offset')} {done}{_kept(kept)}, read back and equal{rest}")
    else:
        note("not done: the adapter does not confirm it; look with `groups describe`, and try again", style="red")


def moves(row: Row) -> bool:
    """False where the offset is the same before and after: only earlier commits cannot change it any more."""
    before, after = row.before, row.after
    same = row.HasField("before") and row.HasField("after") and (before.offset, before.deleted) == (after.offset, after.deleted)
    return not same


def _kept(count: int) -> str:
    return f", {count:,} kept where {'it is' if count == 1 else 'they are'}, in a new epoch" if count else ""


def _unchanged(count: int) -> str:
    return f"{count:,} {'stays as it was' if count == 1 else 'stay as they were'}"


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table of a change: each shard with its offset before and after."""
    columns: dict[str, Side] = {
        "namespace": LEFT,
        "group": LEFT,
        "shard": LEFT,
        "before": RIGHT,
        "after": RIGHT,
        "by": RIGHT,
        "note": LEFT,
    }
    if rows:
        print_table(columns, map(_cells, rows))


def _cells(row: Row) -> list[str]:
    before = row.before if row.HasField("before") else None
    after = row.after if row.HasField("after") else None
    moved = _difference(before, after)
    return [row.namespace, row.group, row.shard, position_text(before), position_text(after), moved, row.warning]


def _difference(before: offsets_pb.Position | None, after: offsets_pb.Position | None) -> str:
    if before is None or after is None or before.deleted or after.deleted:
        return ""
    return f"{after.offset - before.offset:+d}"
