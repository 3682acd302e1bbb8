"""The groups that `top` shows: what the adapter told last, filtered and sorted, and what changed while somebody watched.

Pure state: no clock, no calls, no terminal. Times are Unix time in milliseconds, of the adapter's clock.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from adapter.cli.names import searcher
from adapter.cli.terminal import visible
from adapter.model.lag_order import DECIDING, sort_key
from adapter.model.lag_status import severity
from adapter.rpc import lag_pb

Order = Literal["worst", "lag", "seconds", "trend", "rate", "last-commit", "name"]
ORDERS: Final[dict[Order, lag_pb.LagOrder.ValueType]] = {
    "worst": lag_pb.WORST,
    "lag": lag_pb.LAG,
    "seconds": lag_pb.LAG_SECONDS,
    "trend": lag_pb.TREND,
    "rate": lag_pb.COMMIT_RATE,
    "last-commit": lag_pb.LAST_COMMIT,
    "name": lag_pb.NAME,
}

LATELY_MS = 120_000  # how long a changed status is marked, and one that got worse stands first
Key: TypeAlias = tuple[str, str]

WORSE, BETTER, CHANGED, SAME = "worse", "better", "changed", ""


class GroupRow(NamedTuple):
    """A group as it was told last."""

    key: Key
    name: str  # printable
    told: lag_pb.GroupLag
    status: int
    lag: int | None
    lag_seconds: float | None
    commit_rate: float | None
    trend: float | None
    last_commit_at_ms: int
    since_ms: int  # when its status became what it is
    change: str  # how it became so: WORSE, BETTER, CHANGED (nobody watched), or SAME (not since it is watched)

    def lately(self, now_ms: int) -> str:
        """How its status changed within the last LATELY_MS; SAME if it did not."""
        return self.change if now_ms - self.since_ms < LATELY_MS else SAME

    def value(self, name: str) -> float | None:
        """One of DECIDING; None if it is unknown."""
        if name == "severity":
            return severity(self.status)
        if name == "idle":
            return -self.last_commit_at_ms or None
        value: float | None = getattr(self, name)
        return value


class Rows:
    """Groups by key. `told`, `removed` and `began_anew` take what a stream tells; `shown` is what there is to see."""

    def __init__(self) -> None:
        self._rows: dict[Key, GroupRow] = {}
        self._stale: set[Key] = set()  # told before the stream began anew, and not since
        self._anew_at_ms = 0

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self._rows)

    def copy(self) -> "Rows":
        """The groups as they are now."""
        made = Rows()
        made._rows = dict(self._rows)
        return made

    def get(self, key: Key) -> GroupRow | None:
        """The row of a group; None if there is none."""
        return self._rows.get(key)

    def began_anew(self, at_ms: int) -> None:
        """What was told before counts until `settle`: the groups arrive in several messages, and a screen must not blink."""
        self._stale = set(self._rows)
        self._anew_at_ms = at_ms

    def settle(self, at_ms: int) -> bool:
        """Forget the groups of before the new beginning, if what arrives now is of a later evaluation (True); else False."""
        if at_ms <= self._anew_at_ms:
            return False
        for key in self._stale:
            self._rows.pop(key, None)
        self._stale.clear()
        return True

    def told(self, groups: Iterable[lag_pb.GroupLag]) -> None:
        """Take groups with their present values."""
        for group in groups:
            key = (group.namespace, group.group)
            self._stale.discard(key)
            self._rows[key] = _row(key, group, self._rows.get(key))

    def removed(self, keys: Iterable[Key]) -> None:
        """Forget groups."""
        for key in keys:
            self._rows.pop(key, None)

    def counts(self) -> dict[int, int]:
        """How many groups have each status."""
        found: dict[int, int] = {}
        for row in self._rows.values():
            found[row.status] = found.get(row.status, 0) + 1
        return found

    def shown(self, order: Order, now_ms: int, words: str = "", *, backwards: bool = False, at_least: int = 0) -> list[GroupRow]:
        """The rows whose name matches the filter and whose status is at least this, sorted. What is unknown comes last."""
        takes, least = searcher(words), severity(at_least) if at_least else 0
        rows = [row for row in self._rows.values() if severity(row.status) >= least and takes(row.name)]
        return _sorted(rows, order, now_ms, backwards=backwards)


def _row(key: Key, group: lag_pb.GroupLag, before: GroupRow | None) -> GroupRow:
    if before is None:
        change = CHANGED
    elif before.status == group.status:
        change = before.change
    else:
        was, now = (max(severity(status), severity(lag_pb.LAG_STATUS_UNSPECIFIED)) for status in (before.status, group.status))
        change = WORSE if now > was else BETTER if now < was else SAME
    return GroupRow(
        key,
        visible(f"{group.namespace}/{group.group}"),
        group,
        group.status,
        group.lag if group.HasField("lag") else None,
        group.lag_seconds if group.HasField("lag_seconds") else None,
        group.commit_rate if group.HasField("commit_rate") else None,
        group.trend if group.HasField("trend") else None,
        group.last_commit_at_ms,
        group.status_since_ms,
        change,
    )


def _sorted(rows: Sequence[GroupRow], order: Order, now_ms: int, *, backwards: bool) -> list[GroupRow]:
    since_ms, bad = now_ms - LATELY_MS, severity(lag_pb.WARN)
    turned = backwards and order in {"worst", "name"}  # what these begin with is always known

    def key(row: GroupRow) -> tuple[tuple[float, ...], Key]:
        worse = order == "worst" and row.change == WORSE and severity(row.status) >= bad and row.since_ms > since_ms
        values = map(row.value, DECIDING[ORDERS[order]])
        return sort_key((worse, *values), smallest_first=backwards and not turned), row.key

    return sorted(rows, key=key, reverse=turned)
