"""The tools that look at groups: list, describe; and what all tools print. They change nothing.

Numbers and names as kafka-consumer-groups shows them (CURRENT-OFFSET, LOG-END-OFFSET, LAG), with what is ours beside.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from adapter.access import harmless
from adapter.cli.tools import Target, as_dict, connected, print_json, tell, when
from adapter.client import OffsetClient
from adapter.formats.rows import OffsetRow
from adapter.model import METADATA_MAX_BYTES, GroupKey
from adapter.queues import queue_of
from adapter.rpc import offsets_pb

TIMEOUT_S = 30.0  # of one admin call: it may ask the Meta Service and the broker, and each may take seconds
PIECE = 1_000  # shards or groups of one request

Group = offsets_pb.ListGroupsReply.Group
LEFT: JustifyMethod = "left"
RIGHT: JustifyMethod = "right"
FRAMED_MAX = 200  # rows

Described = offsets_pb.DescribeGroupReply


async def list_groups(target: Target, namespace: str, *, as_json: bool) -> bool:
    """Print the groups that have local offsets; True."""
    async with connected(target) as client:
        rows = [row async for row in groups_of(client, namespace)]
    if as_json:
        print_json([as_dict(row) for row in rows])
        return True
    columns = {"namespace": LEFT, "group": LEFT, "shards": RIGHT, "dirty": RIGHT, "last commit": LEFT}
    cells = ((row.namespace, row.group, str(row.shards), str(row.dirty), when(row.last_commit_at_ms)) for row in rows)
    print_table(columns, list(cells))
    tell(f"{len(rows):,} groups")
    return True


async def describe(target: Target, namespace: str, groups: Sequence[str], *, all_groups: bool, as_json: bool) -> bool:
    """Print every shard of some groups; True when each has one, and the Meta Service was asked."""
    async with connected(target) as client:
        names = [row.group async for row in groups_of(client, namespace)] if all_groups else groups
        found = []
        for name in names:
            request = offsets_pb.DescribeGroupRequest(namespace=namespace, group=name)
            found.append((name, await client.admin.DescribeGroup(request, timeout=TIMEOUT_S)))
    if as_json:
        print_json([{"namespace": namespace, "group": name, **_described(reply)} for name, reply in found])
    elif found:
        for name, reply in found:
            _print_group(namespace, name, reply)
    else:
        tell("0 groups")
    return all(reply.shards and not reply.remote_error for _, reply in found)


async def groups_of(client: OffsetClient, namespace: str) -> AsyncIterator[Group]:
    """The groups of a namespace (empty: of all) that have local offsets, page by page."""
    request = offsets_pb.ListGroupsRequest(namespace=namespace)
    while True:
        reply = await client.admin.ListGroups(request, timeout=TIMEOUT_S)
        for row in reply.groups:
            yield row
        if not reply.next_page_token:
            return
        request.page_token = reply.next_page_token


async def exported(client: OffsetClient, groups: Sequence[GroupKey]) -> AsyncIterator[OffsetRow]:
    """All offsets of groups, as the adapter and the Meta Service together know them, group by group."""
    for at in range(0, len(groups), PIECE):
        wanted = [offsets_pb.GroupShards(**group._asdict()) for group in groups[at : at + PIECE]]
        async for reply in client.admin.ExportOffsets(offsets_pb.ExportOffsetsRequest(groups=wanted), timeout=TIMEOUT_S):
            for row in reply.offsets:
                yield OffsetRow(
                    row.namespace,
                    row.group,
                    row.shard,
                    row.offset,
                    row.metadata,
                    row.committed_at_ms,
                    row.topic,
                    row.partition,
                    row.epoch,
                )


def _shard_order(shard: str) -> tuple[str, int]:
    """Partition 10 behind partition 9."""
    queue = queue_of(shard)
    return (shard[: -len(str(queue.queue_id))], queue.queue_id) if queue else (shard, -1)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while there is more than one thing to do (None: nobody knows how many), if a person looks at it."""
    console = Console(stderr=True)
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    hidden = total in {0, 1} or not console.is_terminal
    # Standard output stays what it is: it may be a file, or a script that reads JSON.
    with Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def print_table(columns: Mapping[str, JustifyMethod], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their columns; nothing when there are none.

    In a frame when they fit; else in plain lines, so that none is folded. Many always so: a frame takes 1 ms to draw per row.
    """
    if not rows:
        return
    lines = [tuple(columns), *rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    console = Console()
    if len(rows) > FRAMED_MAX or sum(widths) + 3 * len(widths) + 1 > console.width:
        for line in lines:
            cells = zip(line, widths, columns.values(), strict=True)
            print("  ".join(_padded(*cell) for cell in cells).rstrip())  # noqa: T201 - what the command is for
    else:
        table = Table()
        for name, side in columns.items():
            table.add_column(name, justify=side)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)


def _padded(cell: str, width: int, side: JustifyMethod) -> str:
    blanks = " " * (width - cell_len(cell))
    return blanks + cell if side == RIGHT else cell + blanks


def warn(text: str) -> None:
    """Print a warning to standard error."""
    note(f"warning: {text}", style="yellow")


def note(text: str, style: str | None = None) -> None:
    """Print a sentence to standard error, where it does not disturb a file on standard output."""
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True, style=style)


def state_of(row: Described.Shard, *, remote_known: bool) -> str:
    """What a person should know of a shard.

    `dirty`: the Meta Service has not acknowledged the local value. `behind`: it has a larger one, or there is none here.
    `ahead`: it has less though it acknowledged more, so it lost something. `deleted`: what stands is a tombstone. Else `clean`.
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


def _described(reply: Described) -> dict[str, Any]:
    values = as_dict(reply)
    for shard, row in zip(values["shards"], reply.shards, strict=True):
        shard["state"] = state_of(row, remote_known=not reply.remote_error)
    return values


def _print_group(namespace: str, group: str, reply: Described) -> None:
    generation = f", generation {reply.generation}" if reply.HasField("generation") else ""
    member = f", last member {reply.member_id}" if reply.member_id else ""
    tell(f"group {group} in namespace {namespace}: {reply.mode}{generation}{member}")
    if reply.remote_error:
        warn(f"the Meta Service was not asked, only local values are shown: {reply.remote_error}")
    if reply.bounds_error:
        warn(f"the broker did not tell the bounds of its shards: {reply.bounds_error}")
    for shard in reply.shards:
        if shard.warning:
            warn(f"{shard.shard}: {shard.warning}")
    if not reply.shards:
        tell("no offsets; `groups list` shows the groups that have")
        return
    numbers = ("current-offset", "log-end-offset", "lag", "log-start-offset", "meta service", "epoch")
    columns = {"shard": LEFT, **dict.fromkeys(numbers, RIGHT), "state": LEFT, "committed": LEFT, "metadata": LEFT}
    rows = sorted(reply.shards, key=lambda row: _shard_order(row.shard))
    print_table(columns, [_cells(row, remote_known=not reply.remote_error) for row in rows])


def _cells(row: Described.Shard, *, remote_known: bool) -> list[str]:
    local = row.local if row.HasField("local") else None
    remote = row.remote if row.HasField("remote") else None
    epochs = [side.epoch for side in (local, remote) if side]
    return [
        row.shard,
        position_text(local),
        str(row.high_watermark) if row.HasField("high_watermark") else "-",
        str(row.lag) if row.HasField("lag") else "-",
        str(row.low_watermark) if row.HasField("low_watermark") else "-",
        position_text(remote) if remote_known else "?",
        " / ".join(str(epoch) for epoch in dict.fromkeys(epochs)),
        state_of(row, remote_known=remote_known),
        when(row.committed_at_ms),
        harmless(row.metadata, METADATA_MAX_BYTES),
    ]


def position_text(position: offsets_pb.Position | None) -> str:
    """An offset as a table shows it."""
    if position is None:
        return "-"
    return "deleted" if position.deleted else str(position.offset)
