"""Validation of merges: the same keys and records as in a save are accepted, and nothing else (10)."""

import asyncio
import struct
import tracemalloc
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.errors import AdapterError, InvalidInputError
from adapter.metaservice import bulk_checks
from adapter.metaservice.bulk_checks import (
    NO_KEY,
    NO_RECORD,
    OTHER_CLUSTER,
    SLICE,
    Checked,
    Rejected,
    check,
    check_packed,
)
from adapter.metaservice.engine import Columns
from adapter.metaservice.offset_service import _problem
from adapter.model.codec import decode_key, decode_record, encode_key, encode_record, pack_names
from adapter.model.records import EPOCH_MAX, MAX_ENTRIES, OffsetKey, OffsetRecord, SaveEntry
from adapter.rpc import meta_pb
from adapter.runtime.slices import ITERATIONS
from tests.unit.helpers import KEYS, RECORDS, U64, key, packed_rows, record

NOW_MS = 1_700_000_000_000
CLUSTER = "c"
KEY = encode_key(key())
PLAIN = record(5, committed_at_ms=NOW_MS)
FULL = OffsetRecord(3, 7, live=False, committed_at_ms=5, metadata="mä" * 9, topic="tö", partition=4)
LONG = "x" * 256


RUNNER = asyncio.Runner()


@pytest.fixture(scope="session", autouse=True)
def _runner() -> Iterator[None]:
    """One event loop for all examples."""
    with RUNNER:
        yield


def waited(check: Coroutine[Any, Any, Checked]) -> Checked:
    """Its result."""
    return RUNNER.run(check)


def checked(keys: Sequence[bytes], records: Sequence[bytes]) -> Checked:
    """The result for entries received at NOW_MS; the same as columns and as rows."""
    found = waited(check(keys, records, NOW_MS))
    assert waited(check_packed(packed_rows(CLUSTER, keys, records), CLUSTER, NOW_MS)) == found
    return found


