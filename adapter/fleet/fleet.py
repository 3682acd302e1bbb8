"""A fleet: the adapters of the settings, followed, and their groups as those of one.

    async with Fleet.open(section) as fleet:
        page = await fleet.groups(order=lag_pb.LAG, page_size=50)

All is kept in memory, and nothing is asked of an adapter for a page but shards of groups that several adapters have. Every method
is of one event loop.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from adapter.fleet.section import FleetSection
from adapter.fleet.views import AdapterView, Change, GroupPage, GroupShards
from adapter.rpc import lag_pb


class FleetApi(Protocol):
    """What a fleet answers; `Fleet` implements it. Tests of pages may bring their own."""

    @property
    def adapters(self) -> Sequence[AdapterView]:
        """All adapters, what is wrong first, then by name."""
        ...

    async def groups(
        self,
        filter: lag_pb.LagFilter | None = None,  # noqa: A002 - named as in ListGroupLag
        order: lag_pb.LagOrder.ValueType = lag_pb.WORST,
        page_size: int = 50,
        offset: int = 0,
        *,
        text: str = "",
    ) -> GroupPage:
        """Groups that match, in an order, `offset` skipped. As ListGroupLag; `text` is a part of namespace/group, in any case.

        An order of numbers has unknown values last, and equal ones in key order. Sorts in a thread, when something changed.
        """
        ...

    async def group(self, namespace: str, group: str) -> GroupShards | None:
        """A group with its shards from all adapters that have it; None if no adapter has it now. Asks within `timeout_ms`."""
        ...

    def changes(self, pause_s: float = 0.5) -> AsyncIterator[Change]:
        """Yield what changed, at most once per `pause_s` seconds; the first one at once, with `many`.

        Raises OverloadedError when there are 1,000 callers already.
        """
        ...


def open_fleet(section: FleetSection) -> AbstractAsyncContextManager[FleetApi]:
    """Follow the adapters until the end of the context. Raises ConfigError for files that cannot be used."""
    raise NotImplementedError(section)
