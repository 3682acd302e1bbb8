"""The Protocol of a store of offsets behind the Meta Service, and the rules that all stores apply.

Every implementation passes tests/contract/test_engine.py.
"""

import struct
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple, Protocol

from adapter.errors import RefusedError
from adapter.model.codec import encode_record
from adapter.model.records import (
    EPOCH_LIMIT,
    EXHAUSTED,
    HOLD_MS,
    ChangedGroups,
    GroupKey,
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
    is_held,
    merge,
    resolve,
    taken_up,
)
from adapter.rpc import meta_pb
from adapter.runtime.durable.watermark import Loss

GROUP_PAGE, GROUP_PAGE_BYTES = 10_000, 16 * 2**20  # page size of `group_pages`
SIZE = struct.Struct("<H")  # of the sizes in `PackedRows`
EXACT = 50_000  # records that a split counts; larger numbers may be estimated


class Page(NamedTuple):
    """A page of a listing; `after` is the token of the next page, empty at the end."""

    entries: list[tuple[OffsetKey, OffsetRecord]]
    after: bytes


class GroupPage(NamedTuple):
    """Records of a group in key order. `more`: there may be others after the last one; then `entries` is not empty."""

    entries: list[tuple[OffsetKey, OffsetRecord]]
    more: bool


class PackedGroups(NamedTuple):
    """Rows of whole groups: of the first `groups` of those asked for; the last one continues after the shard `after`, if any."""

    packed: meta_pb.PackedRows
    groups: int
    after: str


class Expiry(NamedTuple):
    """The result of an expiry: the number of tombstones put, or the newest commit, which prevented it (Unix ms)."""

    expired: int
    newest_ms: int = 0


class RawPage(NamedTuple):
    """A page of rows as columns, for bulk reads; `after` as in `Page`. The write counters in the records have no meaning."""

    packed: meta_pb.PackedRows
    after: bytes

    @property
    def rows(self) -> int:
        """How many rows the page has."""
        return len(self.packed.key_sizes) // SIZE.size


class Columns:
    """Collects rows as columns. Slice by slice, so that the objects of a row live only for a moment: a third less for a scan."""

    def __init__(self) -> None:
        self.rows = 0
        self.record_bytes = 0
        self._last = b""
        self._pieces: tuple[list[bytes], ...] = ([], [], [], [])

    def add(self, keys: Sequence[bytes], records: Sequence[bytes]) -> None:
        """Add rows, at least one: keys of cluster, namespace, group and shard, and records in the form of `codec`."""
        form = f"<{len(keys)}{SIZE.format[-1]}"
        columns = (
            b"".join(keys),
            struct.pack(form, *map(len, keys)),
            b"".join(records),
            struct.pack(form, *map(len, records)),
        )
        for pieces, piece in zip(self._pieces, columns, strict=True):
            pieces.append(piece)
        self.rows += len(keys)
        self.record_bytes += len(columns[2])
        self._last = keys[-1]

    def packed(self) -> meta_pb.PackedRows:
        """The columns."""
        keys, key_sizes, records, record_sizes = (b"".join(pieces) for pieces in self._pieces)
        return meta_pb.PackedRows(keys=keys, key_sizes=key_sizes, records=records, record_sizes=record_sizes)

    def page(self, *, until: bytes = b"", more: bool = False) -> RawPage:
        """The page. `more`: rows may follow its last one, unless that is the key `until`."""
        return RawPage(self.packed(), self._last if more and self._last != until else b"")


class Parts(NamedTuple):
    """The page tokens that divide a listing into parts, and its number of records, which may be an estimate above EXACT."""

    tokens: list[bytes]
    records: int


class MergeCounts(NamedTuple):
    """Totals of a merge: entries that are stored now, entries below a larger stored value, (index, reason) of refused ones."""

    applied: int
    superseded: int
    rejected: Sequence[tuple[int, str]] = ()


class Differing(NamedTuple):
    """An entry, by its index, whose stored record differs from the one offered (with epoch 0 read as the first epoch).

    `record` is the stored record, packed; empty if it is unknown.
    """

    at: int
    status: Status  # not CONFLICT
    record: bytes
    message: str = ""


