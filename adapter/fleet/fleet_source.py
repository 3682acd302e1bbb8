"""The lag of a fleet's groups for KEDA: what is known, and why the rest is not."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from adapter.fleet.fleet import Fleet
from adapter.fleet.scaling import GroupState, ShardState
from adapter.fleet.views import AdapterView, GroupShards, Health, ShardRow

FRESH_S = 5.0  # shards are asked for again after so many seconds: how old their bounds are counts
PAUSE_S = 1.0  # between two looks at the same group

_ANSWERING = {Health.SERVING, Health.DEGRADED}


class FleetLagSource:
    """Implements `LagSource` over a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def state(self, namespace: str, group: str) -> GroupState:
        """A group over all adapters. Unknown while one that has shards of it, or that was never reached, does not answer."""
        found = await self._fleet.group(namespace, group, max_age_s=FRESH_S)
        adapters = {view.address: view for view in self._fleet.adapters}
        shards = [_shard(row) for row in found.shards] if found else []
        incomplete = next(filter(None, map(_incomplete, adapters.values())), "")
        return GroupState(shards, self._unknown(adapters, found), incomplete or next(iter(self._fleet.problems), ""))

    async def changes(self, namespace: str, group: str) -> AsyncGenerator[None, None]:
        """Wake when the sums of the group change, or the state of any adapter."""
        key = namespace, group
        async with aclosing(self._fleet.changes(PAUSE_S)) as changes:
            async for change in changes:
                if change.adapters or change.many or key in change.groups:
                    yield

    def _unknown(self, adapters: dict[str, AdapterView], found: GroupShards | None) -> str:
        if entries := self._fleet.not_settled():
            return f"{entries[0]}: its addresses are not known yet"
        never = next((view for view in adapters.values() if not view.lag_seen), None)
        if never or not adapters:
            return f"adapter {never.name}: its groups are not known yet: {_why(never)}" if never else "no adapter is known"
        if found is None:
            return "no adapter has commits of this group"
        names = {address: view.name for address, view in adapters.items()}
        reasons = [f"adapter {names.get(address, address)}: {reason}" for address, reason in found.missing.items()]
        stale = (row for row in found.shards if row.stale_since_ms)
        reasons += [f"shard {row.lag.shard!r}: adapter {names.get(row.adapter, row.adapter)} does not answer" for row in stale]
        return next(iter(reasons), "")


def _shard(row: ShardRow) -> ShardState:
    lag = row.lag
    age_s = max(row.evaluated_at_ms - lag.bounds_at_ms, 0) / 1000 if lag.bounds_at_ms else None
    return ShardState(lag, age_s)


def _why(view: AdapterView) -> str:
    return view.error or view.lag_error or view.health.value


def _incomplete(view: AdapterView) -> str:
    """Why an adapter may have shards that are not known here; empty if it has none."""
    if view.health not in _ANSWERING or not view.lag_known:
        return f"adapter {view.name} does not answer: {_why(view)}"
    if view.left_out_groups:
        return f"{view.left_out_groups} groups of adapter {view.name} have no room: raise fleet.max_groups"
    if view.forgotten_shards:
        return f"adapter {view.name} forgot {view.forgotten_shards} shards for lack of room: raise its lag.shards"
    return ""
