"""The gRPC service `offsets.v1.OffsetLag`: requests -> the last evaluation -> messages, in slices. Decides nothing about lag."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from typing import NamedTuple

import anyio.to_thread
import numpy as np
import structlog

from adapter.errors import AdapterError, InvalidInputError, TooLargeError, UnknownGroupError
from adapter.meta.requests import parse_groups
from adapter.model.lag_rows import Ints
from adapter.model.names import check_name
from adapter.model.paging import DEFAULT_PAGE, MAX_PAGE
from adapter.model.records import DEFAULT_NAMESPACE, GroupKey
from adapter.rpc import lag_grpc, lag_pb
from adapter.runtime.serving.large_calls import MAX_BYTES, SLICE_ROWS
from adapter.runtime.serving.statuses import Context, answering, status_of, trailing_of
from adapter.runtime.slices import others
from adapter.sidecar.engine.core import Core
from adapter.sidecar.lag.filters import Filter
from adapter.sidecar.lag.live import LiveLag
from adapter.sidecar.lag.watching import changes

log = structlog.get_logger(__name__)

_FRAMING = 5  # bytes of a message in another one, at most
SLICE_GROUPS = 100  # made between two yields: a millisecond
GROUPS_TOGETHER = 25  # of GetGroupLags, made between two yields if they are small


class Serving(NamedTuple):
    """A core that serves, and the lag of its groups."""

    core: Core
    lag: LiveLag


class OffsetLag(lag_grpc.OffsetLagServicer):
    """`offsets.v1.OffsetLag`. `serving` raises NotReadyError while nothing is to be read, as for OffsetStore (invariant 9)."""

    def __init__(self, serving: Callable[[], Serving]) -> None:
        self._serving = serving

    @answering
    async def ListGroupLag(  # noqa: D102 - documented in the proto, as all RPCs
        self, request: lag_pb.ListGroupLagRequest, context: Context
    ) -> lag_pb.ListGroupLagReply:
        core, lag = self._serving()
        wanted, order = parse_filter(request.filter), parse_order(request.order)
        if request.page_size > MAX_PAGE:
            raise InvalidInputError(f"page_size: {request.page_size} is over {MAX_PAGE}")
        async with core.large.one(context=context):
            view = lag.view
            sorted_ = await anyio.to_thread.run_sync(view.order, order)
            found = sorted_[(await lag.filters.matching(view, wanted))[sorted_]]
            reply = lag_pb.ListGroupLagReply(
                matching=len(found),
                groups_kept=view.groups_kept,
                shards_kept=view.shards_kept,
                shards_forgotten=view.forgotten + lag.left_out,
                evaluated_at_ms=view.evaluated_at_ms,
                bounds_error=lag.bounds_error,
            )
            page = found[request.offset :][: request.page_size or DEFAULT_PAGE]
            room = MAX_BYTES - reply.ByteSize()
            for at in range(0, len(page), SLICE_GROUPS):
                for message in view.messages(page[at : at + SLICE_GROUPS]):
                    room -= message.ByteSize() + _FRAMING
                    if room < 0:
                        return reply
                    reply.groups.append(message)
                await others()
            return reply

    @answering
    async def GetGroupLag(self, request: lag_pb.GetGroupLagRequest, context: Context) -> lag_pb.GetGroupLagReply:  # noqa: D102
        core, lag = self._serving()
        key = GroupKey(check_name(request.namespace or DEFAULT_NAMESPACE, "namespace"), check_name(request.group, "group"))
        async with core.large.one(context=context):
            found = await _lags_of(core, lag, [key])
        if not found:
            raise UnknownGroupError(
                f"group: no lag of {'/'.join(key)} is kept here: nobody commits to it at this adapter, or more shards than "
                "lag.shards have moved since"
            )
        ((reply, fits),) = found
        if not fits:
            raise TooLargeError(
                f"group: the lag of its {reply.sums.shards:,} shards is over {MAX_BYTES:,} bytes; ListGroupLag has its sums"
            )
        return reply

    async def GetGroupLags(  # noqa: D102
        self, request: lag_pb.GetGroupLagsRequest, context: Context
    ) -> AsyncGenerator[lag_pb.GetGroupLagsReply, None]:
        async with _aborting("GetGroupLags", context):
            core, lag = self._serving()
            keys = await parse_groups(request.namespace, request.groups)
            for at in range(0, len(keys), GROUPS_TOGETHER):
                async with core.large.one(context=context):
                    await anyio.to_thread.run_sync(lag.view.index)
                    found = await _lags_of(core, lag, keys[at : at + GROUPS_TOGETHER])
                    await others()
                for reply in _in_messages([one for one, _ in found]):
                    yield reply

    async def WatchGroupLag(  # noqa: D102
        self, request: lag_pb.WatchGroupLagRequest, context: Context
    ) -> AsyncGenerator[lag_pb.WatchGroupLagReply, None]:
        async with _aborting("WatchGroupLag", context):
            lag = self._serving().lag
            async with aclosing(changes(lag.watches, parse_filter(request.filter))) as replies:
                async for reply in replies:
                    yield reply


@asynccontextmanager
async def _aborting(method: str, context: Context) -> AsyncIterator[None]:
    """What `answering` does, for a stream."""
    try:
        yield
    except AdapterError as error:
        await context.abort(status_of(error), str(error), trailing_of(error))
    except Exception:
        log.exception("rpc.failed", method=method)
        raise


def _in_messages(groups: Sequence[lag_pb.GetGroupLagReply]) -> Iterator[lag_pb.GetGroupLagsReply]:
    reply, room = lag_pb.GetGroupLagsReply(), MAX_BYTES
    for group in groups:
        room -= group.ByteSize() + _FRAMING
        if room < 0:
            yield reply
            reply, room = lag_pb.GetGroupLagsReply(), MAX_BYTES - group.ByteSize()
        reply.groups.append(group)
    if reply.groups:
        yield reply


async def _lags_of(core: Core, lag: LiveLag, keys: Sequence[GroupKey]) -> list[tuple[lag_pb.GetGroupLagReply, bool]]:
    """The lag of those groups of which it is kept, and whether the shards of each fit into an answer; else it has sums alone."""
    view = lag.view
    kept = {key: group for key in keys if (group := lag.number_of(key)) is not None}
    sums = view.messages(np.array([*kept.values()], np.int64))
    rows: list[Ints] = []
    made = 0  # rows since other tasks had their turn
    for group in kept.values():
        rows.append(view.rows_of(group))
        made += len(rows[-1])
        if made >= SLICE_ROWS:
            made = 0
            await others()
    shards = view.shards(np.concatenate(rows) if rows else np.empty(0, np.int64))
    found = []
    for key, sum_, of_group in zip(kept, sums, rows, strict=True):
        reply = lag_pb.GetGroupLagReply(sums=sum_, evaluated_at_ms=view.evaluated_at_ms, bounds_error=lag.bounds_error)
        left, room = len(of_group), MAX_BYTES - reply.ByteSize()
        while part := list(islice(shards, min(left, SLICE_ROWS))):
            left, made = left - len(part), made + len(part)
            if room >= 0:
                stored = core.ledger.store.hold_all(key, [row.shard for row in part])
                for row in part:
                    if fields := stored[row.shard][0]:
                        row.topic, row.partition = fields[5], fields[6]
                    room -= row.ByteSize() + _FRAMING
                reply.shards.extend(part)
            if made >= SLICE_ROWS:
                made = 0
                await others()
        if room < 0:
            del reply.shards[:]
        found.append((reply, room >= 0))
    return found


def parse_filter(wanted: lag_pb.LagFilter) -> Filter:
    """A filter. Raises InvalidInputError."""
    if wanted.namespace:
        check_name(wanted.namespace, "filter.namespace")
    if wanted.pattern:
        check_name(wanted.pattern, "filter.pattern")
    if wanted.at_least not in lag_pb.LagStatus.values():
        raise InvalidInputError(f"filter.at_least: {wanted.at_least} is unknown; {_numbers(lag_pb.LagStatus.items())}")
    return Filter(wanted.namespace, wanted.pattern, wanted.at_least)


def parse_order(order: int) -> int:
    """An order. Raises InvalidInputError."""
    if order not in lag_pb.LagOrder.values():
        raise InvalidInputError(f"order: {order} is unknown; {_numbers(lag_pb.LagOrder.items())}")
    return order


def _numbers(items: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{number} is {name}" for name, number in items)
