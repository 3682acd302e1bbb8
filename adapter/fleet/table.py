"""The groups of all adapters in columns: what each adapter says of a group, what it comes to, and pages in any order.

Owns which groups there are and how many are kept. A message is kept as its bytes, beside the numbers that groups are sorted by.
All methods but those of `Sorting` are quick, and of the event loop; a `Sorting` is a copy that a thread works on.
"""

from collections.abc import Iterable, Sequence
from fnmatch import translate
from re import compile as pattern_of
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adapter.fleet.merging import together
from adapter.fleet.views import Key
from adapter.model.lag_order import DECIDING
from adapter.model.lag_rows import largest_first
from adapter.model.lag_status import severity
from adapter.rpc import lag_pb

UNKNOWN = -1  # lag
SEVERAL = -1  # adapters have this group
NOBODY = -2  # the row is free
FIRST_ROWS = 1_024
INT64_MAX = 2**63 - 1
UINT32_MAX = 2**32 - 1
STATUSES = frozenset(lag_pb.LagStatus.values())
SEPARATOR = b"\x01"  # between namespace and group: smaller than any letter of a name, so that the bytes sort in key order
_SEVERITIES = np.array([severity(status) for status in sorted(STATUSES)])
CHUNK = 5_000  # names that are converted at once: a thread holds up the event loop for as long

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

_COLUMNS: dict[str, tuple[Any, float]] = {  # type, and the value of a free row
    "owner": (np.int32, NOBODY),
    "status": (np.uint8, 0),
    "lag": (np.int64, UNKNOWN),
    "lag_seconds": (np.float64, np.nan),
    "trend": (np.float64, np.nan),
    "commit_rate": (np.float64, np.nan),
    "last_commit": (np.int64, 0),
    "stale_since": (np.int64, 0),  # of a group that several adapters have
    "inexact": (np.bool_, 0),
    "begun": (np.int64, 0),  # the comparison that found out what it comes to: they are numbered as they begin
    "changed": (np.bool_, 0),  # since the last sample of the history
}


class Matching(NamedTuple):
    """What a page is made of: the keys of its groups, and sums over all groups that match."""

    keys: Sequence[Key]
    matching: int
    lag: int
    statuses: dict[int, int]
    stale: int


