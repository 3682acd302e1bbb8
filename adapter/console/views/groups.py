"""The groups page: search, filter, order, a page of rows. The fleet sorts and counts; this page never reads all groups."""

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from adapter.console.pages import Pages
from adapter.console.views.view import Built, Fragments, Link, Query, Site, Table, View
from adapter.fleet.views import GroupPage, GroupView
from adapter.look import charts, shown
from adapter.look.pages import row_id
from adapter.rpc import lag_pb

STATUS_WORDS: Final[Mapping[int, str]] = {
    lag_pb.OK: "ok",
    lag_pb.WARN: "warn",
    lag_pb.REWIND: "rewind",
    lag_pb.STALL: "stall",
    lag_pb.STOP: "stop",
    lag_pb.BEYOND: "beyond",
    lag_pb.LAG_STATUS_UNSPECIFIED: "unknown",
}
ORDERS: Final[Mapping[str, lag_pb.LagOrder.ValueType]] = {name.lower(): number for name, number in lag_pb.LagOrder.items()}
AT_LEAST: Final[Mapping[str, lag_pb.LagStatus.ValueType]] = {
    "all": lag_pb.LAG_STATUS_UNSPECIFIED,
    "warn": lag_pb.WARN,
    "rewind": lag_pb.REWIND,
    "stall": lag_pb.STALL,
    "stop": lag_pb.STOP,
    "beyond": lag_pb.BEYOND,
}
SIZES = (50, 100, 250, 1_000)
MOST_GROUPS = 10_000_000
PATTERN_LETTERS = frozenset("*?[")

# The columns: a title, the order that its heading asks for, and whether it is a number.
COLUMNS: Final = (
    ("group", "name", False),
    ("status", "worst", False),
    ("lag", "lag", True),
    ("lag in time", "lag_seconds", True),
    ("lag lately", "", False),
    ("trend", "trend", True),
    ("commits", "commit_rate", True),
    ("last commit", "last_commit", True),
    ("shards", "", True),
)


async def _build(site: Site, query: Query) -> Built:
    text, namespace = query.text("q"), query.text("namespace")
    at_least, order = query.choice("at_least", [*AT_LEAST]), query.choice("order", [*ORDERS])
    size, offset = query.whole("size", SIZES[0], 1, SIZES[-1]), query.whole("offset", 0, 0, MOST_GROUPS)
    is_pattern = bool(PATTERN_LETTERS.intersection(text))
    wanted = lag_pb.LagFilter(namespace=namespace, pattern=text if is_pattern else "", at_least=AT_LEAST[at_least])
    page = await site.fleet.groups(wanted, ORDERS[order], size, offset, text="" if is_pattern else text)
    asked: dict[str, object] = {
        "q": text or None,
        "namespace": namespace or None,
        "at_least": at_least if at_least != "all" else None,
        "order": order if order != "worst" else None,
        "size": size if size != SIZES[0] else None,
        "offset": offset or None,
    }

    def data() -> dict[str, Any]:
        return groups_json(page, offset, size, order)

    def fragments(pages: Pages, link: Link) -> Fragments:
        macros = pages.macros("groups_parts.html")
        row = macros.row
        signs = {word: macros.sign_of(word) for word in STATUS_WORDS.values()}
        rows = {row_id("g", *group.key): row(_texts(group, signs, link)) for group in page.groups}
        return {
            "groups-count": macros.count(page.matching, offset, len(page.groups), page),
            "groups-pager": macros.pager(page.matching, offset, size, asked, link),
            "groups": Table(Markup('<tbody id="groups">'), rows, Markup("</tbody>")),
        }

    values = {
        "nav": "groups",
        "asked": asked,
        "q": text,
        "namespace": namespace,
        "at_least": at_least,
        "order": order,
        "size": size,
        "sizes": sorted({*SIZES, size}),
        "orders": [*ORDERS],
        "at_leasts": [*AT_LEAST],
        "columns": COLUMNS,
    }
    return Built(asked, data, fragments, values)


VIEW = View("groups", "groups.html", _build)


def groups_json(page: GroupPage, offset: int, size: int, order: str) -> dict[str, Any]:
    """A page of groups."""
    return {
        "groups": [group_json(group) for group in page.groups],
        "matching": page.matching,
        "kept": page.kept,
        "left_out": page.left_out,
        "offset": offset,
        "size": size,
        "order": order,
        "lag": page.lag,
        "statuses": {word: page.statuses.get(number, 0) for number, word in STATUS_WORDS.items()},
    }


def _texts(view: GroupView, signs: Mapping[str, Markup], link: Link) -> dict[str, Any]:
    """What a row shows, made here as far as it goes: a page has a thousand of them, and a template takes its time."""
    lag = view.lag
    has = lag.HasField
    status = STATUS_WORDS.get(lag.status, "unknown")
    known = {name: getattr(lag, name) if has(name) else None for name in ("lag", "lag_seconds", "trend", "commit_rate")}
    history = tuple(view.history)
    return {
        "id": row_id("g", lag.namespace, lag.group),
        "namespace": lag.namespace,
        "group": lag.group,
        "name": shown.name(lag.group),
        "other_namespace": shown.name(lag.namespace) if lag.namespace != "default" else "",
        "href": link("group", namespace=lag.namespace, group=lag.group),
        "status": status,
        "sign": signs[status],
        "stale": bool(view.stale_since_ms),
        "lag": shown.number(known["lag"]),
        "seconds": shown.seconds(known["lag_seconds"]),
        "trend": shown.trend(known["trend"]),
        "rate": shown.rate(known["commit_rate"]),
        "values": {name: "" if value is None else round(value, 2) for name, value in known.items()},
        "lost": shown.number(lag.lost) if lag.lost else "",
        "path": charts.spark_path(history),
        "path_text": charts.spark_text(history),
        "at_ms": lag.last_commit_at_ms,
        "iso": shown.iso(lag.last_commit_at_ms),
        "when": shown.when(lag.last_commit_at_ms),
        "shards": lag.shards,
        "known": lag.known,
    }


def group_json(view: GroupView) -> dict[str, Any]:
    """A group as the pages show it; what is unknown is None."""
    lag = view.lag
    has = lag.HasField
    return {
        "id": row_id("g", lag.namespace, lag.group),
        "namespace": lag.namespace,
        "group": lag.group,
        "status": STATUS_WORDS.get(lag.status, "unknown"),
        "burrow": STATUS_WORDS.get(lag.burrow, "unknown"),
        "status_since_ms": lag.status_since_ms,
        "lag": lag.lag if has("lag") else None,
        "lag_seconds": round(lag.lag_seconds, 2) if has("lag_seconds") else None,
        "commit_rate": round(lag.commit_rate, 2) if has("commit_rate") else None,
        "produce_rate": round(lag.produce_rate, 2) if has("produce_rate") else None,
        "trend": round(lag.trend, 2) if has("trend") else None,
        "moving_lag": lag.moving_lag if has("moving_lag") else None,
        "lost": lag.lost,
        "shards": lag.shards,
        "known": lag.known,
        "last_commit_at_ms": lag.last_commit_at_ms,
        "worst_shard": lag.worst_shard,
        "by_status": {
            "warn": lag.warn,
            "rewind": lag.rewind,
            "stall": lag.stall,
            "stop": lag.stop,
            "beyond": lag.beyond,
        },
        "adapters": list(view.adapters),
        "stale_since_ms": view.stale_since_ms,
        "exact": view.exact,
        "history": list(view.history),
    }
