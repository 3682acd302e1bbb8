"""What adapter and Meta Service tell each other beside offsets: which stores they have, how far those are, and the time.

Pure, but for the log. A store behind the Meta Service that came back with less than it had acknowledged is found by the first
reply from it: the fronts of an etcd have no memory, so that of the adapters counts. Never asks by itself.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import anyio
import structlog

from adapter.model.records import StoreMark, StoreReport
from adapter.runtime.clocks import CLOCK_LIMIT_MS, wall_ms

log = structlog.get_logger(__name__)


class SeenMarks:
    """The newest mark of each store behind a Meta Service."""

    def __init__(self) -> None:
        self._seen: dict[str, StoreMark] = {}

    def snapshot(self) -> Mapping[str, StoreMark]:
        """What was seen until now: to be taken when a call begins, since replies may overtake each other."""
        return dict(self._seen)

    def newest(self, name: str) -> StoreMark | None:
        """The newest mark of a store."""
        return self._seen.get(name)

    def take(self, known_before: Mapping[str, StoreMark], mark: StoreMark) -> str:
        """Take in a mark of a reply to a call that began when `noted` was. Returns how it shows a loss; empty: it does not.

        A late answer of a store that has been replaced shows one too: what it acknowledged is gone with it.
        """
        seen = self._seen.setdefault(mark.name, mark)
        if seen[:3] != mark[:3]:
            self._seen[mark.name] = mark
            return f"{_named(mark)} is another one: {_identity(mark)} in place of {_identity(seen)}"
        forked = mark.starts != seen.starts
        if forked and (why := _forked(seen, mark)):
            self._seen[mark.name] = mark
            return f"{_named(mark)} {why}"
        if forked and mark.starts[-1:] != seen.starts[-1:] and mark.starts[-1] in seen.starts:
            return ""  # a late reply of a former start
        before = known_before.get(mark.name)
        lower = before is not None and before[:3] == mark[:3] and mark.revision < before.revision
        if before is not None and lower and mark.revision < seen.revision:
            self._seen[mark.name] = mark
            return f"{_named(mark)} is at revision {mark.revision}, and was at {before.revision}"
        if mark.revision >= seen.revision:
            self._seen[mark.name] = mark
        return ""


class Skew:
    """How far this machine's clock is ahead of the Meta Service's, and how exactly that is known (milliseconds)."""

    def __init__(self) -> None:
        self.ms = 0
        self.error_ms = 0
        # True while it is certain that one of both clocks is wrong by more than the limit.
        self.off = False

    def take(self, sent_ms: int, received_ms: int, server_ms: int) -> None:
        """Take in the time of a reply. It was made between both of ours: half the round trip is the error."""
        self.error_ms = abs(received_ms - sent_ms + 1) // 2
        self.ms = (sent_ms + received_ms) // 2 - server_ms
        if self.off and abs(self.ms) + self.error_ms <= CLOCK_LIMIT_MS:
            self.off = False
            log.info("meta.clock_agrees", skew_seconds=self.ms / 1000)
        elif not self.off and abs(self.ms) - self.error_ms > CLOCK_LIMIT_MS:
            self.off = True
            log.warning("meta.clock_skew", skew_seconds=self.ms / 1000, help=SKEW_HELP)


SKEW_HELP = (
    "this clock or the Meta Service's is wrong; until that is corrected nothing expires through this adapter, and the times "
    "of its commits are moved to the Meta Service's clock there"
)


@dataclass
class ServerReports:
    """All of that, of one client. `store` is the local store that is open.

    `less`: how often the Meta Service held less than it had acknowledged; `why` and `at_ms` (Unix ms) are of the last time.
    """

    store: Callable[[], StoreReport] | None = None
    marks: SeenMarks = field(default_factory=SeenMarks)
    skew: Skew = field(default_factory=Skew)
    losses: int = 0
    why: str = ""
    at_ms: int = 0
    # Set when something is to be looked at: by `lost`, or by a call that was not answered.
    changed: anyio.Event = field(default_factory=anyio.Event)

    def take(self, known_before: Mapping[str, StoreMark], marks: Iterable[StoreMark], where: str) -> None:
        """Take in the marks of a reply."""
        for mark in marks:
            why = self.marks.take(known_before, mark)
            if why:
                self.record_loss(f"{where}: {why}")

    def record_loss(self, why: str) -> None:
        """The Meta Service holds less than it acknowledged."""
        self.losses += 1
        self.why = why
        self.at_ms = wall_ms()
        log.error(
            "meta.holds_less",
            why=why,
            help="restored from a backup, replaced, or repaired; everything that is stored here is compared and pushed again",
        )
        self.changed.set()


def _forked(seen: StoreMark, mark: StoreMark) -> str:
    """How two marks show that one of them was acknowledged by a store that the other one does not go on from; or empty.

    A copy that was put back is written to again: by the time of the next call its revision may have passed what was seen.
    """
    known = {start: at for at, start in enumerate(seen.starts)}
    at = next((at for at in reversed(range(len(mark.starts))) if mark.starts[at] in known), None)
    if at is None:
        return "does not know any start of the one that was there" if seen.starts else ""
    seen_next, next_one = seen.starts[known[mark.starts[at]] + 1 :], mark.starts[at + 1 :]
    if seen_next and next_one:
        return "does not know the last start of the one that was there"
    if next_one and next_one[0].revision < seen.revision:
        return f"was started at revision {next_one[0].revision}, and was at {seen.revision}"
    if seen_next and seen_next[0].revision < mark.revision:
        return f"was at revision {mark.revision}, and was started at {seen_next[0].revision} since"
    return ""


def _named(mark: StoreMark) -> str:
    return f"the store {mark.name}" if mark.name else "its store"


def _identity(mark: StoreMark) -> str:
    return f"{mark.store_id.hex()}, incarnation {mark.incarnation}"
