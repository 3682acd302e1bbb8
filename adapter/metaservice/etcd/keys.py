"""Keys and values of offsets in etcd. Values sort, byte by byte, in the order of the register.

So etcd itself can merge: it writes a value unless a greater one is stored. This is not the form of `codec`, which starts with a
write counter.
"""

import struct
from collections.abc import Sequence

from adapter.errors import StoreDamagedError
from adapter.model.codec import encode_record, pack_names, unpack_names
from adapter.model.records import OffsetKey, OffsetRecord

_HEAD = struct.Struct(">QQ?Q")  # epoch, offset, live, committed_at_ms
_PARTITION = struct.Struct(">I")
# A zero byte ends metadata and topic. A zero byte within them is followed by 0xff, which never starts UTF-8, to keep the order.
_END, _ESCAPED = b"\0", b"\0\xff"
_PLAIN_TAIL = _END + _END + _PARTITION.pack(0)
# Where the fields of the head are, and what `codec` has before and after them.
_POSITION, _LIVE, _COMMITTED = slice(0, 16), slice(16, 17), slice(17, 25)
_NO_SEQ, _PLAIN_LABELS = bytes(8), bytes(7)
_TIME = struct.Struct(">Q")
_LENGTHS = [bytes((length,)) for length in range(256)]
_GROUP_FIELDS = 3  # cluster, namespace, group
_BROKER_FIELDS = 2  # cluster, broker


def encode_value(record: OffsetRecord) -> bytes:
    """Encode a record."""
    epoch, offset, live, committed_at_ms, metadata, topic, partition = record
    head = _HEAD.pack(epoch, offset, live, committed_at_ms)
    if not metadata and not topic and not partition:
        return head + _PLAIN_TAIL
    return b"".join([head, _escape(metadata), _END, _escape(topic), _END, _PARTITION.pack(partition)])


def decode_value(value: bytes) -> OffsetRecord:
    """Decode a record; the inverse of `encode_value`. Raises ValueError or struct.error for what is no such value."""
    epoch, offset, live, committed_at_ms = _HEAD.unpack_from(value)
    if value[_HEAD.size :] == _PLAIN_TAIL:
        return OffsetRecord(epoch, offset, live, committed_at_ms)
    labels = value[_HEAD.size : -_PARTITION.size]
    metadata, topic, _ = labels.replace(_ESCAPED, _MARK).split(_END)
    partition: int = _PARTITION.unpack(value[-_PARTITION.size :])[0]
    return OffsetRecord(epoch, offset, live, committed_at_ms, _unescape(metadata), _unescape(topic), partition)


def decode_stored(where: bytes, value: bytes) -> OffsetRecord:
    """Decode the value that is stored under the key `where`. Raises StoreDamagedError if no Meta Service has written it."""
    try:
        return decode_value(value)
    except (ValueError, struct.error) as error:
        raise foreign(where) from error


def foreign(where: bytes) -> StoreDamagedError:
    """The error for a key below our prefix that no Meta Service has written, or whose value none has."""
    return StoreDamagedError(
        f"etcd: the key {where!r} was not written by a Meta Service: does another program use etcd.prefix? "
        "Delete the key (etcdctl del)"
    )


def as_record(where: bytes, value: bytes) -> bytes:
    """The form of `codec` of the record that is stored under the key `where`. Raises StoreDamagedError."""
    if value.endswith(_PLAIN_TAIL) and len(value) == _HEAD.size + len(_PLAIN_TAIL):
        return b"".join((_NO_SEQ, value[_POSITION], value[_COMMITTED], value[_LIVE], _PLAIN_LABELS))
    return encode_record(decode_stored(where, value))


# Replaces an escaped zero byte while a value is split at its zero bytes; never part of UTF-8.
_MARK = b"\xff"


def _escape(text: str) -> bytes:
    return text.encode().replace(b"\0", _ESCAPED)


def _unescape(data: bytes) -> str:
    return data.replace(_MARK, b"\0").decode()


class Keys:
    """The keys in an etcd cluster, under the configured prefix."""

    def __init__(self, prefix: str) -> None:
        base = prefix.encode()
        self.offsets = base + b"o/"
        self.tombstones = base + b"t/"  # index of tombstones by time
        self.metadata = base + b"m/"
        self.notes = base + b"c/"  # of groups that were changed other than by commits; see `change_notes`
        self.noted = base + b"noted"  # put with each of them
        self.dropped = base + b"dropped"  # put when they are dropped
        self.format = base + b"format"  # the version of all of these keys and values
        self.layout = base + b"layout"
        self.fence = base + b"fence"
        self.moving = base + b"moving/"  # position of a rebalance in each Raft group
        self.writers = base + b"seq/"
        self.stores = base + b"s/"  # reported local stores of brokers

    def offset(self, cluster: str, key: OffsetKey) -> bytes:
        """The key of an offset."""
        return self.offsets + pack_names(cluster, *key)

    def offset_key(self, where: bytes) -> OffsetKey:
        """The names in an offset's key; the inverse of `offset`, without the cluster. Raises StoreDamagedError."""
        try:
            _, namespace, group, shard = unpack_names(where[len(self.offsets) :])
        except (ValueError, StoreDamagedError) as error:
            raise foreign(where) from error
        return OffsetKey(namespace, group, shard)

    def offsets_of(self, cluster: str, keys: Sequence[OffsetKey]) -> list[bytes]:
        """The keys of many offsets. Faster if those of one group follow each other."""
        found: list[bytes] = []
        group: tuple[str, str] | None = None
        prefix = b""
        for key in keys:
            if key[:2] != group:
                group = key[:2]
                prefix = self.offsets + pack_names(cluster, *group)
            shard = key[2].encode()
            found.append(prefix + _LENGTHS[len(shard)] + shard)
        return found

    def store(self, cluster: str, broker: str, path: str) -> bytes:
        """The key of the report of a broker's local store."""
        return self.stores + pack_names(cluster, broker) + path.encode()

    def group_of(self, where: bytes) -> bytes:
        """The packed cluster, namespace and group in an offset's key. Raises StoreDamagedError."""
        return _packed(where, len(self.offsets), _GROUP_FIELDS)

    def broker_of(self, where: bytes) -> bytes:
        """The packed cluster and broker in the key of a store's report. Raises StoreDamagedError."""
        return _packed(where, len(self.stores), _BROKER_FIELDS)

    def note(self, group: bytes) -> bytes:
        """The key that notes a change of a packed consumer group."""
        return self.notes + group

    def tombstone(self, where: bytes, record: OffsetRecord) -> bytes:
        """The index entry of the tombstone at the key `where`."""
        return self.tombstones + _TIME.pack(record.committed_at_ms) + where[len(self.offsets) :]

    def tombstones_before(self, time_ms: int) -> bytes:
        """The end of the index entries of tombstones from before `time_ms` (Unix ms)."""
        return self.tombstones + _TIME.pack(max(time_ms, 0))

    def buried(self, entry: bytes) -> bytes:
        """The offset's key in a tombstone's index entry."""
        return self.offsets + entry[len(self.tombstones) + _TIME.size :]


def _packed(where: bytes, start: int, fields: int) -> bytes:
    """The packed names that begin at `start` of a key. Raises StoreDamagedError."""
    at = start
    try:
        for _ in range(fields):
            at += 1 + where[at]
    except IndexError as error:
        raise foreign(where) from error
    return where[start:at]
