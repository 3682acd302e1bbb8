"""The Meta Service's store in memory: the production rules over two dictionaries, of which a crash leaves the synced one."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache

from adapter.metaservice.bulk import Cuts
from adapter.metaservice.engine import (
    Columns,
    Differing,
    Expiry,
    GroupPage,
    MergeCounts,
    Page,
    Parts,
    RawPage,
    decide_report,
    decide_save,
    differing,
    is_told,
    row_bytes,
    to_delete,
)
from adapter.model.codec import decode_key, decode_record, encode_record, pack_names, prefix_end, unpack_names
from adapter.model.records import (
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
    deleted,
    expired,
)
from adapter.runtime.durable.watermark import Loss

SNAPSHOT_PAGE = 10_000
SLICE_SYNCS = 100  # a slice of an expiry takes as long as so many syncs, so that commits come between two

Records = dict[bytes, OffsetRecord]


class MemoryEngine:
    """A store of the Meta Service in memory. It answers, also reads, only what a crash cannot take any more."""

    kind = "rocksdb"

    def __init__(self, now_ms: Callable[[], int], sync_s: float = 0.0) -> None:
        self._now_ms = now_ms
        self._sync_s = sync_s
        self._written: Records = {}
        self._synced: Records = {}
        self._writes = self._synced_writes = 0
        self._stores: dict[tuple[str, str, str], KnownStore] = {}  # of these a crash takes nothing
        self._unnoted = 0  # the last write of a program that notes no changes
        self._noted: dict[tuple[str, GroupKey], int] = {}  # the write of the last change that adapters are told of
        self.store_id, self.incarnation = b"memory engine, 0", 1

    def standing(self, cluster: str, key: OffsetKey) -> OffsetRecord | None:
        """What stands, durably, at this moment."""
        return self._synced.get(_packed(cluster, key))

    def crash(self) -> None:
        """Lose what is not synced."""
        self._written = dict(self._synced)
        self._noted = {at: write for at, write in self._noted.items() if write <= self._synced_writes}
        self._synced_writes = self._writes

    async def save(
        self, cluster: str, entries: Sequence[SaveEntry], reported: StoreReport | None = None, *, tell: bool = False
    ) -> list[SaveOutcome]:
        self._note(cluster, reported, b"", self._now_ms())
        outcomes = []
        for entry in entries:
            key = pack_names(cluster, *entry.key)
            outcome = decide_save(entry, self._written.get(key))
            if outcome.standing is not None and outcome.standing != self._written.get(key):
                self._write({key: outcome.standing}, tell=tell)
            outcomes.append(outcome)
        await self._sync()
        return outcomes

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        packed = {key: pack_names(cluster, *key) for key in keys}
        found = [(key, self._written[at]) for key, at in packed.items() if at in self._written]
        await self._sync()
        return found

    async def group_page(self, cluster: str, namespace: str, group: str, size: int, room: int, after: str) -> GroupPage:
        behind = pack_names(cluster, namespace, group, after) if after else b""
        entries: list[tuple[OffsetKey, OffsetRecord]] = []
        for key, record in self._below(pack_names(cluster, namespace, group), behind):
            if len(entries) == size or room <= 0:
                break
            entries.append((key, record))
            room -= row_bytes(pack_names(cluster, *key), encode_record(record))
        await self._sync()
        return GroupPage(entries, more=len(entries) == size or room <= 0)

    async def packed_groups(self, *_: object) -> None:
        """One after the other."""

    async def differing_rows(self, *_: object) -> None:
        """By their names."""

    async def delete(self, cluster: str, namespace: str, group: str, shards: Sequence[str]) -> None:
        found = self._below(pack_names(cluster, namespace, group))
        now_ms = self._now_ms()
        chosen = to_delete(entry for entry in found if not shards or entry[0].shard in shards)
        self._write({pack_names(cluster, *key): deleted(record, now_ms) for key, record in chosen})
        await self._sync()

    async def expire(self, cluster: str, namespace: str, group: str, before_ms: int, now_ms: int) -> Expiry:
        """As in RocksDB: decided by what stands now, and written in slices; here one key each."""
        prefix = pack_names(cluster, namespace, group)
        live = [(pack_names(cluster, *key), record) for key, record in self._below(prefix) if record.live]
        newest_ms = max((record.committed_at_ms for _, record in live), default=0)
        if newest_ms >= before_ms:
            await self._sync()
            return Expiry(0, newest_ms)
        count = 0
        for key, record in live:
            if self._written.get(key) is record:  # nothing was saved over it
                self._write({key: expired(record, now_ms)})
                count += 1
            await asyncio.sleep(SLICE_SYNCS * self._sync_s)
        await self._sync()
        return Expiry(count)

    async def drop_tombstones(self, before_ms: int) -> int:
        old = [key for key, record in self._written.items() if not record.live and record.committed_at_ms < before_ms]
        for key in old:
            del self._written[key]
        self._writes += 1
        await self._sync()
        return len(old)

    async def list_page(self, cluster: str, names: Sequence[str], size: int, after: bytes) -> Page:
        rows = self._below(pack_names(cluster, *names), after)[:size]
        await self._sync()
        return Page(rows, pack_names(cluster, *rows[-1][0]) if len(rows) == size else b"")

    async def scan_page(self, cluster: str, names: Sequence[str], size: int, after: bytes, until: bytes) -> RawPage:
        rows = [
            row for row in self._below(pack_names(cluster, *names), after) if not until or pack_names(cluster, *row[0]) <= until
        ]
        page = rows[:size]
        await self._sync()
        return _columns(cluster, page).page(until=until, more=len(page) == size)

    async def snapshot(self, cluster: str, names: Sequence[str]) -> AsyncGenerator[RawPage, None]:
        rows = self._below(pack_names(cluster, *names))
        await self._sync()
        for at in range(0, len(rows), SNAPSHOT_PAGE):
            yield _columns(cluster, rows[at : at + SNAPSHOT_PAGE]).page()

    async def split(self, cluster: str, names: Sequence[str], parts: int) -> Parts:
        cuts = Cuts(parts)
        cuts.add([pack_names(cluster, *key) for key, _ in self._below(pack_names(cluster, *names))])
        await self._sync()
        return cuts.parts()

    async def merge(
        self,
        cluster: str,
        keys: Sequence[bytes],
        records: Sequence[bytes],
        reported: StoreReport | None = None,
        *,
        tell: bool = False,
    ) -> MergeCounts:
        """Decided by the rule for a single save, which the packed one is held to."""
        entries = [SaveEntry(decode_key(key), decode_record(record)) for key, record in zip(keys, records, strict=True)]
        outcomes = await self.save(cluster, entries, reported, tell=tell)
        statuses = Counter(outcome.status for outcome in outcomes)
        rejected = [(at, outcome.message) for at, outcome in enumerate(outcomes) if outcome.status is Status.INVALID]
        return MergeCounts(statuses[Status.APPLIED], statuses[Status.SUPERSEDED], tuple(rejected))

    async def report_store(self, cluster: str, store: StoreReport, replaces: bytes, now_ms: int) -> KnownStore | None:
        known = self._note(cluster, store, replaces, now_ms)
        await self._sync()
        return known

    async def forget_stores(self, before_ms: int) -> int:
        old = [at for at, known in self._stores.items() if known.reported_at_ms < before_ms]
        for at in old:
            del self._stores[at]
        return len(old)

    async def changed_groups(self, cluster: str, after: Sequence[StoreMark]) -> ChangedGroups:
        await self._sync()
        now = StoreMark("", self.store_id, self.incarnation, self._synced_writes)
        if len(after) != 1 or after[0][:3] != now[:3] or not self._unnoted <= after[0].revision <= now.revision:
            return ChangedGroups([], [now], gap=True)
        noted = (
            group for (of, group), write in self._noted.items() if of == cluster and after[0].revision < write <= now.revision
        )
        return ChangedGroups(list(noted), [now])

    def marks(self) -> list[StoreMark]:
        return [StoreMark("", self.store_id, self.incarnation, self._synced_writes)]

    def loss(self) -> Loss | None:
        return None

    def _note(self, cluster: str, store: StoreReport | None, replaces: bytes, now_ms: int) -> KnownStore | None:
        if store is None:
            return None
        at = cluster, store.broker, store.path
        known = self._stores.get(at)
        kept = decide_report(store, known, replaces, now_ms)
        if kept:
            self._stores[at] = kept
            self._writes += 1
        return known

    async def save_packed(
        self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes], reported: StoreReport | None = None
    ) -> list[Differing]:
        """Decided by the rule for a single save, which the packed one is held to."""
        entries = [SaveEntry(decode_key(key), decode_record(record)) for key, record in zip(keys, records, strict=True)]
        return differing(entries, await self.save(cluster, entries, reported))

    def _below(self, prefix: bytes, after: bytes = b"") -> list[tuple[OffsetKey, OffsetRecord]]:
        end = prefix_end(prefix)
        found = sorted((key, record) for key, record in self._written.items() if prefix <= key and (not end or key < end))
        return [(OffsetKey(*unpack_names(key)[1:]), record) for key, record in found if key > after]

    def _write(self, changes: Records, *, tell: bool = False) -> None:
        self._writes += bool(changes)
        for key, record in changes.items():
            if key in self._written and (tell or is_told(record)):
                cluster, *group, _ = unpack_names(key)
                self._noted[cluster, GroupKey(*group)] = self._writes
        self._written.update(changes)

    async def _sync(self) -> None:
        writes, written = self._writes, dict(self._written) if self._writes > self._synced_writes else None
        if written is None:
            return
        await asyncio.sleep(self._sync_s)
        if writes > self._synced_writes:
            self._synced, self._synced_writes = written, writes


@cache
def _packed(cluster: str, key: OffsetKey) -> bytes:
    """Of keys that are asked for after each step."""
    return pack_names(cluster, *key)


def _columns(cluster: str, rows: Sequence[tuple[OffsetKey, OffsetRecord]]) -> Columns:
    columns = Columns()
    if rows:
        columns.add([pack_names(cluster, *key) for key, _ in rows], [encode_record(record) for _, record in rows])
    return columns
