"""The work of `groups list` and `groups describe`. Nothing here changes an offset.

Columns are named as kafka-consumer-groups names them (CURRENT-OFFSET, LOG-END-OFFSET, LAG); epoch, state and the Meta Service's
offset are added.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

from adapter.cli.columns import CORE, Asked, Chosen, Columns
from adapter.cli.connection import Target, connected
from adapter.cli.groups import lag as groups_lag
from adapter.cli.groups.lag import Brief, GroupLive, LiveLag
from adapter.cli.lag_text import status_word
from adapter.cli.names import is_pattern, matcher, natural_order
from adapter.cli.offsets.reading import PIECE, TIMEOUT_S, Group, groups_of, meant, next_reply, position_text
from adapter.cli.output import CSV, JSON, TABLE, Form, as_dict, fields_of, listing, note, warn, when
from adapter.cli.table import LEFT, RIGHT, CsvRows, JsonRows, Table
from adapter.client.client import OffsetClient
from adapter.model.queues import topics_of
from adapter.model.records import epoch_text
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
LIST_FIELDS = (*fields_of(Group), *groups_lag.BRIEF)


LIST_COLUMNS = Columns(
    {
        "namespace": LEFT,
        "group": LEFT,
        "shards": RIGHT,
        "dirty": RIGHT,
        "last-commit": LEFT,
        "status": LEFT,
        "lag": RIGHT,
        "lag-time": RIGHT,
        "commits/s": RIGHT,
        "trend/s": RIGHT,
        "lost": RIGHT,
        "worst-shard": LEFT,
        "burrow": LEFT,
    },
    core=8,
    spare=("dirty", "lag-time", "last-commit"),
)
DESCRIBE_COLUMNS = Columns(
    {
        "group": LEFT,
        "shard": LEFT,
        "current-offset": RIGHT,
        "log-end-offset": RIGHT,
        "lag": RIGHT,
        "lag-time": RIGHT,
        "status": LEFT,
        "state": LEFT,
        "meta-service": RIGHT,
        "log-start-offset": RIGHT,
        "lost": RIGHT,
        "commits/s": RIGHT,
        "trend/s": RIGHT,
        "burrow": LEFT,
        "epoch": RIGHT,
        "committed": LEFT,
        "metadata": LEFT,
    },
    core=8,
    spare=("lag-time", "state", "log-end-offset"),
)
STATE_COLUMNS = Columns(
    {
        "group": LEFT,
        "status": LEFT,
        "lag": RIGHT,
        "shards": RIGHT,
        "dirty": RIGHT,
        "held": RIGHT,
        "mode": LEFT,
        "generation": RIGHT,
    },
    core=8,
    spare=("generation", "held"),
)
MEMBER_COLUMNS = Columns({"group": LEFT, "consumer-id": LEFT, "generation": RIGHT, "last-commit": LEFT}, core=4)
OF_THE_BROKER = (
    "who is in a group is the broker's knowledge: shown is who committed last with the newest generation; `groups broadcast` "
    "shows the clients of a broadcasting group"
)


class Selection(NamedTuple):
    """What is shown: groups of a namespace (empty: of all) by their names or patterns, all if there is none.

    Of these, the shards of the topics, and those that a pattern matches; all if there is neither.
    """

    namespace: str
    groups: Sequence[str] = ()
    topics: Sequence[str] = ()
    shards: Sequence[str] = ()

    def takes(self, row: Described.Shard) -> bool:
        """True for a shard that is shown."""
        return (not self.topics or bool({*self.topics} & topics_of(row.shard, row.topic))) and matcher(self.shards)(row.shard)


class View(NamedTuple):
    """How it is shown. In JSON and CSV a group is the same whatever `part` of it a table would have."""

    form: Form
    columns: Asked = CORE
    part: Literal["shards", "state", "members"] = "shards"


async def list_groups(target: Target, wanted: Selection, view: View) -> bool:
    """Print the groups that have local offsets, sorted by their names. Always returns True."""
    columns = LIST_COLUMNS.chosen(view.columns)
    takes = matcher(wanted.groups)
    async with connected(target) as client:
        lags, without = await groups_lag.briefs(client, wanted.namespace)
        found = [row async for row in groups_of(client, wanted.namespace) if takes(row.group)]
        if wanted.topics:
            having = await _having(client, wanted)
            found = [row for row in found if (row.namespace, row.group) in having]
    found.sort(key=lambda row: (natural_order(row.namespace), natural_order(row.group)))
    with listing(view.form, columns, _group_cells, LIST_FIELDS, _group_values) as rows:
        for row in found:
            rows.add((row, lags.get((row.namespace, row.group))))
    if view.form == TABLE:
        note(counted(rows.count, "group") + (f"; no live lag: {without}" if without else ""))
    return True


async def _having(client: OffsetClient, wanted: Selection) -> set[tuple[str, str]]:
    """The groups with an offset of the topics."""
    topics = {*wanted.topics}
    return {(row.namespace, row.group) async for row in client.list(wanted.namespace) if topics & topics_of(row.shard, row.topic)}


async def describe(target: Target, wanted: Selection, view: View) -> bool:
    """Print every shard of some groups; True if each group has a shard and the Meta Service answered for it.

    Of several, one that has too many shards for an answer is left out, with a warning.
    """
    complete = True
    namespace = wanted.namespace
    show = _shower(wanted, view)
    async with connected(target) as client:
        live = LiveLag(client)
        names = await _names(client, wanted)
        complete = bool(names) or not wanted.groups
        with show as add:
            async for name, reply, lag in _descriptions(client, live, namespace, names):
                complete = complete and bool(reply and reply.shards) and not (reply and reply.remote_error)
                if reply:
                    add(name, reply, lag)
                if reply and not reply.shards and view.form == TABLE:
                    note(f"group {name} has no offsets{await meant(client, namespace, name)}")
    if view.form == TABLE:
        all_of_some = "" if names and [*wanted.groups] == names else counted(len(names), "group")
        for text in (live.note(), all_of_some, OF_THE_BROKER if view.part == "members" else ""):
            if text:
                note(text)
    return complete


async def _names(client: OffsetClient, wanted: Selection) -> list[str]:
    """The groups by their names, and sorted, those of patterns; all if nothing is named."""
    patterns = [name for name in wanted.groups if is_pattern(name)]
    named = [name for name in wanted.groups if not is_pattern(name)]
    if named and not patterns:
        return named
    takes = matcher(patterns)
    found = [row.group async for row in groups_of(client, wanted.namespace) if takes(row.group)]
    return list(dict.fromkeys([*named, *sorted(found, key=natural_order)]))


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


def _shower(wanted: Selection, view: View) -> AbstractContextManager[_Add]:
    if view.form == JSON:
        return _show_json(wanted)
    if view.form == CSV:
        return _show_csv(wanted)
    if view.part == "shards":
        return _show_table(wanted, view.columns)
    columns, cells = (STATE_COLUMNS, _state_cells) if view.part == "state" else (MEMBER_COLUMNS, _member_cells)
    return _show_groups(columns.chosen(view.columns), cells)


@contextmanager
def _show_json(wanted: Selection) -> Iterator[_Add]:
    rows: JsonRows[dict[str, Any]] = JsonRows(dict)

    def add(group: str, reply: Described, live: GroupLive) -> None:
        rows.add({"namespace": wanted.namespace, "group": group, **_described(reply, live, wanted)})

    with rows:
        yield add


@contextmanager
def _show_csv(wanted: Selection) -> Iterator[_Add]:
    rows: CsvRows[dict[str, Any]] = CsvRows(DESCRIBE_CSV, dict)

    def add(group: str, reply: Described, live: GroupLive) -> None:
        lags = live.shards()
        for row in _shards(reply, wanted):
            flat = {**_flat(row, reply), **groups_lag.csv_values(lags.get(row.shard))}
            rows.add({"namespace": wanted.namespace, "group": group, **flat})

    with rows:
        yield add


@contextmanager
def _show_table(wanted: Selection, asked: Asked) -> Iterator[_Add]:
    columns = DESCRIBE_COLUMNS.chosen(asked)
    table: Table[Sequence[str]] = Table(columns.sides, columns.of, spare=columns.spare)

    def add(group: str, reply: Described, live: GroupLive) -> None:
        _tell_group(wanted.namespace, group, reply)
        lags = live.shards()
        for row in _shards(reply, wanted):
            table.add([group, *_cells(row, lags.get(row.shard), remote_known=not reply.remote_error)])
        table.end_part()

    with table:
        yield add


@contextmanager
def _show_groups(columns: Chosen, cells: Callable[[str, Described, GroupLive], list[str] | None]) -> Iterator[_Add]:
    """A line for each group for which there is one."""
    table: Table[Sequence[str]] = Table(columns.sides, columns.of, spare=columns.spare)

    def add(group: str, reply: Described, live: GroupLive) -> None:
        if row := cells(group, reply, live):
            table.add(row)

    with table:
        yield add


def _shards(reply: Described, wanted: Selection) -> list[Described.Shard]:
    return sorted(filter(wanted.takes, reply.shards), key=lambda row: natural_order(row.shard))


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


def _described(reply: Described, live: GroupLive, wanted: Selection) -> dict[str, Any]:
    lags = live.shards()
    shards = []
    for row in _shards(reply, wanted):
        lag = {"live": groups_lag.values(lags[row.shard])} if row.shard in lags else {}
        shards.append({**as_dict(row), "state": state_of(row, remote_known=not reply.remote_error), **lag})
    return {**as_dict(reply), "shards": shards, **live.values()}


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


def _group_values(row: tuple[Group, Brief | None]) -> dict[str, Any]:
    listed, lag = row
    return {**as_dict(listed), **(lag.values() if lag else {})}


def _group_cells(row: tuple[Group, Brief | None]) -> Sequence[str]:
    listed, lag = row
    cells = (listed.namespace, listed.group, str(listed.shards), str(listed.dirty), when(listed.last_commit_at_ms))
    if lag is None:
        return (*cells, *[""] * (len(LIST_COLUMNS.every) - len(cells)))
    return (*cells, *lag.cells())


def _state_cells(group: str, reply: Described, live: GroupLive) -> list[str] | None:
    if not reply.shards:
        return None
    sums = live.reply.sums if live.reply else None
    return [
        group,
        status_word(sums.status) if sums else "",
        str(sums.lag) if sums and sums.HasField("lag") else "-",
        str(len(reply.shards)),
        str(sum(row.dirty for row in reply.shards)),
        str(sum(row.HasField("held_until_ms") for row in reply.shards)),
        reply.mode,
        str(reply.generation) if reply.HasField("generation") else "-",
    ]


def _member_cells(group: str, reply: Described, _live: GroupLive) -> list[str] | None:
    if not reply.member_id and not reply.HasField("generation"):
        return None
    last_ms = max((row.committed_at_ms for row in reply.shards), default=0)
    return [group, reply.member_id or "-", str(reply.generation) if reply.HasField("generation") else "-", when(last_ms)]


def _cells(row: Described.Shard, live: lag_pb.ShardLag | None, *, remote_known: bool) -> list[str]:
    local = row.local if row.HasField("local") else None
    remote = row.remote if row.HasField("remote") else None
    epochs = [side.epoch for side in (local, remote) if side]
    # The live one leaves out messages that are gone from the log.
    # That of the same answer as the offset beside it; the live one is up to a second older.
    known = row if row.HasField("lag") else live
    lag = known.lag if known is not None and known.HasField("lag") else None
    lost, lag_time, commits, trend, status, burrow = groups_lag.cells(live)
    return [
        row.shard,
        position_text(local),
        str(row.high_watermark) if row.HasField("high_watermark") else "-",
        str(lag) if lag is not None else "-",
        lag_time,
        status,
        state_of(row, remote_known=remote_known) + (", held" if row.HasField("held_until_ms") else ""),
        position_text(remote) if remote_known else "?",
        str(row.low_watermark) if row.HasField("low_watermark") else "-",
        lost,
        commits,
        trend,
        burrow,
        " / ".join(epoch_text(epoch) for epoch in dict.fromkeys(epochs)),
        when(row.committed_at_ms),
        row.metadata,
    ]
