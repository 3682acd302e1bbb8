"""Columns and `codec` agree on every key and record; values that columns cannot hold are reported, damage is an error."""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model.arrow import TIME_MAX_MS, as_bytes, as_sized, decode_packed, decode_records, decode_seqs, encode_columns
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.names import METADATA_MAX_BYTES
from adapter.model.records import LONG_MAX, U64_MAX, OffsetKey, OffsetRecord
from adapter.model.schemas import RECORDS
from tests.unit.helpers import KEYS, U64, key, record
from tests.unit.helpers import RECORDS as ANY_RECORDS

Entry = tuple[OffsetKey, OffsetRecord]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LARGEST = (
    OffsetKey("n" * 255, "ä" * 127, "\U0001f600" * 63),
    OffsetRecord(U64_MAX, U64_MAX, True, U64_MAX, "m" * METADATA_MAX_BYTES, "t" * 255, 2**32 - 1),  # noqa: FBT003
)
FITS = st.builds(
    OffsetRecord,
    epoch=st.integers(0, LONG_MAX),
    offset=st.integers(0, LONG_MAX),
    live=st.booleans(),
    committed_at_ms=st.integers(0, TIME_MAX_MS),
    metadata=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    partition=st.integers(0, 2**32 - 1),
)


def encoded(entries: Sequence[Entry], seq: int = 0) -> tuple[list[bytes], list[bytes]]:
    """Keys and records in stored form."""
    return [encode_key(found) for found, _ in entries], [encode_record(value, seq) for _, value in entries]


def as_row(found: OffsetKey, value: OffsetRecord) -> dict[str, Any]:
    """The row of schemas.RECORDS, computed without columns."""
    problems = [
        f"{name} {number} is over {highest}"
        for name, number, highest in (
            ("epoch", value.epoch, LONG_MAX),
            ("offset", value.offset, LONG_MAX),
            ("committed_at", value.committed_at_ms, TIME_MAX_MS),
        )
        if number > highest
    ]
    known = 0 < value.committed_at_ms <= TIME_MAX_MS
    return {
        **found._asdict(),
        "topic": value.topic,
        "partition": value.partition,
        "epoch": value.epoch if value.epoch <= LONG_MAX else None,
        "offset": value.offset if value.offset <= LONG_MAX else None,
        "live": value.live,
        "committed_at": EPOCH + timedelta(milliseconds=value.committed_at_ms) if known else None,
        "metadata": value.metadata,
        "problem": "; ".join(problems) or None,
    }


@given(st.lists(st.tuples(KEYS, ANY_RECORDS), max_size=8))
@example([LARGEST])
@example([(key(), record(0)), LARGEST, (key(), record(1, topic="t")), (key(), record(2, metadata="m"))])
@example([(key(), record(LONG_MAX)), (key(), record(LONG_MAX + 1))])
@example([(key(), record(1, committed_at_ms=TIME_MAX_MS)), (key(), record(1, committed_at_ms=TIME_MAX_MS + 1))])
def test_columns_are_what_the_records_say(entries: list[Entry]) -> None:
    """For all 64-bit numbers and all texts, in any mixture."""
    batch = decode_records(*encoded(entries))
    assert batch.schema == RECORDS
    batch.validate(full=True)
    assert batch.to_pylist() == [as_row(*entry) for entry in entries]


def encoded_rows(batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
    """Its keys and records."""
    keys, records = encode_columns(batch)
    return as_bytes(keys), as_bytes(records)


@given(st.lists(st.tuples(KEYS, FITS), max_size=8))
@example([(key("ü" * 127), record(3, topic="t", metadata="ä" * 2048)), (key("s"), record(LONG_MAX))])
def test_what_fits_comes_back_as_the_same_bytes(entries: list[Entry]) -> None:
    """Decoding and encoding preserve the whole record."""
    keys, records = encoded(entries)
    assert encoded_rows(decode_records(keys, records)) == (keys, records)


@given(st.lists(st.tuples(KEYS, FITS), min_size=3, max_size=8), st.data())
def test_a_slice_of_a_batch_is_encoded_as_that_slice(entries: list[Entry], data: st.DataObject) -> None:
    """A slice in Arrow shares the buffers of the whole."""
    keys, records = encoded(entries)
    start = data.draw(st.integers(0, len(entries)))
    size = data.draw(st.integers(0, len(entries) - start))
    batch = decode_records(keys, records).slice(start, size)
    assert encoded_rows(batch) == (keys[start : start + size], records[start : start + size])


def test_a_slice_of_encoded_columns_is_that_slice() -> None:
    """A slice in Arrow may start anywhere in its buffers."""
    keys, records = encoded([(key(name), record(at, metadata=name)) for at, name in enumerate(["a", "bb", "ccc", "d"])])
    key_column, record_column = encode_columns(decode_records(keys, records))
    assert as_bytes(key_column.slice(1, 2)) == keys[1:3]
    assert as_bytes(record_column.slice(2)) == records[2:]


@given(st.lists(st.tuples(ANY_RECORDS, U64), max_size=8))
def test_write_counters_come_back(found: list[tuple[OffsetRecord, int]]) -> None:
    """All 64 bits of them."""
    seqs = decode_seqs([encode_record(value, seq) for value, seq in found])
    assert seqs.tolist() == [seq for _, seq in found]


def test_a_write_counter_is_not_part_of_what_is_written() -> None:
    """A snapshot's records become the Meta Service's."""
    keys, records = encoded([(key(), record(5))], seq=77)
    assert encoded_rows(decode_records(keys, records))[1] == [encode_record(record(5))]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x05",
        b"\x01n\x01g",
        b"\x01n\x01g\x02s",
        b"\x01n\x01g\xffs",
        pack_names("n", "g", "s", "more"),
        b"\x01n\x01g\x01\xff",
        b"\x01\xc3\x01\xa4\x01s",
    ],
    ids=["empty", "only a length", "two names", "cut off", "cut off far", "four names", "not UTF-8", "UTF-8 across names"],
)
def test_a_damaged_key_is_named(bad: bytes) -> None:
    """By its bytes. Its neighbours, whose length bytes are not UTF-8 themselves, are not blamed."""
    good = encode_key(key("s" * 200))
    with pytest.raises(StoreDamagedError, match=f"^key {bad.hex()} is damaged"):
        decode_records([good, bad, good], [encode_record(record(1))] * 3)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        encode_record(record(1))[:-1],
        encode_record(record(1)) + b"x",
        encode_record(record(1, metadata="abc"))[:-1],
        encode_record(record(1, metadata="abc"))[:-3],
        encode_record(record(1, topic="abc"))[:-3],
        encode_record(record(1, metadata="abc"))[:-3] + b"\xff\xff\xff",
        encode_record(record(1, topic="abc"))[:-3] + b"\xff\xff\xff",
    ],
    ids=["empty", "cut head", "too long", "cut text", "no metadata", "no topic", "metadata not UTF-8", "topic not UTF-8"],
)
def test_a_damaged_record_is_named(bad: bytes) -> None:
    """The error names it even if the lengths of the other records make up for the damage."""
    good = encode_record(record(1))
    with pytest.raises(StoreDamagedError, match=f"^record {bad.hex()} is damaged"):
        decode_records([encode_key(key())] * 3, [good, bad, good])
    if len(bad) < len(good):
        with pytest.raises(StoreDamagedError, match=f"^record {bad.hex()} is damaged"):
            decode_seqs([good, bad, good + b"x"])


