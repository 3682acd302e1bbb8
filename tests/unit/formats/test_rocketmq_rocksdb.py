"""RocketMQ's RocksDB stores: real ones of 5.3.3, and generated ones with all kinds of rows."""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Rdict

from adapter.errors import InvalidInputError
from adapter.formats import rocksdb_layouts as layouts
from adapter.formats.rocketmq_json import Queues
from adapter.formats.rocksdb_layouts import Entry
from adapter.formats.rows import Naming, NotReadableError, Reject
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX
from adapter.runtime.durable import rocks
from tests.unit.rocksdb_stores import (
    ENTRIES,
    NAMES,
    TABLE,
    V1_KEY,
    V1_VALUE,
    V2_KEY,
    V2_VALUE,
    decoded_v2,
    each_real,
    files,
    made,
    read_all,
    real,
)


@each_real
def test_a_brokers_store_gives_all_its_offsets_and_nothing_else(name: str, tmp_path: Path) -> None:
    """Also of a killed broker, and without the other tables of V2: pull offsets, topics, groups."""
    assert read_all(real(name, tmp_path)) == (TABLE, [])


@each_real
def test_reading_changes_nothing_in_a_store(name: str, tmp_path: Path) -> None:
    """No byte, no modification time, no new file."""
    store = real(name, tmp_path)
    before = files(store), store.stat().st_mtime_ns
    read_all(store)
    assert (files(store), store.stat().st_mtime_ns) == before


@each_real
def test_a_store_that_another_process_has_locked_is_read(name: str, tmp_path: Path) -> None:
    """RocksDB's lock belongs to the process, so a store open in this process is locked like any other."""
    store = real(name, tmp_path)
    with Rdict(
        str(store),
        options=rocks.options(),
        column_families={family: rocks.options() for family in Rdict.list_cf(str(store), rocks.options())},
    ):
        assert read_all(store) == (TABLE, [])


def test_what_is_flushed_while_a_store_is_read_again_and_again_is_never_lost(tmp_path: Path) -> None:
    """Each read sees at least what was flushed before it, despite new logs, tables and compactions."""
    store = tmp_path / "store"
    with Rdict(str(store), options=rocks.options()) as db:
        for offset in range(1, 20):
            db[V2_KEY] = offset.to_bytes(8, "big")
            if offset % 3 == 0:
                db.flush()
            if offset % 7 == 0:
                db.compact_range(None, None)
            assert read_all(store)[0] == [("g", "T/3", offset)]


