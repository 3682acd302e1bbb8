"""The entries of a flush and their outcomes, the rows of a page, and what a comparison finds, without an object for each.

Nearly every dirty key is stored exactly as sent. Making objects for a flush of a million keys would cost more than the flush
itself, so they are made only where a caller asks for one.
"""

import struct
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Mapping, Sequence
from itertools import accumulate, compress, islice
from typing import NamedTuple, TypeAlias, overload

from adapter.errors import MetaUnavailableError, StoreDamagedError
from adapter.meta.wire import check_record
from adapter.model.codec import (
    decode_key,
    decode_record,
    decode_stored,
    encode_fields,
    encode_record,
    head_of,
    is_plain,
    pack_names,
)
from adapter.model.names import name_problem
from adapter.model.records import (
    EPOCH_MAX,
    MAX_ENTRIES,
    GroupKey,
    Held,
    OffsetKey,
    OffsetRecord,
    Run,
    SaveEntry,
    SaveOutcome,
    Status,
    as_first,
)
from adapter.rpc import meta_pb
from adapter.runtime.slices import SLICE, in_slices, others

ENTRY_OVERHEAD_BYTES = 96  # numbers, tags and lengths of one entry on the wire, at their largest
PACKED_AT_ONCE = 1_000  # entries packed before the event loop runs other tasks; about 0.5 ms

_STATUSES = {meta_pb.SaveOffsetResult.APPLIED: Status.APPLIED, meta_pb.SaveOffsetResult.SUPERSEDED: Status.SUPERSEDED}


# Of encoded keys and records, which need not become objects: what is stored there is certainly the same, whatever its write
# counter; or it is taken as it is.
Known: TypeAlias = Callable[[Sequence[bytes], Sequence[bytes]], Sequence[bool]]


class SaveLimits(NamedTuple):
    """What one save may carry; and the seconds that the server needs for each where it does one after the other (0: unknown).

    `cluster_bytes`: the bytes of the cluster's name in each entry.
    """

    offsets: int = MAX_ENTRIES
    groups: int = sys.maxsize
    cluster_bytes: int = 0
    seconds_per_offset: float = 0.0
    seconds_per_group: float = 0.0


