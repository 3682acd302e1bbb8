"""What a store has to do to stand behind the Meta Service. Every engine passes tests/contract/test_engine.py."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from adapter.codec import encode_record
from adapter.model import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, as_first, merge, resolve


class Page(NamedTuple):
    """A page of a listing; `after` is the token of the next one, empty at the end."""

    entries: list[tuple[OffsetKey, OffsetRecord]]
    after: bytes


class Expiry(NamedTuple):
    """What an expiry did: how many live records it took away, or (not 0) the newest commit, which forbade it (Unix ms)."""

    expired: int
    newest_ms: int = 0


class RawPage(NamedTuple):
    """A page of a listing as `codec` packs keys (without the cluster) and records; `after` as in `Page`."""

    keys: list[bytes]
    records: list[bytes]
    after: bytes


class Parts(NamedTuple):
    """The page tokens that cut a listing in parts, and how many records are in all of it."""

    tokens: list[bytes]
    records: int


class MergeCounts(NamedTuple):
    """What became of merged entries: how many stand now, and above how many a larger value stands."""

    applied: int
    superseded: int


class Differing(NamedTuple):
    """An entry, by its place, that does not stand as it was offered (in the first epoch, if it had none).

    `record` is what stands, packed; empty when that is not known.
    """

    at: int
    status: Status  # not CONFLICT or INVALID
    record: bytes
    message: str = ""


class Engine(Protocol):
    """Offsets of clusters. What a method acknowledged survives a power cut; reads see every acknowledged save.

    Every method raises StorageFailedError, or DiskFullError when nothing was written for lack of space.
    """

    async def save(self, cluster: str, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries by (epoch, offset), in their order; one outcome each."""

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """The records of these keys, tombstones included, absent ones left out."""

    async def get_group(self, cluster: str, namespace: str, group: str) -> list[tuple[OffsetKey, OffsetRecord]]:
        """All records of a group, tombstones included, in key order."""

    async def delete(self, cluster: str, namespace: str, group: str, shards: Sequence[str]) -> None:
        """Put tombstones with a raised epoch over these shards, or over all of the group when none is named."""

    async def expire(self, cluster: str, namespace: str, group: str, before_ms: int, now_ms: int) -> Expiry:
        """Put tombstones that raise no epoch over a group's live records, unless one was committed at or after `before_ms`."""

    async def drop_tombstones(self, before_ms: int) -> int:
        """Forget tombstones from before `before_ms`, in every cluster; returns how many."""

    async def list_page(self, cluster: str, names: Sequence[str], size: int, after: bytes) -> Page:
        """A page of what is below `names` (none, a namespace, or a namespace and a group), in key order, tombstones included."""

    async def scan_page(self, cluster: str, names: Sequence[str], size: int, after: bytes, until: bytes) -> RawPage:
        """As `list_page`, packed, and up to the token `until`, included, unless that is empty. May end before `size`."""

    async def split(self, cluster: str, names: Sequence[str], parts: int) -> Parts:
        """Where to cut what is below `names` in so many parts of about the same number of records."""

    async def merge(self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes]) -> MergeCounts:
        """As `save`, of checked entries in packed form, without the cluster. What it did before it failed stays."""

    async def save_packed(self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes]) -> list[Differing]:
        """As `merge`, of distinct keys; tells what does not stand as it was offered, in the order of their places."""


def settle(entry: SaveEntry, standing: OffsetRecord | None) -> SaveOutcome:
    """What becomes of a valid entry: the rule that every engine applies. Pure.

    The compare-and-set is checked on the live offset; a met expectation does not let a key go backwards (invariant 2).
    """
    if entry.expected_offset is not None:
        # As in RobustMQ, nothing reads as the offset 0: a first commit may expect it.
        found = standing.offset if standing and standing.live else 0
        if found != entry.expected_offset:
            return SaveOutcome(Status.CONFLICT, standing)
    offered = as_first(resolve(entry.record, standing))
    stands = merge(offered, standing) if standing else offered
    return SaveOutcome(Status.APPLIED if stands == offered else Status.SUPERSEDED, stands)


def differing(entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome], first: int = 0) -> list[Differing]:
    """Those of saved entries, of which the first has the place `first`, that do not stand as they were offered."""
    return [
        Differing(at, status, encode_record(standing) if standing else b"", message)
        for at, (entry, (status, standing, message)) in enumerate(zip(entries, outcomes, strict=True), first)
        if status is not Status.APPLIED or standing != as_first(entry.record)
    ]


def counted(entries: int, differing: Sequence[Differing]) -> MergeCounts:
    """What became of so many merged entries, of which these do not stand as they were offered."""
    superseded = sum(found.status is Status.SUPERSEDED for found in differing)
    unanswered = sum(found.status is Status.UNAVAILABLE for found in differing)
    return MergeCounts(entries - superseded - unanswered, superseded)
