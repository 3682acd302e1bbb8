"""The batches of the local store: records with their write counters, members, and the store's bookkeeping.

Nothing is stored before the store writes the `Batch` below. Never reads the store.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from adapter.model.codec import (
    SEQ_BYTES,
    decode_record,
    decode_seq,
    encode_forward,
    encode_key,
    encode_record,
    encode_seq,
    group_prefix,
)
from adapter.model.records import Fields, GroupKey, Held, Member, OffsetKey, OffsetRecord
from adapter.sidecar.ledger.disk import Batch
from adapter.sidecar.ledger.group_state import GroupStates

STATE = b"\0state"
LOSS = b"\0loss"
STORE_ID = b"\0store"
UNASKED = b"\0unasked"  # see `Unasked`; absent once the Meta Service was asked
RESTORED = b"\0restored"  # see `Restored`; absent once the store was opened
FIRST_KEY = b"\1"  # bookkeeping is below, length-prefixed names are from here on
_MEMBER = b"\0member"  # before the packed names of a group
_MEMBER_FORM = struct.Struct(">Q")
_STATE_FORM = struct.Struct(">QQQQ")
_UNASKED_FORM = struct.Struct(">QQ")
_RESTORED_FORM = struct.Struct(">QQ")


class Stored(NamedTuple):
    """A record in the store with its write counter."""

    key: OffsetKey
    record: OffsetRecord
    seq: int


class Bookkeeping(NamedTuple):
    """The store's bookkeeping, written with every batch.

    `seq`: the newest write counter. `flushed_seq`: up to which the Meta Service has everything. `keys` and `digest`: how many
    records there are, and the sum of their write counters modulo 2^64: a record that vanished or went back changes them.
    """

    seq: int = 0
    flushed_seq: int = 0
    keys: int = 0
    digest: int = 0

    @classmethod
    def decode(cls, value: bytes | None) -> "Bookkeeping":
        """The stored form; of a new store None."""
        return cls(*_STATE_FORM.unpack(value)) if value else cls()

    def encode(self) -> bytes:
        """The stored form, 32 bytes."""
        return _STATE_FORM.pack(*self)


class Unasked(NamedTuple):
    """That commits are taken though the Meta Service was not asked yet what it remembers of this store.

    `seq`: the newest write counter at the first such open. What the Meta Service remembers is compared with it, since the commits
    since then hide how far an older copy of the store was. `flushed_seq`: the one of `Bookkeeping` then, which does not move
    before the question; with another one there this is out of date.
    """

    seq: int
    flushed_seq: int

    @classmethod
    def decode(cls, value: bytes | None) -> "Unasked | None":
        """The stored form; None if there is none."""
        return cls(*_UNASKED_FORM.unpack(value)) if value else None

    def encode(self) -> bytes:
        """The stored form, 16 bytes."""
        return _UNASKED_FORM.pack(*self)


class Restored(NamedTuple):
    """That the store was put back from a backup. `taken_at_ms`: when that was taken. `reached`: write counters go on above it."""

    taken_at_ms: int
    reached: int

    @classmethod
    def decode(cls, value: bytes | None) -> "Restored | None":
        """The stored form; None if there is none."""
        return cls(*_RESTORED_FORM.unpack(value)) if value else None

    def encode(self) -> bytes:
        """The stored form, 16 bytes."""
        return _RESTORED_FORM.pack(*self)


def member_key(group: GroupKey) -> bytes:
    """The key under which the member of a group is stored."""
    return _MEMBER + group_prefix(group)


def decode_member(value: bytes) -> Member:
    """The inverse of the form in which `WriteBatch.put_member` stores a member."""
    return Member(_MEMBER_FORM.unpack_from(value)[0], value[_MEMBER_FORM.size :].decode())


# The names of a group, a shard, the records of the group in memory, and the new one.
Plain: TypeAlias = tuple[tuple[str, str], str, dict[str, Held], Held]
# The same with the one that stands, and what will stand.
Change: TypeAlias = tuple[tuple[str, str], str, dict[str, Held], Held, Fields]


class WriteBatch:
    """A batch as it grows, and what memory has to hold once it is written: each record with the write counter that it gets.

    `stored` and `removed` are single keys, `forward` records by group, `rows` encoded ones, which do not come into memory.
    `plain` are those that replace a record in memory, by the encoded key. `decided` counts plain offsets, also those that change
    nothing.
    """

    def __init__(self, batch: Batch, state: Bookkeeping) -> None:
        self.batch = batch
        self.stored: list[Stored] = []
        self.removed: list[OffsetKey] = []
        self.forward: dict[GroupKey, dict[str, Held]] = {}
        self.rows: Sequence[tuple[bytes, bytes]] = ()
        self.plain: dict[bytes, Plain] = {}
        self.decided = 0
        self._seq, self._flushed_seq, self._keys, self._digest = state

    def put(self, key: OffsetKey, record: OffsetRecord, replaced: int) -> None:
        """Store a record over one whose write counter is `replaced` (0: none)."""
        self._seq += 1
        self.batch.put(encode_key(key), encode_record(record, self._seq))
        self.stored.append(Stored(key, record, self._seq))
        self._keys += not replaced
        self._digest += self._seq - replaced

    def delete(self, key: OffsetKey, replaced: int) -> None:
        """Remove what is stored there."""
        self.batch.delete(encode_key(key))
        self.removed.append(key)
        self._keys -= bool(replaced)
        self._digest -= replaced

    def put_forward(self, group: GroupKey, records: Mapping[str, Held]) -> None:
        """Store records of a group without metadata, each with the write counter that it replaces (0: none).

        The loop that the commits of whole batches take: an entry costs a small part of what RocksDB then takes for it.
        """
        put, pack, seq, digest, new = self.batch.put, encode_forward, self._seq, self._digest, 0
        written: dict[str, Held] = {}
        for shard, (fields, replaced, encoded) in records.items():
            seq += 1
            digest += seq - replaced
            new += not replaced
            put(encoded, pack(seq, fields))
            written[shard] = (fields, seq, encoded)
        self._seq, self._digest = seq, digest
        self._keys += new
        self.forward[group] = written

    def put_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Store encoded records, whatever their write counters, under encoded keys where nothing is stored."""
        self.rows = [(key, encode_seq(seq) + record[SEQ_BYTES:]) for seq, (key, record) in enumerate(rows, self._seq + 1)]
        for key, record in self.rows:
            self.batch.put(key, record)
        self._digest += sum(range(self._seq + 1, self._seq + len(rows) + 1))
        self._seq += len(rows)
        self._keys += len(rows)

    def put_plain(self, name: tuple[str, str], shard: str, held: dict[str, Held], before: Held, fields: Fields) -> None:
        """Store a record without metadata over one that is in memory, or in this batch: what most single commits do."""
        _, replaced, encoded = before
        self._seq = seq = self._seq + 1
        self._digest += seq - replaced
        self.batch.put(encoded, encode_forward(seq, fields))
        self.plain[encoded] = (name, shard, held, (fields, seq, encoded))

    def put_columns(self, changed: Iterable[Change]) -> None:
        """As `put_plain`, many: the loop takes a part of what as many calls would."""
        put, pack, plain, seq, digest = self.batch.put, encode_forward, self.plain, self._seq, self._digest
        for name, shard, held, (_, replaced, encoded), fields in changed:
            seq += 1
            digest += seq - replaced
            put(encoded, pack(seq, fields))
            plain[encoded] = (name, shard, held, (fields, seq, encoded))
        self._seq, self._digest = seq, digest

    def held(self) -> Iterator[tuple[OffsetKey, Held]]:
        """`stored`, in the form in which records are held in memory."""
        return ((key, (record, seq, encode_key(key))) for key, record, seq in self.stored)

    def put_member(self, group: GroupKey, member: Member | None) -> None:
        """Store the member of a group, or remove it (None)."""
        if member:
            self.batch.put(member_key(group), _MEMBER_FORM.pack(member.generation) + member.member_id.encode())
        else:
            self.batch.delete(member_key(group))

    def finish(self) -> Bookkeeping:
        """Put the bookkeeping that is true with this batch."""
        state = Bookkeeping(self._seq, self._flushed_seq, self._keys, self._digest % 2**64)
        self.batch.put(STATE, state.encode())
        return state

    def publish(self, states: GroupStates) -> None:
        """Bring memory to what is stored once the batch is written. Nothing may be awaited since the first record was put."""
        for _, shard, held, after in self.plain.values():
            held[shard] = after
        for group, records in self.forward.items():
            states.put(group, records)
        for key, one in self.held():
            states.put(key.group_key, {key.shard: one})
        for key in self.removed:
            states.discard(key)
        if states.evicted and self.rows:  # they never were there
            states.evicted([(decode_record(record), decode_seq(record), key) for key, record in self.rows])
