"""Keys and records of `codec` to and from Arrow columns, whole columns at a time: no Python object is made for each value.

The bytes are exactly those of `codec`. A damaged key or record raises StoreDamagedError. A value that does not fit into Spark's
signed integers or Python's datetime becomes null, and the column `problem` says what it was.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model.codec import pack_names
from adapter.model.names import METADATA_MAX_BYTES
from adapter.model.records import LONG_MAX
from adapter.model.schemas import RECORDS

# The same layout as `codec._HEAD`.
_HEAD = np.dtype(
    [
        ("seq", ">u8"),
        ("epoch", ">u8"),
        ("offset", ">u8"),
        ("committed_at_ms", ">u8"),
        ("live", "u1"),
        ("partition", ">u4"),
        ("topic_size", "u1"),
        ("metadata_size", ">u2"),
    ]
)
_SIZE = np.dtype("<u2")  # of a key or record in `PackedRows`: 16 bits are enough for each
# The end of the year 9999. A later time cannot become a Python datetime; one such row would make the whole table unreadable.
TIME_MAX_MS = 253_402_300_799_999
_BUFFER_MAX = 2**31 - 1  # Arrow's strings have signed 32-bit offsets

_Ints = npt.NDArray[np.int64]
_U64 = npt.NDArray[np.uint64]


def decode_records(keys: Sequence[bytes], records: Sequence[bytes]) -> pa.RecordBatch:
    """Decode keys and records to rows of `schemas.RECORDS`, in the given order.

    The keys together and the records together must be under 2 GiB each. Raises StoreDamagedError for a damaged key or record,
    InvalidInputError if the numbers of keys and records differ.
    """
    return _decoded(_Values.joined(keys), _Values.joined(records), 3)


def decode_packed(keys: bytes, key_sizes: bytes, records: bytes, record_sizes: bytes) -> pa.RecordBatch:
    """As `decode_records`, from the four columns of `PackedRows`, whose keys begin with the cluster."""
    return _decoded(_Values.sized(keys, key_sizes), _Values.sized(records, record_sizes), 4)


def _decoded(keys: "_Values", records: "_Values", names: int) -> pa.RecordBatch:
    if keys.size != records.size:
        raise InvalidInputError(f"{keys.size} keys but {records.size} records")
    namespace, group, shard = _names(keys, names)
    heads, topic, metadata = _parts(records)
    epoch, offset, at_ms = (heads[name].astype(np.uint64) for name in ("epoch", "offset", "committed_at_ms"))
    # 0 means that the writer did not know the time.
    at_us = pa.array(np.minimum(at_ms, TIME_MAX_MS).astype(np.int64) * 1000, mask=(at_ms == 0) | (at_ms > TIME_MAX_MS))
    columns = [
        namespace,
        group,
        shard,
        topic,
        pa.array(heads["partition"].astype(np.int64)),
        _signed(epoch),
        _signed(offset),
        pa.array(heads["live"].astype(np.bool_)),
        at_us.cast(RECORDS.field("committed_at").type),
        metadata,
        _problems({"epoch": (epoch, LONG_MAX), "offset": (offset, LONG_MAX), "committed_at": (at_ms, TIME_MAX_MS)}),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def decode_seqs(records: Sequence[bytes]) -> _U64:
    """Decode the write counters of records. Raises StoreDamagedError."""
    heads, _, _ = _parts(_Values.joined(records))
    return heads["seq"].astype(np.uint64)


def encode_columns(batch: pa.RecordBatch, *front: str) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Encode rows of `schemas.RECORDS` to keys and records, in order, with write counter 0. `problem` is ignored.

    The keys begin with the names `front`. Names, topics and metadata must be valid as `model.names` defines. Only `committed_at`
    may be null (encoded as 0). Raises InvalidInputError that names the column.
    """
    if not batch.num_rows:
        return pa.array([], pa.binary()), pa.array([], pa.binary())
    pieces: list[pa.Array] = [pa.scalar(pack_names(*front), pa.binary())] if front else []
    for name in ("namespace", "group", "shard"):
        column = _text(batch, name)
        sizes = _sizes(column, name, 255)
        pieces += [_fixed(sizes.astype("u1").tobytes(), 1), column]
    key = _joined(pieces)
    topic, metadata = _text(batch, "topic"), _text(batch, "metadata")
    heads = np.zeros(batch.num_rows, _HEAD)
    heads["epoch"] = _integers(batch, "epoch", LONG_MAX)
    heads["offset"] = _integers(batch, "offset", LONG_MAX)
    heads["partition"] = _integers(batch, "partition", 2**32 - 1)
    heads["live"] = _present(batch, "live").to_numpy(zero_copy_only=False)
    heads["committed_at_ms"] = _milliseconds(batch)
    heads["topic_size"] = _sizes(topic, "topic", 255)
    heads["metadata_size"] = _sizes(metadata, "metadata", METADATA_MAX_BYTES)
    head = _fixed(heads.tobytes(), _HEAD.itemsize)
    plain = not heads["topic_size"].any() and not heads["metadata_size"].any()
    return key, head if plain else _joined([head, topic, metadata])


