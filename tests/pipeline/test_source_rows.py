"""Rows to be written: required columns, values for absent ones, and that every bad row is found and named."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from adapter.errors import InvalidInputError
from adapter.metaservice.bulk_checks import check
from adapter.model.arrow import as_bytes, encode_columns
from adapter.model.schemas import RECORDS
from adapter.pipeline.offsets import rows as source_rows
from adapter.pipeline.offsets.rows import bad_rows, check_columns, completed, refusal, without

BEGAN_MS = 1_700_000_000_000
BEGAN = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=BEGAN_MS)
ROW: dict[str, Any] = {"namespace": "default", "group": "g", "shard": "s", "offset": 7}

LONG = st.integers(-(2**63), 2**63 - 1)
SOME_TEXT = st.one_of(
    st.none(), st.sampled_from(["", "a", "ä", "\x00", "\x85", "\u2028", "n" * 256, "ä" * 128]), st.text(max_size=8)
)


def rows_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    """A batch with the columns that the first row has."""
    types = {field.name: field.type for field in RECORDS}
    names = list(rows[0])
    return pa.RecordBatch.from_arrays([pa.array([row[name] for row in rows], types[name]) for name in names], names=names)


def problems_of(**fields: Any) -> str:
    """The problems of one row between two valid ones."""
    good = {**dict.fromkeys(fields), **ROW}
    bad = bad_rows(completed(rows_of(good, {**good, **fields}, good), BEGAN_MS))
    assert {row.row for row in bad} <= {1}
    return refusal(bad)


def test_four_columns_are_enough() -> None:
    """Absent columns mean unknown; the time is that of the write."""
    batch = completed(rows_of(ROW), BEGAN_MS)
    assert batch.schema.names == RECORDS.names
    assert batch.to_pylist() == [
        {**ROW, "topic": "", "partition": 0, "epoch": 0, "live": True, "committed_at": BEGAN, "metadata": "", "problem": None}
    ]


def test_null_is_as_absent_and_what_is_there_stays() -> None:
    """For columns in any order and of any width."""
    absent = dict.fromkeys(("topic", "partition", "epoch", "live", "committed_at", "metadata", "problem"))
    there = {"topic": "t", "partition": 3, "epoch": 4, "live": False, "committed_at": BEGAN + timedelta(1), "metadata": "m"}
    batch = rows_of({**absent, **ROW}, {**absent, **ROW, **there})
    narrow = batch.schema.get_field_index("partition")
    batch = batch.set_column(narrow, "partition", batch.column(narrow).cast(pa.int16()))
    first, second = completed(batch, BEGAN_MS).to_pylist()
    assert first == completed(rows_of(ROW), BEGAN_MS).to_pylist()[0]
    assert second == {**ROW, **there, "problem": None}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"offset": None}, "offset is null: absent is not 0"),
        ({"offset": -1}, "offset is -1"),
        ({"epoch": -5}, "epoch is -5"),
        ({"partition": -1}, "partition is -1"),
        ({"partition": 2**32}, "partition is 4294967296: over 4294967295"),
        ({"group": None}, "group is null"),
        ({"shard": ""}, "shard is empty"),
        ({"namespace": "n" * 256}, "namespace is 256 bytes long; at most 255 are allowed"),
        ({"namespace": "ä" * 128}, "namespace is 256 bytes long; at most 255 are allowed"),
        ({"group": "a\x7f"}, "group has the control character U+007F at position 1"),
        ({"shard": "ä\x85"}, "shard has the control character U+0085 at position 1"),
        ({"topic": "\n"}, "topic has the control character U+000A at position 0"),
        ({"metadata": "m" * 4097}, "metadata is 4097 bytes long; at most 4096 are allowed"),
        ({"committed_at": datetime(1969, 12, 31, tzinfo=UTC)}, "committed_at is before 1970"),
        ({"problem": "offset 2^63 is over"}, "problem says: offset 2^63 is over"),
    ],
)
def test_a_bad_row_is_named_by_its_key_and_field(fields: dict[str, Any], problem: str) -> None:
    """Its neighbours are not reported."""
    said = problems_of(**fields)
    assert said.endswith(f": {problem}")
    assert said.startswith("namespace ")


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": 2**63 - 1},
        {"epoch": 2**63 - 1},
        {"partition": 2**32 - 1},
        {"shard": "n" * 255},
        {"group": "ä" * 127},
        {"topic": "ü"},
        {"metadata": "\x00\n" * 2048},
        {"metadata": "ä" * 2048},
    ],
)
def test_what_is_just_allowed_is_good(fields: dict[str, Any]) -> None:
    """The largest value of each column."""
    assert problems_of(**fields) == ""


def test_text_that_is_not_utf8_is_named() -> None:
    """Spark's strings may contain any bytes."""
    raw = pa.array([b"g", b"\xffg"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    batch = rows_of(ROW, ROW).set_column(1, "group", text)
    assert refusal(bad_rows(completed(batch, BEGAN_MS))) == "namespace 'default', group '\ufffdg', shard 's': group is not UTF-8"


def test_only_the_first_bad_rows_are_named_and_the_others_counted() -> None:
    """An error should stay readable."""
    batch = completed(rows_of(*({**ROW, "shard": f"s{at}", "offset": -1 if at % 2 else at} for at in range(40))), BEGAN_MS)
    bad = bad_rows(batch)
    assert len(bad) == 20
    assert refusal(bad).count("offset is -1") == 5
    assert refusal(bad).endswith("; and 15 more in this batch")
    assert without(batch, bad).column("offset").to_pylist() == list(range(0, 40, 2))


@given(
    st.lists(
        st.fixed_dictionaries(
            dict.fromkeys(("namespace", "group", "shard"), SOME_TEXT)
            | {"offset": st.one_of(st.none(), LONG), "epoch": LONG, "partition": LONG}
            | dict.fromkeys(("topic", "metadata"), SOME_TEXT)
        ),
        min_size=1,
        max_size=6,
    )
)
@example([{**ROW, "epoch": 1, "partition": 1, "topic": "", "metadata": ""}])
def test_what_is_good_here_is_good_for_the_meta_service(rows: list[dict[str, Any]]) -> None:
    """So that no write fails half way for a row that could have been checked before."""
    batch = completed(rows_of(*rows), BEGAN_MS)
    bad = bad_rows(batch)
    keys, records = map(as_bytes, encode_columns(without(batch, bad)))
    checked = asyncio.run(check(keys, records, BEGAN_MS))
    assert len(checked.keys) == len(rows) - len(bad)


def test_columns_are_checked_before_anything_is_sent() -> None:
    """The error has all problems, each with its column."""
    schema = StructType().add("namespace", "string").add("group", "integer").add("offset", "double").add("lag", "long")
    with pytest.raises(InvalidInputError) as caught:
        check_columns(schema)
    assert str(caught.value).split("; ") == [
        "column `shard` is missing",
        "column `group` is int: cast it to string",
        "column `offset` is double: cast it to bigint",
        "column `lag` is not known: drop it",
        f"the columns are {', '.join(source_rows._TYPES)}",
    ]


def test_a_column_in_another_case_is_to_be_renamed() -> None:
    """It is not missing, and nothing to drop, unless the right one is there as well."""
    schema = StructType().add("namespace", "string").add("GROUP", "string").add("shard", "string").add("Offset", "long")
    with pytest.raises(
        InvalidInputError, match=r"^column `GROUP`: rename it to `group`; column `Offset`: rename it to `offset`$"
    ):
        check_columns(schema)
    with pytest.raises(InvalidInputError, match=r"^column `GROUP`: rename it to `group`; column `Offset` is not known: drop it"):
        check_columns(schema.add("offset", "long"))