def test_a_store_that_changes_during_each_try_is_not_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is removed before it was copied would silently lose rows."""
    store = made(tmp_path / "store", {V2_KEY: V2_VALUE})
    copy = shutil.copyfile

    def flushing(source: Path, target: Path) -> None:
        copy(source, target)
        with source.open("ab") as file:
            file.write(b"\0")

    monkeypatch.setattr(shutil, "copyfile", flushing)
    with pytest.raises(NotReadableError, match="changed in each of 10 tries to read it; stop its broker"):
        read_all(store)


def test_the_broker_and_the_namespace_are_as_they_were_named(tmp_path: Path) -> None:
    """A store contains neither, so the caller supplies both."""
    rows, rejects = read_all(made(tmp_path / "store", {V2_KEY: V2_VALUE}), Naming("ours", "", "broker-a"))
    assert (rows, rejects) == ([("g", "broker-a/T/3", 42)], [])


@each_real
def test_with_a_group_all_others_are_rejects(name: str, tmp_path: Path) -> None:
    """Rows of other groups are rejected, each with its place."""
    rows, rejects = read_all(real(name, tmp_path), Naming(group="g"))
    assert rows == [row for row in TABLE if row[0] == "g"]
    assert sorted(reject.place for reject in rejects) == sorted(
        f'{shard.rpartition("/")[0]}@{group}["{shard.rpartition("/")[2]}"]' for group, shard, _ in TABLE if group != "g"
    )


@pytest.mark.parametrize(
    ("value", "offsets"),
    [
        (b'{"offsetTable":{"0":1,"3":42}}', [0, 3]),
        (b'{"offsetTable":{0:1,3:42}}', [0, 3]),
        (b'{ "offsetTable" : { 0 : "1" , "3":"42" } }', [0, 3]),
        (b'{"dataVersion":{"counter":1},"offsetTable":{"0":1,"3":42}}', [0, 3]),
        (b'{"offsetTable":{}}', []),
    ],
)
def test_fastjsons_ways_to_write_a_table_are_all_read(value: bytes, offsets: list[int]) -> None:
    """Keys and longs with and without quotes: RocksDBConsumerOffsetManager.putWriteBatch, SerializerFeature."""
    found = list(layouts.decode_v1(V1_KEY, value))
    assert found == ([Queues(0, "T@g", "g", "T", "", [(0, 1), (3, 42)], keyed=True)] if offsets else [])


@pytest.mark.parametrize(
    ("key", "value", "place", "reason"),
    [
        (b"T", V1_VALUE, "T", "key: is not topic@group"),
        (b"T@g@h", V1_VALUE, "T@g@h", "key: is not topic@group"),
        (b"T@g\xff", V1_VALUE, "544067ff", "key: is not UTF-8 at byte 4"),
        (b"T@\x01", V1_VALUE, '544001["3"]', "group has the control character"),
        (b"T@", V1_VALUE, 'T@["3"]', "group is missing"),
        (b"a/T@g", V1_VALUE, 'a/T@g["3"]', "topic: 'a/T' has a /"),
        (V1_KEY, b"", "T@g", "is not JSON"),
        (V1_KEY, V1_VALUE[:-1], "T@g", "is not JSON"),
        (V1_KEY, b'{"offsetTable":{"3":\xff}}', "T@g", "is not JSON"),
        (V1_KEY, b"[" * 100_000, "T@g", "is not JSON"),
        (V1_KEY, b"[]", "T@g", "is not a JSON object"),
        (V1_KEY, b'{"topicName":"T"}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":{"3":42},"lmqOffsetTable":{}}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":{"3":42},"offsetTable":{"4":42}}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":null}', "T@g", "is not an object with one offsetTable"),
        (V1_KEY, b'{"offsetTable":{"x":42}}', 'T@g["x"]', "queue: 'x' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{2147483648:42}}', 'T@g["2147483648"]', "queue: '2147483648' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":-1}}', 'T@g["3"]', "offset: '-1' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":9223372036854775808}}', 'T@g["3"]', "offset: '9223372036854775808' is not a whole"),
        (V1_KEY, b'{"offsetTable":{"3":4.2}}', 'T@g["3"]', "offset: '4.2' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":true}}', 'T@g["3"]', "offset: 'True' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"3":null}}', 'T@g["3"]', "offset: 'None' is not a whole number"),
        (V1_KEY, b'{"offsetTable":{"\\ud800":42}}', 'T@g["\\ud800"]', r"queue: '\ud800' is not a whole number"),
    ],
)
def test_what_is_no_offset_in_v1_is_a_reject_and_the_rest_is_read(
    key: bytes, value: bytes, place: str, reason: str, tmp_path: Path
) -> None:
    """Each with its place and its reason."""
    rows, rejects = read_all(made(tmp_path / "store", {key: value, b"other@g": b'{"offsetTable":{"0":1}}'}, layouts.FAMILIES))
    assert rows == [("g", "other/0", 1)]
    assert [(reject.place, reason in reject.reason) for reject in rejects] == [(place, True)], rejects


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("00", "", "key: belongs to no known table"),
        ("010000" + "02" + "0000", "", "key: belongs to no known table"),
        ("010005" + "02" + "0000", "", "key: belongs to no known table"),
        ("ff", "", "key: belongs to no known table"),
        ("010001", "", "key: is not that of an offset"),
        ("010001" + "01" + "78", "", "key: is not that of an offset"),
        ("010001" + "03" + "0000", "", "key: is not that of an offset"),
        ("010001" + "02", "", "key: is not that of an offset"),
        ("010001" + "02" + "0002" + "67" + "01", "", "key: the group is not as long as it says"),
        ("010001" + "02" + "0001" + "67" + "02", "", "key: the group is not as long as it says"),
        ("010001" + "02" + "0001" + "67" + "01" + "0009" + "54" + "00000003", "", "key: the topic is not as long as it says"),
        (V2_KEY.hex()[:-2], V2_VALUE.hex(), "key: the topic is not as long as it says"),
        (V2_KEY.hex() + "00", V2_VALUE.hex(), "key: has 1 bytes too many behind the topic"),
        (V2_KEY.hex()[:-8] + "ffffffff", V2_VALUE.hex(), "queue: -1 is below 0"),
        (V2_KEY.hex(), V2_VALUE.hex()[:-2], "offset: has 7 bytes instead of 8"),
        (V2_KEY.hex(), V2_VALUE.hex() + "00", "offset: has 9 bytes instead of 8"),
        (V2_KEY.hex(), "ffffffffffffffff", "offset: -1 is below 0"),
        (V2_KEY.hex().replace("67", "ff"), V2_VALUE.hex(), "group: is not UTF-8 at byte 1"),
    ],
)
def test_what_is_no_offset_in_v2_is_a_reject_and_the_rest_is_read(key: str, value: str, reason: str, tmp_path: Path) -> None:
    """Each with its key in hex, and the value."""
    good, offset = layouts.encode_v2(Entry("other", "T", 0, 1))
    rows, rejects = read_all(made(tmp_path / "store", {bytes.fromhex(key): bytes.fromhex(value), good: offset}))
    assert rows == [("other", "T/0", 1)]
    assert [(reject.place, reject.text, reason in reject.reason) for reject in rejects] == [(key, value, True)], rejects


def test_a_column_family_that_is_not_known_is_a_reject(tmp_path: Path) -> None:
    """A future layout may store offsets there."""
    store = made(tmp_path / "store", {V1_KEY: V1_VALUE}, ("default", "kvDataVersion", "forbidden", "orders"))
    rows, rejects = read_all(store)
    assert rows == [("g", "T/3", 42)]
    assert rejects == [Reject(0, "orders", "", "is an unknown column family; its rows are not read")]


def test_a_single_store_whose_broker_has_no_offsets_yet_is_no_unknown_one(tmp_path: Path) -> None:
    """RocketMQ makes a column family when its first row is written; what is elsewhere than in its offsets' own is told."""
    store = made(tmp_path / "store", {}, ("default", "topic", "topicVersion", "subscriptionGroup"))
    assert read_all(store) == ([], [])
    rows, rejects = read_all(made(tmp_path / "odd", {V1_KEY: V1_VALUE}, ("default", "topic")))
    assert (rows, [reject.reason for reject in rejects]) == ([], ["key: belongs to no known table"])