def as_sized(column: pa.BinaryArray) -> tuple[bytes, bytes]:
    """The values of a column without nulls one after the other, and their sizes: both as in `PackedRows`."""
    ends, data = _ends(column), column.buffers()[2]
    joined = bytes(data[ends[0] : ends[-1]]) if data is not None else b""
    return joined, np.diff(ends).astype(_SIZE).tobytes()


def as_bytes(column: pa.BinaryArray) -> list[bytes]:
    """The values of a column without nulls, as Python bytes."""
    ends = _ends(column)
    data = column.buffers()[2]
    whole = data.to_pybytes() if data is not None else b""
    return [whole[start:end] for start, end in pairwise(ends.tolist())]


class _Values(NamedTuple):
    """Byte strings, one after the other in `data`; value i is from `ends[i]` to `ends[i + 1]`."""

    data: bytes
    ends: _Ints

    @classmethod
    def joined(cls, values: Sequence[bytes]) -> Self:
        return cls(b"".join(values), _ends_of(np.fromiter(map(len, values), np.int64, len(values))))

    @classmethod
    def sized(cls, data: bytes, sizes: bytes) -> Self:
        """`sizes` are 16-bit integers, little endian."""
        if len(sizes) % _SIZE.itemsize:
            raise StoreDamagedError(f"{len(sizes)} bytes of sizes, which have {_SIZE.itemsize} each")
        ends = _ends_of(np.frombuffer(sizes, _SIZE))
        if ends[-1] != len(data):
            raise StoreDamagedError(f"{len(data)} bytes, though {ends[-1]} should have come")
        return cls(data, ends)

    @property
    def size(self) -> int:
        return len(self.ends) - 1


def _names(keys: _Values, names: int) -> list[pa.Array]:
    """Split each key into so many names, and return the last three. Raises StoreDamagedError.

    The joined keys become one Arrow array by cutting before and after each length byte; the names are then taken from it.
    """
    data = np.frombuffer(keys.data, np.uint8)
    cuts = np.empty((keys.size, 2 * names), np.int64)
    at = keys.ends[:-1]
    for field in range(names):
        good = at < keys.ends[1:]
        if not good.all():
            _damaged("key", keys, good)
        cuts[:, 2 * field] = at
        cuts[:, 2 * field + 1] = at + 1
        at = at + 1 + data[at]
    good = at == keys.ends[1:]
    if not good.all():
        _damaged("key", keys, good)
    return _taken(keys, cuts, range(2 * names - 5, 2 * names, 2), "key")


def _parts(records: _Values) -> tuple[npt.NDArray[np.void], pa.Array, pa.Array]:
    """Split records into fixed heads, topics and metadata. Raises StoreDamagedError."""
    data, ends = records
    good = np.diff(ends) >= _HEAD.itemsize
    if not good.all():
        _damaged("record", records, good)
    if len(data) == _HEAD.itemsize * records.size:  # no record has topic or metadata
        heads = np.frombuffer(data, _HEAD)
        good = (heads["topic_size"] == 0) & (heads["metadata_size"] == 0)
        if not good.all():
            _damaged("record", records, good)
        empty = pa.repeat(pa.scalar(""), records.size)
        return heads, empty, empty
    cuts = np.empty((records.size, 3), np.int64)
    cuts[:, 0] = ends[:-1]
    cuts[:, 1] = ends[:-1] + _HEAD.itemsize
    gathered = np.frombuffer(data, np.uint8)[(ends[:-1, None] + np.arange(_HEAD.itemsize))]
    heads = np.ascontiguousarray(gathered).view(_HEAD).reshape(-1)
    cuts[:, 2] = cuts[:, 1] + heads["topic_size"]
    good = cuts[:, 2] + heads["metadata_size"] == ends[1:]
    if not good.all():
        _damaged("record", records, good)
    topic, metadata = _taken(records, cuts, (1, 2), "record")
    return heads, topic, metadata


