"""What a store has to do to stand behind the Meta Service. Every engine passes tests/contract/test_engine.py."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from adapter.errors import RefusedError
from adapter.model.codec import encode_record
from adapter.model.records import (
    EPOCH_LIMIT,
    EXHAUSTED,
    KnownStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreMark,
    StoreReport,
    as_first,
    deleted,
    epoch_problem,
    exhausted,
    is_deleted,
    merge,
    resolve,
)
from adapter.runtime.watermark import Loss

GROUP_PAGE, GROUP_PAGE_BYTES = 10_000, 16 * 2**20  # of a page of `whole_group`


class Page(NamedTuple):
    """A page of a listing; `after` is the token of the next one, empty at the end."""

    entries: list[tuple[OffsetKey, OffsetRecord]]
    after: bytes


class GroupPage(NamedTuple):
    """Records of a group in key order. With `more`, which needs an entry, there may be others behind the last one."""

    entries: list[tuple[OffsetKey, OffsetRecord]]
    more: bool


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
    """What became of merged entries: how many stand now, above how many a larger value stands; which were refused, and why."""

    applied: int
    superseded: int
    rejected: Sequence[tuple[int, str]] = ()


class Differing(NamedTuple):
    """An entry, by its place, that does not stand as it was offered (in the first epoch, if it had none).

    `record` is what stands, packed; empty when that is not known.
    """

    at: int
    status: Status  # not CONFLICT
    record: bytes
    message: str = ""


class Engine(Protocol):
    """Offsets of clusters. What a method acknowledged survives a power cut; reads see every acknowledged save.

    Every method raises StorageFailedError, or DiskFullError when nothing was written for lack of space.
    """

    kind: str  # as `engine` in the configuration names it

    async def save(self, cluster: str, entries: Sequence[SaveEntry], reported: StoreReport | None = None) -> list[SaveOutcome]:
        """Merge entries by (epoch, offset), in their order; one outcome each.

        With them `reported`, as `report_store` does it: the local store that they come from.
        """

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """The records of these keys, tombstones included, absent ones left out."""

    async def group_page(self, cluster: str, namespace: str, group: str, size: int, room: int, after: str) -> GroupPage:
        """Records of a group, tombstones included, from behind the shard `after` (empty: from the first one).

        At most `size`, and not many more than `room` bytes of them, but at least one.
        """

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

    async def merge(
        self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes], reported: StoreReport | None = None
    ) -> MergeCounts:
        """As `save`, of checked entries in packed form, without the cluster. What it did before it failed stays."""

    async def save_packed(
        self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes], reported: StoreReport | None = None
    ) -> list[Differing]:
        """As `merge`, of distinct keys; tells what does not stand as it was offered, in the order of their places."""

    async def report_store(self, cluster: str, store: StoreReport, replaces: bytes, now_ms: int) -> KnownStore | None:
        """Remember a broker's local store, at its highest `flushed_seq`; returns what was remembered before.

        Where another store is remembered for this broker and path nothing changes, unless `replaces` is its `store_id`.
        """

    async def forget_stores(self, before_ms: int) -> int:
        """Forget local stores that were last told of before `before_ms`, in every cluster; returns how many."""

    def marks(self) -> list[StoreMark]:
        """How far the stores are, durably; never less than at any answer before."""

    def loss(self) -> Loss | None:
        """What the store once had lost, or None."""


def row_bytes(key: bytes, value: bytes) -> int:
    """At least what a row takes in a reply, by its packed key and record: names may be in it twice."""
    return 2 * len(key) + len(value)


async def whole_group(engine: Engine, cluster: str, namespace: str, group: str) -> list[tuple[OffsetKey, OffsetRecord]]:
    """All records of a group that fits into the memory, tombstones included, in key order."""
    entries: list[tuple[OffsetKey, OffsetRecord]] = []
    after = ""
    while True:
        page = await engine.group_page(cluster, namespace, group, GROUP_PAGE, GROUP_PAGE_BYTES, after)
        entries += page.entries
        if not page.more:
            return entries
        after = page.entries[-1][0].shard


def tombstones_for(entries: Iterable[tuple[OffsetKey, OffsetRecord]], now_ms: int) -> dict[OffsetKey, OffsetRecord]:
    """The tombstones of a delete of what stands. Raises RefusedError, before anything is written, where no epoch is left."""
    found = {key: record for key, record in entries if not is_deleted(record)}
    last = next((key for key, record in found.items() if exhausted(record.epoch)), None)
    if last:
        raise RefusedError(f"{'/'.join(last)}: stands in epoch {found[last].epoch}: {EXHAUSTED}; nothing was deleted")
    return {key: deleted(record, now_ms) for key, record in found.items()}


def decide_save(entry: SaveEntry, standing: OffsetRecord | None) -> SaveOutcome:
    """What becomes of a valid entry: the rule that every engine applies. Pure.

    The compare-and-set is checked on the live offset; a met expectation does not let a key go backwards (invariant 2).
    """
    if entry.expected_offset is not None:
        # As in RobustMQ, nothing reads as the offset 0: a first commit may expect it.
        found = standing.offset if standing and standing.live else 0
        if found != entry.expected_offset:
            return SaveOutcome(Status.CONFLICT, standing)
    offered = resolve(entry.record, standing)
    problem = epoch_problem(offered.epoch, standing.epoch if standing else 0) if offered.epoch > EPOCH_LIMIT else ""
    if problem:
        return SaveOutcome(Status.INVALID, standing, problem)
    offered = as_first(offered)
    stands = merge(offered, standing) if standing else offered
    return SaveOutcome(Status.APPLIED if stands == offered else Status.SUPERSEDED, stands)


def decide_report(reported: StoreReport, known: KnownStore | None, replaces: bytes, now_ms: int) -> KnownStore | None:
    """What is remembered of a broker's local store from now on; None: what was. The rule that every engine applies. Pure.

    The first store that is told stays until it is replaced: what comes in its place without a word is what is to be found.
    """
    if known and reported.store_id == known.store.store_id:
        return KnownStore(reported._replace(flushed_seq=max(reported.flushed_seq, known.store.flushed_seq)), now_ms)
    return KnownStore(reported, now_ms) if known is None or replaces == known.store.store_id else None


def differing(entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome], first: int = 0) -> list[Differing]:
    """Those of saved entries, of which the first has the place `first`, that do not stand as they were offered."""
    return [
        Differing(at, status, encode_record(standing) if standing else b"", message)
        for at, (entry, (status, standing, message)) in enumerate(zip(entries, outcomes, strict=True), first)
        if status is not Status.APPLIED or standing != as_first(entry.record)
    ]


def count_results(entries: int, differing: Sequence[Differing]) -> MergeCounts:
    """What became of so many merged entries, of which these do not stand as they were offered."""
    superseded = sum(found.status is Status.SUPERSEDED for found in differing)
    refused = [(found.at, found.message) for found in differing if found.status is Status.INVALID]
    unanswered = sum(found.status is Status.UNAVAILABLE for found in differing)
    return MergeCounts(entries - superseded - len(refused) - unanswered, superseded, refused)
