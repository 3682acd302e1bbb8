"""The live lag beside what `groups list` and `groups describe` read: asked of the same adapter, and left out where it keeps none.

That there is none is no error of these commands: an adapter may be older, have `[lag] shards = 0`, or have forgotten a group.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from adapter.cli.lag_text import rate_text, span_text, status_word, trend_text
from adapter.cli.output import as_dict
from adapter.client.client import OffsetClient
from adapter.rpc import lag_pb
from adapter.runtime.wording import counted

TIMEOUT_S: Final = 10.0
LIST_TIMEOUT_S: Final = 30.0  # of one page
PAGE: Final = 10_000  # groups of one call
NOT_KEPT: Final = "nobody commits to it at this adapter, or more shards than lag.shards have moved since"
_NAMED: Final = 5  # groups that a note names
# An adapter that answers so keeps no lag of any group.
_OFF: Final = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION}
_BESIDE: Final = {"shard", "topic", "partition", "namespace", "group"}  # which the command says itself

# Added to a row of `groups describe --output csv`.
CSV: Final = ("live_lag", "lost", "lag_seconds", "commit_rate", "trend", "status", "burrow")
CELLS: Final = ("lost", "lag-time", "commits/s", "trend/s", "status", "burrow")
# Added to a row of `groups list`.
BRIEF: Final = ("status", "lag", "lag_seconds")


class GroupLive(NamedTuple):
    """The live lag of a group, or `error`: why there is none."""

    reply: lag_pb.GetGroupLagReply | None
    error: str = ""

    def shards(self) -> dict[str, lag_pb.ShardLag]:
        """Shard -> its lag."""
        return {row.shard: row for row in self.reply.shards} if self.reply else {}

    def values(self) -> dict[str, Any]:
        """What JSON has of the group."""
        live = {"live": values(self.reply.sums)} if self.reply else {}
        return {**live, "lag_error": self.error}


class LiveLag:
    """Asks for the lag of groups; of an adapter that keeps none at all, only once."""

    def __init__(self, client: OffsetClient) -> None:
        self._client = client
        self._off = ""
        self._without: dict[str, list[str]] = {}  # why -> groups

    async def of(self, namespace: str, group: str) -> GroupLive:
        """The lag of a group."""
        return self._noted(group, GroupLive(None, self._off) if self._off else await self._asked(namespace, group))

    async def of_all(self, namespace: str, groups: Sequence[str]) -> Mapping[str, GroupLive]:
        """The lag of each of some groups."""
        kept: dict[str, GroupLive] = {}
        missing = self._off or NOT_KEPT
        if groups and not self._off:
            request = lag_pb.GetGroupLagsRequest(namespace=namespace, groups=groups)
            try:
                async for reply in self._client.lag.GetGroupLags(request, timeout=TIMEOUT_S):
                    kept.update((row.sums.group, GroupLive(row)) for row in reply.groups)
            except grpc.aio.AioRpcError as error:
                missing = why_none(error)
                self._off = missing if error.code() in _OFF else ""
        return {group: kept.get(group) or self._noted(group, GroupLive(None, missing)) for group in groups}

    def _noted(self, group: str, found: GroupLive) -> GroupLive:
        if found.error:
            self._without.setdefault(found.error, []).append(group)
        return found

    def note(self) -> str:
        """One sentence on the groups without a lag; empty if there is none."""
        said = []
        for error, groups in self._without.items():
            more = f" and {counted(len(groups) - _NAMED, 'other')}" if len(groups) > _NAMED else ""
            of = "" if error == self._off else f" of {', '.join(groups[:_NAMED])}{more}"
            said.append(f"no live lag{of}: {error}")
        return "; ".join(said)

    async def _asked(self, namespace: str, group: str) -> GroupLive:
        request = lag_pb.GetGroupLagRequest(namespace=namespace, group=group)
        try:
            return GroupLive(await self._client.lag.GetGroupLag(request, timeout=TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            if error.code() in _OFF:
                self._off = why_none(error)
            return GroupLive(None, why_none(error))


class Brief(NamedTuple):
    """What `groups list` has of the lag of a group: less than a message of hundreds of thousands of groups would take."""

    status: int
    lag: int | None
    lag_seconds: float | None
    commit_rate: float | None
    trend: float | None
    lost: int
    worst_shard: str
    burrow: int

    @classmethod
    def of(cls, row: lag_pb.GroupLag) -> "Brief":
        """That of a group."""
        lag, seconds, rate, trend = (
            getattr(row, name) if row.HasField(name) else None for name in ("lag", "lag_seconds", "commit_rate", "trend")
        )
        return cls(row.status, lag, seconds, rate, trend, row.lost, row.worst_shard, row.burrow)

    def values(self) -> dict[str, Any]:
        """What JSON and CSV have of it, as in BRIEF."""
        found = {"status": status_word(self.status), "lag": self.lag, "lag_seconds": self.lag_seconds}
        return {name: value for name, value in found.items() if value is not None}

    def cells(self) -> Sequence[str]:
        """The cells of a table, from the column of the status on."""
        return (
            status_word(self.status),
            "-" if self.lag is None else str(self.lag),
            span_text(self.lag_seconds),
            rate_text(self.commit_rate),
            trend_text(self.trend),
            str(self.lost),
            self.worst_shard,
            status_word(self.burrow),
        )


async def briefs(client: OffsetClient, namespace: str) -> tuple[dict[tuple[str, str], Brief], str]:
    """The lag of all groups of a namespace (empty: of all), and why there is none."""
    found: dict[tuple[str, str], Brief] = {}
    try:
        async for page in listed(client, lag_pb.LagFilter(namespace=namespace), lag_pb.NAME):
            found.update(((row.namespace, row.group), Brief.of(row)) for row in page.groups)
    except grpc.aio.AioRpcError as error:
        return found, why_none(error)
    return found, ""


async def listed(
    client: OffsetClient, lag_filter: lag_pb.LagFilter, order: lag_pb.LagOrder.ValueType, limit: int = 0
) -> AsyncIterator[lag_pb.ListGroupLagReply]:
    """Pages with these groups, at most `limit` (0: all), each group once, though groups change their places between pages."""
    request = lag_pb.ListGroupLagRequest(filter=lag_filter, order=order)
    seen: set[tuple[str, str]] = set()
    while True:
        request.page_size = min(limit - len(seen), PAGE) if limit else PAGE
        reply = await client.lag.ListGroupLag(request, timeout=LIST_TIMEOUT_S)
        # A page has fewer groups than it may have where they would make too large a message.
        request.offset += len(reply.groups)
        ended = not reply.groups or request.offset >= reply.matching
        fresh = [row for row in reply.groups if (row.namespace, row.group) not in seen]
        seen.update((row.namespace, row.group) for row in fresh)
        del reply.groups[:]
        reply.groups.extend(fresh)
        yield reply
        if ended or len(seen) == limit:
            return


def why_none(error: grpc.aio.AioRpcError) -> str:
    """Why an adapter told no lag."""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "this adapter is of a version without it"
    return f"{error.code().name}: {error.details()}"


def values(row: lag_pb.ShardLag | lag_pb.GroupLag) -> dict[str, Any]:
    """A row as JSON has it beside the names: with the words of the statuses."""
    fields = {name: value for name, value in as_dict(row).items() if name not in _BESIDE}
    return {**fields, "status": status_word(row.status), "burrow": status_word(row.burrow)}


def csv_values(row: lag_pb.ShardLag | None) -> Mapping[str, Any]:
    """The cells of CSV; nothing where there is no lag."""
    if row is None:
        return {}
    fields = values(row)
    return {"live_lag": fields.get("lag"), **{name: fields.get(name) for name in CSV[1:]}}


def cells(row: lag_pb.ShardLag | None) -> Sequence[str]:
    """The cells of a table, as in CELLS; empty where there is no lag."""
    if row is None:
        return [""] * len(CELLS)
    return [
        str(row.lost),
        span_text(row.lag_seconds if row.HasField("lag_seconds") else None),
        rate_text(row.commit_rate if row.HasField("commit_rate") else None),
        trend_text(row.trend if row.HasField("trend") else None),
        status_word(row.status),
        status_word(row.burrow),
    ]