class Chunk(Sequence[SaveEntry]):
    """The entries of one save, of distinct keys. Immutable."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._ends = list(accumulate(len(run.shards) for run in runs))

    def __len__(self) -> int:
        """The number of entries."""
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[SaveEntry]:
        """Iterate over all entries, making each on the way."""
        for group, shards, held in self.runs:
            namespace, name = group
            for shard, (fields, _, _) in zip(shards, held, strict=True):
                yield SaveEntry(OffsetKey(namespace, name, shard), OffsetRecord(*fields))

    @overload
    def __getitem__(self, at: int) -> SaveEntry: ...

    @overload
    def __getitem__(self, at: slice) -> list[SaveEntry]: ...

    def __getitem__(self, at: int | slice) -> SaveEntry | list[SaveEntry]:
        """One entry, or a list of those in a slice."""
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        number = bisect_right(self._ends, place)
        group, shards, held = self.runs[number]
        place -= self._ends[number] - len(shards)
        return SaveEntry(OffsetKey(*group, shards[place]), OffsetRecord(*held[place][0]))

    def without(self, places: Container[int], count: int) -> Iterator[list[Run]]:
        """The runs without the entries at `places`, in lists of about `count` entries."""
        found: list[Run] = []
        made = at = 0
        for group, shards, held in self.runs:
            for start in range(0, len(shards), count):
                some = slice(start, start + count)
                run = Run(group, shards[some], held[some])
                size = len(run.shards)
                good = [place for place in range(size) if at + place not in places] if places else ()
                at += size
                if len(good) < size and places:
                    run = Run(group, [run.shards[place] for place in good], [run.held[place] for place in good])
                found.append(run)
                made += size
                if made >= count:
                    yield found
                    found, made = [], 0
        if found:
            yield found


class Outcomes(Sequence[SaveOutcome]):
    """The outcomes of a save: `differing` by index; every other entry was applied and is stored as `as_first` says."""

    def __init__(self, entries: Sequence[SaveEntry], others: Mapping[int, SaveOutcome]) -> None:
        self.differing = others
        self._entries = entries

    @classmethod
    async def of(cls, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> "Outcomes":
        """Build this from outcomes in entry order. Raises ValueError unless there is one for each entry."""
        if isinstance(outcomes, Outcomes):
            return outcomes
        others: dict[int, SaveOutcome] = {}
        at = 0
        async for pairs in in_slices(list(zip(entries, outcomes, strict=True))):
            for place, (entry, outcome) in enumerate(pairs, at):
                if outcome.status is not Status.APPLIED or outcome.standing not in (None, as_first(entry.record)):
                    others[place] = outcome
            at += len(pairs)
        return cls(entries, others)

    def __len__(self) -> int:
        """The number of outcomes, one for each entry."""
        return len(self._entries)

    def __iter__(self) -> Iterator[SaveOutcome]:
        """Iterate over all outcomes, making each on the way."""
        for at, entry in enumerate(self._entries):
            yield self.differing.get(at) or _applied(entry)

    @overload
    def __getitem__(self, at: int) -> SaveOutcome: ...

    @overload
    def __getitem__(self, at: slice) -> list[SaveOutcome]: ...

    def __getitem__(self, at: int | slice) -> SaveOutcome | list[SaveOutcome]:
        """One outcome, or a list of those in a slice."""
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        return self.differing.get(place) or _applied(self._entries[place])


async def chunks(
    batch: Mapping[GroupKey, Mapping[str, Held]], max_bytes: int, limits: Callable[[], SaveLimits] = SaveLimits
) -> AsyncGenerator[Chunk, None]:
    """Split a batch into chunks whose requests are smaller than `max_bytes` and within the `limits` at that time.

    Until a group's last chunk has been yielded, nothing may be removed from that group in `batch`.
    """
    runs: list[Run] = []
    count = size = made = 0
    limit = limits()
    for group in list(batch):
        if len(runs) >= limit.groups:
            yield Chunk(runs)
            runs, count, size = [], 0, 0
            limit = limits()
        found = batch[group]
        shards, held = list(found), list(found.values())
        start = 0
        for at, (fields, _, encoded) in enumerate(held):
            cost = limit.cluster_bytes + entry_bytes(fields, encoded)
            if count and (size + cost > max_bytes or count >= limit.offsets):
                if at > start:
                    runs.append(Run(group, shards[start:at], held[start:at]))
                yield Chunk(runs)
                runs, start, count, size = [], at, 0, 0
                limit = limits()
            count += 1
            size += cost
            made += 1
            if made % PACKED_AT_ONCE == 0:
                await others()
        runs.append(Run(group, shards[start:], held[start:]))
    if runs:
        yield Chunk(runs)


def entry_bytes(fields: tuple[int, int, bool, int, str, str, int], encoded: bytes) -> int:
    """An upper bound of an entry's size in a save, in either form. RobustMQ's form has each name up to twice."""
    size = ENTRY_OVERHEAD_BYTES + 2 * len(encoded)
    metadata, topic = fields[4], fields[5]
    return size + _bytes(metadata) + _bytes(topic) if metadata or topic else size


async def merge_request(cluster: str, chunk: Chunk) -> meta_pb.MergeOffsetDataRequest:
    """Build a MergeOffsetData request, in columns. Yields to the event loop."""
    keys: list[bytes] = []
    records: list[bytes] = []
    for _, _, held in chunk.runs:
        for at in range(0, len(held), PACKED_AT_ONCE):
            some = held[at : at + PACKED_AT_ONCE]
            keys += [encoded for _, _, encoded in some]
            records += [encode_fields(fields) for fields, _, _ in some]
            if len(keys) % PACKED_AT_ONCE < len(some):
                await others()
    return meta_pb.MergeOffsetDataRequest(cluster_name=cluster, tell_standing=True, packed=_columns(cluster, keys, records))


async def merge_outcomes(chunk: Chunk, reply: meta_pb.MergeOffsetDataReply) -> Outcomes:
    """The outcomes from its reply. Raises MetaUnavailableError if the reply does not fit the request."""
    found = {row.index: SaveOutcome(Status.INVALID, None, row.message) for row in reply.rejected}
    counts: Counter[Status] = Counter()
    async for some in in_slices(reply.standing):
        for row in some:
            found[row.index] = outcome = _outcome(chunk, row)
            counts[outcome.status] += 1
    rows = len(reply.rejected) + len(reply.standing)
    if not (rows or reply.applied or reply.superseded) and len(chunk):
        raise MetaUnavailableError("took no entry of a save in columns: it is older than 0.2.0, and has to be upgraded first")
    answered = reply.applied + reply.superseded + counts[Status.UNAVAILABLE] + len(reply.rejected)
    about = len(found) == rows and max(found, default=-1) < len(chunk) and counts[Status.SUPERSEDED] == reply.superseded
    if not about or answered != len(chunk):
        raise MetaUnavailableError(f"answered {answered} results, {rows} of them in rows, to {len(chunk)} entries")
    return Outcomes(chunk, found)


def _outcome(chunk: Chunk, row: meta_pb.MergeOffsetDataReply.Standing) -> SaveOutcome:
    if row.status == meta_pb.SaveOffsetResult.UNAVAILABLE:
        return SaveOutcome(Status.UNAVAILABLE, None, row.message)
    try:
        status, standing = _STATUSES[row.status], decode_record(row.record)
    except (KeyError, struct.error, ValueError) as error:
        raise MetaUnavailableError(f"entry {row.index} was answered with no status or no record: {error}") from error
    if not standing.epoch or encode_record(standing) != row.record or row.index >= len(chunk):
        raise MetaUnavailableError(f"entry {row.index} was answered with an invalid stored record")
    check_record(chunk[row.index].key, standing)
    return SaveOutcome(status, standing)


def _applied(entry: SaveEntry) -> SaveOutcome:
    return SaveOutcome(Status.APPLIED, as_first(entry.record))


def _bytes(text: str) -> int:
    """The size of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def known_request(cluster: str, rows: Sequence[tuple[bytes, bytes]]) -> meta_pb.BatchGetOffsetDataRequest:
    """A request for what stands instead of these encoded keys and records."""
    known = _columns(cluster, [key for key, _ in rows], [record for _, record in rows])
    return meta_pb.BatchGetOffsetDataRequest(cluster_name=cluster, known=known)


