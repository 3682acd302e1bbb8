"""The shards of groups as adapters told them last, while nothing changed: those that were asked for last, up to 64 MiB."""

from collections import OrderedDict
from time import monotonic
from typing import NamedTuple

from adapter.fleet.views import Key
from adapter.rpc import lag_pb

BYTES_MAX = 64 * 2**20


class _Kept(NamedTuple):
    sums: bytes  # of the group, when its shards were asked for
    reply: bytes
    at: float  # by the monotonic clock, in seconds


class ShardsCache:
    """(adapter, group) -> shards, as the bytes of a message."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._kept: OrderedDict[tuple[int, Key], _Kept] = OrderedDict()
        self._max = bytes_max
        self._size = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the messages."""
        return self._size

    def get(self, slot: int, key: Key, sums: bytes, max_age_s: float) -> lag_pb.GetGroupLagReply | None:
        """The shards, if they are of the time when the adapter told these sums of the group, and not older; else None."""
        kept = self._kept.get((slot, key))
        return self.last(slot, key) if kept and kept.sums == sums and monotonic() - kept.at <= max_age_s else None

    def last(self, slot: int, key: Key) -> lag_pb.GetGroupLagReply | None:
        """The shards as they were told last; None if that is not kept."""
        kept = self._kept.get((slot, key))
        if kept is None:
            return None
        self._kept.move_to_end((slot, key))
        return lag_pb.GetGroupLagReply.FromString(kept.reply)

    def put(self, slot: int, key: Key, sums: bytes, reply: lag_pb.GetGroupLagReply) -> None:
        """Keep shards, and forget those that were not asked for for longest."""
        self._drop((slot, key))
        kept = _Kept(sums, reply.SerializeToString(), monotonic())
        self._kept[slot, key] = kept
        self._size += _size(kept)
        while self._size > self._max:
            self._drop(next(iter(self._kept)))

    def forget(self, slot: int) -> None:
        """Forget an adapter."""
        for kept in [kept for kept in self._kept if kept[0] == slot]:
            self._drop(kept)

    def _drop(self, of: tuple[int, Key]) -> None:
        if kept := self._kept.pop(of, None):
            self._size -= _size(kept)


def _size(kept: _Kept) -> int:
    return len(kept.sums) + len(kept.reply)
