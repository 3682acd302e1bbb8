"""Small numbers for names, and the names by their numbers, in a few long pieces of memory instead of objects.

A name is a namespace and what is in it, packed as in a key. As Python objects one takes 350 bytes; here it takes its own bytes
and 26. Objects would be made among those of a burst of commits, and keep the memory around them after these have gone.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from adapter.model.codec import unpack_names
from adapter.model.lag_rows import UNKNOWN, Ints
from adapter.sidecar.lag.packed import let_others
from adapter.sidecar.lag.view import Numbers

BLOCK = 1_000  # names that are moved between two rests
LEAST_UNUSED = 2**16  # bytes of names that left, until the others are moved together

D = TypeVar("D", bound=np.generic)
N = TypeVar("N", bound=tuple[str, str])

Sizes = npt.NDArray[np.uint16]
hash_of: Callable[[bytes], int] = hash  # which decides where to look, and no more


class _Texts(NamedTuple):
    """The bytes of all names, and where that of each number is. Bytes are only appended: what stands anywhere stays there."""

    data: bytearray
    starts: Ints
    sizes: Sizes

    def packed(self, number: int) -> bytes:
        start = self.starts[number]
        return bytes(self.data[start : start + self.sizes[number]])


class Names(Generic[N]):
    """The names of all numbers at one time. Any thread may read them."""

    def __init__(self, kind: Callable[[str, str], N], texts: _Texts) -> None:
        self._kind = kind
        self._texts = texts

    def __len__(self) -> int:
        """How many numbers there are, those that are nobody's included."""
        return len(self._texts.starts)

    def __getitem__(self, number: int) -> N:
        """The name of a number; of one that is nobody's, that of a former one. Raises IndexError."""
        return self._kind(*unpack_names(self._texts.packed(number)))


class _Index(NamedTuple):
    """The names in use by their hashes, which are sorted."""

    hashes: Ints
    numbers: Numbers


