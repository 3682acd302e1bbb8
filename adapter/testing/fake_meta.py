"""A Meta Service in memory, inside the process of a test, with the faults that a test asks for."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adapter.errors import AdapterError, UnknownCallError
from adapter.meta.client import GroupsPage, Page, Telling
from adapter.meta.kinds import WITH_EPOCHS
from adapter.meta.packed import Known, SaveLimits, cut
from adapter.meta.store_marks import ServerReports
from adapter.metaservice.engine import decide_report, decide_save, is_told
from adapter.model.codec import decode_key, decode_record, encode_key, pack_names
from adapter.model.records import (
    ChangedGroups,
    GroupKey,
    KnownStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    StoreMark,
    StoreReport,
    deleted,
    expired,
    is_deleted,
)
from adapter.rpc import meta_pb


class FakeMetadata:
    """The metadata of a FakeMeta. `faults`: exceptions to raise behind a write, as where its answer is lost."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.faults: deque[AdapterError] = deque()

    async def get(self, key: str) -> bytes | None:
        """The value; None if there is none."""
        return self.values.get(key)

    async def put_new(self, key: str, value: bytes) -> bool:
        """Store a value, unless there is one; then fail, if a fault is queued."""
        new = key not in self.values
        self.values.setdefault(key, value)
        if self.faults:
            raise self.faults.popleft()
        return new

    async def first_keys(self, prefix: str) -> list[str]:
        """All keys that begin so, in order."""
        return sorted(key for key in self.values if key.startswith(prefix))

    async def delete(self, key: str) -> None:
        """Remove a value, if there is one."""
        self.values.pop(key, None)


class FakeMeta:
    """A Meta Service in memory, with the rules of the real one.

    Faults are queued per save: an exception to raise before it is applied, or a function of the entries, which may await,
    raise, or return the outcomes itself. `apply` is what an untroubled save does.
    """

    def __init__(self, records: Mapping[OffsetKey, OffsetRecord] | None = None) -> None:
        self.records: dict[OffsetKey, OffsetRecord] = dict(records or {})
        self.saves: list[list[SaveEntry]] = []
        self.faults: deque[AdapterError | Callable[[Sequence[SaveEntry]], Any]] = deque()
        self.down: AdapterError | None = None
        self.available = True
        self.kind = WITH_EPOCHS
        self.limits = SaveLimits()
        self.endpoint = "memory"
        self.page_rows = 10_000  # of groups
        self.server_reports = ServerReports()
        self.metadata: FakeMetadata | None = FakeMetadata()
        self.stores: dict[tuple[str, str], KnownStore] = {}
        self.tells = True  # which groups were changed: an older one does not
        self.told: list[GroupKey] = []  # one for each change; the place of a caller is how many it knows
        self.forgotten = 0  # so many of the first ones are not known any more

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:
        """Store a report as `decide_report` decides; return what was stored before. Raises `down`."""
        self._check()
        at = store.broker, store.path
        known = self.stores.get(at)
        if kept := decide_report(store, known, replaces, 0):
            self.stores[at] = kept
        return known

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Record the call; then apply the entries, or fail as the next queued fault says."""
        self.saves.append(list(entries))
        self._check()
        if self.faults:
            fault = self.faults.popleft()
            if isinstance(fault, AdapterError):
                raise fault
            outcomes: list[SaveOutcome] = await fault(entries)
            return outcomes
        return self.apply(entries)

    def apply(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries as the real service does."""
        outcomes = []
        for entry in entries:
            outcome = decide_save(entry, self.records.get(entry.key))
            if outcome.status.acknowledged and outcome.standing:
                if isinstance(entries, Telling) or is_told(entry.record):
                    self.told.append(entry.key.group_key)
                self.records[entry.key] = outcome.standing
            outcomes.append(outcome)
        return outcomes

    async def changed_groups(self, after: Sequence[StoreMark]) -> ChangedGroups:
        """Return the groups behind a place. Raises `down`, and UnknownCallError unless it `tells`."""
        self._check()
        if not self.tells:
            raise UnknownCallError("unknown method")
        gap = not after or after[0].revision < self.forgotten
        groups = () if gap else self.told[after[0].revision :]
        return ChangedGroups(list(dict.fromkeys(groups)), [StoreMark("", b"fake", 1, len(self.told))], gap)

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """Return the stored records of these keys; absent keys are left out. Raises `down`."""
        self._check()
        return {key: self.records[key] for key in keys if key in self.records}

    async def differing(self, rows: Sequence[tuple[bytes, bytes]]) -> dict[OffsetKey, OffsetRecord | None] | None:
        """Compare what `get` returns; None from a server without epochs."""
        return differing_from(rows, await self.get([decode_key(key) for key, _ in rows])) if self.kind.reads_pages else None

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """Return a page of at most `page_rows` records, in key order. Raises `down`."""
        self._check()
        entries: list[tuple[OffsetKey, OffsetRecord]] = []
        for at, group in enumerate(groups):
            behind = encode_key(OffsetKey(*group, after.decode())) if after and not at else b""
            keys = [key for key in self.records if key.group_key == group and encode_key(key) > behind]
            for key in sorted(keys, key=encode_key):
                entries.append((key, self.records[key]))
                if len(entries) == self.page_rows:  # as the real one, it does not know then whether that was the last
                    return GroupsPage(entries, groups[at:], key.shard.encode())
        return GroupsPage(entries, (), b"")

    async def news_page(self, groups: Sequence[GroupKey], after: bytes, known: Known) -> GroupsPage:
        """Leave nothing out."""
        return await self.groups_page(groups, after)

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """Return all records of a namespace and group (empty: all) as one page, in key order. Raises `down`."""
        self._check()
        names = tuple(name for name in (namespace, group) if name)
        return sorted((key, record) for key, record in self.records.items() if key[: len(names)] == names), b""

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        """Replace a group by tombstones and return 0, or return its newest commit time if that is not before `before_ms`."""
        self._check()
        live = {key: record for key, record in self.records.items() if key.group_key == group and record.live}
        newest_ms = max((record.committed_at_ms for record in live.values()), default=0)
        if newest_ms >= before_ms:
            return newest_ms
        self.records.update((key, expired(record, now_ms)) for key, record in live.items())
        self.told.append(group)
        return 0

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        """Replace the records of a group, or of these shards, by tombstones of the next era. Raises `down`."""
        self._check()
        self.told.append(group)
        now_ms = time.time_ns() // 1_000_000
        for key, record in self.records.items():
            if key.group_key == group and (not shards or key.shard in shards) and not is_deleted(record):
                self.records[key] = deleted(record, now_ms)

    def _check(self) -> None:
        self.available = self.down is None
        if self.down:
            raise self.down


def differing_from(
    rows: Sequence[tuple[bytes, bytes]], found: Mapping[OffsetKey, OffsetRecord]
) -> dict[OffsetKey, OffsetRecord | None]:
    """Of encoded keys and records, what stands instead by `found`."""
    pairs = [(decode_key(key), decode_record(value)) for key, value in rows]
    return {key: found.get(key) for key, record in pairs if found.get(key) != record}


def entries_of(request: meta_pb.MergeOffsetDataRequest) -> list[SaveEntry]:
    """The entries of a save in columns."""
    rows, cluster = request.packed, pack_names(request.cluster_name)
    keys = [decode_key(key.removeprefix(cluster)) for key in cut(rows.keys, rows.key_sizes)]
    return list(map(SaveEntry, keys, map(decode_record, cut(rows.records, rows.record_sizes))))
