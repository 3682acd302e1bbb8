"""Which groups were changed other than by commits, in the order of their last change: a row in `meta` for each, and a dict.

A row is written in the WriteBatch of the change, so that neither is there without the other. Its sequence number is its place in
the order. There are at most MAX_NOTES of them, and those of one save more: the oldest go.
"""

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile

from adapter.metaservice.engine import MAX_NOTES
from adapter.model.codec import pack_names, unpack_names
from adapter.model.records import GroupKey

PREFIX = b"c/"  # of the rows in `meta`; then cluster, namespace and group
_NAMES = 3  # of a group's packed names
_HELD, _LOWER = bytes(4), slice(12, 16)  # the lower half of the epoch in a packed record, and that of a held one
_LIVE = 32

Rows = Mapping[bytes, bytes | None]  # what to write; None deletes


def is_told(value: bytes) -> bool:
    """`engine.is_told` of a packed record."""
    return not value[_LIVE] or value[_LOWER] == _HELD


def group_of(key: bytes) -> bytes:
    """The packed cluster, namespace and group of a packed key."""
    at = 0
    for _ in range(_NAMES):
        at += 1 + key[at]
    return key[:at]


class ChangeNotes:
    """The notes of an open store. `floor`: there may have been others up to this sequence number."""

    def __init__(self, rows: Iterable[tuple[bytes, int]], floor: int) -> None:
        """`rows`: the keys of the rows in `meta`, and their sequence numbers."""
        self._seqs = dict(sorted(((key[len(PREFIX) :], seq) for key, seq in rows), key=lambda row: row[1]))
        # Where there are as many as there may be, older ones may have gone.
        full = len(self._seqs) >= MAX_NOTES
        self.floor = max(floor, next(iter(self._seqs.values())) - 1) if full else floor

    def rows_for(self, groups: Iterable[bytes]) -> Rows:
        """What to write to note these groups: their rows, and the end of the oldest others."""
        new = set(groups)
        count = len(self._seqs.keys() | new) - MAX_NOTES
        oldest = islice((group for group in self._seqs if group not in new), max(count, 0))
        return {PREFIX + group: b"" for group in new} | {PREFIX + group: None for group in oldest}

    def take(self, key: bytes, seq: int | None) -> None:
        """One of these rows is written, under this sequence number, or deleted (None). Call in the order of the numbers."""
        group = key[len(PREFIX) :]
        former = self._seqs.pop(group, 0)
        if seq is None:
            self.floor = max(self.floor, former)
        else:
            self._seqs[group] = seq

    def between(self, cluster: str, after: int, until: int) -> list[GroupKey]:
        """The groups of a cluster whose last note has a number above `after`, and up to `until`."""
        prefix = pack_names(cluster)
        newer = takewhile(lambda group: self._seqs[group] > after, reversed(self._seqs))
        return [GroupKey(*unpack_names(group)[1:]) for group in newer if group.startswith(prefix) and self._seqs[group] <= until]
