"""What several adapters say of the shards of one group, as one: each shard counts once, where its offset is the newest.

A shard moves to another broker with its offset. The adapter that it left keeps the old offset, and nobody commits it there, so it
looks as if its consumer had stopped. The larger (epoch, offset) is the newer one, by the order of offsets (2).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from adapter.fleet.views import ShardRow
from adapter.model.lag_status import severity
from adapter.model.records import U64_MAX
from adapter.rpc import lag_pb

STANDING = (lag_pb.STALL, lag_pb.STOP)  # more consumers would not help


class Told(NamedTuple):
    """What an adapter says of a group's shards. `stale_since_ms`: it is away since then, and had said this before; else 0."""

    adapter: str
    shards: Sequence[lag_pb.ShardLag]
    stale_since_ms: int = 0
    evaluated_at_ms: int = 0


def merge(told: Iterable[Told]) -> list[ShardRow]:
    """One row for each shard, in key order: of the adapter with the larger (epoch, offset).

    Of equal ones it is one that is not away, then the one that was committed last, then the one with the newer bounds.
    """
    found: dict[str, list[tuple[Told, lag_pb.ShardLag]]] = {}
    for one in told:
        for shard in one.shards:
            found.setdefault(shard.shard, []).append((one, shard))
    rows = []
    for name in sorted(found):
        by, shard = max(found[name], key=_newness)
        others = tuple(one.adapter for one, _ in found[name] if one is not by)
        rows.append(ShardRow(shard, by.adapter, by.evaluated_at_ms, by.stale_since_ms, others))
    return rows


def _newness(held: tuple[Told, lag_pb.ShardLag]) -> tuple[int, int, bool, int, int]:
    told, shard = held
    return shard.epoch, shard.offset, not told.stale_since_ms, shard.committed_at_ms, shard.bounds_at_ms


def sums(namespace: str, group: str, rows: Sequence[ShardRow], parts: Mapping[str, lag_pb.GroupLag]) -> lag_pb.GroupLag:
    """The sums over a group's rows, as an adapter that had all of them would tell. `parts`: adapter -> its own sums.

    The time of the status is that of the adapter that has the worst shard.
    """
    total = lag_pb.GroupLag(namespace=namespace, group=group, shards=len(rows))
    worst: ShardRow | None = None
    for row in rows:
        shard = row.lag
        _add(total, shard)
        if worst is None or _worst_first(shard) < _worst_first(worst.lag):
            worst = row
    if worst:
        total.status, total.worst_shard = worst.lag.status, worst.lag.shard
        if worst.adapter in parts:
            total.status_since_ms = parts[worst.adapter].status_since_ms
    return total


def together(one: int, other: int, most: int = U64_MAX) -> int:
    """A sum of what adapters tell, as far as its field can hold it."""
    return min(one + other, most)


def _add(total: lag_pb.GroupLag, shard: lag_pb.ShardLag) -> None:
    total.lost = together(total.lost, shard.lost)
    total.burrow = max(total.burrow, shard.burrow)
    total.last_commit_at_ms = max(total.last_commit_at_ms, shard.committed_at_ms)
    total.warn += shard.status == lag_pb.WARN
    total.rewind += shard.status == lag_pb.REWIND
    total.stall += shard.status == lag_pb.STALL
    total.stop += shard.status == lag_pb.STOP
    total.beyond += shard.status == lag_pb.BEYOND
    if shard.HasField("lag"):
        total.known += 1
        total.lag = together(total.lag, shard.lag)
        total.moving_lag = together(total.moving_lag, 0 if shard.status in STANDING else shard.lag)
    if shard.HasField("lag_seconds"):
        total.lag_seconds = max(total.lag_seconds, shard.lag_seconds)
    if shard.HasField("commit_rate"):
        total.commit_rate += shard.commit_rate
    if shard.HasField("produce_rate"):
        total.produce_rate += shard.produce_rate
    if shard.HasField("trend"):
        total.trend += shard.trend


def _worst_first(shard: lag_pb.ShardLag) -> tuple[int, int]:
    """As an adapter finds the worst shard: by status, then by messages."""
    return -severity(shard.status), -(shard.lag if shard.HasField("lag") else -1)
