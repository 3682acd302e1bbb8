"""The work of `groups list` and `groups describe`. Nothing here changes an offset.

Columns are named as kafka-consumer-groups names them (CURRENT-OFFSET, LOG-END-OFFSET, LAG); epoch, state and the Meta Service's
offset are added.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from adapter.cli.connection import Target, connected
from adapter.cli.groups import lag as groups_lag
from adapter.cli.groups.lag import Brief, GroupLive, LiveLag
from adapter.cli.lag_text import span_text
from adapter.cli.offsets.reading import PIECE, TIMEOUT_S, Group, groups_of, next_reply, position_text
from adapter.cli.output import CSV, JSON, TABLE, Form, as_dict, fields_of, listing, note, warn, when
from adapter.cli.table import LEFT, RIGHT, CsvRows, JsonRows, Side, Table
from adapter.client.client import OffsetClient
from adapter.model.queues import queue_of
from adapter.rpc import lag_pb, offsets_pb
from adapter.runtime.wording import counted

Described = offsets_pb.DescribeGroupReply
_Add: TypeAlias = Callable[[str, Described, GroupLive], None]

# Of a row of `groups describe --output csv`: one shard.
DESCRIBE_CSV = (
    "namespace",
    "group",
    "shard",
    "current_offset",
    "log_end_offset",
    "lag",
    "log_start_offset",
    "meta_offset",
    "epoch",
    "meta_epoch",
    "state",
    "held_until_ms",
    "committed_at_ms",
    "metadata",
    "mode",
    "generation",
    "member_id",
    "remote_error",
    *groups_lag.CSV,
)
# Of a row of `groups list`.
LIST_FIELDS = (*fields_of(Group), *Brief._fields)


class Selection(NamedTuple):
    """Groups of a namespace (empty: of all): those named, else all, or those whose whole name matches `pattern`."""

    namespace: str
    names: Sequence[str] = ()
    pattern: re.Pattern[str] | None = None

    def takes(self, group: str) -> bool:
        """True if the pattern allows this group."""
        return self.pattern is None or self.pattern.fullmatch(group) is not None


async def list_groups(target: Target, wanted: Selection, form: Form) -> bool:
    """Print the groups that have local offsets. Always returns True."""
    columns: dict[str, Side] = {"namespace": LEFT, "group": LEFT, "shards": RIGHT, "dirty": RIGHT, "last commit": LEFT}
    columns.update({"status": LEFT, "lag": RIGHT, "lag time": RIGHT})
    async with connected(target) as client:
        lags, without = await groups_lag.briefs(client, wanted.namespace)
        with listing(form, columns, _group_cells, LIST_FIELDS, _group_values) as rows:
            async for row in groups_of(client, wanted.namespace):
                if wanted.takes(row.group):
                    rows.add((row, lags.get((row.namespace, row.group))))
    if form == TABLE:
        note(counted(rows.count, "group") + (f"; no live lag: {without}" if without else ""))
    return True


async def describe(target: Target, wanted: Selection, form: Form) -> bool:
    """Print every shard of some groups; True if each group has a shard and the Meta Service answered for it.

    Of several, one that has too many shards for an answer is left out, with a warning.
    """
    complete = True
    namespace = wanted.namespace
    show = {JSON: _show_json, CSV: _show_csv, TABLE: _show_table}[form]
    async with connected(target) as client:
        live = LiveLag(client)
        names = wanted.names or [row.group async for row in groups_of(client, namespace) if wanted.takes(row.group)]
        with show(namespace) as add:
            async for name, reply, lag in _descriptions(client, live, namespace, names):
                complete = complete and bool(reply and reply.shards) and not (reply and reply.remote_error)
                if reply:
                    add(name, reply, lag)
    if form == TABLE:
        for text in (live.note(), "" if wanted.names else counted(len(names), "group")):
            if text:
                note(text)
    return complete


async def _descriptions(
    client: OffsetClient, live: LiveLag, namespace: str, names: Sequence[str]
) -> AsyncIterator[tuple[str, Described | None, GroupLive]]:
    """The groups in this order. None for one of several that is too large, which is told."""
    if len(names) == 1:
        request = offsets_pb.DescribeGroupRequest(namespace=namespace, group=names[0])
        found = await client.admin.DescribeGroup(request, timeout=TIMEOUT_S)
        yield names[0], found, await live.of(namespace, names[0]) if found.shards else GroupLive(None)
        return
    for at in range(0, len(names), PIECE):
        some = names[at : at + PIECE]
        replies = aiter(client.admin.DescribeGroups(offsets_pb.DescribeGroupsRequest(namespace=namespace, groups=some)))
        while reply := await next_reply(replies):
            lags = await live.of_all(namespace, [row.group for row in reply.groups if row.description.shards])
            for row in reply.groups:
                if row.error:
                    warn(f"left out: {row.error}")
                yield row.group, None if row.error else row.description, lags.get(row.group, GroupLive(None))


@contextmanager
def _show_json(namespace: str) -> Iterator[_Add]:
    rows: JsonRows[dict[str, Any]] = JsonRows(dict)
    with rows:
        yield lambda group, reply, live: rows.add({"namespace": namespace, "group": group, **_described(reply, live)})


@contextmanager
def _show_csv(namespace: str) -> Iterator[_Add]:
    rows: CsvRows[dict[str, Any]] = CsvRows(DESCRIBE_CSV, dict)

    def add(group: str, reply: Described, live: GroupLive) -> None:
        lags = live.shards()
        for row in sorted(reply.shards, key=lambda row: shard_order(row.shard)):
            flat = {**_flat(row, reply), **groups_lag.csv_values(lags.get(row.shard))}
            rows.add({"namespace": namespace, "group": group, **flat})

    with rows:
        yield add


@contextmanager
def _show_table(namespace: str) -> Iterator[_Add]:
    numbers = ("current-offset", "log-end-offset", "lag", *groups_lag.COLUMNS, "log-start-offset", "meta service", "epoch")
    columns: dict[str, Side] = {"group": LEFT, "shard": LEFT, **dict.fromkeys(numbers, RIGHT), "status": LEFT, "burrow": LEFT}
    table: Table[Sequence[str]] = Table({**columns, "state": LEFT, "committed": LEFT, "metadata": LEFT}, tuple)

    def add(group: str, reply: Described, live: GroupLive) -> None:
        _tell_group(namespace, group, reply)
        lags = live.shards()
        for row in sorted(reply.shards, key=lambda row: shard_order(row.shard)):
            table.add([group, *_cells(row, lags.get(row.shard), remote_known=not reply.remote_error)])
        table.end_part()

    with table:
        yield add


def shard_order(shard: str) -> tuple[str, int]:
    """A sort key that puts partition 10 after partition 9."""
    queue = queue_of(shard)
    return (shard[: -len(str(queue.queue_id))], queue.queue_id) if queue else (shard, -1)


def state_of(row: Described.Shard, *, remote_known: bool) -> str:
    """How the local record of a shard compares to the Meta Service's.

    `dirty`: the Meta Service has not acknowledged the local record. `behind`: it has a larger one, or there is no local one.
    `ahead`: it has a smaller one than it acknowledged, so it lost data. `deleted`: the record is a tombstone. Otherwise `clean`.
    """
    local = _place(row.local if row.HasField("local") else None)
    remote = _place(row.remote if row.HasField("remote") else None)
    if row.dirty:
        return "dirty"
    if remote > local:
        return "behind"
    if remote < local and remote_known:
        return "ahead"
    return "deleted" if row.local.deleted else "clean"


def _place(position: offsets_pb.Position | None) -> tuple[int, int, bool]:
    return (position.epoch, position.offset, not position.deleted) if position else (-1, -1, False)


def _described(reply: Described, live: GroupLive) -> dict[str, Any]:
    values = {**as_dict(reply), **live.values()}
    lags = live.shards()
    for shard, row in zip(values["shards"], reply.shards, strict=True):
        shard["state"] = state_of(row, remote_known=not reply.remote_error)
        if row.shard in lags:
            shard["live"] = groups_lag.values(lags[row.shard])
    return values


def _flat(row: Described.Shard, reply: Described) -> dict[str, Any]:
    """A shard as a row of CSV. A deleted offset is an empty cell, as an absent one is; `state` tells them apart."""
    values = as_dict(row)
    local, remote = (values.get(side, {}) for side in ("local", "remote"))
    return {
        **{name: values.get(name) for name in ("shard", "lag", "held_until_ms", "committed_at_ms", "metadata")},
        "current_offset": None if local.get("deleted") else local.get("offset"),
        "log_end_offset": values.get("high_watermark"),
        "log_start_offset": values.get("low_watermark"),
        "meta_offset": None if remote.get("deleted") else remote.get("offset"),
        "epoch": local.get("epoch"),
        "meta_epoch": remote.get("epoch"),
        "state": state_of(row, remote_known=not reply.remote_error),
        "mode": reply.mode,
        "generation": reply.generation if reply.HasField("generation") else None,
        "member_id": reply.member_id,
        "remote_error": reply.remote_error,
    }


def _tell_group(namespace: str, group: str, reply: Described) -> None:
    generation = f", generation {reply.generation}" if reply.HasField("generation") else ""
    member = f", last member {reply.member_id}" if reply.member_id else ""
    note(f"group {group} in namespace {namespace}: {reply.mode}{generation}{member}")
    if reply.remote_error:
        warn(f"the Meta Service was not asked, only local values are shown: {reply.remote_error}")
    if reply.bounds_error:
        warn(f"the broker did not tell the bounds of its shards: {reply.bounds_error}")
    for shard in reply.shards:
        if shard.warning:
            warn(f"{shard.shard}: {shard.warning}")
    held = [shard.held_until_ms for shard in reply.shards if shard.HasField("held_until_ms")]
    if held:
        note(
            f"{counted(len(held), 'shard')} held after a reset, delete or clone, until {when(max(held))} at the latest: commits "
            "without an epoch change nothing until a consumer has read the offset from the store"
        )
    if not reply.shards:
        note(f"group {group} has no offsets; `groups list` shows the groups that have")


def _group_values(row: tuple[Group, Brief | None]) -> dict[str, Any]:
    listed, lag = row
    return {**as_dict(listed), **{name: value for name, value in (lag._asdict() if lag else {}).items() if value is not None}}


def _group_cells(row: tuple[Group, Brief | None]) -> Sequence[str]:
    listed, lag = row
    cells = (listed.namespace, listed.group, str(listed.shards), str(listed.dirty), when(listed.last_commit_at_ms))
    if lag is None:
        return (*cells, "", "", "")
    return (*cells, lag.status, "-" if lag.lag is None else str(lag.lag), span_text(lag.lag_seconds))


def _cells(row: Described.Shard, live: lag_pb.ShardLag | None, *, remote_known: bool) -> list[str]:
    local = row.local if row.HasField("local") else None
    remote = row.remote if row.HasField("remote") else None
    epochs = [side.epoch for side in (local, remote) if side]
    # The live one leaves out messages that are gone from the log.
    # That of the same answer as the offset beside it; the live one is up to a second older.
    known = row if row.HasField("lag") else live
    lag = known.lag if known is not None and known.HasField("lag") else None
    return [
        row.shard,
        position_text(local),
        str(row.high_watermark) if row.HasField("high_watermark") else "-",
        str(lag) if lag is not None else "-",
        *groups_lag.cells(live),
        str(row.low_watermark) if row.HasField("low_watermark") else "-",
        position_text(remote) if remote_known else "?",
        " / ".join(str(epoch) for epoch in dict.fromkeys(epochs)),
        state_of(row, remote_known=remote_known) + (", held" if row.HasField("held_until_ms") else ""),
        when(row.committed_at_ms),
        row.metadata,
    ]
