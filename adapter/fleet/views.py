"""What a fleet shows: adapters, groups and shards, as values that do not change once they were given out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from adapter.rpc import lag_pb, offsets_pb

Key = tuple[str, str]  # (namespace, group)


class Health(Enum):
    """What an adapter said last, or that it does not answer. What needs a person comes first."""

    AWAY = "away"  # no answer within `timeout_ms`, or its name does not have this address any more
    FAILED = "failed"  # its local store failed
    STARTING = "starting"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    DEGRADED = "degraded"  # its Meta Service does not answer
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class AdapterView:
    """One adapter. Unix times in milliseconds; 0: never.

    `configured` is the entry of the settings that led to `address`; they differ for `dns:` entries. `broker` is empty until the
    adapter told it. `status` is None while it was never told: `status_error` says why (it is away, or this process has no token
    for it); of an adapter that is away it is the last one. `lag_known`: all of its lag has arrived and is being followed;
    otherwise `lag_error` says why not, and `lag_since_ms` since when. `lag_seen`: all of its lag was known at some time.
    `groups` and `shards` count what is kept of it here, and there; `left_out_groups` are not kept here for lack of room.
    `forgotten_shards`: shards of which it keeps no lag for lack of room (`lag.shards`); `bounds_error`: why its broker tells no
    bounds.
    """

    address: str
    configured: str
    health: Health
    broker: str = ""
    version: str = ""
    status: offsets_pb.StatusReply | None = None
    error: str = ""
    status_error: str = ""
    seen_at_ms: int = 0
    away_since_ms: int = 0
    lag_known: bool = False
    lag_error: str = ""
    lag_since_ms: int = 0
    lag_seen: bool = False
    groups: int = 0
    left_out_groups: int = 0
    shards: int = 0
    forgotten_shards: int = 0
    bounds_error: str = ""

    @property
    def name(self) -> str:
        """What a person calls it: its broker, or its address."""
        return self.broker or self.address


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group over all adapters.

    `lag` has the sums of its shards, each counted once. `adapters` are the addresses that have shards of it. `stale_since_ms`: a
    part of it is as it was then, since an adapter that has the newest offset of a shard is away; 0: all of it is live. `exact` is
    False while the shards of several adapters have not been compared: `lag` is then the plain sum of what each one says.
    `history` are its last known lags, the oldest first, one for each `history_ms`; None where it was unknown.
    """

    lag: lag_pb.GroupLag
    adapters: Sequence[str]
    stale_since_ms: int = 0
    exact: bool = True
    history: Sequence[int | None] = ()

    @property
    def key(self) -> Key:
        """Namespace and group."""
        return self.lag.namespace, self.lag.group


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Some groups in an order, how many match in all, and how many are kept and were left out for lack of room (`max_groups`).

    `lag` and `statuses` are over all groups that match: messages, where they are known, and groups by the number of LagStatus.
    `stale` is how many of them have a part that is not live.
    """

    groups: Sequence[GroupView]
    matching: int
    kept: int
    left_out: int
    lag: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    stale: int = 0


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard as the adapter with its newest (epoch, offset) tells it. `others`: addresses that have an older or equal one.

    `evaluated_at_ms`: when that adapter judged it, by its clock. Unix time in milliseconds.
    """

    lag: lag_pb.ShardLag
    adapter: str
    evaluated_at_ms: int = 0
    stale_since_ms: int = 0
    others: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GroupShards:
    """A group with its shards, in key order of their names. `missing`: adapter -> why its shards could not be had."""

    group: GroupView
    shards: Sequence[ShardRow]
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """What changed since the last one: adapters (health or status), and groups; `many`: more groups than are named here."""

    adapters: bool
    groups: frozenset[Key]
    many: bool = False
