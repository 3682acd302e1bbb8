"""Settings that may change while a component uses them, and the step by which a component takes new ones."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

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
        self._pauses: list[asyncio.Future[None]] = []

    def take(self, settings: S) -> None:
        """Put settings in force; a pause that is under way has the length that they say."""
        if settings != self.now:
            self.now = settings
            for pause in self._pauses:
                _end(pause)

    async def pause(self, seconds: Callable[[S], float]) -> None:
        """Sleep for as long as the settings say, counted from now, also when they change meanwhile. Others run in any case."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if seconds(self.now) <= 0:
            await asyncio.sleep(0)
        while (left := began + seconds(self.now) - loop.time()) > 0:
            # No cancel scope: it takes several turns of the event loop to end a wait, and some loops tick ten times a second.
            pause = loop.create_future()
            timer = loop.call_later(left, _end, pause)
            self._pauses.append(pause)
            try:
                await pause
            finally:
                timer.cancel()
                self._pauses.remove(pause)


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