class Ids(Generic[N]):
    """Small numbers for names: reused, so that they can be places in arrays. A name ends when its last use does.

    For one thread, but for `find`: any may call it, and see what was there before or behind a change.
    """

    def __init__(self, kind: Callable[[str, str], N]) -> None:
        self._kind = kind
        self._texts = _Texts(bytearray(), np.zeros(0, np.int64), np.zeros(0, np.uint16))
        self._index = _Index(np.zeros(0, np.int64), np.zeros(0, np.int32))
        self._fresh: dict[bytes, int] = {}  # not in the index yet
        self._uses: Numbers = np.zeros(0, np.int32)
        self._count = 0  # numbers, free ones included
        self._free = array("i")
        self._unused = 0  # bytes of names that left
        self._new: list[int] = []
        self._changed = False
        self._names: Names[N] | None = None  # as they are now

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._index.hashes)

    @property
    def count(self) -> int:
        """How many numbers there are, free ones included."""
        return self._count

    def find(self, names: Sequence[bytes]) -> Ints:
        """The number of each name; -1 if it has none."""
        index, (data, starts, sizes), fresh = self._index, self._texts, self._fresh
        found = np.full(len(names), UNKNOWN)
        wanted = np.fromiter(map(hash_of, names), np.int64, len(names))
        places, at = np.arange(len(names)), np.searchsorted(index.hashes, wanted)
        while len(places):
            there = at < len(index.hashes)
            there[there] = index.hashes[at[there]] == wanted[places[there]]
            places, at = places[there], at[there]
            numbers = index.numbers[at]
            begins = starts[numbers]
            texts = zip(places.tolist(), begins.tolist(), (begins + sizes[numbers]).tolist(), strict=True)
            same = np.fromiter((data[begin:end] == names[place] for place, begin, end in texts), np.bool_, len(places))
            found[places[same]] = numbers[same]
            places, at = places[~same], at[~same] + 1  # another name with the same hash
        if fresh:
            for place in np.flatnonzero(found == UNKNOWN).tolist():
                found[place] = fresh.get(names[place], UNKNOWN)
        return found

    def use(self, names: Sequence[bytes]) -> tuple[Ints, list[int]]:
        """Begin a use of each of these, in which one may occur again; their numbers, and those that are new.

        `settle` has to follow when all are in use.
        """
        found, new = self.find(names), []
        for place in np.flatnonzero(found == UNKNOWN).tolist():
            number = self._fresh.get(names[place])
            if number is None:
                number = self._fresh[names[place]] = self._numbered(names[place])
                new.append(number)
            found[place] = number
        np.add.at(self._uses, found, 1)
        self._new += new
        return found, new

    def settle(self) -> None:
        """Sort in the names that `use` found to be new."""
        fresh, (hashes, numbers) = self._fresh, self._index
        if fresh:
            new_hashes = np.fromiter(map(hash_of, fresh), np.int64, len(fresh))
            order = np.argsort(new_hashes, kind="stable")
            at = np.searchsorted(hashes, new_hashes[order])
            new_numbers = np.fromiter(fresh.values(), np.int32, len(fresh))[order]
            self._index = _Index(np.insert(hashes, at, new_hashes[order]), np.insert(numbers, at, new_numbers))
            self._fresh = {}

    def leave(self, numbers: Ints | Numbers) -> list[int]:
        """End a use of each of these, in which one may occur again; those whose last use it was. They keep names until `rest`."""
        np.subtract.at(self._uses, numbers, 1)
        gone = np.unique(numbers)
        gone = gone[self._uses[gone] == 0]
        if len(gone):
            stays = ~np.isin(self._index.numbers, gone)
            self._index = _Index(self._index.hashes[stays], self._index.numbers[stays])
            self._unused += int(self._texts.sizes[gone].sum())
            self._changed = True
        left: list[int] = gone.tolist()
        self._free.extend(left)
        return left

    def rest(self) -> None:
        """Move the names together if most of the room is that of names that left. In blocks, with rests."""
        data, starts, sizes = self._texts
        if self._unused < max(LEAST_UNUSED, len(data) // 2):
            return
        moved, new_starts, new_sizes = bytearray(), np.zeros_like(starts), np.zeros_like(sizes)
        used = self.used()
        new_sizes[used] = sizes[used]
        new_starts[used] = np.cumsum(sizes[used], dtype=np.int64) - sizes[used]
        for at in range(0, len(used), BLOCK):
            some = used[at : at + BLOCK]
            ends = starts[some] + sizes[some]
            moved += b"".join([data[begin:end] for begin, end in zip(starts[some].tolist(), ends.tolist(), strict=True)])
            let_others()
        self._texts, self._unused, self._names = _Texts(moved, new_starts, new_sizes), 0, None

    def used(self) -> Ints:
        """The numbers that are those of a name."""
        return np.flatnonzero(self._uses[: self._count] > 0)

    def packed(self, number: int) -> bytes:
        """The packed name of a number."""
        return self._texts.packed(number)

    def name(self, number: int) -> N:
        """The name of a number."""
        return self._kind(*unpack_names(self.packed(number)))

    def names(self) -> Names[N]:
        """All names, as they are now."""
        if self._names is None:
            data, starts, sizes = self._texts
            self._names = Names(self._kind, _Texts(data, starts[: self._count].copy(), sizes[: self._count].copy()))
        return self._names

    def take_changed(self) -> bool:
        """Whether a name came or went since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def take_new(self) -> list[int]:
        """The numbers that were given to names since the last call, and are still theirs."""
        new, self._new = self._new, []
        return [number for number in new if self._uses[number]]

    def _numbered(self, name: bytes) -> int:
        """Give a number to a new name."""
        number = self._free.pop() if self._free else self._count
        data, starts, sizes = self._texts
        if number == self._count:
            self._count += 1
            starts, sizes = longer(starts, self._count, 0), longer(sizes, self._count, 0)
            self._texts = _Texts(data, starts, sizes)
            self._uses = longer(self._uses, self._count, 0)
        starts[number], sizes[number] = len(data), len(name)
        data += name
        self._changed, self._names = True, None
        return number


def longer(array: npt.NDArray[D], size: int, fill: int) -> npt.NDArray[D]:
    """An array with room for so many, and for some more, of the same kind."""
    have = len(array)
    if size <= have:
        return array
    return np.append(array, np.full(size + size // 8 - have, fill, array.dtype))
