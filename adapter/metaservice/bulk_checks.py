"""Validation of the packed entries of a merge. A bad entry is rejected; the others of the request are merged (invariant 10).

There are three ways with the same result: a slice of entries that need no change is checked as a whole, other good entries by
their bytes, and the rest by the rules of SaveOffsetData.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.metaservice.bulk import EPOCH, LIVE, TIME
from adapter.model.codec import decode_record, encode_plain, encode_record, unpack_names
from adapter.model.names import METADATA_MAX_BYTES, check_metadata, check_name, check_topic, name_problem
from adapter.model.records import EPOCH_MAX, MAX_ENTRIES, OffsetRecord
from adapter.runtime.slices import others
from adapter.runtime.wording import counted

SLICE = 500  # entries checked before the event loop runs other tasks
NO_KEY = "key: is not a namespace, a group and a shard, each in UTF-8 behind its length in one byte"
NO_RECORD = "record: is cut off, longer than its lengths say, not UTF-8, or neither live nor a tombstone"

_SIZE = len(encode_plain(0, 0, 0, 0))  # of a record without topic and metadata
_LENGTHS = range(_SIZE - 3, _SIZE)  # positions of the sizes of topic and metadata
_LABELS = _LENGTHS.start  # from here on: the sizes, topic, metadata
_NO_END = b"\xff"  # no key ends with it: keys are UTF-8
_EPOCH_MAX_BYTE = 0x7F  # an epoch is at most EPOCH_MAX, 2**63 - 1, if its first byte is at most this
_SEQ = range(8)
_NEVER_ZERO = TIME.start + 2  # this byte of a commit time is not 0 from 2004 (2**40 ms) on
_NO_SEQ = bytes(len(_SEQ))
_NO_TIME = bytes(8)
_CACHED_BYTES = 512  # of the end of a record: long metadata differ from record to record


class Rejected(NamedTuple):
    """A bad entry: its index in the request, and the reason."""

    at: int
    message: str


class Checked(NamedTuple):
    """The good entries, with write counter 0 and a commit time, and the rejected ones."""

    keys: list[bytes]
    records: list[bytes]
    rejected: list[Rejected]

    @property
    def places(self) -> Sequence[int]:
        """The indexes of the good entries in the request."""
        everything = range(len(self.keys) + len(self.rejected))
        bad = {at for at, _ in self.rejected}
        return [at for at in everything if at not in bad] if bad else everything

    def all_rejected(self, later: Sequence[tuple[int, str]]) -> list[Rejected]:
        """The rejected entries, plus those that the engine refused, given by their indexes in `keys`."""
        places = self.places
        return sorted([*self.rejected, *(Rejected(places[at], message) for at, message in later)])


async def check(keys: Sequence[bytes], records: Sequence[bytes], now_ms: int) -> Checked:
    """Check a merge request. An entry without a commit time gets `now_ms` (Unix ms).

    Raises InvalidInputError if the request as a whole is bad.
    """
    if len(keys) != len(records):
        raise InvalidInputError(f"records: are {len(records)}, for {counted(len(keys), 'key')}")
    if len(keys) > MAX_ENTRIES:
        raise InvalidInputError(f"keys: are {len(keys)}, over {MAX_ENTRIES}; send several requests")
    checked = Checked([], [], [])
    for at in range(0, len(keys), SLICE):
        check_slice(checked, at, keys[at : at + SLICE], records[at : at + SLICE], now_ms)
        await others()
    return checked


def check_slice(checked: Checked, at: int, keys: Sequence[bytes], records: Sequence[bytes], now_ms: int) -> None:
    """Check the entries from index `at` on, and add them to `checked`."""
    good_keys = are_plain_keys(keys)
    if good_keys and are_plain_records(records):
        checked.keys.extend(keys)
        checked.records.extend(_completed(records, now_ms))
        return
    if good_keys and are_whole_records(keys, records):
        checked.keys.extend(keys)
        checked.records.extend(records)
        return
    now = now_ms.to_bytes(8, "big")
    for index, (key, data) in enumerate(zip(keys, records, strict=True), at):
        try:
            record = _with_time(data, now) if good_keys and is_simple(key, data) else _good_record(data, _shard_of(key), now_ms)
        except InvalidInputError as error:
            checked.rejected.append(Rejected(index, str(error)))
        else:
            checked.keys.append(key)
            checked.records.append(record)


def are_plain_keys(keys: Sequence[bytes]) -> bool:
    """True only if all keys are good. May be False for good ones, which are then checked one by one."""
    shards = []
    group, end = b"", 0  # the part of the last key before its shard; the next key often has the same
    for key in keys:
        try:
            if not group or not key.startswith(group):
                end = key[0] + 1
                end += key[end] + 1
                group = key[:end]
                if not _is_good_group(group):
                    return False
            shard = key[end + 1 :]
            if not shard or len(shard) != key[end]:
                return False
        except IndexError:
            return False
        shards.append(shard)
    try:
        # Joined by an ASCII character, they decode only if each does. A printable string has no control characters.
        return b"/".join(shards).decode().isprintable()
    except UnicodeDecodeError:
        return False


def are_plain_records(records: Sequence[bytes]) -> bool:
    """True only if all records are good, live, and without topic and metadata."""
    if {_SIZE} != {*map(len, records)}:
        return False
    joined = b"".join(records)
    return (
        joined[LIVE::_SIZE].count(1) == len(records)
        and _are_zero(joined, _LENGTHS, _SIZE)
        and max(joined[EPOCH.start :: _SIZE]) <= _EPOCH_MAX_BYTE
    )


def are_whole_records(keys: Sequence[bytes], records: Sequence[bytes]) -> bool:
    """True only if all records are good, with write counter 0 and a commit time, and no topic is the name of its shard."""
    labels = [data[_LABELS:] for data in records]
    sizes = {*map(len, labels)} or {0}
    if not len(_LENGTHS) <= min(sizes) <= max(sizes) <= _CACHED_BYTES:
        return False
    topics = {each: _topic_of(each) for each in set(labels)}
    if None in topics.values():
        return False
    heads = b"".join([data[:_LABELS] for data in records])
    return (
        max(heads[LIVE::_LABELS]) <= 1
        and max(heads[EPOCH.start :: _LABELS]) <= _EPOCH_MAX_BYTE
        and _are_zero(heads, _SEQ, _LABELS)
        and 0 not in heads[_NEVER_ZERO::_LABELS]
        and not any(map(bytes.endswith, keys, [topics[each] or _NO_END for each in labels]))
    )


def is_simple(key: bytes, data: bytes) -> bool:
    """True only if the record is good and its topic is not the name of its shard."""
    if len(data) < _SIZE or data[LIVE] > 1 or data[EPOCH.start] > _EPOCH_MAX_BYTE:
        return False
    labels = data[_LABELS:]
    topic = _topic_of(labels) if len(labels) <= _CACHED_BYTES else _topic_of.__wrapped__(labels)
    return topic is not None and not (topic and key.endswith(topic))


@lru_cache(maxsize=4096)
def _topic_of(labels: bytes) -> bytes | None:
    """The topic in the end of a record (sizes, topic, metadata); None if one of them is not good. Cached: many have the same."""
    start = len(_LENGTHS)
    end = start + labels[0]
    metadata_size = labels[1] << 8 | labels[2]
    if len(labels) != end + metadata_size or metadata_size > METADATA_MAX_BYTES or not _is_text(labels[end:]):
        return None
    topic = labels[start:end]
    if topic and not (_is_text(topic) and name_problem(topic.decode()) is None):
        return None
    return topic


def _completed(records: Sequence[bytes], now_ms: int) -> Sequence[bytes]:
    """Plain records with write counter 0 and a commit time."""
    joined = b"".join(records)
    if _are_zero(joined, _SEQ, _SIZE) and 0 not in joined[_NEVER_ZERO::_SIZE]:
        return records
    now = now_ms.to_bytes(8, "big")
    return [_with_time(data, now) for data in records]


def _with_time(data: bytes, now: bytes) -> bytes:
    """A good record with write counter 0 and a commit time."""
    if data[TIME] != _NO_TIME and data.startswith(_NO_SEQ):
        return data
    return _NO_SEQ + data[8:24] + (data[TIME] if data[TIME] != _NO_TIME else now) + data[LIVE:]


def _are_zero(joined: bytes, places: range, size: int) -> bool:
    """Whether the bytes at these positions are 0 in all pieces of this size."""
    return all(joined[place::size].count(0) * size == len(joined) for place in places)


@lru_cache(maxsize=65536)
def _is_good_group(head: bytes) -> bool:
    """Whether the bytes before the shard in a key are a valid namespace and group. Cached."""
    try:
        for name in unpack_names(head):
            check_name(name, "")
    except (InvalidInputError, StoreDamagedError, UnicodeDecodeError):
        return False
    return True


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shard_of(key: bytes) -> str:
    """The shard of a key. Raises InvalidInputError for a bad key."""
    try:
        namespace, group, shard = unpack_names(key)
    except (StoreDamagedError, ValueError):
        raise InvalidInputError(NO_KEY) from None
    check_name(namespace, "namespace")
    check_name(group, "group")
    return check_name(shard, "shard")


def _good_record(data: bytes, shard: str, now_ms: int) -> bytes:
    """The record in the form in which it is merged. Raises InvalidInputError for a bad record."""
    record = _decoded(data)
    check_topic(record.topic, "topic")
    check_metadata(record.metadata, "metadata")
    if record.epoch > EPOCH_MAX:
        raise InvalidInputError(f"epoch {record.epoch} is over {EPOCH_MAX}")
    # As in SaveOffsetData, a topic equal to the shard's name is dropped.
    topic = "" if record.topic == shard else record.topic
    return encode_record(record._replace(topic=topic, committed_at_ms=record.committed_at_ms or now_ms))


def _decoded(data: bytes) -> OffsetRecord:
    sizes = data[_LENGTHS.start : _LENGTHS.stop]
    if len(sizes) != len(_LENGTHS) or data[LIVE] > 1 or len(data) != _SIZE + sizes[0] + int.from_bytes(sizes[1:], "big"):
        raise InvalidInputError(NO_RECORD)
    try:
        return decode_record(data)
    except UnicodeDecodeError:
        raise InvalidInputError(NO_RECORD) from None