class Engine(Protocol):
    """A store of the offsets of clusters. What a method acknowledged survives a power cut; reads see every acknowledged save.

    Every method raises StorageFailedError, or DiskFullError when nothing was written for lack of space. Stores in etcd raise
    MetaUnavailableError when etcd does not answer. Times are Unix ms.
    """

    kind: str  # the name of this engine in the configuration

    async def save(
        self, cluster: str, entries: Sequence[SaveEntry], reported: StoreReport | None = None, *, tell: bool = False
    ) -> list[SaveOutcome]:
        """Merge entries by (epoch, offset), in order; one outcome each.

        `reported`: the local store that they come from; recorded as by `report_store`. `tell`: the groups that are changed are
        noted for `changed_groups`; see `is_told` for what is noted without it.
        """

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """The records of these keys, tombstones included. Absent keys are left out."""

    async def group_page(self, cluster: str, namespace: str, group: str, size: int, room: int, after: str) -> GroupPage:
        """Records of a group, tombstones included, after the shard `after` (empty: from the start).

        At least one if there is any, at most `size`, and about `room` bytes.
        """

    async def packed_groups(
        self, cluster: str, groups: Sequence[GroupKey], size: int, room: int, after: str
    ) -> PackedGroups | None:
        """As `group_page`, of many groups, the first from after the shard `after`; each counts as a row as well.

        None: this engine has no cheaper way for them than one after the other.
        """

    async def differing_rows(
        self, keys: Sequence[bytes], records: Sequence[bytes], room: int
    ) -> tuple[list[tuple[int, bytes]], int] | None:
        """Of packed keys and records, the places where another record stands, with it (empty: none stands there).

        The write counters do not count. Compares from the first one on, until about `room` bytes differ, and tells how many it
        has compared. None: this engine has no cheaper way than a get of each.
        """

    async def delete(self, cluster: str, namespace: str, group: str, shards: Sequence[str]) -> None:
        """Put tombstones of a new era over these shards, or over the whole group if none is named."""

    async def expire(self, cluster: str, namespace: str, group: str, before_ms: int, now_ms: int) -> Expiry:
        """Put tombstones with unchanged epochs over a group, unless it has a live commit at or after `before_ms`."""

    async def drop_tombstones(self, before_ms: int) -> int:
        """Remove the tombstones from before `before_ms` in every cluster; returns how many."""

    async def list_page(self, cluster: str, names: Sequence[str], size: int, after: bytes) -> Page:
        """A page of the records below `names`, in key order, tombstones included.

        `names` is (), (namespace,) or (namespace, group).
        """

    async def scan_page(self, cluster: str, names: Sequence[str], size: int, after: bytes, until: bytes) -> RawPage:
        """As `list_page`, packed, up to and including the token `until` if it is not empty. May end before `size`."""

    def snapshot(self, cluster: str, names: Sequence[str]) -> AsyncGenerator[RawPage, None]:
        """All pages of a scan, as the records are at one instant after the call; in etcd, at one instant of each Raft group."""

    async def split(self, cluster: str, names: Sequence[str], parts: int) -> Parts:
        """Divide the records below `names` into parts of about the same size."""

    async def merge(
        self,
        cluster: str,
        keys: Sequence[bytes],
        records: Sequence[bytes],
        reported: StoreReport | None = None,
        *,
        tell: bool = False,
    ) -> MergeCounts:
        """As `save`, for checked entries in packed form without the cluster. If it fails, a part may have been merged."""

    async def save_packed(
        self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes], reported: StoreReport | None = None
    ) -> list[Differing]:
        """As `merge`, for distinct keys. Returns the entries that are not stored as offered, by ascending index."""

    async def report_store(self, cluster: str, store: StoreReport, replaces: bytes, now_ms: int) -> KnownStore | None:
        """Record a broker's local store, with its highest `flushed_seq`. Returns what was recorded before.

        If another store is recorded for this broker and path, nothing changes unless `replaces` is that store's `store_id`.
        """

    async def forget_stores(self, before_ms: int) -> int:
        """Remove local stores last reported before `before_ms`, in every cluster; returns how many."""

    async def changed_groups(self, cluster: str, after: Sequence[StoreMark]) -> ChangedGroups:
        """The groups that were noted behind the places `after` of an earlier call; without places, a gap.

        At least those of which something that stood was replaced by what `is_told`, or by a save with `tell`. A note is written
        together with the change, and known as long as no more than MAX_NOTES others of its store came behind it.
        """

    def marks(self) -> list[StoreMark]:
        """The durable state of the underlying stores. Never older than in any earlier reply."""

    def loss(self) -> Loss | None:
        """The loss of acknowledged writes that a repair found, or None."""


MAX_NOTES = 10_000  # groups of each store whose last change is noted: about a megabyte


def is_told(record: OffsetRecord) -> bool:
    """Whether adapters are told of a record that is stored: a tombstone, or what a reset, delete or clone has left."""
    return not record.live or is_held(record.epoch)


def row_bytes(key: bytes, value: bytes) -> int:
    """A lower bound of a row's size in a reply, from its packed key and record. Names may occur twice in a row."""
    return 2 * len(key) + len(value)


