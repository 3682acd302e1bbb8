"""The binary form: encoding and decoding preserve everything, and no key matches another group's prefix."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.errors import StoreDamagedError
from adapter.model.codec import (
    KEY_MAX_BYTES,
    decode_key,
    decode_record,
    decode_seq,
    encode_key,
    encode_record,
    group_prefix,
    pack_names,
    prefix_end,
    unpack_names,
)
from adapter.model.names import METADATA_MAX_BYTES
from adapter.model.records import U64_MAX, GroupKey, OffsetKey, OffsetRecord
from tests.unit.helpers import KEYS, NAMES, RECORDS, U64, key, record

GROUPS = st.builds(GroupKey, NAMES, NAMES)


@given(KEYS)
@example(OffsetKey("n" * 255, "ä" * 127, "\U0001f600" * 63))
def test_a_key_comes_back_as_it_was(found: OffsetKey) -> None:
    """At the largest lengths as well."""
    assert decode_key(encode_key(found)) == found


@given(RECORDS, U64)
@example(OffsetRecord(U64_MAX, U64_MAX, True, U64_MAX, "m" * METADATA_MAX_BYTES, "t" * 255, 2**32 - 1), U64_MAX)  # noqa: FBT003
def test_a_record_comes_back_as_it_was(found: OffsetRecord, seq: int) -> None:
    """Every field, and the write counter."""
    data = encode_record(found, seq)
    assert decode_record(data) == found
    assert decode_seq(data) == seq


@given(KEYS, KEYS)
def test_different_keys_have_different_bytes(a: OffsetKey, b: OffsetKey) -> None:
    """Names have a length and no separator, so no two keys have the same bytes."""
    assert (encode_key(a) == encode_key(b)) == (a == b)


@given(KEYS, GROUPS)
@example(key("b", "a"), GroupKey("default", "a/b"))
@example(key("s", "a/b"), GroupKey("default", "a"))
@example(key("s", "ab"), GroupKey("default", "a"))
@example(OffsetKey("a", "\x02bc", "d"), GroupKey("a\x02", "bc"))
def test_a_group_prefix_matches_that_group_alone(found: OffsetKey, group: GroupKey) -> None:
    """Not groups whose names start with it or contain separator-like characters."""
    assert encode_key(found).startswith(group_prefix(group)) == (found.group_key == group)


@given(KEYS)
def test_a_key_starts_with_the_prefix_of_its_group(found: OffsetKey) -> None:
    """A scan of the prefix finds it."""
    prefix = group_prefix(found.group_key)
    assert encode_key(found).startswith(prefix)
    assert prefix <= encode_key(found) < prefix_end(prefix)


@given(KEYS)
def test_no_key_starts_with_a_zero_byte(found: OffsetKey) -> None:
    """Stores use such keys for their own entries."""
    assert encode_key(found)[0] > 0


@given(st.binary(max_size=8), st.binary(max_size=12))
@example(b"\xff\xff", b"\xff\xff\xff")
@example(b"a\xff", b"b")
def test_prefix_end_is_the_first_bytes_above_the_prefix(prefix: bytes, data: bytes) -> None:
    """Between the prefix and it are exactly the strings that start with the prefix."""
    end = prefix_end(prefix)
    assert data.startswith(prefix) == (prefix <= data and (not end or data < end))


@given(st.lists(NAMES))
def test_names_come_back_in_their_order(names: list[str]) -> None:
    """Any number of fields."""
    assert unpack_names(pack_names(*names)) == names


@given(st.lists(NAMES, min_size=1), st.data())
def test_a_key_that_is_cut_off_is_damage(names: list[str], data: st.DataObject) -> None:
    """It is an error or gives fewer names, never other names."""
    whole = pack_names(*names)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = unpack_names(cut)
    except (StoreDamagedError, UnicodeDecodeError):
        return
    assert found == names[: len(found)]


def test_a_cut_name_is_not_taken_for_a_shorter_one() -> None:
    """Its length byte says how long it should be."""
    with pytest.raises(StoreDamagedError, match="is cut off"):
        unpack_names(b"\x05abc")


def test_a_bare_record_takes_no_room_for_text() -> None:
    """The common case: neither metadata nor topic."""
    assert len(encode_record(record(1))) == len(encode_record(record(1, metadata="mm"))) - 2


def test_what_is_longer_than_any_key_is_not_taken_apart() -> None:
    """Megabytes of empty names, in a token or a merge, would hold up all else for seconds, and fill the memory."""
    longest = OffsetKey("n" * 255, "g" * 255, "s" * 255)
    assert unpack_names(pack_names("c" * 255, *longest)) == ["c" * 255, *longest]
    with pytest.raises(StoreDamagedError, match="is 1025 bytes long"):
        unpack_names(bytes(KEY_MAX_BYTES + 1))
