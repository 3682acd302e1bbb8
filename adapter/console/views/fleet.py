"""The fleet page: what is wrong, the adapters, the Meta Service's instances, the Raft groups, and the groups by their status."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from adapter.console.pages import Pages
from adapter.console.sources.meta_instances import MetaInstance
from adapter.console.views import problems
from adapter.console.views.groups import STATUS_WORDS, group_json
from adapter.console.views.view import Built, Fragments, Link, Query, Site, Table, View
from adapter.fleet.views import AdapterView, GroupPage, Health
from adapter.look.pages import row_id
from adapter.model.lag_status import severity
from adapter.rpc import lag_pb

WORST = 5  # groups that the fleet page names
GOOD_STATES = {Health.SERVING}
POOR_STATES = {Health.STARTING, Health.RECOVERING, Health.STOPPING}


async def _build(site: Site, _: Query) -> Built:
    adapters, unresolved = site.fleet.adapters, site.fleet.problems
    instances, raft = site.meta.instances, site.meta.raft
    page = await site.fleet.groups(order=lag_pb.WORST, page_size=WORST)

    def data() -> dict[str, Any]:
        groups = summary_json(page)
        found = problems.problems(adapters, unresolved, instances, raft, groups["statuses"])
        return {
            "problems": [problem._asdict() for problem in found],
            "adapters": [adapter_json(adapter) for adapter in adapters],
            "meta": [instance_json(instance) for instance in instances],
            "raft": raft
            and {"groups": raft.groups, "problems": raft.problems, "error": raft.error, "asked_at_ms": raft.asked_at_ms},
            "groups": groups,
        }

    def fragments(pages: Pages, link: Link) -> Fragments:
        found = data()
        macros = pages.macros("fleet_parts.html")
        return {
            "problems": macros.problems(found["problems"]),
            "group-summary": macros.summary(found["groups"], link),
            "adapters": _table("adapters", [(one["id"], macros.adapter(one)) for one in found["adapters"]]),
            "meta-instances": _table("meta-instances", [(one["id"], macros.instance(one)) for one in found["meta"]]),
            "raft-groups": _table("raft-groups", _raft_rows(macros, found["raft"])),
        }

    return Built({}, data, fragments, {"nav": "fleet", "has_raft": raft is not None, "has_meta": bool(instances)})


VIEW = View("fleet", "fleet.html", _build)


def _raft_rows(macros: Any, raft: Mapping[str, Any] | None) -> list[tuple[str, Markup]]:  # noqa: ANN401
    return [(row_id("r", one["name"]), macros.raft(row_id("r", one["name"]), one)) for one in (raft["groups"] if raft else ())]


def _table(name: str, rows: Sequence[tuple[str, Markup]]) -> Table:
    start, end = Markup('<tbody id="{}">').format(name), Markup("</tbody>")
    return Table(start, dict(rows), end)


def adapter_json(adapter: AdapterView) -> dict[str, Any]:
    """An adapter as the page shows it; what its state does not tell is None."""
    status = adapter.status
    level = "good" if adapter.health in GOOD_STATES else "poor" if adapter.health in POOR_STATES else "bad"
    found: dict[str, Any] = {
        "id": row_id("a", adapter.address),
        "address": adapter.address,
        "configured": adapter.configured,
        "broker": adapter.broker,
        "name": adapter.name,
        "health": adapter.health.value,
        "level": level,
        "version": adapter.version,
        "error": adapter.error,
        "seen_at_ms": adapter.seen_at_ms,
        "away_since_ms": adapter.away_since_ms,
        "groups": adapter.groups,
        "shards": adapter.shards,
        "lag_known": adapter.lag_known,
        "reason": "",
        "dirty_keys": None,
        "oldest_dirty_seconds": None,
        "last_flush_at_ms": None,
        "last_flush_seconds": None,
        "last_flush_error": "",
        "unsynced_writes": None,
        "stored_keys": None,
        "commits": None,
        "uptime_seconds": None,
        "loss": None,
        "journal": None,
        "config": None,
        "drift": [],
    }
    if status is None:
        return found
    found |= {
        "reason": status.reason,
        "dirty_keys": status.dirty_keys,
        "oldest_dirty_seconds": round(status.oldest_dirty_seconds, 1),
        "last_flush_at_ms": status.last_flush_at_ms,
        "last_flush_seconds": status.last_flush_seconds,
        "last_flush_error": status.last_flush_error,
        "unsynced_writes": status.unsynced_writes,
        "stored_keys": status.stored_keys,
        "commits": status.commits,
        "uptime_seconds": status.uptime_seconds,
    }
    if status.HasField("loss"):
        found["loss"] = {"writes": status.loss.writes, "found_at_ms": status.loss.found_at_ms, "why": status.loss.why}
    if status.HasField("journal"):
        journal = status.journal
        found["journal"] = {"rows": journal.rows, "dropped_rows": journal.dropped_rows, "last_error": journal.last_error}
    if status.HasField("config"):
        config = status.config
        found["config"] = {"path": config.path, "sha256": config.sha256, "read_at_ms": config.read_at_ms}
        found["drift"] = [
            *(["file differs"] if config.differs else []),
            *([f"needs restart: {', '.join(config.needs_restart)}"] if config.needs_restart else []),
            *(["reload refused"] if config.last_error else []),
            *(["files refused"] if config.files_error else []),
        ]
    return found


def instance_json(instance: MetaInstance) -> dict[str, Any]:
    """An instance of the Meta Service as the page shows it."""
    status = instance.status
    marks = status.marks if status else ()
    state = "answers" if instance.available else "does not answer" if instance.error else "not asked yet"
    loss = status is not None and status.HasField("loss")
    return {
        "id": row_id("m", instance.address),
        "address": instance.address,
        "state": state,
        "level": "good" if instance.available else "bad" if instance.error else "poor",
        "error": instance.error,
        "answered_at_ms": instance.answered_at_ms,
        "engine": status.engine if status else "",
        "version": status.version if status else "",
        "clock_ahead_ms": instance.ahead_ms if status else None,
        "loss": {"writes": status.loss.writes, "found_at_ms": status.loss.found_at_ms} if status and loss else None,
        "stores": [
            {"name": mark.name, "store_id": mark.store_id.hex(), "incarnation": mark.incarnation, "revision": mark.revision}
            for mark in marks
        ],
    }


def summary_json(page: GroupPage) -> dict[str, Any]:
    """All groups in numbers, and the worst of them that are not well."""
    return {
        "matching": page.matching,
        "kept": page.kept,
        "left_out": page.left_out,
        "stale": page.stale,
        "lag": page.lag,
        "statuses": {word: page.statuses.get(number, 0) for number, word in STATUS_WORDS.items()},
        "worst": [group_json(group) for group in page.groups if severity(group.lag.status) >= severity(lag_pb.WARN)],
    }
