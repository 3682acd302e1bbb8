"""Our JSON: every field is preserved, and every element that is no offset is a reject."""

import json
from typing import Any

import pytest
from hypothesis import given

from adapter.formats.files import Format
from adapter.formats.offsets_json import ROW_MAX
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.model.names import METADATA_MAX_BYTES
from adapter.model.records import U64_MAX
from tests.unit.formats import samples
from tests.unit.formats.samples import JSON_ROWS, N, found, lists, read, written

JSON = Format.JSON
U64_TEXT = f"is not a whole number from 0 to {U64_MAX}"


def rejects(data: bytes, group: str = "") -> list[tuple[int, str]]:
    """(line, reason) of the bad elements."""
    return samples.rejects(data, JSON, group)


@given(lists(JSON_ROWS))
def test_json_comes_back_as_it_was(rows: list[OffsetRow]) -> None:
    """Every field of every offset."""
    assert read(written(rows, JSON), JSON) == rows


def test_json_is_one_row_per_line() -> None:
    """So two exports can be compared line by line. Numbers are written as numbers, also the largest."""
    row = OffsetRow(N, "g", "s", U64_MAX)
    assert json.loads(written([row, row], JSON)) == [row._asdict()] * 2
    assert len(written([row, row], JSON).splitlines()) == 4
    assert b'"offset": 18446744073709551615,' in written([row], JSON)


def test_an_array_without_elements_has_no_rows() -> None:
    """The caller decides whether that is an error."""
    assert found(b"[]", JSON) == []


def test_a_row_is_read_as_long_as_it_may_be() -> None:
    """With the longest texts, each byte escaped."""
    row = OffsetRow("n" * 255, "g" * 255, "s" * 255, U64_MAX, "m" * METADATA_MAX_BYTES, U64_MAX, "t" * 255)
    text = json.dumps(row._asdict()).replace("m" * METADATA_MAX_BYTES, "\\u006d" * METADATA_MAX_BYTES)
    assert read(f"[{text}, {text}]".encode(), JSON) == [row, row]


@pytest.mark.parametrize("more", [b"", b',{"group": "g", "shard": "s", "offset": 1}'], ids=["last", "more"])
def test_a_row_that_is_too_long_is_a_reject(more: bytes) -> None:
    """It is not kept in memory; the rows after it are read."""
    row = b'[\n{"metadata": [[1], "' + b"x" * ROW_MAX + b'"]}' + more + b"]"
    assert rejects(row) == [(2, f"has over {ROW_MAX:,} characters; no offset has")]
    assert len(found(row, JSON)) == 1 + bool(more)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"g,t,0,5", "is not JSON, or torn: line 1: 'g,t,0,5' stands where a value should; --format kafka-csv reads Kafka's CSV"),
        (b"[\n{]", "is not JSON, or torn: line 2: ']' stands where a key should"),
        (b"[" * 100_000, "is not JSON: line 1: is nested more than 64 levels deep"),
        (
            b'[{"offset": ' + b"9" * 5_000 + b"}]",
            "is not JSON as it should be: line 1: something there has over 1,000 characters",
        ),
        (b"[{1: 5}, {}]", "is not JSON, or torn: line 1: Expecting property name enclosed in double quotes"),
        (b"{}", "is not a JSON array of offsets"),
        (b"5", "is not a JSON array of offsets"),
        (b'["\xff"]', "is not UTF-8 at byte 3, in line 1"),
        ("[]".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        (b"[] []", "is not JSON, or torn: line 1: '[]' stands where the end of the file should"),
    ],
    ids=["empty", "csv", "syntax", "deep", "digits", "unquoted", "object", "number", "utf-8", "utf-16", "more"],
)
def test_a_file_that_is_not_json_is_told(data: bytes, reason: str) -> None:
    """The error names the line, and the format that it may be."""
    with pytest.raises(NotReadableError) as raised:
        found(data, JSON)
    assert str(raised.value).startswith(reason)


def _without(*fields: str) -> dict[str, Any]:
    return {name: value for name, value in {"group": "g", "shard": "s", "offset": 1}.items() if name not in fields}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (5, "is not an object"),
        ([], "is not an object"),
        (_without("shard"), "shard is missing"),
        (_without("offset"), "offset is missing"),
        (_without() | {"ofset": 1}, "'ofset' is not a field of an offset"),
        (_without() | {"offset": -1}, f"offset: -1 {U64_TEXT}"),
        (_without() | {"offset": U64_MAX + 1}, f"offset: {U64_MAX + 1} {U64_TEXT}"),
        (_without() | {"offset": 5.0}, f"offset: 5.0 {U64_TEXT}"),
        (_without() | {"offset": "5"}, f"offset: '5' {U64_TEXT}"),
        (_without() | {"offset": True}, f"offset: True {U64_TEXT}"),
        (_without() | {"offset": None}, f"offset: None {U64_TEXT}"),
        (_without() | {"offset": [[1]]}, f"offset: [[1]] {U64_TEXT}"),
        (_without() | {"partition": 2**32}, f"partition: {2**32} is not a whole number from 0 to {2**32 - 1}"),
        (_without() | {"group": 5}, "group: 5 is not a string"),
        (_without() | {"shard": ""}, "shard is empty"),
        (_without() | {"shard": "\ud800"}, "shard: has half of a surrogate pair at position 0"),
        (_without() | {"metadata": "x" * 4_097}, "metadata is 4097 bytes long; at most 4096 are allowed"),
        (_without() | {"topic": "\n"}, "topic has the control character U+000A at position 0"),
    ],
    ids=str,
)
def test_an_element_that_is_no_offset_is_a_reject(row: object, reason: str) -> None:
    """With its line and its index in the array; the elements around it are read."""
    good = _without() | {"shard": "other"}
    rows = found(json.dumps([good, row, good]).replace("}, ", "},\n").encode(), JSON)
    (bad,) = [found for found in rows if isinstance(found, Reject)]
    assert (bad.line, bad.place, bad.reason) == (2, "$[1]", reason)
    assert len(rows) == 3


def test_a_field_that_is_there_twice_is_a_reject() -> None:
    """It is unclear which of the two is meant."""
    assert rejects(b'[{"shard": "s", "offset": 1, "offset": 2}]') == [(1, "'offset' is there twice")]


def test_a_row_that_is_there_twice_is_read_twice() -> None:
    """The import keeps the larger offset."""
    row = b'{"group": "g", "shard": "s", "offset": 1}'
    assert len(read(b"[" + row + b"," + row + b"]", JSON)) == 2


def test_a_file_without_groups_needs_one() -> None:
    """The message names the option."""
    row = b'[{"shard": "s", "offset": 1}]'
    assert rejects(row) == [(1, "group is missing; --group names it for the whole file")]
    assert read(row, JSON, group="g") == [OffsetRow(N, "g", "s", 1)]


def test_a_file_for_one_group_must_not_hold_another_namespace() -> None:
    """A plan for one group is not applied to another by mistake."""
    row = b'[{"namespace": "team", "group": "g", "shard": "s", "offset": 1}]'
    assert rejects(row, group="g") == [(1, "namespace: 'team' is not 'default'; --namespace names another")]
    assert read(row, JSON) == [OffsetRow("team", "g", "s", 1)]
    assert found(row, JSON, Naming("team", "g")) == [OffsetRow("team", "g", "s", 1)]


def test_what_list_prints_as_json_can_be_read() -> None:
    """Its field `dirty` is ignored."""
    assert read(json.dumps([_without() | {"dirty": True}]).encode(), JSON) == [OffsetRow(N, "g", "s", 1)]
