"""Settings that may change while a component uses them, and the step by which a component takes new ones."""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

import anyio
import anyio.lowlevel

S = TypeVar("S")


class Prepared(NamedTuple):
    """New settings that a component has checked and can take.

    `apply` puts them in force, in the event loop, without an await; it does not fail. `replaced` names the settings whose file
    has other content now.
    """

    apply: Callable[[], None]
    replaced: Sequence[str] = ()


NOTHING_NEW = Prepared(lambda: None)


class LiveSettings(NamedTuple):
    """The settings that are taken while the process runs: by name, or by the name of their section.

    `exchanged` are taken only in the place of another value: to begin or end with one needs a restart.
    """

    names: Collection[str]
    exchanged: Collection[str] = ()

    def has(self, name: str, before: object, after: object) -> bool:
        """True if this setting may change from one value to the other while the process runs."""
        if name in self.exchanged:
            return before is not None and after is not None
        return name in self.names


class Live(Generic[S]):
    """The settings of a component: `now` are those in force."""

    def __init__(self, settings: S) -> None:
        self.now = settings
        self._changed = anyio.Event()

    def take(self, settings: S) -> None:
        """Put settings in force; a pause that is under way has the length that they say."""
        if settings != self.now:
            self.now = settings
            self._changed.set()
            self._changed = anyio.Event()

    async def pause(self, seconds: Callable[[S], float]) -> None:
        """Sleep for as long as the settings say, counted from now, also when they change meanwhile."""
        began = anyio.current_time()
        await anyio.lowlevel.checkpoint()
        while (left := began + seconds(self.now) - anyio.current_time()) > 0:
            changed = self._changed
            with anyio.move_on_after(left):
                await changed.wait()
