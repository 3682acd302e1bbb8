"""The lag of this adapter's groups for KEDA: what is known, and why the rest is not."""

from collections.abc import AsyncGenerator, Callable
from itertools import islice
from typing import TYPE_CHECKING

import anyio

from adapter.errors import AdapterError, NotReadyError
from adapter.fleet.scaling import GroupState, ShardState
from adapter.model.records import GroupKey
from adapter.rpc import lag_pb
from adapter.runtime.serving.large_calls import SLICE_ROWS
from adapter.runtime.slices import others

if TYPE_CHECKING:  # these load numpy, which an adapter does only when commits are served
    from adapter.sidecar.lag.live import LiveLag
    from adapter.sidecar.lag.service import Serving
    from adapter.sidecar.lag.view import View

PAUSE_S = 1.0  # between two looks at the same group


class LiveLagSource:
    """Implements `adapter.fleet.scaler.LagSource`. `serving` raises NotReadyError while nothing is to be read (invariant 9)."""

    def __init__(self, serving: Callable[[], "Serving"], pause_s: float = PAUSE_S) -> None:
        self._serving = serving
        self._pause_s = pause_s

    async def state(self, namespace: str, group: str) -> GroupState:
        """A group now. Unknown while the adapter does not serve, and until it has looked at all that it stores."""
        try:
            core, lag = self._serving()
        except AdapterError as error:
            return GroupState((), str(error))
        if not lag.complete:
            return GroupState((), "the adapter has just begun to serve, and has not looked at all offsets yet")
        key, view = GroupKey(namespace, group), lag.view
        number = lag.number_of(key)
        if number is None:
            return GroupState((), f"nobody has committed to {namespace}/{group} at this adapter")
        shards: list[ShardState] = []
        rows = view.shards(view.rows_of(number))
        while part := list(islice(rows, SLICE_ROWS)):
            stored = core.ledger.store.hold_all(key, [row.shard for row in part])
            for row in part:
                if fields := stored[row.shard][0]:
                    row.topic = fields[5]
                shards.append(_shard(row, view.evaluated_at_ms))
            await others()
        return GroupState(shards, incomplete=_left_out(lag, view))

    async def changes(self, namespace: str, group: str) -> AsyncGenerator[None, None]:
        """Wake when the sums of the group change, and when the adapter begins or ends to serve."""
        key = GroupKey(namespace, group)
        while True:
            seen = self._seen(key)  # before the caller looks: it may look at once, and what changes then wakes it again
            yield
            await anyio.sleep(self._pause_s)
            try:
                while self._seen(key) == seen:
                    lag = self._serving().lag
                    await lag.watches.after(lag.view.version)
            except NotReadyError:
                continue

    def _seen(self, key: GroupKey) -> object:
        """What the state of a group is made of; None while the adapter does not serve."""
        try:
            lag = self._serving().lag
        except AdapterError:
            return None
        return lag, lag.complete, _changed_in(lag, key), _left_out(lag, lag.view)


def _changed_in(lag: "LiveLag", key: GroupKey) -> int:
    """The version of the view in which the group changed last; -1 if there is no lag of it."""
    number = lag.number_of(key)
    return -1 if number is None else int(lag.view.changed[number])


def _shard(row: lag_pb.ShardLag, now_ms: int) -> ShardState:
    return ShardState(row, max(now_ms - row.bounds_at_ms, 0) / 1000 if row.bounds_at_ms else None)


def _left_out(lag: "LiveLag", view: "View") -> str:
    count = view.forgotten + lag.left_out
    return f"{count} shards have no room: raise lag.shards" if count else ""
