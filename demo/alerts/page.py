"""What the console's pages show of a fault: each function looks at the elements of a page that is kept open."""

from demo.fleet.processes import Adapter, Fleet
from demo.fleet.scenario import Group
from demo.fleet.visitor import Element


def adapter_away(page: Element, adapter: Adapter) -> bool:
    """Whether the fleet page says that an adapter does not answer."""
    return _says(page, "adapter-away", adapter.name)


def meta_away(page: Element, fleet: Fleet) -> bool:
    """Whether the fleet page says that the Meta Service does not answer."""
    return _says(page, "meta-away", fleet.meta.address)


def disk_full(page: Element, adapter: Adapter) -> bool:
    """Whether the fleet page says that an adapter's disk is full."""
    return _says(page, "disk-full", adapter.name)


def stalled(page: Element, group: Group) -> bool:
    """Whether the page of groups says that a group stalls or has stopped."""
    rows = page.all("tr", **{"data-namespace": group.namespace, "data-group": group.name})
    return any(row.one("td", **{"data-field": "status"}).attributes["data-value"] in {"stall", "stop"} for row in rows)


def was_reset(page: Element) -> bool:
    """Whether a group's page tells of a reset."""
    return any(page.all("li", **{"data-kind": "reset"}))


def _says(page: Element, kind: str, subject: str) -> bool:
    return any(page.all("li", **{"data-kind": kind, "data-subject": subject}))
