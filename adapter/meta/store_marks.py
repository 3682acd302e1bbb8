"""What adapter and Meta Service report to each other besides offsets: their stores, how far those are, and their clocks.

A store behind the Meta Service that was replaced by an older copy is detected by the first reply from it. The adapters remember
the marks, because a stateless Meta Service process on etcd cannot. No I/O except the log; this module never sends a request.
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
        """The marks seen so far. Take it when a call begins, since replies may overtake each other."""
        return dict(self._seen)

    def newest(self, name: str) -> StoreMark | None:
        """The newest mark of a store; None if there is none."""
        return self._seen.get(name)

    def take(self, known_before: Mapping[str, StoreMark], mark: StoreMark) -> str:
        """Process a mark from the reply to a call, and return how it shows a loss of data; empty if it shows none.

        `known_before`: the `snapshot` taken when that call began. A late reply of a store that has since been replaced counts as
        a loss too: what that store acknowledged is gone with it.
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
            return ""  # a late reply from before the last restart
        before = known_before.get(mark.name)
        lower = before is not None and before[:3] == mark[:3] and mark.revision < before.revision
        if before is not None and lower and mark.revision < seen.revision:
            self._seen[mark.name] = mark
            return f"{_named(mark)} is at revision {mark.revision}, and was at {before.revision}"
        if mark.revision >= seen.revision:
            self._seen[mark.name] = mark
        return ""


class Skew:
    """How far this machine's clock is ahead of the Meta Service's, and the error of that estimate, in milliseconds."""

    def __init__(self) -> None:
        self.ms = 0
        self.error_ms = 0
        # True while the clocks certainly differ by more than the limit.
        self.off = False

    def take(self, sent_ms: int, received_ms: int, server_ms: int) -> None:
        """Process the time of a reply. It lies between our two times, so half the round trip is the error."""
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
    """The store marks and the clock skew that one client has seen, and the report of the open local store.

    `store` returns that report. `losses`: how often the Meta Service was found to hold less than it had acknowledged; `why` and
    `at_ms` (Unix ms) describe the last time. `moves`: how often it was replaced by another one on purpose.
    """

    store: Callable[[], StoreReport] | None = None
    marks: SeenMarks = field(default_factory=SeenMarks)
    skew: Skew = field(default_factory=Skew)
    losses: int = 0
    moves: int = 0
    why: str = ""
    at_ms: int = 0
    # Set by `record_loss` and `record_move`, and by a call that was not answered.
    changed: anyio.Event = field(default_factory=anyio.Event)

    def set_local_store(self, report: Callable[[], StoreReport]) -> None:
        """Set the function that describes the local store that is open now; calls of this client send the result."""
        self.store = report

    async def wait_for_change(self, limit_s: float) -> None:
        """Return when something is to be looked at, or after `limit_s` seconds."""
        with anyio.move_on_after(limit_s):
            await self.changed.wait()
        self.changed = anyio.Event()

    def take(self, known_before: Mapping[str, StoreMark], marks: Iterable[StoreMark], where: str) -> None:
        """Process the marks of a reply from the endpoint `where`."""
        for mark in marks:
            why = self.marks.take(known_before, mark)
            if why:
                self.record_loss(f"{where}: {why}")

    @property
    def comparisons(self) -> int:
        """How often all local records had to be compared so far, because the Meta Service may hold less than before."""
        return self.losses + self.moves

    def record_move(self) -> None:
        """Record that calls go to another Meta Service from now on, and wake the waiting task."""
        self.moves += 1
        self.changed.set()

    def record_loss(self, why: str) -> None:
        """Record and log that the Meta Service holds less than it acknowledged, and wake the waiting task."""
        self.losses += 1
        self.why = why
        self.at_ms = wall_ms()
        log.error(
            "meta.holds_less",
            why=why,
            help="it was restored from a backup, replaced, or repaired; all local records are compared and sent again",
        )
        self.changed.set()


def _forked(seen: StoreMark, mark: StoreMark) -> str:
    """How two marks show that one store does not continue the other; empty if it may.

    A restored copy is written to again: by the next call its revision may have passed the one seen before, but its list of starts
    differs.
    """
    known = {start: at for at, start in enumerate(seen.starts)}
    at = next((at for at in reversed(range(len(mark.starts))) if mark.starts[at] in known), None)
    if at is None:
        return "shares no start with the store seen before" if seen.starts else ""
    seen_next, next_one = seen.starts[known[mark.starts[at]] + 1 :], mark.starts[at + 1 :]
    if seen_next and next_one:
        return "lacks the last start of the store seen before"
    if next_one and next_one[0].revision < seen.revision:
        return f"was started at revision {next_one[0].revision}, and was at {seen.revision}"
    if seen_next and seen_next[0].revision < mark.revision:
        return f"was at revision {mark.revision}, and was started at {seen_next[0].revision} since"
    return ""


def _named(mark: StoreMark) -> str:
    return f"the store {mark.name}" if mark.name else "its store"


def _identity(mark: StoreMark) -> str:
    return f"{mark.store_id.hex()}, incarnation {mark.incarnation}"
