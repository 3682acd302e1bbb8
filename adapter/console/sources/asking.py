"""Questions to adapters about one group, asked at most once in a while, however many look at its page."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import anyio

from adapter.console.sources.admin_calls import AdminCalls, NotToldError

ASK_S = 0.8  # an adapter is asked for a group at most so often
ASKED_MAX = 500  # answers that are kept
AT_ONCE = 8  # adapters that are asked at the same time


class Asked(NamedTuple):
    """What an adapter told: an answer, or why there is none."""

    answer: Any
    error: str


class Asking:
    """Asks adapters, and keeps what they answered for a moment."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls
        self._kept: OrderedDict[tuple[str, ...], tuple[float, Asked]] = OrderedDict()

    async def describe(self, addresses: Iterable[str], namespace: str, group: str) -> Mapping[str, Asked]:
        """DescribeGroup of some adapters."""
        return await self._all("describe", addresses, lambda at: self._calls.describe(at, namespace, group), namespace, group)

    async def changes(self, addresses: Iterable[str], namespace: str, group: str) -> Mapping[str, Asked]:
        """ListChanges of some adapters."""
        return await self._all("changes", addresses, lambda at: self._calls.changes(at, namespace, group), namespace, group)

    async def _all(
        self, what: str, addresses: Iterable[str], call: Callable[[str], Awaitable[object]], *names: str
    ) -> Mapping[str, Asked]:
        found: dict[str, Asked] = {}
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def one(address: str) -> None:
            key = (what, address, *names)
            kept = self._kept.get(key)
            if kept and anyio.current_time() - kept[0] < ASK_S:
                found[address] = kept[1]
                return
            async with limiter:
                try:
                    asked = Asked(await call(address), "")
                except NotToldError as error:
                    asked = Asked(None, str(error))
            found[address] = asked
            self._kept[key] = (anyio.current_time(), asked)
            self._kept.move_to_end(key)
            while len(self._kept) > ASKED_MAX:
                self._kept.popitem(last=False)

        async with anyio.create_task_group() as tasks:
            for address in addresses:
                tasks.start_soon(one, address)
        return found