def test_v1_is_known_without_its_other_column_families(tmp_path: Path) -> None:
    """As before RocketMQ 5.3. V2's keys start with a byte that no topic starts with."""
    assert read_all(made(tmp_path / "store", {V1_KEY: V1_VALUE})) == ([("g", "T/3", 42)], [])


def test_v2s_key_is_the_one_that_rocketmq_makes() -> None:
    """ConsumerOffsetManagerV2.keyOfConsumerOffset."""
    assert layouts.encode_v2(Entry("g", "T", 3, 42)) == (V2_KEY, V2_VALUE)
    assert layouts.encode_v1("g", "T", {3: 42, 0: 2**53 - 1, 1: 2**53}) == (
        V1_KEY,
        b'{"offsetTable":{"3":42,"0":9007199254740991,"1":"9007199254740992"}}',
    )


LIGHT = "%LMQ%q"


def _row_of(table: bytes, name: str) -> bytes:
    return table + len(name).to_bytes(2, "big") + name.encode()


@pytest.mark.parametrize("topic", ["T", LIGHT])
def test_the_phantom_of_a_reset_at_v2_is_no_offset(topic: str, tmp_path: Path) -> None:
    """Group and topic swapped; neither is one. The queue of which no mirror is there stays, and so does the reset itself."""
    entries = [Entry("g", topic, 0, 20), Entry(topic, "g", 0, 20), Entry(topic, "g", 7, 3)]
    rows = dict(map(layouts.encode_v2, entries)) | {_row_of(layouts.GROUPS, "g"): b"{}"}
    rows |= {_row_of(layouts.TOPICS, topic): b"{}"} if topic == "T" else {}
    assert read_all(made(tmp_path / "s", rows)) == (sorted([("g", f"{topic}/0", 20), (topic, "g/7", 3)]), [])