def one_by_one(keys: Sequence[bytes], records: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> Checked:
    """The same without the checks of whole columns."""
    with monkeypatch.context() as patch:
        patch.setattr(bulk_checks, "_printable", lambda plain, _text, _column: np.zeros_like(plain))
        return checked(keys, records)


BAD_KEYS = {
    b"": NO_KEY,
    b"\0": NO_KEY,
    b"\x01": NO_KEY,
    pack_names("default", "g"): NO_KEY,
    pack_names("default", "g", "s", "t"): NO_KEY,
    KEY[:-1]: NO_KEY,
    KEY + b"x": NO_KEY,
    KEY + b"\0": NO_KEY,
    KEY[:-1] + b"\xff": NO_KEY,
    b"\1\xc3\1g\1s": NO_KEY,
    # Two halves of a character, which together would be one.
    b"\1n\1\xc3\1\xa4": NO_KEY,
    pack_names("", "g", "s"): "namespace is empty",
    pack_names("n", "", "s"): "group is empty",
    pack_names("n", "g", ""): "shard is empty",
    pack_names("a\0", "g", "s"): "namespace has the control character U+0000 at position 1",
    pack_names("n", "\n", "s"): "group has the control character U+000A at position 0",
    pack_names("n", "g", "s\x7f"): "shard has the control character U+007F at position 1",
    pack_names("n", "g", "\x85"): "shard has the control character U+0085 at position 0",
}


@pytest.mark.parametrize("data", BAD_KEYS, ids=repr)
def test_what_is_no_key_is_rejected_and_its_neighbours_are_taken(data: bytes) -> None:
    """With its index and the reason (10)."""
    good = encode_record(PLAIN)
    assert checked([KEY, data, KEY], [good] * 3) == Checked([KEY, KEY], [good, good], [Rejected(1, BAD_KEYS[data])])


HEAD = struct.Struct(">QQQQBIBH")
GOOD = encode_record(FULL)
BAD_RECORDS = {
    b"": NO_RECORD,
    b"x" * 39: NO_RECORD,
    encode_record(PLAIN) + b"x": NO_RECORD,
    GOOD[:-1]: NO_RECORD,
    GOOD + b"\0": NO_RECORD,
    HEAD.pack(0, 1, 5, NOW_MS, 2, 0, 0, 0): NO_RECORD,
    HEAD.pack(0, 1, 5, NOW_MS, 1, 0, 1, 0): NO_RECORD,
    HEAD.pack(0, 1, 5, NOW_MS, 1, 0, 0, 1) + b"\xff": NO_RECORD,
    HEAD.pack(0, 1, 5, NOW_MS, 1, 0, 1, 1) + "ä".encode(): NO_RECORD,
    encode_record(record(5, EPOCH_MAX + 1, committed_at_ms=1)): f"epoch {EPOCH_MAX + 1} is over {EPOCH_MAX}",
    encode_record(record(5, 2**64 - 1, committed_at_ms=1)): f"epoch {2**64 - 1} is over {EPOCH_MAX}",
    encode_record(record(5, topic="a\tb")): "topic has the control character U+0009 at position 1",
    encode_record(record(5, metadata="m" * 4097)): "metadata is 4097 bytes long; at most 4096 are allowed",
    encode_record(record(5, metadata="ä" * 2049)): "metadata is 4098 bytes long; at most 4096 are allowed",
}


@pytest.mark.parametrize("data", BAD_RECORDS, ids=lambda data: repr(data[:45]))
def test_what_is_no_record_is_rejected_and_its_neighbours_are_taken(data: bytes) -> None:
    """No part of it is merged (10)."""
    good = encode_record(PLAIN)
    assert checked([KEY] * 3, [good, data, good]) == Checked([KEY] * 2, [good] * 2, [Rejected(1, BAD_RECORDS[data])])


@pytest.mark.parametrize("found", [PLAIN, FULL, record(0, EPOCH_MAX, committed_at_ms=2**64 - 1), record(1, 0, committed_at_ms=1)])
def test_a_good_entry_is_taken_as_it_is(found: OffsetRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the limits, and with any write counter, which the Meta Service ignores."""
    data, counted = encode_record(found), encode_record(found, seq=2**64 - 1)
    for records in ([data], [counted]):
        assert checked([KEY], records) == one_by_one([KEY], records, monkeypatch) == Checked([KEY], [data], [])


def test_an_entry_without_a_time_was_committed_when_it_came() -> None:
    """As in a save. An entry from before 2004 keeps its time."""
    records = [PLAIN, PLAIN._replace(committed_at_ms=0), FULL._replace(committed_at_ms=0), PLAIN._replace(committed_at_ms=1)]
    wanted = [PLAIN, PLAIN, FULL._replace(committed_at_ms=NOW_MS), PLAIN._replace(committed_at_ms=1)]
    for found, made in zip(records, wanted, strict=True):
        assert checked([KEY], [encode_record(found)]).records == [encode_record(made)]
    assert checked([KEY] * 4, [encode_record(found) for found in records]).records == [encode_record(made) for made in wanted]


def test_a_topic_that_is_the_name_of_the_shard_says_nothing() -> None:
    """As in a save, where newer RobustMQ requires a topic."""
    assert checked([KEY], [encode_record(PLAIN._replace(topic="s"))]).records == [encode_record(PLAIN)]


@pytest.mark.parametrize("names", [("default", "g", "s"), ("ä" * 127, "x" * 255, "\U0001f600" * 63), ("a b", "/", "%RETRY%g")])
def test_good_entries_are_checked_as_columns(names: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With labels or without, tombstones, without a time, with a write counter. Otherwise the columns would be useless."""
    monkeypatch.setattr(bulk_checks, "_good_record", lambda *_: pytest.fail("was checked by itself"))
    found = [PLAIN, FULL, PLAIN._replace(topic="t", metadata="m"), record(1, 0, partition=2**32 - 1)]
    for records in ([PLAIN, PLAIN], [FULL, FULL], found):
        keys = [KEY, *[encode_key(OffsetKey(*names))] * (len(records) - 1)]
        assert len(checked(keys, [encode_record(each, seq=at) for at, each in enumerate(records)]).keys) == len(records)


@pytest.mark.parametrize(
    "odd", [encode_record(PLAIN._replace(topic="s")), encode_record(PLAIN._replace(topic="t\x01")), b"", GOOD[:-1]]
)
def test_only_the_entry_that_is_not_plain_is_checked_by_itself(odd: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are taken from their columns."""
    alone: list[bytes] = []
    good_record = bulk_checks._good_record

    def noting(data: bytes, shard: str, now_ms: int) -> bytes:
        alone.append(data)
        return good_record(data, shard, now_ms)

    monkeypatch.setattr(bulk_checks, "_good_record", noting)
    whole = encode_record(PLAIN._replace(topic="t", metadata="m"))
    checked([KEY] * 3, [whole, odd, whole])
    assert alone == [odd] * 2  # once in each form


def test_the_newest_time_is_that_of_the_good_entries() -> None:
    """By it a future time is noticed. An entry without a time has that of the check."""
    times = {(5, 7): 7, (5, NOW_MS + 9): NOW_MS + 9, (0, 5): NOW_MS, (): 0}
    for ends in (b"", b"x"):  # plain, and checked one by one
        for sent, newest_ms in times.items():
            records = [encode_record(record(1, committed_at_ms=at_ms, topic="s" if ends else "")) for at_ms in sent]
            bad = [encode_record(record(1, committed_at_ms=2**50)) + b"x"]
            assert checked([KEY] * (len(sent) + 1), records + bad).newest_ms == newest_ms


def test_a_key_of_another_cluster_is_rejected() -> None:
    """Also if its cluster begins with the same letters, or is cut off."""
    rows = packed_rows(CLUSTER, [KEY] * 4, [encode_record(PLAIN)] * 4)
    others = [pack_names("c2") + KEY, pack_names("d") + KEY, b"\1", pack_names(CLUSTER)]
    keys = [pack_names(CLUSTER) + KEY, *others]
    columns = Columns()
    columns.add(keys, [encode_record(PLAIN)] * len(keys))
    found = waited(check_packed(columns.page().packed, CLUSTER, NOW_MS))
    assert found.keys == [KEY]
    assert found.rejected == [*(Rejected(at, OTHER_CLUSTER) for at in (1, 2, 3)), Rejected(4, NO_KEY)]
    assert len(waited(check_packed(rows, CLUSTER, NOW_MS)).keys) == 4


def test_columns_that_do_not_fit_together_are_refused() -> None:
    """As a whole: it is unknown where an entry begins."""
    good = packed_rows(CLUSTER, [KEY] * 2, [encode_record(PLAIN)] * 2)

    def changed(**fields: bytes) -> meta_pb.PackedRows:
        rows = meta_pb.PackedRows()
        rows.CopyFrom(good)
        for name, value in fields.items():
            setattr(rows, name, value)
        return rows

    for rows, message in (
        (changed(key_sizes=good.key_sizes[:-1]), "packed.key_sizes: are 3 bytes, not 16-bit integers"),
        (changed(keys=good.keys[:-1]), f"packed.keys: are {len(good.keys) - 1} bytes; their sizes are {len(good.keys)} together"),
        (changed(records=b""), "packed.records: are 0 bytes; their sizes are 80 together"),
        (changed(records=good.records[:40], record_sizes=good.record_sizes[:2]), "records: are 1, for 2 keys"),
    ):
        with pytest.raises(InvalidInputError) as refused:
            waited(check_packed(rows, CLUSTER, NOW_MS))
        assert str(refused.value) == message
    with pytest.raises(InvalidInputError, match=f"keys: are {MAX_ENTRIES + 1}, over {MAX_ENTRIES}"):
        waited(check_packed(packed_rows(CLUSTER, [KEY] * (MAX_ENTRIES + 1), [b""] * (MAX_ENTRIES + 1)), CLUSTER, NOW_MS))


PIECES = st.sampled_from(
    [b"", b"\0", b"\1", b"\2", b"a", b"s\n", b"\xc3", b"\xa4", "ä".encode(), b"\xff", KEY, KEY[:-1], b"x" * 256]
)
ANY_KEYS = st.one_of(KEYS.map(encode_key), st.lists(PIECES, max_size=6).map(b"".join), st.binary(max_size=12))
ANY_RECORDS = st.one_of(
    st.builds(encode_record, RECORDS, U64), st.builds(record, U64, U64).map(encode_record), st.binary(max_size=45)
)


@given(st.lists(st.tuples(ANY_KEYS, ANY_RECORDS), max_size=6))
@example([(b"\1n\1g\1\xc3", encode_record(PLAIN)), (b"\1n\1g\1\xa4", encode_record(PLAIN))])
@example([(KEY, encode_record(PLAIN)), (b"\7default\1h", encode_record(PLAIN))])
@example([(KEY, encode_record(record(1, topic="t"))[:-1] + b"\xc3"), (KEY, b"\xa4" + b"a" * 39)])
@example([(KEY, HEAD.pack(0, 1, 5, NOW_MS, 1, 0, 1, 1) + "ä".encode()), (KEY, GOOD)])
@example([(KEY, encode_record(PLAIN)), (b"", GOOD)])
@example([(b"\1n\1g\1\xc3", GOOD), (b"\xa4", b"")])
def test_no_bytes_but_keys_and_records_pass_and_both_ways_find_the_same(entries: list[tuple[bytes, bytes]]) -> None:
    """An accepted entry decodes to a valid one, and encodes to the same bytes (10)."""
    keys, records = [entry[0] for entry in entries], [entry[1] for entry in entries]
    found = checked(keys, records)
    with pytest.MonkeyPatch.context() as patch:
        assert found == one_by_one(keys, records, patch)
    for data, value in zip(found.keys, found.records, strict=True):
        entry = SaveEntry(decode_key(data), decode_record(value))
        assert _problem(0, entry) == ""
        assert (encode_key(entry.key), encode_record(entry.record)) == (data, value)


LABELLED = st.builds(
    encode_record,
    st.builds(record, U64, U64, topic=st.sampled_from(["", "s", "os", "a\n", "ä"]), metadata=st.text(max_size=3)),
    U64,
)


@pytest.mark.no_cover
@given(st.lists(st.one_of(ANY_RECORDS, LABELLED), min_size=1, max_size=4))
def test_of_a_good_key_both_ways_take_the_same_records(records: list[bytes]) -> None:
    """Including labels, tombstones and write counters."""
    keys = [KEY] * len(records)
    with pytest.MonkeyPatch.context() as patch:
        assert checked(keys, records) == one_by_one(keys, records, patch)


BAD_NAMES = st.sampled_from(["", "a\n", "\x9f", "s"])


@given(st.one_of(KEYS, st.builds(OffsetKey, BAD_NAMES, BAD_NAMES, BAD_NAMES)), RECORDS)
def test_a_merge_takes_what_a_save_takes(where: OffsetKey, offered: OffsetRecord) -> None:
    """Other entries are rejected for the same reason, except for the name of the field."""
    problem = _problem(0, SaveEntry(where, offered)).removeprefix("entry 0: ").replace("shard_name", "shard")
    rejected = checked([encode_key(where)], [encode_record(offered)]).rejected
    assert rejected == ([Rejected(0, problem)] if problem else [])


async def test_a_long_request_is_checked_in_slices() -> None:
    """Indexes are those of the request."""
    count = 2 * SLICE + 5
    keys = [encode_key(key(str(at))) for at in range(count)]
    bad = {3, SLICE, count - 1}
    records = [b"" if at in bad else encode_record(PLAIN) for at in range(count)]
    found = await check(keys, records, NOW_MS)
    assert [at for at, _ in found.rejected] == sorted(bad)
    assert found.keys == [data for at, data in enumerate(keys) if at not in bad]


@pytest.mark.parametrize(
    ("keys", "records", "text"),
    [
        (1, 2, "records: are 2, for 1 key"),
        (MAX_ENTRIES + 1, MAX_ENTRIES + 1, "keys: are 20001, over 20000; send several requests"),
    ],
)
async def test_a_request_that_is_bad_as_a_whole_is_refused(keys: int, records: int, text: str) -> None:
    """The error names the field (10)."""
    with pytest.raises(AdapterError) as caught:
        await check([KEY] * keys, [encode_record(PLAIN)] * records, NOW_MS)
    assert (type(caught.value), str(caught.value)) == (InvalidInputError, text)


@pytest.mark.parametrize(
    ("key_bytes", "record", "reason"),
    [(b"\0" * 2**22, encode_record(PLAIN), NO_KEY), (KEY, b"\1" * 2**22, NO_RECORD)],
    ids=["key", "record"],
)
async def test_an_entry_of_megabytes_is_rejected_before_it_is_looked_at(key_bytes: bytes, record: bytes, reason: str) -> None:
    """A key of 60 MiB of empty names held up the Meta Service for half a minute, and took 1.5 GB. The others are merged (10)."""
    tracemalloc.start()
    try:
        found = await check([KEY, key_bytes, KEY], [encode_record(PLAIN), record, encode_record(PLAIN)], NOW_MS)
        assert tracemalloc.get_traced_memory()[1] < 3 * 2**22
    finally:
        tracemalloc.stop()
    assert found.rejected == [Rejected(1, reason)]
    assert found.keys == [KEY, KEY]


async def test_long_entries_are_checked_fewer_at_a_time() -> None:
    """By their bytes, since it is these that are looked at; with the same result."""
    record = encode_record(PLAIN._replace(metadata="m" * 4096))
    keys = [encode_key(key(str(at))) for at in range(1_000)]
    call = asyncio.ensure_future(check(keys, [record] * len(keys), NOW_MS))
    turns = 0
    while not call.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= ITERATIONS * 4
    assert (await call).keys == keys


async def test_many_sizes_of_nothing_are_refused_before_they_are_added_up() -> None:
    """Their ends would take four times as much memory as the request."""
    rows = meta_pb.PackedRows(key_sizes=bytes(2**22), record_sizes=bytes(2**22))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=f"keys: are {2**21}, over {MAX_ENTRIES}"):
            await check_packed(rows, CLUSTER, NOW_MS)
        assert tracemalloc.get_traced_memory()[1] < 3 * 2**22
    finally:
        tracemalloc.stop()