def test_keys_without_records_are_refused() -> None:
    """Lists of different lengths would pair keys with the wrong records."""
    with pytest.raises(InvalidInputError, match="2 keys but 1 record"):
        decode_records([encode_key(key())] * 2, [encode_record(record(1))])


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("namespace", None, "namespace is null"),
        ("offset", None, "offset is null"),
        ("live", None, "live is null"),
        ("offset", -1, "offset is not between"),
        ("epoch", -1, "epoch is not between"),
        ("partition", 2**32, "partition is not between"),
        ("shard", "s" * 256, "shard is 256 bytes long"),
        ("topic", "ä" * 128, "topic is 256 bytes long"),
        ("metadata", "m" * 65_536, "metadata is 65536 bytes long"),
        ("committed_at", EPOCH - timedelta(seconds=1), "committed_at is before 1970"),
    ],
)
def test_what_a_record_cannot_hold_is_refused_by_its_column(column: str, value: Any, problem: str) -> None:
    """Nothing is truncated or wraps around."""
    rows = [as_row(key(), record(1)), {**as_row(key(), record(1)), column: value}]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in RECORDS]
    with pytest.raises(InvalidInputError, match=problem):
        encoded_rows(pa.RecordBatch.from_arrays(columns, names=RECORDS.names))


def columns(keys: list[bytes], records: list[bytes]) -> tuple[bytes, bytes, bytes, bytes]:
    """Keys, which get a cluster, and records as `PackedRows` has them."""
    whole = [pack_names("cluster") + packed for packed in keys]
    sizes = [struct.pack(f"<{len(values)}H", *map(len, values)) for values in (whole, records)]
    return b"".join(whole), sizes[0], b"".join(records), sizes[1]


@given(st.lists(st.tuples(KEYS, ANY_RECORDS), max_size=8))
@example([(key("\u00fc" * 127, "g" * 255, "n" * 255), record(3, topic="t" * 255, metadata="m" * 4096))])
def test_columns_of_packed_rows_are_those_of_their_keys_and_records(entries: list[Entry]) -> None:
    """The cluster is left out; sizes have 16 bits."""
    keys, records = encoded(entries)
    assert decode_packed(*columns(keys, records)).equals(decode_records(keys, records))


@given(st.lists(st.tuples(KEYS, FITS), max_size=8), st.integers(0, 3))
def test_rows_become_the_columns_of_packed_rows(entries: list[Entry], start: int) -> None:
    """The names in front are part of each key; a slice becomes its own columns."""
    keys, records = encoded(entries)
    found = encode_columns(decode_records(keys, records), "cluster")
    sized = [each for column in found for each in as_sized(column[start:])]
    assert tuple(sized) == columns(keys[start:], records[start:])


def test_damaged_packed_rows_are_an_error() -> None:
    """Bytes that are missing, keys of another number of names, and columns of different lengths."""
    keys, records = encoded([(key("a"), record(1)), (key("b"), record(2))])
    joined, key_sizes, data, record_sizes = columns(keys, records)
    with pytest.raises(StoreDamagedError, match=f"^{len(data) - 1} bytes, though {len(data)} should have come"):
        decode_packed(joined, key_sizes, data[:-1], record_sizes)
    with pytest.raises(StoreDamagedError, match="3 bytes of sizes, which have 2 each"):
        decode_packed(joined, key_sizes, data, record_sizes[:-1])
    with pytest.raises(StoreDamagedError, match=f"^key {keys[0].hex()} is damaged"):
        decode_packed(b"".join(keys), struct.pack("<2H", *map(len, keys)), data, record_sizes)
    with pytest.raises(InvalidInputError, match="2 keys but 1 record"):
        decode_packed(joined, key_sizes, records[0], record_sizes[:2])