async def differing_of(
    reply: meta_pb.BatchGetOffsetDataReply, rows: Sequence[tuple[bytes, bytes]]
) -> dict[OffsetKey, OffsetRecord | None]:
    """What stands instead of these rows (None: nothing). Yields to the event loop.

    Raises MetaUnavailableError for a reply that cannot be right.
    """
    if not len(rows) >= reply.compared > max(reply.differing, default=0):
        raise MetaUnavailableError(f"answered that of {len(rows)} rows {reply.compared} were compared, and another one differs")
    found: dict[OffsetKey, OffsetRecord | None] = {}
    try:
        records = cut(reply.packed.records, reply.packed.record_sizes)
        async for some in in_slices(list(zip(reply.differing, records, strict=True))):
            for at, record in some:
                key = decode_key(rows[at][0])
                found[key] = _record(key, record) if record else None
    except (ValueError, struct.error) as error:
        raise MetaUnavailableError(f"answered with records that are none: {error}") from error
    return found


class PlainRows:
    """A Known that takes rows of some groups as they are, into `rows`, where they are only an offset (`codec.is_plain`)."""

    def __init__(self, groups: Container[tuple[str, str]]) -> None:
        self.rows: list[tuple[bytes, bytes]] = []
        self._groups = groups
        self._head = b"\0"  # of the last key; no name is empty

    def __call__(self, keys: Sequence[bytes], records: Sequence[bytes]) -> list[bool]:
        """Raises ValueError for a key that was not asked for."""
        plain = list(map(is_plain, records))
        rows = list(compress(zip(keys, records, strict=True), plain))
        for key, _ in rows:
            self._check(key)
        self.rows += rows
        return plain

    def _check(self, key: bytes) -> None:
        if not key.startswith(self._head):
            namespace, group, _ = decode_key(key)
            if (namespace, group) not in self._groups:
                raise ValueError(f"{key.hex()} was not asked for")
            self._head = head_of(key)
        at = len(self._head) + 1
        if len(key) <= at or len(key) != at + key[at - 1] or name_problem(key[at:].decode()):
            raise ValueError(f"{key.hex()} was not asked for")


