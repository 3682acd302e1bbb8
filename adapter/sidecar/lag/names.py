"""Which row of the live lag is which key, in few bytes: a row is a group and a shard's log, by their numbers."""

import sys
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from adapter.model.bounds import ShardKey
from adapter.model.codec import pack_names, unpack_names
from adapter.model.lag_rows import UNKNOWN, Ints
from adapter.model.records import GroupKey
from adapter.sidecar.lag.packed import let_others
from adapter.sidecar.lag.view import Numbers

BLOCK_NEW = 200  # keys that are taken in, or looked for, between two rests
BLOCK = 1_000
_HALF = 32  # bits of the number of a log, below that of a group

D = TypeVar("D", bound=np.generic)
N = TypeVar("N", GroupKey, ShardKey)


class Ids(Generic[N]):
    """Small numbers for names: reused, so that they can be places in arrays. A name ends when its last use does."""

    def __init__(self) -> None:
        self.of: dict[N, int] = {}
        self.names: list[N] = []
        self._changed = False
        self._uses: list[int] = []
        self._free: list[int] = []
        self._new: list[int] = []

    def use(self, name: N) -> tuple[int, bool]:
        """The number of a name, and whether it is new."""
        number = self.of.get(name)
        if number is not None:
            self._uses[number] += 1
            return number, False
        if self._free:
            number = self._free.pop()
            self.names[number], self._uses[number] = name, 1
        else:
            number = len(self.names)
            self.names.append(name)
            self._uses.append(1)
        self.of[name] = number
        self._new.append(number)
        self._changed = True
        return number, True

    def leave(self, number: int) -> bool:
        """End one use; True if it was the last."""
        self._uses[number] -= 1
        if self._uses[number]:
            return False
        del self.of[self.names[number]]
        self._free.append(number)
        self._changed = True
        return True

    def take_changed(self) -> bool:
        """Whether a name came or went since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def take_new(self) -> list[int]:
        """The numbers that were given to names since the last call, and are still theirs."""
        new, self._new = self._new, []
        return [number for number in new if self._uses[number]]


class Keys:
    """Rows by their packed keys. `group_of` and `log_of` are by row; of a free row they have no meaning.

    `rows`: how many there are, free ones included. `dropped`: how often rows became free.
    """

    def __init__(self) -> None:
        self.groups, self.logs = Ids[GroupKey](), Ids[ShardKey]()
        self.group_of: Numbers = np.zeros(0, np.int32)
        self.log_of: Numbers = np.zeros(0, np.int32)
        self.rows = self.dropped = 0
        self._free: list[int] = []
        self._pairs = np.zeros(0, np.int64)  # both numbers of each row in use, sorted, and the row
        self._row_of: Numbers = np.zeros(0, np.int32)

    def find(self, keys: Sequence[bytes]) -> Ints:
        """The row of each key; -1 if it has none."""
        pairs = np.fromiter(self._numbers(keys), np.int64, len(keys))
        if not len(self._pairs):
            return np.full(len(keys), UNKNOWN)
        at = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        return np.where(self._pairs[at] == pairs, self._row_of[at], UNKNOWN)

    def key(self, row: int) -> bytes:
        """The packed key of a row."""
        return pack_names(*self.groups.names[self.group_of[row]], self.logs.names[self.log_of[row]].shard)

    @property
    def used(self) -> int:
        """How many rows are in use."""
        return len(self._pairs)

    def add(self, keys: Sequence[bytes]) -> tuple[Ints, list[int]]:
        """Give a row to each of these, which have none; the rows, and the logs that are new. In blocks, with rests."""
        free = [self._free.pop() for _ in range(min(len(keys), len(self._free)))]
        rows = np.array(free + list(range(self.rows, self.rows + len(keys) - len(free))), np.int64)
        self.rows += len(keys) - len(free)
        self.group_of, self.log_of = (longer(one, self.rows, 0) for one in (self.group_of, self.log_of))
        logs: list[int] = []
        for at in range(0, len(keys), BLOCK_NEW):
            for key, row in zip(keys[at : at + BLOCK_NEW], rows[at : at + BLOCK_NEW].tolist(), strict=True):
                namespace, group, shard = unpack_names(key)
                # Interned: all groups would have one of their own otherwise.
                namespace = sys.intern(namespace)
                self.group_of[row], _ = self.groups.use(GroupKey(namespace, group))
                log, is_new = self.logs.use(ShardKey(namespace, shard))
                self.log_of[row] = log
                if is_new:
                    logs.append(log)
            let_others()
        pairs = self._pairs_of(rows)
        order = np.argsort(pairs)
        at_pairs = np.searchsorted(self._pairs, pairs[order])
        self._pairs = np.insert(self._pairs, at_pairs, pairs[order])
        self._row_of = np.insert(self._row_of, at_pairs, rows[order])
        return rows, logs

    def drop(self, rows: Ints) -> list[int]:
        """Free rows that are in use; the groups that had no other. In blocks, with rests."""
        if not len(rows):
            return []
        at = np.searchsorted(self._pairs, self._pairs_of(rows))
        self._pairs, self._row_of = np.delete(self._pairs, at), np.delete(self._row_of, at)
        gone = []
        for done, (row, group, log) in enumerate(
            zip(rows.tolist(), self.group_of[rows].tolist(), self.log_of[rows].tolist(), strict=True), start=1
        ):
            self._free.append(row)
            if self.groups.leave(group):
                gone.append(group)
            self.logs.leave(log)
            if done % BLOCK == 0:
                let_others()
        self.dropped += 1
        return gone

    def _pairs_of(self, rows: Ints) -> Ints:
        pairs: Ints = self.group_of[rows].astype(np.int64) << _HALF | self.log_of[rows]
        return pairs

    def _numbers(self, keys: Sequence[bytes]) -> Iterator[int]:
        """Both numbers of each key; -1 if it has none. Keys of one group mostly follow each other."""
        groups, logs = self.groups.of, self.logs.of
        head, namespace, group = b"", "", None
        for key in keys:
            end = key[0] + 1
            end += key[end] + 1
            if key[:end] != head:
                head = key[:end]
                namespace, name = unpack_names(head)
                group = groups.get(GroupKey(namespace, name))
            log = None if group is None else logs.get(ShardKey(namespace, key[end + 1 :].decode()))
            yield UNKNOWN if group is None or log is None else group << _HALF | log


def longer(array: npt.NDArray[D], size: int, fill: int) -> npt.NDArray[D]:
    """An array with room for so many, and for some more, of the same kind."""
    have = len(array)
    if size <= have:
        return array
    return np.append(array, np.full(size + size // 8 - have, fill, array.dtype))
