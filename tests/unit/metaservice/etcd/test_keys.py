"""Keys and values in etcd: their order is the order of the register."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import StoreDamagedError
from adapter.metaservice.etcd.keys import Keys, as_record, decode_stored, decode_value, encode_value
from adapter.model.codec import encode_record, pack_names
from adapter.model.records import OffsetRecord
from tests.unit.helpers import key, record, tombstone

TEXT = st.text(alphabet="\0\x01aé\uffff", max_size=3)
NUMBERS = st.integers(0, 2) | st.integers(0, 2**64 - 1)
RECORDS = st.builds(
    OffsetRecord, NUMBERS, NUMBERS, st.booleans(), NUMBERS, TEXT, st.text(alphabet="aé", max_size=3), st.integers(0, 2**32 - 1)
)
ALIKE = st.builds(record, st.just(1), metadata=TEXT, topic=st.sampled_from(["", "a", "aé"]), partition=st.integers(0, 2))


@given(RECORDS | ALIKE)
def test_a_record_comes_back_as_it_was(found: OffsetRecord) -> None:
    """With every field, also zero bytes in the metadata."""
    assert decode_value(encode_value(found)) == found
    assert as_record(b"", encode_value(found)) == encode_record(found)


@given(RECORDS | ALIKE, RECORDS | ALIKE)
def test_values_compare_as_their_records_do(one: OffsetRecord, other: OffsetRecord) -> None:
    """Otherwise etcd would merge differently from `merge` (2)."""
    assert (encode_value(one) < encode_value(other)) == (one < other)


@pytest.mark.parametrize("value", [b"", b"x", b"a text of more bytes than a record without labels has", bytes(30), b"\xff" * 40])
def test_a_value_of_another_program_is_told_by_its_key(value: bytes) -> None:
    """Who shares the prefix finds the key that has to go."""
    for decode in (decode_stored, as_record):
        with pytest.raises(StoreDamagedError, match=r"the key b'p/o/x' was not written by a Meta Service"):
            decode(b"p/o/x", value)


@pytest.mark.parametrize("names", [b"", b"x", b"\1c\1n\1g", b"\1c\1n\1g\1s\1t", b"\1c\1n\1g\1\xff"])
def test_so_is_a_key_of_another_program(names: bytes) -> None:
    """Also one that is cut off, of too few or too many names, or not UTF-8."""
    with pytest.raises(StoreDamagedError, match=r"does another program use etcd\.prefix"):
        Keys("p/").offset_key(b"p/o/" + names)


def test_the_keys_of_a_group_are_those_with_its_prefix() -> None:
    """The group can be read from each of them."""
    keys = Keys("p/")
    where = keys.offset("c", key("s", "g", "n"))
    assert where == b"p/o/" + pack_names("c", "n", "g", "s")
    assert keys.group_of(where) == pack_names("c", "n", "g")
    assert keys.offset_key(where) == key("s", "g", "n")
    with pytest.raises(StoreDamagedError, match="was not written by a Meta Service"):
        keys.group_of(b"p/o/x")


def test_tombstones_are_found_by_their_time() -> None:
    """Entries from before a time sort below its key; each leads back to its offset."""
    keys = Keys("p/")
    where = keys.offset("c", key("s"))
    young, old = (keys.tombstone(where, tombstone(2)._replace(committed_at_ms=time)) for time in (2**40, 255))
    assert keys.tombstones <= old < keys.tombstones_before(256) <= keys.tombstones_before(2**40) <= young
    assert keys.buried(old) == keys.buried(young) == where


def test_no_kind_of_key_is_within_another() -> None:
    """A scan of offsets returns nothing else."""
    keys = Keys("p/")
    kinds = [keys.offsets, keys.tombstones, keys.metadata, keys.layout, keys.fence, keys.writers]
    assert not [(one, other) for one in kinds for other in kinds if one is not other and one.startswith(other)]
    assert decode_value(encode_value(record(5))) == record(5)
