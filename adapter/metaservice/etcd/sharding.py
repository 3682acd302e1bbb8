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

    `moving_from`: the Raft groups of the previous layout while offsets are copied from them. `leftovers_in`: Raft groups with old
    copies that are not deleted yet.
    """

    version: int
    groups: tuple[str, ...]
    moving_from: tuple[str, ...] = ()
    leftovers_in: tuple[str, ...] = ()

    def home(self, packed: bytes) -> str:
        """The Raft group of a consumer group, given as its packed cluster, namespace and group."""
        return _choose(self.groups, packed)

    def former(self, packed: bytes) -> str | None:
        """The Raft group that may still hold its offsets; None if there is no other than `home`."""
        if not self.moving_from:
            return None
        before = _choose(self.moving_from, packed)
        return before if before != self.home(packed) else None

    @property
    def settled(self) -> bool:
        """True if no offsets are being moved and no old copies are left."""
        return not self.moving_from and not self.leftovers_in

    @property
    def fenced(self) -> tuple[str, ...]:
        """All Raft groups that must know this version; those that lose offsets come first, see `fences`."""
        return tuple(dict.fromkeys((*self.losing, *self.groups, *self.leftovers_in)))

    @property
    def losing(self) -> tuple[str, ...]:
        """The Raft groups from which offsets are moved."""
        gone = tuple(name for name in self.moving_from if name not in self.groups)
        return gone or self.moving_from

    def move_to(self, groups: Iterable[str]) -> Self:
        """The layout that starts a move to these Raft groups. Raises InvalidInputError if that takes more than one step."""
        wanted = tuple(sorted({*groups}))
        if self.moving_from or self.leftovers_in:
            raise InvalidInputError("offsets are still being moved by the change before; finish that one first")
        if {*wanted} - {*self.groups} and {*self.groups} - {*wanted}:
            raise InvalidInputError(
                "Raft groups are added and taken away at once: first add and rebalance, then take away and rebalance"
            )
        return self._replace(version=self.version + 1, groups=wanted, moving_from=self.groups)

    def moved(self) -> Self:
        """The layout after all offsets have been copied."""
        return self._replace(version=self.version + 1, moving_from=(), leftovers_in=self.losing)

    def cleaned(self) -> Self:
        """The layout after all old copies have been deleted."""
        return self._replace(version=self.version + 1, leftovers_in=())

    def encode(self) -> bytes:
        """Encode as JSON, as stored in etcd."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode; the inverse of `encode`. Raises StoreDamagedError."""
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
    """The layout of a new installation."""
    return Layout(1, tuple(sorted({*groups})))


@lru_cache(maxsize=65536)
def _choose(groups: tuple[str, ...], packed: bytes) -> str:
    """The Raft group with the largest weight for this key (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return max(groups, key=lambda name: (blake2b(pack_names(name) + packed, digest_size=_WEIGHT_BYTES).digest(), name))
