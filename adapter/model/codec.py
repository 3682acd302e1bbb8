"""The binary form of keys and records. Both stores and the Meta Service's bulk calls use it.

A key is its names in order, each preceded by its length in one byte. There is no separator that a name could contain, and the
prefix of a group matches only that group. No key starts with a zero byte: stores may use such keys for their own entries.

A record is a fixed head of 40 bytes (big endian), then topic and metadata in UTF-8.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

from adapter.errors import StoreDamagedError
from adapter.model.records import ERA_BITS, GroupKey, OffsetKey, OffsetRecord

# seq, epoch, offset, committed_at_ms, live, partition, bytes of topic, bytes of metadata
_HEAD = struct.Struct(">QQQQ?IBH")
_PLAIN = struct.Struct(">QQQQ8s").pack
_PLAIN_TAIL = struct.pack(">?IBH", True, 0, 0, 0)  # noqa: FBT003 - `live`
_SEQ = struct.Struct(">Q")
SEQ_BYTES = _SEQ.size  # a record begins with its write counter
_LIVE = 4 * SEQ_BYTES  # where `live` stands
_IN_ERA = SEQ_BYTES + ERA_BITS // 8  # the lower half of the epoch; the upper one is the era
_NO_ERA = bytes(ERA_BITS // 8)
_LENGTHS = [bytes((length,)) for length in range(256)]
KEY_MAX_BYTES = 4 * 256  # of cluster, namespace, group and shard


def pack_names(*names: str) -> bytes:
    """Encode names, each after its length: a whole key, or the common prefix of all keys below these names."""
    return b"".join([_LENGTHS[len(name)] + name for name in map(str.encode, names)])


def unpack_names(data: bytes) -> list[str]:
    """Decode names; the inverse of `pack_names`. Raises StoreDamagedError if the last one is cut off, or they are no key.

    A caller may send megabytes as a key or as a token.
    """
    if len(data) > KEY_MAX_BYTES:
        raise StoreDamagedError(f"key {data[:KEY_MAX_BYTES].hex()}... is {len(data)} bytes long")
    names = []
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        if end > len(data):
            raise StoreDamagedError(f"key {data.hex()} is cut off")
        names.append(data[at + 1 : end].decode())
        at = end
    return names


@lru_cache(maxsize=4096)
def encode_key(key: OffsetKey) -> bytes:
    """Encode namespace, group and shard. Cached."""
    return pack_names(*key)


def encode_shards(group: GroupKey, shards: Sequence[str]) -> list[bytes]:
    """Encode the keys of many shards of one group; faster than `encode_key` for each."""
    prefix = pack_names(*group)
    return [prefix + _LENGTHS[len(name)] + name for name in map(str.encode, shards)]


def decode_key(data: bytes) -> OffsetKey:
    """Decode a key; the inverse of `encode_key`. Raises StoreDamagedError."""
    names = unpack_names(data)
    if len(names) != len(OffsetKey._fields):
        raise StoreDamagedError(f"key {data.hex()} has {len(names)} names")
    return OffsetKey(*names)


def decode_stored(key: bytes, value: bytes) -> tuple[OffsetKey, OffsetRecord, int]:
    """Decode a stored key and value: the key, the record and the write counter. Faster than the three single calls."""
    try:
        end = key[0] + 1
        end += key[end] + 1
        plain = len(value) == _HEAD.size and len(key) == end + 1 + key[end]
    except IndexError:
        plain = False
    if not plain:
        return decode_key(key), decode_record(value), decode_seq(value)
    namespace, group = _names_of_group(key[:end])
    seq, epoch, offset, committed_at_ms, live, partition, _, _ = _HEAD.unpack(value)
    shard = key[end + 1 :].decode()
    return OffsetKey(namespace, group, shard), OffsetRecord(epoch, offset, live, committed_at_ms, "", "", partition), seq


@lru_cache(maxsize=16)
def _names_of_group(prefix: bytes) -> list[str]:
    """Decode the names of a group. Cached, since neighbouring keys of a scan mostly share the group."""
    return unpack_names(prefix)


def group_prefix(group: GroupKey) -> bytes:
    """The prefix that exactly the keys of this group have."""
    return pack_names(*group)


def prefix_end(prefix: bytes) -> bytes:
    """The first byte string after all that start with `prefix`; empty if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b""


def encode_record(record: OffsetRecord, seq: int = 0) -> bytes:
    """Encode a record. `seq` is the local store's write counter; the Meta Service writes 0 here."""
    topic = record.topic.encode()
    metadata = record.metadata.encode()
    head = _HEAD.pack(
        seq, record.epoch, record.offset, record.committed_at_ms, record.live, record.partition, len(topic), len(metadata)
    )
    return head + topic + metadata if topic or metadata else head


def encode_plain(seq: int, epoch: int, offset: int, committed_at_ms: int) -> bytes:
    """Encode a live record without topic, partition and metadata."""
    return _PLAIN(seq, epoch, offset, committed_at_ms, _PLAIN_TAIL)


def encode_forward(seq: int, fields: tuple[int, int, bool, int, str, str, int]) -> bytes:
    """Encode a live record without metadata; fast where it has no labels, either."""
    epoch, offset, _, committed_at_ms, _, topic, partition = fields
    if topic or partition:
        return encode_record(OffsetRecord(*fields), seq)
    return _PLAIN(seq, epoch, offset, committed_at_ms, _PLAIN_TAIL)


def encode_fields(fields: tuple[int, int, bool, int, str, str, int]) -> bytes:
    """Encode a record given as a tuple of its fields, with write counter 0."""
    epoch, offset, live, committed_at_ms, metadata, topic, partition = fields
    if metadata or topic or partition or not live:
        return encode_record(OffsetRecord(*fields))
    return _PLAIN(0, epoch, offset, committed_at_ms, _PLAIN_TAIL)


def decode_record(data: bytes) -> OffsetRecord:
    """Decode the record in a value. Raises struct.error or UnicodeDecodeError for damaged bytes."""
    _, epoch, offset, committed_at_ms, live, partition, topic_size, metadata_size = _HEAD.unpack_from(data)
    if not topic_size and not metadata_size:
        return OffsetRecord(epoch, offset, live, committed_at_ms, "", "", partition)
    at = _HEAD.size + topic_size
    topic = data[_HEAD.size : at].decode()
    return OffsetRecord(epoch, offset, live, committed_at_ms, data[at : at + metadata_size].decode(), topic, partition)


def is_plain(data: bytes) -> bool:
    """Whether an encoded record is live, of the first era, and only an offset."""
    return data[_LIVE:] == _PLAIN_TAIL and data[SEQ_BYTES:_IN_ERA] == _NO_ERA and data[_IN_ERA : 2 * SEQ_BYTES] != _NO_ERA


def is_live(data: bytes) -> bool:
    """Whether an encoded record is no tombstone."""
    return bool(data[_LIVE])


def head_of(key: bytes) -> bytes:
    """The `group_prefix` of an encoded key."""
    end = key[0] + 1
    return key[: end + key[end] + 1]


def encode_seq(seq: int) -> bytes:
    """The write counter that a value begins with."""
    return _SEQ.pack(seq)


def decode_seq(data: bytes) -> int:
    """Decode only the write counter of a value."""
    seq: int = _SEQ.unpack_from(data)[0]
    return seq
