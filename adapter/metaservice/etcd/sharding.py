"""Which Raft group holds a consumer group's offsets: rendezvous hashing, so that a new Raft group takes only its share. Pure."""

import json
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, Self

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model.codec import pack_names

_WEIGHT_BYTES = 8


class Layout(NamedTuple):
    """The Raft groups of the offsets. `version` grows with every change.

    `moving_from`: those of the layout before, while offsets are still copied from there to their new homes. `leftovers_in`:
    where copies that are at home elsewhere now have not been deleted yet.
    """

    version: int
    groups: tuple[str, ...]
    moving_from: tuple[str, ...] = ()
    leftovers_in: tuple[str, ...] = ()

    def home(self, packed: bytes) -> str:
        """The Raft group that holds a consumer group's offsets; `packed`: its cluster, namespace and group, as in `codec`."""
        return _choose(self.groups, packed)

    def former(self, packed: bytes) -> str | None:
        """Where its offsets may still be; None when they are all at home."""
        if not self.moving_from:
            return None
        before = _choose(self.moving_from, packed)
        return before if before != self.home(packed) else None

    @property
    def settled(self) -> bool:
        """True when every offset is at home, and nowhere else."""
        return not self.moving_from and not self.leftovers_in

    @property
    def fenced(self) -> tuple[str, ...]:
        """All Raft groups that must know this version, those first that lose offsets by it: see `fences`."""
        return tuple(dict.fromkeys((*self.losing, *self.groups, *self.leftovers_in)))

    @property
    def losing(self) -> tuple[str, ...]:
        """The Raft groups from which offsets are moved."""
        gone = tuple(name for name in self.moving_from if name not in self.groups)
        return gone or self.moving_from

    def move_to(self, groups: Iterable[str]) -> Self:
        """The layout that begins the move to other Raft groups. Raises InvalidInputError when that is not one step."""
        wanted = tuple(sorted({*groups}))
        if self.moving_from or self.leftovers_in:
            raise InvalidInputError("offsets are still being moved by the change before; finish that one first")
        if {*wanted} - {*self.groups} and {*self.groups} - {*wanted}:
            raise InvalidInputError(
                "Raft groups are added and taken away at once: first add and rebalance, then take away and rebalance"
            )
        return self._replace(version=self.version + 1, groups=wanted, moving_from=self.groups)

    def moved(self) -> Self:
        """The layout when everything is at home."""
        return self._replace(version=self.version + 1, moving_from=(), leftovers_in=self.losing)

    def cleaned(self) -> Self:
        """The layout when nothing is left where it was."""
        return self._replace(version=self.version + 1, leftovers_in=())

    def encode(self) -> bytes:
        """As it is kept in etcd."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The inverse of `encode`. Raises StoreDamagedError."""
        try:
            found = json.loads(data)
            return cls(
                int(found["version"]),
                tuple(map(str, found["groups"])),
                tuple(map(str, found["moving_from"])),
                tuple(map(str, found["leftovers_in"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamagedError(f"the layout of the offsets cannot be read: {data!r}") from error


def first_layout(groups: Iterable[str]) -> Layout:
    """The layout of a fleet that begins."""
    return Layout(1, tuple(sorted({*groups})))


@lru_cache(maxsize=65536)
def _choose(groups: tuple[str, ...], packed: bytes) -> str:
    """The group with the largest weight for this key (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return max(groups, key=lambda name: (blake2b(pack_names(name) + packed, digest_size=_WEIGHT_BYTES).digest(), name))
