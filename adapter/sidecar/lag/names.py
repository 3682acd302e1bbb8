"""Which row of the live lag is which key, in few bytes: a row is a group and a shard's log, by their numbers."""

from array import array
from collections.abc import Sequence

import numpy as np

from adapter.model.bounds import ShardKey
from adapter.model.lag_rows import UNKNOWN, Ints
from adapter.model.records import GroupKey
from adapter.sidecar.lag.ids import Ids, longer
from adapter.sidecar.lag.packed import let_others
from adapter.sidecar.lag.view import Numbers

BLOCK_NEW = 200  # keys that are taken in between two rests
_HALF = 32  # bits of the number of a log, below that of a group


class Keys:
    """Rows by their packed keys. `group_of` and `log_of` are by row; of a free row they have no meaning.

    `rows`: how many there are, free ones included. `dropped`: how often rows became free.
    """

    def __init__(self) -> None:
        self.groups, self.logs = Ids(GroupKey), Ids(ShardKey)
        self.group_of: Numbers = np.zeros(0, np.int32)
        self.log_of: Numbers = np.zeros(0, np.int32)
        self.rows = self.dropped = 0
        self._free = array("q")
        self._pairs = np.zeros(0, np.int64)  # both numbers of each row in use, sorted, and the row
        self._row_of: Numbers = np.zeros(0, np.int32)

    def find(self, keys: Sequence[bytes]) -> Ints:
        """The row of each key; -1 if it has none."""
        if not (len(self._pairs) and keys):
            return np.full(len(keys), UNKNOWN)
        of_groups, of_logs = _parts(keys)
        groups, logs = self.groups.find(of_groups), self.logs.find(of_logs)
        pairs = groups << _HALF | logs
        at = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        return np.where((groups >= 0) & (logs >= 0) & (self._pairs[at] == pairs), self._row_of[at], UNKNOWN)

    def key(self, row: int) -> bytes:
        """The packed key of a row."""
        log = self.logs.packed(self.log_of[row])
        return self.groups.packed(self.group_of[row]) + log[log[0] + 1 :]

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
        new_logs: list[int] = []
        for at in range(0, len(keys), BLOCK_NEW):
            groups, logs = _parts(keys[at : at + BLOCK_NEW])
            some = rows[at : at + BLOCK_NEW]
            self.group_of[some], _ = self.groups.use(groups)
            self.log_of[some], new = self.logs.use(logs)
            new_logs += new
            let_others()
        self.groups.settle()
        self.logs.settle()
        pairs = self._pairs_of(rows)
        order = np.argsort(pairs)
        at_pairs = np.searchsorted(self._pairs, pairs[order])
        self._pairs = np.insert(self._pairs, at_pairs, pairs[order])
        self._row_of = np.insert(self._row_of, at_pairs, rows[order])
        return rows, new_logs

    def drop(self, rows: Ints) -> list[int]:
        """Free rows that are in use; the groups that had no other, whose names stay until `rest`."""
        if not len(rows):
            return []
        at = np.searchsorted(self._pairs, self._pairs_of(rows))
        self._pairs, self._row_of = np.delete(self._pairs, at), np.delete(self._row_of, at)
        self._free.frombytes(rows.astype(np.int64).tobytes())
        self.logs.leave(self.log_of[rows])
        self.dropped += 1
        return self.groups.leave(self.group_of[rows])

    def rest(self) -> None:
        """Give back the room of names that left."""
        self.groups.rest()
        self.logs.rest()

    def _pairs_of(self, rows: Ints) -> Ints:
        pairs: Ints = self.group_of[rows].astype(np.int64) << _HALF | self.log_of[rows]
        return pairs


def _parts(keys: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """The names of the groups, and of the logs: namespace and group, namespace and shard."""
    groups, logs = [], []
    for key in keys:
        begin = key[0] + 1
        end = begin + key[begin] + 1
        groups.append(key[:end])
        logs.append(key[:begin] + key[end:])
    return groups, logs
