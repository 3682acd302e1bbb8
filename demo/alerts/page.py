"""What the console shows of a fault, asked again and again as JSON, from which its pages are made."""

from typing import Any

from demo.fleet.processes import Adapter, Fleet
from demo.fleet.scenario import Group
from demo.fleet.visitor import Visitor


class Page:
    """The console's pages. Methods raise DemoError if it does not answer."""

    def __init__(self, visitor: Visitor, fleet: Fleet) -> None:
        self._visitor = visitor
        self._fleet = fleet

    async def adapter_away(self, adapter: Adapter) -> bool:
        """Whether the fleet page says that an adapter does not answer."""
        return await self._says("adapter-away", adapter.name)

    async def meta_away(self) -> bool:
        """Whether the fleet page says that the Meta Service does not answer."""
        return await self._says("meta-away", self._fleet.meta.address)

    async def disk_full(self, adapter: Adapter) -> bool:
        """Whether the fleet page says that an adapter's disk is full."""
        return await self._says("disk-full", adapter.name)

    async def stalled(self, group: Group) -> bool:
        """Whether the page of groups says that a group stalls or has stopped."""
        found = await self._visitor.json("/groups", namespace=group.namespace, q=group.name)
        return any(
            row["group"] == group.name and row["namespace"] == group.namespace and row["status"] in {"stall", "stop"}
            for row in found["groups"]
        )

    async def was_reset(self, group: Group) -> bool:
        """Whether the group's page tells of a reset."""
        found: Any = await self._visitor.json("/group", namespace=group.namespace, group=group.name)
        return any(change["kind"] == "reset" for change in found["changes"])

    async def _says(self, kind: str, subject: str) -> bool:
        found = await self._visitor.json("/")
        return any(problem["kind"] == kind and problem["subject"] == subject for problem in found["problems"])