@pytest.mark.parametrize("missing", [layouts.GROUPS, layouts.TOPICS])
def test_what_may_be_real_at_v2_is_an_offset(missing: bytes, tmp_path: Path) -> None:
    """A group and a topic of each name; or a store that lacks what would tell. Where both are light nothing can be told."""
    entries = [Entry("a", "b", 0, 20), Entry("b", "a", 0, 20), Entry("%LMQ%a", "%LMQ%b", 0, 5), Entry("%LMQ%b", "%LMQ%a", 0, 5)]
    names = {_row_of(table, name): b"{}" for table in (layouts.GROUPS, layouts.TOPICS) for name in "ab"}
    everything = sorted((entry.group, f"{entry.topic}/0", entry.offset) for entry in entries)
    assert read_all(made(tmp_path / "s", dict(map(layouts.encode_v2, entries)) | names)) == (everything, [])
    some = {key: value for key, value in names.items() if not key.startswith(missing)}
    assert read_all(made(tmp_path / "t", dict(map(layouts.encode_v2, entries)) | some)) == (everything, [])


@given(ENTRIES)
def test_an_offset_is_the_same_after_v2_and_back(entry: Entry) -> None:
    """Any names and numbers."""
    assert decoded_v2(*layouts.encode_v2(entry)) == entry


@given(
    st.one_of(
        st.binary(),
        st.tuples(
            ENTRIES.map(lambda entry: layouts.encode_v2(entry)[0]), st.integers(4, 40), st.integers(0, 2), st.binary(max_size=2)
        ).map(lambda cut: cut[0][: cut[1]] + cut[3] + cut[0][cut[1] + cut[2] :]),
    ),
    st.binary(min_size=8, max_size=8) | st.binary(max_size=9),
)
def test_any_bytes_are_an_offset_of_v2_or_an_error(key: bytes, value: bytes) -> None:
    """An offset that is read encodes to the same bytes."""
    try:
        entry = decoded_v2(key, value)
    except InvalidInputError:
        return
    assert layouts.encode_v2(entry) == (key, value)


@given(NAMES, NAMES, st.dictionaries(st.integers(0, QUEUE_MAX), st.integers(0, LONG_MAX), min_size=1), st.booleans())
def test_a_table_is_the_same_after_v1_and_back(group: str, topic: str, offsets: dict[int, int], bare: bool) -> None:
    """Any names and numbers, with quotes or without."""
    key, value = layouts.encode_v1(group, topic, offsets)
    if bare:
        value = re.sub(rb'"(\d+)"', rb"\1", value)
    (found,) = layouts.decode_v1(key, value)
    assert isinstance(found, Queues)
    assert (found.group, found.topic, dict(found.offsets)) == (group, topic, offsets)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("offsetTable"), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.binary() | NAMES.map(lambda name: f"T@{name}".encode()),
    st.binary() | JSON.map(lambda value: str(value).encode(errors="replace")),
)
def test_any_bytes_of_v1_are_offsets_or_rejects_that_can_be_shown(key: bytes, value: bytes) -> None:
    """Nothing is lost silently: only an empty table gives nothing."""
    found = list(layouts.decode_v1(key, value))
    assert found or b"offsetTable" in value
    for reject in found:
        if isinstance(reject, Reject):
            f"{reject.place}{reject.text}{reject.reason}".encode()