class GroupTable:
    """What each adapter says of its groups, and for each group what that comes to.

    Adapters are numbers (`slot`). A group that one adapter has is what that one says. What a group comes to that several have is
    set by `set_merged`, after `put` or `remove` told in `unmerged` that it has to be found out; until the first time it is the
    plain sum.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[int, dict[Key, bytes]] = {}
        self._left_out: dict[int, set[Key]] = {}
        self._count = 0
        self._rows: dict[Key, int] = {}
        self._keys: list[Key | None] = []
        self._merged: list[bytes] = []
        self._free: list[int] = []
        self._freed: set[int] = set()  # since the last sample of the history
        self._owners: dict[Key, tuple[int, ...]] = {}  # of groups that several adapters have
        self._shared: dict[int, set[Key]] = {}  # slot -> those of them that it has
        self._columns = {name: np.full(FIRST_ROWS, empty, kind) for name, (kind, empty) in _COLUMNS.items()}
        self._stale = np.zeros(64, np.int64)  # slot -> since when nothing of it is live; 0: it is
        self.version = 0  # of anything
        self.keys_version = 0  # of which groups there are, and where
        self.unmerged: dict[Key, None] = {}
        self.changed: set[Key] = set()  # since somebody took them

    @property
    def groups(self) -> int:
        """How many groups there are; one that several adapters have counts once."""
        return len(self._rows)

    def open(self, slot: int) -> None:
        """Begin with an adapter, of which nothing is known."""
        self._entries[slot] = {}
        self._left_out[slot] = set()
        self._shared[slot] = set()
        if slot >= len(self._stale):
            self._stale = np.concatenate([self._stale, np.zeros(len(self._stale), np.int64)])

    def close(self, slot: int) -> None:
        """End with an adapter, of which all was removed before."""
        del self._entries[slot], self._left_out[slot], self._shared[slot]

    def keys_of(self, slot: int) -> list[Key]:
        """The groups of an adapter."""
        return list(self._entries[slot])

    def count_of(self, slot: int) -> int:
        """How many groups of an adapter are kept."""
        return len(self._entries[slot])

    def left_out_of(self, slot: int) -> int:
        """How many groups of an adapter are not kept, for lack of room."""
        return len(self._left_out[slot])

    @property
    def left_out(self) -> int:
        """How many groups are not kept for lack of room; a group counts for each adapter."""
        return sum(map(len, self._left_out.values()))

    def told(self, slot: int, key: Key) -> bytes | None:
        """What an adapter said of a group, as the bytes of a GroupLag."""
        return self._entries[slot].get(key)

    def owners(self, key: Key) -> tuple[int, ...]:
        """The adapters that have a group."""
        row = self._rows.get(key)
        if row is None:
            return ()
        owner = int(self._columns["owner"][row])
        return self._owners[key] if owner == SEVERAL else (owner,)

    def shared_of(self, slot: int) -> list[Key]:
        """The groups of an adapter that others have as well."""
        return list(self._shared[slot])

    def put(self, slot: int, group: lag_pb.GroupLag) -> bool:
        """Take what an adapter says of a group; False if there is no room even for its name."""
        key = group.namespace, group.group
        entries = self._entries[slot]
        told = group.SerializeToString()
        before = entries.get(key)
        if before == told:
            return True
        if before is None:
            if self._count >= self._limit:
                left_out = self._left_out[slot]
                if len(left_out) < self._limit:
                    left_out.add(key)
                return key in left_out
            self._left_out[slot].discard(key)
            self._count += 1
        entries[key] = told
        row = self._rows.get(key)
        if row is None:
            self._set(self._new_row(key, slot), group, told)
        elif self._columns["owner"][row] == slot:
            self._set(row, group, told)
        else:
            self._shares(key, row, slot)
        self._touch(key)
        return True

    def remove(self, slot: int, key: Key) -> None:
        """Take that an adapter has a group no more."""
        self._left_out[slot].discard(key)
        if self._entries[slot].pop(key, None) is None:
            return
        self._count -= 1
        row = self._rows[key]
        owners = tuple(owner for owner in self.owners(key) if owner != slot)
        self._shared[slot].discard(key)
        if len(owners) > 1:
            self._owners[key] = owners
            self._sum(key, row, owners)
        elif owners:
            (owner,) = owners
            del self._owners[key]
            self._shared[owner].discard(key)
            self.unmerged.pop(key, None)
            told = self._entries[owner][key]
            self._columns["owner"][row] = owner
            self._columns["inexact"][row] = False
            self._columns["stale_since"][row] = 0
            self._set(row, lag_pb.GroupLag.FromString(told), told)
        else:
            self._drop_row(key, row)
        self._touch(key)

    def set_merged(self, key: Key, group: lag_pb.GroupLag, stale_since_ms: int, *, exact: bool, begun: int) -> None:
        """Set what a group comes to that several adapters have; nothing if they have it no more.

        `begun`: the number of the comparison that found it out. What one found out that began later stands: an adapter may have
        gone since.
        """
        row = self._rows.get(key)
        if row is None or self._columns["owner"][row] != SEVERAL or begun < self._columns["begun"][row]:
            return
        self._columns["begun"][row] = begun
        merged = group.SerializeToString()
        inexact, since = not exact, min(stale_since_ms, INT64_MAX)
        before = self._merged[row], bool(self._columns["inexact"][row]), int(self._columns["stale_since"][row])
        if before == (merged, inexact, since):
            return
        self._columns["stale_since"][row] = since
        self._columns["inexact"][row] = inexact
        self._set(row, group, merged)
        self._touch(key)

    def set_stale(self, slot: int, since_ms: int) -> None:
        """Say since when nothing of an adapter is live; 0: it is. Groups that others have as well have to be merged again."""
        self._stale[slot] = since_ms
        self.version += 1

    def stale_since(self, slot: int) -> int:
        """Since when nothing of an adapter is live; 0: it is."""
        return int(self._stale[slot])

    def get(self, key: Key) -> tuple[lag_pb.GroupLag, int, bool] | None:
        """What a group comes to, since when a part of it is not live (0: all is), and whether it is exact. None: no such."""
        row = self._rows.get(key)
        if row is None:
            return None
        columns = self._columns
        owner = int(columns["owner"][row])
        since = int(columns["stale_since"][row] if owner == SEVERAL else self._stale[owner])
        return lag_pb.GroupLag.FromString(self._merged[row]), since, not columns["inexact"][row]

    def row_of(self, key: Key) -> int | None:
        """The row of a group, until it is removed."""
        return self._rows.get(key)

    def take_samples(self) -> tuple[Rows, npt.NDArray[np.int64], Rows]:
        """The rows that changed since the last call, the lag of all rows (-1: unknown), and the rows that lost their group."""
        used = len(self._keys)
        changed = np.flatnonzero(self._columns["changed"][:used])
        self._columns["changed"][:used] = False
        freed = np.fromiter(self._freed, np.intp, len(self._freed))
        self._freed.clear()
        return changed, self._columns["lag"][:used], freed

    def sorting(self) -> "Sorting":
        """A copy of what groups are sorted and chosen by."""
        used = len(self._keys)
        columns = {name: column[:used].copy() for name, column in self._columns.items()}
        owner, since = columns["owner"], columns["stale_since"]
        stale = np.where(owner >= 0, self._stale[np.maximum(owner, 0)], since) != 0
        return Sorting(self.version, self.keys_version, list(self._keys), columns, stale)

    def _new_row(self, key: Key, slot: int) -> int:
        if self._free:
            row = self._free.pop()
            self._keys[row] = key
        else:
            row = len(self._keys)
            self._keys.append(key)
            self._merged.append(b"")
            if row >= len(self._columns["owner"]):
                self._grow()
        self._rows[key] = row
        self._columns["owner"][row] = slot
        self.keys_version += 1
        return row

    def _grow(self) -> None:
        for name, (kind, empty) in _COLUMNS.items():
            column = self._columns[name]
            self._columns[name] = np.concatenate([column, np.full(len(column), empty, kind)])

    def _drop_row(self, key: Key, row: int) -> None:
        del self._rows[key]
        self._keys[row] = None
        self._merged[row] = b""
        self._free.append(row)
        for name, (_, empty) in _COLUMNS.items():
            self._columns[name][row] = empty
        self._freed.add(row)
        self.keys_version += 1

    def _shares(self, key: Key, row: int, slot: int) -> None:
        """Take that one more adapter has a group, or said something new of one that several have."""
        owners = self.owners(key)
        if slot not in owners:
            owners = (*owners, slot)
            self._owners[key] = owners
            for owner in owners:
                self._shared[owner].add(key)
            self._columns["owner"][row] = SEVERAL
            self._columns["inexact"][row] = True
        self._sum(key, row, owners)

    def _sum(self, key: Key, row: int, owners: Sequence[int]) -> None:
        """Have a group merged that several adapters have; what was never merged is the plain sum until then."""
        self.unmerged[key] = None
        if self._columns["inexact"][row]:
            plain = plain_sum(lag_pb.GroupLag.FromString(self._entries[owner][key]) for owner in owners)
            since = [int(self._stale[owner]) for owner in owners if self._stale[owner]]
            self._columns["stale_since"][row] = min(since, default=0)
            self._set(row, plain, plain.SerializeToString())

    def _set(self, row: int, group: lag_pb.GroupLag, told: bytes) -> None:
        self._merged[row] = told
        columns = self._columns
        columns["status"][row] = group.status if group.status in STATUSES else lag_pb.LAG_STATUS_UNSPECIFIED
        columns["lag"][row] = min(group.lag, INT64_MAX) if group.HasField("lag") else UNKNOWN
        columns["lag_seconds"][row] = group.lag_seconds if group.HasField("lag_seconds") else np.nan
        columns["trend"][row] = group.trend if group.HasField("trend") else np.nan
        columns["commit_rate"][row] = group.commit_rate if group.HasField("commit_rate") else np.nan
        columns["last_commit"][row] = min(group.last_commit_at_ms, INT64_MAX)
        columns["changed"][row] = True

    def _touch(self, key: Key) -> None:
        self.version += 1
        self.changed.add(key)


class Sorting:
    """Groups as they were at one moment, for a thread. `version` and `keys_version` say at which."""

    def __init__(
        self,
        version: int,
        keys_version: int,
        keys: list[Key | None],
        columns: dict[str, npt.NDArray[Any]],
        stale: Mask,
    ) -> None:
        self.version = version
        self.keys_version = keys_version
        self._keys = keys
        self._columns = columns
        self._stale = stale
        self.orders: dict[int, Rows] = {}

    def follow(self, earlier: "Sorting | None") -> None:
        """Take over what an earlier one found out about the same groups."""
        if earlier and earlier.keys_version == self.keys_version and lag_pb.NAME in earlier.orders:
            self.orders[lag_pb.NAME] = earlier.orders[lag_pb.NAME]

    def page(self, chosen: lag_pb.LagFilter, text: str, order: int, size: int, skipped: int) -> Matching:
        """Sort, choose, and cut out a page."""
        rows = self._rows_in(order)
        if chosen.namespace or chosen.pattern or chosen.at_least or text:
            rows = rows[self._chosen(chosen, text)[rows]]
        keys = [key for key in (self._keys[row] for row in rows[skipped : skipped + size].tolist()) if key is not None]
        lag = self._columns["lag"][rows]
        statuses, counts = np.unique(self._columns["status"][rows], return_counts=True)
        return Matching(
            keys,
            len(rows),
            int(lag[lag > 0].astype(np.float64).sum()) if len(lag) else 0,
            dict(zip(statuses.tolist(), counts.tolist(), strict=True)),
            int(self._stale[rows].sum()),
        )

    def _rows_in(self, order: int) -> Rows:
        if (rows := self.orders.get(order)) is None:
            rows = self.orders[order] = self._by_name() if order == lag_pb.NAME else self._sorted(order)
        return rows

    def _by_name(self) -> Rows:
        used = np.flatnonzero(self._columns["owner"] != NOBODY)
        numbers = used.tolist()
        longest = 1
        for at in range(0, len(numbers), CHUNK):
            longest = max(longest, *(len(self._name(row)) for row in numbers[at : at + CHUNK]))
        names = np.empty(len(numbers), f"S{longest}")
        for at in range(0, len(numbers), CHUNK):
            names[at : at + CHUNK] = [self._name(row) for row in numbers[at : at + CHUNK]]
        return used[np.argsort(names, kind="stable")]

    def _name(self, row: int) -> bytes:
        namespace, group = self._keys[row] or ("", "")
        return namespace.encode() + SEPARATOR + group.encode()

    def _sorted(self, order: int) -> Rows:
        rows = self._rows_in(lag_pb.NAME)
        places = largest_first([self._column(name)[rows] for name in DECIDING[order]], np.arange(len(rows)))
        return rows[places]

    def _column(self, name: str) -> npt.NDArray[Any]:
        """One of DECIDING."""
        if name == "severity":
            severities: npt.NDArray[Any] = _SEVERITIES[self._columns["status"]]
            return severities
        if name == "idle":
            last = self._columns["last_commit"]
            return np.where(last > 0, -last, -INT64_MAX)
        return self._columns[name]

    def _chosen(self, chosen: lag_pb.LagFilter, text: str) -> Mask:
        status = self._columns["status"]
        mask: Mask = _SEVERITIES[status] >= (severity(chosen.at_least) if chosen.at_least else 0)
        if not (chosen.namespace or chosen.pattern or text):
            return mask
        matches = pattern_of(translate(chosen.pattern)).match if chosen.pattern else None
        namespace, part = chosen.namespace, text.casefold()
        for row in np.flatnonzero(mask).tolist():
            key = self._keys[row]
            mask[row] = (
                key is not None
                and (not namespace or key[0] == namespace)
                and (matches is None or matches(key[1]) is not None)
                and (not part or part in f"{key[0]}/{key[1]}".casefold())
            )
        return mask


def plain_sum(groups: Iterable[lag_pb.GroupLag]) -> lag_pb.GroupLag:
    """Sums over what several adapters say of one group, each of its shards as often as adapters have it."""
    parts = list(groups)
    first = parts[0]
    total = lag_pb.GroupLag(namespace=first.namespace, group=first.group)
    for part in parts:
        for count in ("shards", "known", "warn", "rewind", "stall", "stop", "beyond"):
            setattr(total, count, together(getattr(total, count), getattr(part, count), UINT32_MAX))
        total.lost = together(total.lost, part.lost)
        total.last_commit_at_ms = max(total.last_commit_at_ms, part.last_commit_at_ms)
        if part.HasField("lag"):
            total.lag = together(total.lag, part.lag)
        if part.HasField("moving_lag"):
            total.moving_lag = together(total.moving_lag, part.moving_lag)
        if part.HasField("lag_seconds"):
            total.lag_seconds = max(total.lag_seconds, part.lag_seconds)
        if part.HasField("commit_rate"):
            total.commit_rate += part.commit_rate
        if part.HasField("produce_rate"):
            total.produce_rate += part.produce_rate
        if part.HasField("trend"):
            total.trend += part.trend
    worst = max(parts, key=lambda part: severity(part.status))
    total.status, total.worst_shard, total.status_since_ms = worst.status, worst.worst_shard, worst.status_since_ms
    total.burrow = max(part.burrow for part in parts)
    return total
