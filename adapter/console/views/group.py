"""The page of one group: its shards, a chart of its offset against the end of its log, and what changed it.

Lag and offsets are the fleet's. Member, generation, holds, what is dirty and warnings are asked of each adapter that has the
group, and what changed it of every adapter; both are asked at most once in a while, however many look.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
from markupsafe import Markup
from starlette.exceptions import HTTPException

from adapter.console.pages import Pages
from adapter.console.sources.asking import Asked
from adapter.console.views import charts
from adapter.console.views.groups import STATUS_WORDS, group_json
from adapter.console.views.view import Built, Fragments, Link, Query, Site, Table, View
from adapter.fleet.views import AdapterView, GroupShards, Health, ShardRow
from adapter.look.pages import row_id
from adapter.model.lag_order import worst_first
from adapter.rpc import offsets_pb

CHANGES_SHOWN = 100
SHARD_SIZES = (100, 250, 1_000)
MOST_SHARDS = 10_000_000
ORDERS: Final = ("worst", "name", "lag")


async def _build(site: Site, query: Query) -> Built:
    namespace, group = query.text("namespace") or "default", query.needed("group")
    order = query.choice("order", ORDERS)
    size, offset = query.whole("size", SHARD_SIZES[0], 1, SHARD_SIZES[-1]), query.whole("offset", 0, 0, MOST_SHARDS)
    found = await site.fleet.group(namespace, group)
    adapters = site.fleet.adapters
    answering = [adapter for adapter in adapters if adapter.health not in {Health.AWAY, Health.STARTING}]
    having = found.group.adapters if found else [adapter.address for adapter in answering]
    described: dict[str, Asked] = {}
    changed: dict[str, Asked] = {}

    async def describe() -> None:
        described.update(await site.asking.describe(_among(having, answering), namespace, group))

    async def change() -> None:
        changed.update(await site.asking.changes([adapter.address for adapter in answering], namespace, group))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(describe)
        tasks.start_soon(change)
    changes = changes_json(changed, adapters)
    if found is None and not any(asked.answer and asked.answer.shards for asked in described.values()) and not changes["changes"]:
        raise HTTPException(404, f"no adapter that answers has the group {group!r} in the namespace {namespace!r}")
    if found:
        site.charts.note((namespace, group), found)
    points = site.charts.look((namespace, group))
    asked: dict[str, object] = {
        "namespace": namespace,
        "group": group,
        "order": order if order != ORDERS[0] else None,
        "size": size if size != SHARD_SIZES[0] else None,
        "offset": offset or None,
    }

    def data() -> dict[str, Any]:
        return group_data(found, described, adapters, order, offset, size) | {
            "namespace": namespace,
            "group": group,
            **changes,
            "points": [point._asdict() for point in points],
        }

    def fragments(pages: Pages, link: Link) -> Fragments:
        shown = data()
        macros = pages.macros("group_parts.html")
        marks = [(one["at_ms"], one["kind"]) for one in shown["changes"]]
        rows = {one["id"]: macros.shard(one) for one in shown["shards"]}
        return {
            "group-doubts": macros.doubts(shown),
            "group-sums": macros.sums(shown["sums"], shown["members"]),
            "group-chart": macros.chart(charts.drawing(points, marks)),
            "shards-count": macros.count(shown["shards_matching"], offset, len(rows)),
            "shards": Table(Markup('<tbody id="shards">'), rows, Markup("</tbody>")),
            "shards-pager": macros.pager(shown["shards_matching"], offset, size, asked, link),
            "changes": macros.changes(shown),
            "journals": macros.journals(shown["journals"]),
        }

    values = {"nav": "groups", "namespace": namespace, "group": group, "order": order, "orders": ORDERS, "asked": asked}
    return Built(asked, data, fragments, values)


VIEW = View("group", "group.html", _build)


def _among(addresses: Sequence[str], adapters: Sequence[AdapterView]) -> list[str]:
    there = {adapter.address for adapter in adapters}
    return [address for address in addresses if address in there]


def group_data(
    found: GroupShards | None, described: Mapping[str, Asked], adapters: Sequence[AdapterView], order: str, offset: int, size: int
) -> dict[str, Any]:
    """The sums, a page of shards, who commits, and what could not be had."""
    names = {adapter.address: adapter.name for adapter in adapters}
    told = {
        address: {shard.shard: shard for shard in asked.answer.shards} for address, asked in described.items() if asked.answer
    }
    rows: dict[str, dict[str, Any]] = {}
    for row in found.shards if found else ():
        rows[row.lag.shard] = _with_description(shard_json(row, names), told.get(row.adapter, {}).get(row.lag.shard))
    for address, shards in told.items():
        for shard in shards.values():
            if shard.shard not in rows:
                rows[shard.shard] = _with_description(_unjudged(shard, address, names), shard)
    ordered = sorted(rows.values(), key=_keys(order))
    missing = dict(found.missing) if found else {}
    return {
        "sums": group_json(found.group) if found else None,
        "shards": ordered[offset : offset + size],
        "shards_matching": len(ordered),
        "members": [
            {
                "adapter": address,
                "name": names.get(address, address),
                "generation": asked.answer.generation if asked.answer.HasField("generation") else None,
                "member_id": asked.answer.member_id,
                "mode": asked.answer.mode,
            }
            for address, asked in sorted(described.items())
            if asked.answer and asked.answer.shards
        ],
        "missing": [{"adapter": address, "name": names.get(address, address), "why": why} for address, why in missing.items()],
        "doubts": sorted({text for asked in described.values() for text in _doubts(asked)}),
    }


def _doubts(asked: Asked) -> Iterable[str]:
    if asked.error:
        yield f"Members, holds and dirty offsets are unknown: {asked.error}"
    elif asked.answer.remote_error:
        yield f"What the Meta Service holds is unknown: {asked.answer.remote_error}"
    if asked.answer and asked.answer.bounds_error:
        yield f"The ends of the log are not those of the broker: {asked.answer.bounds_error}"


_STATUSES = {word: status for status, word in STATUS_WORDS.items()}


def _keys(order: str) -> Callable[[Mapping[str, Any]], Any]:
    if order == "name":
        return lambda row: row["shard"]
    if order == "lag":
        return lambda row: (row["lag"] is None, -(row["lag"] or 0), row["shard"])
    return lambda row: (*worst_first(_STATUSES[row["status"]], row["lag_seconds"], row["lag"]), row["shard"])


def shard_json(row: ShardRow, names: Mapping[str, str]) -> dict[str, Any]:
    """A shard as the page shows it; what is unknown is None."""
    lag = row.lag
    has = lag.HasField
    return {
        "id": row_id("s", lag.shard),
        "shard": lag.shard,
        "topic": lag.topic,
        "partition": lag.partition,
        "epoch": lag.epoch,
        "offset": lag.offset,
        "deleted": False,
        "committed_at_ms": lag.committed_at_ms,
        "low": lag.low_watermark if has("low_watermark") else None,
        "high": lag.high_watermark if has("high_watermark") else None,
        "bounds_at_ms": lag.bounds_at_ms,
        "lag": lag.lag if has("lag") else None,
        "lost": lag.lost,
        "lag_seconds": round(lag.lag_seconds, 2) if has("lag_seconds") else None,
        "commit_rate": round(lag.commit_rate, 2) if has("commit_rate") else None,
        "trend": round(lag.trend, 2) if has("trend") else None,
        "status": STATUS_WORDS.get(lag.status, "unknown"),
        "burrow": STATUS_WORDS.get(lag.burrow, "unknown"),
        "adapter": row.adapter,
        "adapter_name": names.get(row.adapter, row.adapter),
        "others": [names.get(address, address) for address in row.others],
        "stale_since_ms": row.stale_since_ms,
    }


def _unjudged(shard: offsets_pb.DescribeGroupReply.Shard, address: str, names: Mapping[str, str]) -> dict[str, Any]:
    """A shard of which no lag is kept: what DescribeGroup tells."""
    has = shard.HasField
    position = shard.local if has("local") else shard.remote
    return {
        "id": row_id("s", shard.shard),
        "shard": shard.shard,
        "topic": shard.topic,
        "partition": shard.partition,
        "epoch": position.epoch,
        "offset": position.offset,
        "deleted": position.deleted,
        "committed_at_ms": shard.committed_at_ms,
        "low": shard.low_watermark if has("low_watermark") else None,
        "high": shard.high_watermark if has("high_watermark") else None,
        "bounds_at_ms": 0,
        "lag": shard.lag if has("lag") else None,
        "lost": 0,
        "lag_seconds": None,
        "commit_rate": None,
        "trend": None,
        "status": "unknown",
        "burrow": "unknown",
        "adapter": address,
        "adapter_name": names.get(address, address),
        "others": [],
        "stale_since_ms": 0,
    }


def _with_description(row: dict[str, Any], shard: offsets_pb.DescribeGroupReply.Shard | None) -> dict[str, Any]:
    if shard is None:
        return row | {"dirty": None, "held_until_ms": None, "warning": "", "metadata": ""}
    return row | {
        "dirty": shard.dirty,
        "held_until_ms": shard.held_until_ms if shard.HasField("held_until_ms") else None,
        "warning": shard.warning,
        "metadata": shard.metadata,
    }


def changes_json(changed: Mapping[str, Asked], adapters: Sequence[AdapterView]) -> dict[str, Any]:
    """The newest changes of all adapters, the newest first; since when all of them are known; and the journals' counters."""
    names = {adapter.address: adapter.name for adapter in adapters}
    found = [
        {
            "id": row_id("c", address, str(change.at_ms), change.kind, str(index)),
            "at_ms": change.at_ms,
            "kind": change.kind,
            "who": change.who,
            "claimed": change.claimed,
            "peer": change.peer,
            "shards": change.shards,
            "adapter": address,
            "adapter_name": names.get(address, address),
            "rows": [_change_row(row) for row in change.rows],
        }
        for address, asked in changed.items()
        if asked.answer
        for index, change in enumerate(reversed(asked.answer.changes))
    ]
    found.sort(key=lambda change: (-int(str(change["at_ms"])), str(change["id"])))
    return {
        "changes": found[:CHANGES_SHOWN],
        "changes_since_ms": max((asked.answer.since_ms for asked in changed.values() if asked.answer), default=0),
        "changes_unknown": [
            {"adapter": address, "name": names.get(address, address), "why": asked.error}
            for address, asked in sorted(changed.items())
            if asked.error
        ],
        "journals": [
            {
                "adapter": adapter.address,
                "name": adapter.name,
                "rows": adapter.status.journal.rows,
                "dropped_rows": adapter.status.journal.dropped_rows,
            }
            for adapter in adapters
            if adapter.status and adapter.status.HasField("journal")
        ],
    }


def _change_row(row: offsets_pb.ChangeReply.Row) -> dict[str, Any]:
    return {
        "shard": row.shard,
        "before": _position(row.before) if row.HasField("before") else None,
        "after": _position(row.after) if row.HasField("after") else None,
    }


def _position(position: offsets_pb.Position) -> dict[str, Any]:
    return {"epoch": position.epoch, "offset": position.offset, "deleted": position.deleted}
