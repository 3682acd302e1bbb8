"""Validation of the packed entries of a merge. A bad entry is rejected; the others of the request are merged (invariant 10).

Entries are checked many at a time, as columns in numpy. Those that are not plain there are checked one by one, by the rules of
SaveOffsetData; both ways have the same result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.metaservice.bulk import EPOCH, LIVE, TIME
from adapter.model.codec import decode_record, encode_plain, encode_record, pack_names, unpack_names
from adapter.model.names import METADATA_MAX_BYTES, check_metadata, check_name, check_topic
from adapter.model.records import EPOCH_MAX, MAX_ENTRIES, OffsetKey, OffsetRecord
from adapter.rpc import meta_pb
from adapter.runtime.slices import others
from adapter.runtime.wording import counted

SLICE = 2_000  # entries checked as columns before the event loop runs other tasks: 0.3 ms
SLICE_BYTES = 2**20  # of their keys and records, which may be long; more than any good entry has
ODD_SLICE = 200  # the same for those that are checked one by one
NO_KEY = "key: is not a namespace, a group and a shard, each in UTF-8 behind its length in one byte"
NO_RECORD = "record: is cut off, longer than its lengths say, not UTF-8, or neither live nor a tombstone"
OTHER_CLUSTER = "key: does not begin with the name of the request's cluster"

_SIZE = len(encode_plain(0, 0, 0, 0))  # of a record without topic and metadata
_LENGTHS = range(_SIZE - 3, _SIZE)  # positions of the sizes of topic and metadata
_EPOCH_MAX_BYTE = 0x7F  # an epoch is at most EPOCH_MAX, 2**63 - 1, if its first byte is at most this
_SEQ = slice(8)
_SPACE, _LAST = ord(" "), ord("~")  # printable ASCII
_CONTINUES = 0xC0, 0x80  # of a byte with this mask and value, UTF-8 has the begin of the character further in front
_SIZES, _BIG_ENDIAN = np.dtype("<u2"), np.dtype(">u8")

_Bytes = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class Rejected(NamedTuple):
    """A bad entry: its index in the request, and the reason."""

    at: int
    message: str


@dataclass
class Checked:
    """The good entries, with write counter 0 and a commit time, and the rejected ones. Keys are without the cluster.

    `newest_ms` is the newest commit time of the good ones (Unix ms).
    """

    keys: list[bytes] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    newest_ms: int = field(default=0, compare=False)

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

    def add(self, keys: Sequence[bytes], records: Sequence[bytes], newest_ms: int) -> None:
        """Add good entries."""
        self.keys.extend(keys)
        self.records.extend(records)
        self.newest_ms = max(self.newest_ms, newest_ms)


class Column(NamedTuple):
    """Byte strings one after the other; value i is from `ends[i]` to `ends[i + 1]` in `data`."""

    data: bytes
    ends: _Ints

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Self:
        """Join values."""
        return cls(b"".join(values), _ends(_sizes(values)))

    @classmethod
    def sized(cls, data: bytes, sizes: bytes, field: str) -> Self:
        """A column of PackedRows. Raises InvalidInputError that names `field`."""
        if len(sizes) % _SIZES.itemsize:
            raise InvalidInputError(f"packed.{field}_sizes: are {len(sizes)} bytes, not 16-bit integers")
        column = cls(data, _ends(np.frombuffer(sizes, _SIZES)))
        if column.ends[-1] != len(data):
            raise InvalidInputError(f"packed.{field}s: are {len(data)} bytes; their sizes are {column.ends[-1]} together")
        return column

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.ends) - 1

    def some(self, start: int, end: int) -> "Column":
        """The values from index `start` up to `end`."""
        ends = self.ends[start : end + 1]
        return Column(self.data[ends[0] : ends[-1]], ends - ends[0])

    def values(self, skip: int = 0) -> list[bytes]:
        """The values, each without its first `skip` bytes."""
        sizes = np.diff(self.ends)
        if len(sizes) and skip < sizes[0] and (sizes == sizes[0]).all():
            rows = np.frombuffer(self.data, np.uint8).reshape(-1, sizes[0])[:, skip:]
            values: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
            return values
        data, ends = self.data, self.ends.tolist()
        return [data[start + skip : end] for start, end in pairwise(ends)]


async def check(keys: Sequence[bytes], records: Sequence[bytes], now_ms: int) -> Checked:
    """Check the entries of a merge request. One without a commit time gets `now_ms` (Unix ms).

    Raises InvalidInputError if the request as a whole is bad.
    """
    _check_counts(len(keys), len(records))
    checked = Checked()
    for at, end in _slices(_ends(_sizes(keys) + _sizes(records))):
        await _check_slice(checked, at, Column.of(keys[at:end]), Column.of(records[at:end]), b"", now_ms)
        await others()
    return checked


async def check_packed(rows: meta_pb.PackedRows, cluster: str, now_ms: int) -> Checked:
    """As `check`, for entries in columns, whose keys begin with the cluster."""
    counts = len(rows.key_sizes) // _SIZES.itemsize, len(rows.record_sizes) // _SIZES.itemsize
    if max(counts) > MAX_ENTRIES:  # before anything is made of them
        _check_counts(*counts)
    keys = Column.sized(rows.keys, rows.key_sizes, "key")
    records = Column.sized(rows.records, rows.record_sizes, "record")
    _check_counts(keys.size, records.size)
    checked = Checked()
    prefix = pack_names(cluster)
    for at, end in _slices(keys.ends + records.ends):
        await _check_slice(checked, at, keys.some(at, end), records.some(at, end), prefix, now_ms)
        await others()
    return checked


def _check_counts(keys: int, records: int) -> None:
    if keys != records:
        raise InvalidInputError(f"records: are {records}, for {counted(keys, 'key')}")
    if keys > MAX_ENTRIES:
        raise InvalidInputError(f"keys: are {keys}, over {MAX_ENTRIES}; send several requests")


def _slices(ends: _Ints) -> Iterator[tuple[int, int]]:
    """Where each slice begins and ends: of at most SLICE entries, and of SLICE_BYTES or one entry. `ends` is as of `_ends`."""
    at = 0
    while at < len(ends) - 1:
        fitting = int(np.searchsorted(ends, ends[at] + SLICE_BYTES, "right")) - 1
        end = max(at + 1, min(fitting, at + SLICE))
        yield at, end
        at = end


async def _check_slice(checked: Checked, at: int, keys: Column, records: Column, prefix: bytes, now_ms: int) -> None:
    """Check entries, of which the first has the index `at`, and add them to `checked`. Keys begin with `prefix`."""
    if keys.ends[-1] + records.ends[-1] > SLICE_BYTES:  # a single one, of any size
        _check_one(checked, at, keys.data, records.data, prefix, now_ms)
        return
    plain, shards = _plain_keys(keys, prefix)
    merged, newest_ms, plain = _plain_records(records, plain, keys, shards, now_ms)
    if plain.all():
        checked.add(keys.values(len(prefix)), merged.values(), newest_ms)
        return
    odd = 0
    rows = zip(plain.tolist(), keys.values(), records.values(), merged.values(), strict=True)
    for index, (is_plain, key, given, record) in enumerate(rows, at):
        if is_plain:
            checked.add([key[len(prefix) :]], [record], newest_ms)
            continue
        _check_one(checked, index, key, given, prefix, now_ms)
        odd += 1
        if odd % ODD_SLICE == 0:
            await others()


def _check_one(checked: Checked, at: int, key: bytes, record: bytes, prefix: bytes, now_ms: int) -> None:
    """Check the entry with the index `at` by itself."""
    try:
        good = _good_record(record, _shard_of(key, prefix), now_ms)
    except InvalidInputError as error:
        checked.rejected.append(Rejected(at, str(error)))
    else:
        checked.add([key[len(prefix) :]], [good], int.from_bytes(good[TIME], "big"))


def _plain_keys(keys: Column, prefix: bytes) -> tuple[_Bools, _Ints]:
    """Which keys are certainly good, and where their shards begin. The other keys are to be checked one by one."""
    data = np.frombuffer(keys.data + b" " * (len(prefix) + 1), np.uint8)  # so that each piece that is looked at is there
    starts, ends = keys.ends[:-1], keys.ends[1:]
    plain = ends - starts > len(prefix)
    text = data.copy()
    text[starts] = _SPACE
    if prefix:
        plain[plain] = (_pieces(data, starts[plain], len(prefix)) == np.frombuffer(prefix, np.uint8)).all(axis=1)
        _pieces_of(text, len(prefix))[starts[plain]] = b" " * len(prefix)
    at = starts + len(prefix)
    shards = at
    for _ in OffsetKey._fields:
        plain &= at < ends
        at = np.where(plain, at, starts)
        sizes = data[at]
        plain &= sizes > 0
        text[at] = _SPACE
        shards = at + 1
        at = shards + sizes
    plain &= at == ends
    return _printable(plain, text, keys), shards


def _plain_records(records: Column, plain: _Bools, keys: Column, shards: _Ints, now_ms: int) -> tuple[Column, int, _Bools]:
    """The records in the form in which they are merged, their newest time (Unix ms), and which of them are certainly good.

    `plain`: those whose keys are; only they count. `shards`: where the shards begin in `keys`.
    """
    size = len(records.data)
    data = np.frombuffer(records.data + b" " * _SIZE, np.uint8).copy()  # so that a whole head is from each start on
    starts, sizes = records.ends[:-1], np.diff(records.ends)
    alike = bool((sizes == _SIZE).all())
    heads = data[:size].reshape(-1, _SIZE) if alike else _pieces(data, starts, _SIZE)
    topics = heads[:, _LENGTHS[0]].astype(np.int64)
    metadata = heads[:, _LENGTHS[1]].astype(np.int64) << 8 | heads[:, _LENGTHS[2]]
    plain &= heads[:, LIVE] <= 1
    plain &= heads[:, EPOCH.start] <= _EPOCH_MAX_BYTE
    plain &= metadata <= METADATA_MAX_BYTES
    plain &= sizes == _SIZE + topics + metadata
    if not alike:
        labels = starts + _SIZE
        plain = _plain_labels(data, records, plain, labels, topics, metadata)
        plain &= ~_same(data, labels, topics, np.frombuffer(keys.data, np.uint8), shards, keys.ends[1:] - shards, plain)
    heads[:, _SEQ] = 0
    times = np.ascontiguousarray(heads[:, TIME]).view(_BIG_ENDIAN).ravel().astype(np.uint64)
    timeless = times == 0
    if timeless.any():
        times[timeless] = now_ms
        heads[timeless, TIME] = np.frombuffer(now_ms.to_bytes(8, "big"), np.uint8)
    newest_ms = int(times[plain].max(initial=0))
    if not alike:
        _pieces_of(data, _SIZE)[starts[plain]] = heads.view(f"V{_SIZE}").ravel()[plain]
    return Column(data[:size].tobytes(), records.ends), newest_ms, plain


def _plain_labels(data: _Bytes, records: Column, plain: _Bools, labels: _Ints, topics: _Ints, metadata: _Ints) -> _Bools:
    """Those of the `plain` records whose topic and metadata are printable. `labels`: where the topics begin in `data`."""
    text = data.copy()
    text[records.ends] = _SPACE
    _pieces_of(text, _SIZE)[records.ends[:-1][plain]] = b" " * _SIZE
    # The two are beside each other in `text`, so that a character could begin in the one and end in the other.
    mask, continues = _CONTINUES
    plain &= (metadata == 0) | (data[np.where(plain, labels + topics, 0)] & mask != continues)
    return _printable(plain, text, records)


def _printable(plain: _Bools, text: _Bytes, column: Column) -> _Bools:
    """Those of the `plain` values of a column that are printable UTF-8 in `text`, which has a space before each of its texts."""
    if text.min() >= _SPACE and text.max() <= _LAST:
        return plain
    try:
        if text.tobytes().decode().isprintable():
            return plain
    except UnicodeDecodeError:
        pass
    odd = np.flatnonzero((text < _SPACE) | (text > _LAST))
    plain[np.searchsorted(column.ends, odd, "right") - 1] = False
    return plain


def _same(data: _Bytes, at: _Ints, sizes: _Ints, other: _Bytes, others_at: _Ints, others_sizes: _Ints, where: _Bools) -> _Bools:
    """Which pieces of `data` equal their pieces of `other` and are not empty; False where `where` is."""
    same: _Bools = where & (sizes > 0) & (sizes == others_sizes)
    for size in np.unique(sizes[same]).tolist():
        rows = np.flatnonzero(same & (sizes == size))
        same[rows] = (_pieces(data, at[rows], size) == _pieces(other, others_at[rows], size)).all(axis=1)
    return same


def _pieces(data: _Bytes, at: _Ints, size: int) -> _Bytes:
    """A copy of the `size` bytes from each position `at` on, as rows of a matrix."""
    return _pieces_of(data, size)[at].view(np.uint8).reshape(-1, size)


def _pieces_of(data: _Bytes, size: int) -> npt.NDArray[np.void]:
    """The `size` bytes from each position on, over the same memory. Whole pieces are copied much faster than their bytes."""
    return np.ndarray(len(data) - size + 1, f"V{size}", data, strides=1)


def _sizes(values: Sequence[bytes]) -> _Ints:
    return np.fromiter(map(len, values), np.int64, len(values))


def _ends(sizes: npt.NDArray[np.integer]) -> _Ints:
    """Where each value begins, and where the last one ends."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _shard_of(key: bytes, prefix: bytes) -> str:
    """The shard of a key. Raises InvalidInputError for a bad key."""
    if not key.startswith(prefix):
        raise InvalidInputError(OTHER_CLUSTER)
    try:
        namespace, group, shard = unpack_names(key[len(prefix) :])
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
