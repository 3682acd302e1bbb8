"""Changes that were shown as a dry run and wait to be confirmed, and what came of them: in memory, for a while.

A plan is of one person and session, and is executed at most once: a second click, a reload and the back button find what the
first one did. Memory is bounded: what nobody confirms is forgotten first.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from adapter.console.changes.wish import Wish
from adapter.errors import OverloadedError
from adapter.model.records import ERA_BITS, U64_MAX

PLANS_MAX = 100
ROWS_MAX = 200_000  # of all plans: about 100 MB with the longest names
WAITING_S, KEPT_S = 900.0, 3_600.0  # how long a plan waits for its confirmation, and is kept behind its end


class Place(NamedTuple):
    """Where an offset stands."""

    epoch: int
    offset: int
    deleted: bool

    @property
    def text(self) -> str:
        """As a person reads it."""
        return "deleted" if self.deleted else f"{self.offset:,}"


class Row(NamedTuple):
    """One shard of a dry run: where it stands, where it will, and the adapter that is to change it.

    `most`: where the target moves by itself, as the end of a log does, the highest offset that is still what was shown; the
    lowest is `after`. None: exactly `after`.
    """

    adapter: str
    shard: str
    before: Place | None
    after: Place | None
    changes: bool
    note: str
    most: int | None = None

    @property
    def goal(self) -> str:
        """Where it will stand, as a person reads it."""
        if self.after is None or self.most is None:
            return self.after.text if self.after else "none"
        return f"at least {self.after.text}" if self.most == U64_MAX else f"{self.after.text} to {self.most:,}"

    def covers(self, place: Place | None) -> bool:
        """True if who confirms this row has confirmed this place."""
        if self.after is None or place is None:
            return self.after is place
        most = self.after.offset if self.most is None else self.most
        return place.deleted == self.after.deleted and self.after.offset <= place.offset <= most

    @property
    def by(self) -> str:
        """The difference, where both are offsets."""
        if self.before is None or self.after is None or self.before.deleted or self.after.deleted:
            return ""
        return f"{self.after.offset - self.before.offset:+,}"


@dataclass(frozen=True)
class DryRun:
    """What a change would do now. `missing`: adapter -> why it was not asked."""

    rows: Sequence[Row]
    warnings: Sequence[str]
    missing: dict[str, str]

    @property
    def changed(self) -> list[Row]:
        """The rows that change something."""
        return [row for row in self.rows if row.changes]

    @property
    def moving(self) -> bool:
        """True if the target of a row moves by itself."""
        return any(row.most is not None for row in self.changed)

    def other_than(self, confirmed: "DryRun") -> str:
        """What would be done now that is not what was confirmed; empty if nothing is.

        As confirmed: the same shards, each to a place that its row covers, with no other reset in between.
        """
        shown, now = ({row.shard: row for row in run.changed} for run in (confirmed, self))
        for shard in sorted(shown.keys() | now.keys()):
            if shard not in shown:
                return f"{shard} would be changed as well"
            if shard not in now:
                return f"{shard} would not be changed any more"
            if _era(now[shard].after) != _era(shown[shard].after):
                return f"{shard} was reset, deleted or cloned meanwhile"
            if not shown[shard].covers(now[shard].after):
                return f"{shard} would go to {now[shard].goal}, and not to {shown[shard].goal}"
        return ""

    @property
    def digest(self) -> str:
        """Names what a person has seen: the same shards, each to the same offset, with no other reset in between."""
        digest = hashlib.sha256()
        for row in sorted(self.changed):
            end = (_era(row.after), row.after.offset, row.after.deleted, row.most) if row.after else None
            digest.update(repr((row.shard, end)).encode())
        return digest.hexdigest()


def _era(place: Place | None) -> int | None:
    return place.epoch >> ERA_BITS if place else None


class End(Enum):
    """What is known of one shard when a change has ended."""

    DONE = "done"  # the adapter has read it back
    DIFFERS = "differs"  # changed, but to another offset than was confirmed
    FAILED = "failed"  # refused: as it was before
    UNKNOWN = "unknown"  # the answer was lost: changed or not
    NOT_TRIED = "not tried"


class EndRow(NamedTuple):
    """One shard of a change that has ended. `now`: where it was found at the end; None if nobody could say."""

    row: Row
    end: End
    now: Place | None


@dataclass(frozen=True)
class Result:
    """What came of a change. `problems` are what adapters answered, with their names."""

    rows: Sequence[EndRow]
    problems: Sequence[str]
    warnings: Sequence[str]
    read_back: bool

    def count(self, end: End) -> int:
        """How many shards ended so."""
        return sum(row.end is end for row in self.rows)

    @property
    def complete(self) -> bool:
        """True if all is as it was confirmed."""
        return self.count(End.DONE) == len(self.rows)


def rest_of(wish: Wish, result: Result) -> Wish:
    """The change that does what a change has left to do.

    Of a shift, to the offsets that were confirmed: a new one would count from where the first one has gone. A delete of a whole
    group is made again as a whole, with its generation.
    """
    left = {one.row.shard: one.row for one in result.rows if one.end is not End.DONE}
    if wish.to in {"file", "shift"}:
        targets = {shard: row.after.offset for shard, row in left.items() if row.after}
        return wish._replace(to="file", value=0, targets=targets, shards=(), warning="")
    return wish if wish.kind == "delete" and not wish.shards else wish._replace(shards=list(left))


class State(Enum):
    """Of a plan."""

    WAITING = "waiting"
    EXECUTING = "executing"
    ENDED = "ended"


@dataclass
class Plan:
    """A dry run that was shown. `owner` is the person and session that may execute it; `shown_s` when, on a steady clock."""

    wish: Wish
    dry_run: DryRun
    owner: tuple[str, str]
    shown_s: float
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: State = State.WAITING
    result: Result | None = None
    ended_s: float = 0.0
    said: str = ""  # what to say above it, such as that it is not the one that was confirmed

    @property
    def size(self) -> int:
        """Rows that it holds."""
        return len(self.dry_run.rows) + (len(self.result.rows) if self.result else 0)


class Plans:
    """The plans of all persons, bounded: the oldest that is not being executed makes room."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plans: dict[str, Plan] = {}

    def add(self, wish: Wish, dry_run: DryRun, owner: tuple[str, str], said: str = "") -> Plan:
        """Keep a dry run. Raises OverloadedError while too many are being executed."""
        plan = Plan(wish, dry_run, owner, self._clock(), said=said)
        self._forget_old()
        while len(self._plans) >= PLANS_MAX or sum(one.size for one in self._plans.values()) + plan.size > ROWS_MAX:
            idle = next((one.id for one in self._plans.values() if one.state is not State.EXECUTING), None)
            if idle is None:
                raise OverloadedError("too many changes are being executed; come back in a minute", retry_after_s=60.0)
            del self._plans[idle]
        self._plans[plan.id] = plan
        return plan

    def get(self, name: str, owner: tuple[str, str]) -> Plan | None:
        """A plan of this person and session; None if there is none, or not any more."""
        self._forget_old()
        plan = self._plans.get(name)
        return plan if plan and plan.owner == owner else None

    def ended(self, plan: Plan, result: Result) -> None:
        """Note what came of it."""
        plan.state, plan.result, plan.ended_s = State.ENDED, result, self._clock()

    def _forget_old(self) -> None:
        now = self._clock()
        old = [
            plan.id
            for plan in self._plans.values()
            if (plan.state is State.WAITING and now - plan.shown_s > WAITING_S)
            or (plan.state is State.ENDED and now - plan.ended_s > KEPT_S)
        ]
        for name in old:
            del self._plans[name]