async def group_pages(
    engine: Engine, cluster: str, namespace: str, group: str
) -> AsyncGenerator[list[tuple[OffsetKey, OffsetRecord]], None]:
    """The records of a group, tombstones included, in key order; a page holds at most GROUP_PAGE of them."""
    page = GroupPage([], more=True)
    while page.more:
        after = page.entries[-1][0].shard if page.entries else ""
        page = await engine.group_page(cluster, namespace, group, GROUP_PAGE, GROUP_PAGE_BYTES, after)
        yield page.entries


def to_delete(entries: Iterable[tuple[OffsetKey, OffsetRecord]]) -> list[tuple[OffsetKey, OffsetRecord]]:
    """Those of these records that are not deleted already.

    Raises RefusedError, before anything is written, if one has no higher epoch left.
    """
    found = [entry for entry in entries if not is_deleted(entry[1])]
    last = next((entry for entry in found if exhausted(entry[1].epoch)), None)
    if last:
        raise RefusedError(f"{'/'.join(last[0])}: stands in epoch {last[1].epoch}: {EXHAUSTED}; nothing was deleted")
    return found


def deleted_unless_late(standing: OffsetRecord, now_ms: int) -> OffsetRecord | None:
    """The tombstone of a delete of a group for which `to_delete` raised nothing; None: leave what stands.

    That is the tombstone of a delete, or a reset that has reached the last era since: it came after the delete.
    """
    return None if is_deleted(standing) or exhausted(standing.epoch) else deleted(standing, now_ms)


class Overwrite(SaveEntry):
    """An entry of a writer that knows neither epochs nor times, whose lower offset is a rewind: the later to arrive wins."""

    __slots__ = ()


def decide_save(entry: SaveEntry, standing: OffsetRecord | None) -> SaveOutcome:
    """Decide one valid entry of a save against the stored record. Every engine applies this rule. Pure.

    The compare-and-set checks the live offset. An entry that passes it still cannot move a key back (invariant 2).
    """
    if entry.expected_offset is not None:
        # As in RobustMQ, an absent key counts as offset 0: a first commit may expect 0.
        found = standing.offset if standing and standing.live else 0
        if found != entry.expected_offset:
            return SaveOutcome(Status.CONFLICT, standing)
    offered = _over(entry.record, standing) if standing and isinstance(entry, Overwrite) else resolve(entry.record, standing)
    problem = epoch_problem(offered.epoch, standing.epoch if standing else 0) if offered.epoch > EPOCH_LIMIT else ""
    if problem:
        return SaveOutcome(Status.INVALID, standing, problem)
    offered = as_first(offered)
    stands = merge(offered, standing) if standing else offered
    return SaveOutcome(Status.APPLIED if stands == offered else Status.SUPERSEDED, stands)


def _over(offered: OffsetRecord, standing: OffsetRecord) -> OffsetRecord:
    """What an `Overwrite` puts over a stored record: the same epoch, or the next one for a lower offset.

    Its time is that of its arrival at this process, which another process may be ahead of: it decides only about a reset that is
    held.
    """
    if is_held(standing.epoch) and offered.committed_at_ms <= standing.committed_at_ms + HOLD_MS:
        return offered
    return offered._replace(epoch=taken_up(standing.epoch) + (offered.offset < standing.offset))


def decide_report(reported: StoreReport, known: KnownStore | None, replaces: bytes, now_ms: int) -> KnownStore | None:
    """Decide what is recorded of a broker's local store after a report; None: no change. Every engine applies this rule. Pure.

    The first reported store stays recorded until a report names it in `replaces`: a different store without that is what must be
    detected.
    """
    if known and reported.store_id == known.store.store_id:
        return KnownStore(reported._replace(flushed_seq=max(reported.flushed_seq, known.store.flushed_seq)), now_ms)
    return KnownStore(reported, now_ms) if known is None or replaces == known.store.store_id else None


def differing(entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome], first: int = 0) -> list[Differing]:
    """The entries of a save that are not stored as offered. `first` is the index of the first entry."""
    return [
        Differing(at, status, encode_record(standing) if standing else b"", message)
        for at, (entry, (status, standing, message)) in enumerate(zip(entries, outcomes, strict=True), first)
        if status is not Status.APPLIED or standing != as_first(entry.record)
    ]


def count_results(entries: int, differing: Sequence[Differing]) -> MergeCounts:
    """The totals of a merge of `entries` entries, of which `differing` are not stored as offered."""
    superseded = sum(found.status is Status.SUPERSEDED for found in differing)
    refused = [(found.at, found.message) for found in differing if found.status is Status.INVALID]
    unanswered = sum(found.status is Status.UNAVAILABLE for found in differing)
    return MergeCounts(entries - superseded - len(refused) - unanswered, superseded, refused)
