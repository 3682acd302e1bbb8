"""Groups that rest: loaded, without keys in memory, and with nothing else to say. As digests in a few long pieces of memory.

A group of Python objects takes 350 bytes here. Worse, among the objects of a burst of commits it stays where it was made, and
keeps the memory around it from the system after the burst has left.
"""

from hashlib import blake2b

from adapter.model.codec import pack_names
from adapter.model.records import GroupKey

SIZE = 16  # bytes of a digest: two groups with the same one do not occur
PARTS = 256  # each is searched from its beginning: of 100,000 groups 400 in a part


class _Digests:
    """A set of digests."""

    def __init__(self) -> None:
        self._parts = [bytearray() for _ in range(PARTS)]
        self.count = 0

    def __contains__(self, digest: bytes) -> bool:
        return _place(self._parts[digest[0]], digest) >= 0

    def add(self, digest: bytes) -> None:
        """Add one that is not there."""
        self._parts[digest[0]] += digest
        self.count += 1

    def remove(self, digest: bytes) -> bool:
        """Remove one; False if it is not there."""
        part = self._parts[digest[0]]
        at = _place(part, digest)
        if at < 0:
            return False
        del part[at : at + SIZE]
        self.count -= 1
        return True


class RestingGroups:
    """The groups that came to rest last: `most` at most, and half as many at least. `count`: how many there are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._new, self._old = _Digests(), _Digests()
        self.count = 0

    def __contains__(self, group: tuple[str, str]) -> bool:
        """True for a group that rests, and was not forgotten."""
        digest = _digest(group)
        return digest in self._new or digest in self._old

    def add(self, group: GroupKey) -> None:
        """Note that a group rests. The older half is forgotten when there are too many."""
        digest = _digest(group)
        if digest in self._new:
            return
        self._old.remove(digest)
        if 2 * (self._new.count + 1) > self._most:
            self._new, self._old = _Digests(), self._new
        self._new.add(digest)
        self.count = self._new.count + self._old.count

    def remove(self, group: GroupKey) -> bool:
        """Note that a group does not rest any more; returns whether it did, and was not forgotten."""
        digest = _digest(group)
        found = self._new.remove(digest) or self._old.remove(digest)
        self.count -= found
        return found


def _digest(group: tuple[str, str]) -> bytes:
    return blake2b(pack_names(*group), digest_size=SIZE).digest()


def _place(part: bytearray, digest: bytes) -> int:
    """Where a digest begins; -1 if it is not there."""
    at = part.find(digest)
    while at > 0 and at % SIZE:
        at = part.find(digest, at + 1)
    return at