def all_news(keys: Sequence[bytes], _: Sequence[bytes]) -> Sequence[bool]:
    """A Known of nothing."""
    return [False] * len(keys)


async def news(
    packed: meta_pb.PackedRows, cluster: str, groups: Container[tuple[str, str]], known: Known
) -> list[tuple[OffsetKey, OffsetRecord]]:
    """The rows of these groups that are not `known`. Raises MetaUnavailableError for rows that cannot be right."""
    found: list[tuple[OffsetKey, OffsetRecord]] = []
    prefix = pack_names(cluster)
    rows = zip(cut(packed.keys, packed.key_sizes), cut(packed.records, packed.record_sizes), strict=True)
    try:
        while some := list(islice(rows, SLICE)):
            keys, records = [key.removeprefix(prefix) for key, _ in some], [record for _, record in some]
            for key, record, same in zip(keys, records, known(keys, records), strict=True):
                if not same:
                    found.append(_row(key, record, groups))
            await others()
    except (ValueError, struct.error, StoreDamagedError) as error:
        raise MetaUnavailableError(f"answered with columns that are no rows: {error}") from error
    return found


def _row(key: bytes, value: bytes, groups: Container[tuple[str, str]]) -> tuple[OffsetKey, OffsetRecord]:
    where, record, _ = decode_stored(key, value)
    if where[:2] not in groups or name_problem(where.shard):
        raise ValueError(f"{key.hex()} was not asked for")
    if record.epoch > EPOCH_MAX or record.metadata or record.topic:
        check_record(where, record)
        record = _without_own_topic(where, record)
    return where, record


def _record(key: OffsetKey, value: bytes) -> OffsetRecord:
    record = decode_record(value)
    check_record(key, record)
    return _without_own_topic(key, record)


def _without_own_topic(key: OffsetKey, record: OffsetRecord) -> OffsetRecord:
    return record._replace(topic="") if record.topic == key.shard else record


def _columns(cluster: str, keys: Sequence[bytes], records: Sequence[bytes]) -> meta_pb.PackedRows:
    """Rows of a cluster; `keys` are without it."""
    prefix = pack_names(cluster)
    return meta_pb.PackedRows(
        keys=prefix + prefix.join(keys) if keys else b"",
        key_sizes=_sizes(keys, len(prefix)),
        records=b"".join(records),
        record_sizes=_sizes(records),
    )


def _sizes(values: Sequence[bytes], more: int = 0) -> bytes:
    """The column of sizes of PackedRows, each with `more` bytes."""
    return struct.pack(f"<{len(values)}H", *[len(value) + more for value in values])


def cut(joined: bytes, sizes: bytes) -> Iterator[bytes]:
    """The values of a column of PackedRows. Raises ValueError if it is not one."""
    at = 0
    for (size,) in struct.iter_unpack("<H", sizes):
        yield joined[at : at + size]
        at += size
    if at != len(joined):
        raise ValueError(f"{at} bytes are named, {len(joined)} are there")