def _ends_of(sizes: npt.NDArray[np.integer]) -> _Ints:
    """Where each value starts, and where the last one ends."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    if ends[-1] > _BUFFER_MAX:
        raise InvalidInputError(f"{ends[-1]} bytes in one batch; at most {_BUFFER_MAX} fit")
    return ends


def _taken(values: _Values, cuts: _Ints, wanted: Sequence[int], what: str) -> list[pa.Array]:
    """Cut the values at `cuts` and return the pieces at the indexes `wanted` of each value, as text columns."""
    offsets = np.append(cuts.reshape(-1), values.ends[-1]).astype(np.int32)
    pieces = pa.Array.from_buffers(pa.binary(), cuts.size, [None, pa.py_buffer(offsets), pa.py_buffer(values.data)])
    columns = []
    for piece in wanted:
        column = pieces.take(pa.array(np.arange(piece, cuts.size, cuts.shape[1], dtype=np.int64)))
        try:
            columns.append(column.cast(pa.string()))
        except pa.ArrowInvalid:
            _damaged(what, values, np.array([_is_text(value) for value in as_bytes(column)]))
            raise
    return columns


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _damaged(what: str, values: _Values, good: npt.NDArray[np.bool_]) -> None:
    first = int(np.argmin(good))
    raise StoreDamagedError(f"{what} {values.data[values.ends[first] : values.ends[first + 1]].hex()} is damaged")


def _signed(values: _U64) -> pa.Array:
    return pa.array(values.astype(np.int64), mask=values > LONG_MAX)


def _problems(columns: dict[str, tuple[_U64, int]]) -> pa.Array:
    """For each row a description of the values that are out of range; null for nearly all rows."""
    size = len(next(iter(columns.values()))[0])
    found: dict[int, list[str]] = {}
    for name, (values, highest) in columns.items():
        for row in np.flatnonzero(values > highest).tolist():
            found.setdefault(row, []).append(f"{name} {values[row]} is over {highest}")
    if not found:
        return pa.nulls(size, pa.string())
    return pa.array(["; ".join(found[row]) if row in found else None for row in range(size)], pa.string())


def _present(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise InvalidInputError(f"{name} is null")
    return column


def _text(batch: pa.RecordBatch, name: str) -> pa.Array:
    return _present(batch, name).cast(pa.binary())


def _sizes(column: pa.Array, name: str, highest: int) -> npt.NDArray[np.int32]:
    sizes: npt.NDArray[np.int32] = pc.binary_length(column).to_numpy()
    if sizes.max() > highest:
        raise InvalidInputError(f"{name} is {sizes.max()} bytes long; at most {highest} are allowed")
    return sizes


def _integers(batch: pa.RecordBatch, name: str, highest: int) -> _Ints:
    values: _Ints = _present(batch, name).to_numpy()
    if values.min() < 0 or values.max() > highest:
        raise InvalidInputError(f"{name} is not between 0 and {highest}")
    return values


def _milliseconds(batch: pa.RecordBatch) -> _Ints:
    at_us: _Ints = batch.column("committed_at").cast(pa.int64()).fill_null(0).to_numpy()
    if at_us.min() < 0:
        raise InvalidInputError("committed_at is before 1970")
    return at_us // 1000


def _fixed(data: bytes, size: int) -> pa.Array:
    count = len(data) // size
    offsets = np.arange(0, len(data) + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _joined(pieces: Sequence[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))


def _ends(column: pa.Array) -> npt.NDArray[np.int32]:
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]
