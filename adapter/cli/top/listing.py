"""One look at the lag of groups: what `top` prints where nobody watches, in the forms that every listing has."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from adapter.cli.columns import CORE, Asked, Columns
from adapter.cli.connection import Target, connected
from adapter.cli.groups.lag import listed
from adapter.cli.lag_text import age_text, rate_text, shards_text, span_text, status_word, trend_text
from adapter.cli.output import TABLE, Form, as_dict, fields_of, listing, note, warn
from adapter.cli.table import LEFT, RIGHT
from adapter.cli.top.rows import ORDERS, Order
from adapter.rpc import lag_pb
from adapter.runtime.wording import counted

COLUMNS: Final = Columns(
    {
        "status": LEFT,
        "namespace": LEFT,
        "group": LEFT,
        "lag": RIGHT,
        "lag-time": RIGHT,
        "trend/s": RIGHT,
        "last-commit": RIGHT,
        "shards": LEFT,
        "commits/s": RIGHT,
        "written/s": RIGHT,
        "since": RIGHT,
        "lost": RIGHT,
        "worst-shard": LEFT,
        "burrow": LEFT,
    },
    core=8,
    spare=("last-commit", "shards", "trend/s"),
)


class Wanted(NamedTuple):
    """Which groups, in which order; `limit` 0 means all."""

    lag_filter: lag_pb.LagFilter
    order: Order
    limit: int


async def print_groups(target: Target, wanted: Wanted, form: Form, asked: Asked = CORE) -> None:
    """Print the groups as they are now."""
    columns = COLUMNS.chosen(asked)
    last = lag_pb.ListGroupLagReply()
    now_ms = 0

    def cells(row: lag_pb.GroupLag) -> Sequence[str]:
        return cells_of(row, now_ms)

    async with connected(target) as client:
        with listing(form, columns, cells, fields_of(lag_pb.GroupLag), group_values) as rows:
            async for last in listed(client, wanted.lag_filter, ORDERS[wanted.order], wanted.limit):
                now_ms = last.evaluated_at_ms
                for row in last.groups:
                    rows.add(row)
    if form == TABLE:
        of = f" of {last.matching:,} that match" if wanted.limit and rows.count < last.matching else ""
        note(f"{counted(rows.count, 'group')}{of}")
        for text in told_of_all(last.bounds_error, last.shards_forgotten):
            warn(text)


def group_values(row: lag_pb.GroupLag) -> dict[str, Any]:
    """A group as JSON has it: its fields, with the words of the statuses."""
    return {**as_dict(row), "status": status_word(row.status), "burrow": status_word(row.burrow)}


def told_of_all(bounds_error: str, shards_forgotten: int) -> list[str]:
    """What is to be known of the lag as a whole, in sentences."""
    told = []
    if bounds_error:
        told.append(f"the broker did not tell the bounds of its shards, so lag may be unknown or old: {bounds_error}")
    if shards_forgotten:
        told.append(
            f"{counted(shards_forgotten, 'shard')} forgotten since the adapter's start for lack of room ([lag] shards): "
            "groups may be missing here"
        )
    return told


def cells_of(row: lag_pb.GroupLag, now_ms: int) -> Sequence[str]:
    """A group as the table has it."""
    return (
        status_word(row.status),
        row.namespace,
        row.group,
        str(row.lag) if row.HasField("lag") else "-",
        span_text(row.lag_seconds if row.HasField("lag_seconds") else None),
        trend_text(row.trend if row.HasField("trend") else None),
        age_text(row.last_commit_at_ms, now_ms),
        shards_text(row),
        rate_text(row.commit_rate if row.HasField("commit_rate") else None),
        rate_text(row.produce_rate if row.HasField("produce_rate") else None),
        age_text(row.status_since_ms, now_ms),
        str(row.lost),
        row.worst_shard,
        status_word(row.burrow),
    )
