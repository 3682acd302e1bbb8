"""Watchers: callers that are told of changes which did not come as ordinary commits, such as resets and adopted values.

The ledger notes the keys of such changes behind each write. A watcher keeps keys, not values: several changes of a key are one,
and what it sends is what stands when it is sent. A watcher that falls behind forgets all and lists the offsets again (`resync`).
Never slows a commit that only moves an offset forward: those are not noted.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, Protocol

from adapter.errors import NotReadyError, OverloadedError
from adapter.model.records import OffsetKey
from adapter.runtime.serving.large_calls import SLICE_ROWS

MAX_WATCHERS = 100
MAX_BEHIND = 10_000  # keys that wait for one watcher: at most a megabyte, beside keys that all watchers share
RETRY_AFTER_S = 5.0


class ChangedKeys(NamedTuple):
    """What a watcher is told next. `resync`: list the offsets now; what changes from now on is in later news."""

    resync: bool
    keys: list[OffsetKey]


class Watcher:
    """One watcher of the keys below `names`: (), (namespace,) or (namespace, group)."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._keys: dict[OffsetKey, None] = {}
        self._resync = True
        self._ended = False
        self._changed = asyncio.Event()

    def note(self, keys: Collection[OffsetKey]) -> None:
        """These keys changed."""
        if self._resync:
            return  # the list that follows has them
        count = len(self._names)
        self._keys.update(dict.fromkeys(key for key in keys if key[:count] == self._names) if count else dict.fromkeys(keys))
        if len(self._keys) > MAX_BEHIND:
            self._keys.clear()
            self._resync = True
        if self._keys or self._resync:
            self._changed.set()

    @property
    def pending(self) -> bool:
        """True when `next` does not wait."""
        return bool(self._resync or self._keys or self._ended)

    def end(self) -> None:
        """No more news: `next` raises from now on."""
        self._ended = True
        self._changed.set()

    async def next(self) -> ChangedKeys:
        """Wait for news, and return a slice of them. Raises NotReadyError when the watch has ended."""
        while not self.pending:
            self._changed.clear()
            await self._changed.wait()
        if self._ended:
            raise NotReadyError("the watch has ended, because the adapter stops or opens its store again: begin another one")
        if self._resync:
            self._resync = False
            return ChangedKeys(resync=True, keys=[])
        keys = list(islice(self._keys, SLICE_ROWS))
        for key in keys:
            del self._keys[key]
        return ChangedKeys(resync=False, keys=keys)


class Teller(Protocol):
    """What is told of changed keys behind each write."""

    def note(self, keys: Collection[OffsetKey]) -> None:
        """These keys changed."""


class Watches:
    """All watchers of a store."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._own: set[Teller] = set()
        self._ended = False

    @property
    def any(self) -> bool:
        """True while there is a watcher."""
        return bool(self._watchers or self._own)

    @property
    def callers(self) -> int:
        """How many callers watch."""
        return len(self._watchers)

    def note(self, keys: Collection[OffsetKey]) -> None:
        """These keys changed, and are written."""
        for watcher in (*self._watchers, *self._own) if keys else ():
            watcher.note(keys)

    @contextmanager
    def watcher(self, names: tuple[str, ...]) -> Iterator[Watcher]:
        """Watch the keys below `names` inside the context. Raises OverloadedError when there are too many watchers."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise OverloadedError(
                f"there are {MAX_WATCHERS} watchers already: end some, or list the offsets instead", retry_after_s=RETRY_AFTER_S
            )
        found = Watcher(names)
        if self._ended:
            found.end()
        self._watchers.add(found)
        try:
            yield found
        finally:
            self._watchers.discard(found)

    @contextmanager
    def own(self, names: tuple[str, ...]) -> Iterator[Watcher]:
        """As `watcher`, for a part of this process: it is neither counted nor ended."""
        found = Watcher(names)
        self._own.add(found)
        try:
            yield found
        finally:
            self._own.discard(found)

    @contextmanager
    def telling(self, teller: Teller) -> Iterator[None]:
        """Tell a part of this process at once, inside the context."""
        self._own.add(teller)
        try:
            yield
        finally:
            self._own.discard(teller)

    def end(self) -> None:
        """End all watchers of callers, and those that come: nothing is written any more, or calls are to end."""
        self._ended = True
        for watcher in self._watchers:
            watcher.end()
