"""Checks rows that are written to the Meta Service: required columns, defaults of missing values, invalid rows.

A batch is first checked as a whole, by Arrow. Only if it may have an invalid value, its rows are checked one by one by `model`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from adapter.errors import InvalidInputError
from adapter.model.names import METADATA_MAX_BYTES, NAME_MAX_BYTES, check_metadata, name_problem
from adapter.model.schemas import RECORDS
from adapter.pipeline.columns import NEEDED

_HELP = {"committed_at": ": a batch that is run again has to have the same times; current_timestamp() is the batch's own"}
_KEY = ("namespace", "group", "shard")
_SHOWN = 5  # invalid rows that an error names
_PARTITION_MAX = 2**32 - 1

_TEXT = (StringType, NullType)
_INTEGER = (ByteType, ShortType, IntegerType, LongType, NullType)
_TYPES: Mapping[str, tuple[str, tuple[type[DataType], ...]]] = {
    **dict.fromkeys(("namespace", "group", "shard", "topic", "metadata", "problem"), ("string", _TEXT)),
    **dict.fromkeys(("partition", "epoch", "offset"), ("bigint", _INTEGER)),
    "live": ("boolean", (BooleanType, NullType)),
    "committed_at": ("timestamp", (TimestampType, NullType)),
}


class BadRow(NamedTuple):
    """An invalid row: its index in the batch, its key, and the problems of its fields."""

    row: int
    text: str


def check_columns(schema: StructType, needed: Sequence[str] = NEEDED) -> None:
    """Check the columns. Raises InvalidInputError that names each one that is missing, unknown, or of a wrong type."""
    given = {field.name: field.dataType for field in schema.fields}
    meant = {name: name.lower() for name in given if name not in _TYPES and name.lower() in set(_TYPES) - set(given)}
    missing = [name for name in needed if name not in given and name not in meant.values()]
    problems = [f"column `{name}` is missing{_HELP.get(name, '')}" for name in missing]
    for name, kind in given.items():
        if name in meant:
            problems.append(f"column `{name}`: rename it to `{meant[name]}`")
        elif name not in _TYPES:
            problems.append(f"column `{name}` is not known: drop it; the columns are {', '.join(_TYPES)}")
        elif not isinstance(kind, _TYPES[name][1]):
            problems.append(f"column `{name}` is {kind.simpleString()}: cast it to {_TYPES[name][0]}")
    if problems:
        raise InvalidInputError("; ".join(problems))


def completed(batch: pa.RecordBatch, began_ms: int | None) -> pa.RecordBatch:
    """The batch with the columns of schemas.RECORDS and defaults for absent values.

    The time's default is `began_ms` (Unix ms); None: there is none, and a row without a time is invalid.
    """
    began_us = None if began_ms is None else began_ms * 1000
    defaults = {"topic": "", "partition": 0, "epoch": 0, "live": True, "committed_at": began_us, "metadata": ""}
    columns = []
    for field in RECORDS:
        default = pa.scalar(defaults.get(field.name), field.type)
        if field.name not in batch.schema.names:
            columns.append(pa.repeat(default, batch.num_rows))
            continue
        column = batch.column(field.name).cast(field.type)
        columns.append(pc.fill_null(column, default) if default.is_valid and column.null_count else column)
    return pa.RecordBatch.from_arrays(columns, names=RECORDS.names)


def bad_rows(batch: pa.RecordBatch) -> list[BadRow]:
    """The invalid rows of a completed batch, in order."""
    found: dict[int, list[str]] = defaultdict(list)
    for name in _KEY:
        _look_at_text(found, batch, name, 1, NAME_MAX_BYTES, _name_problem)
    _look_at_text(found, batch, "topic", 0, NAME_MAX_BYTES, lambda text: name_problem(text) if text else None)
    _look_at_text(found, batch, "metadata", 0, METADATA_MAX_BYTES, _metadata_problem)
    for row in np.flatnonzero(_nulls(batch, "offset")).tolist():
        found[row].append("offset is null: absent is not 0")
    _look_at_integers(found, batch, "offset", None)
    _look_at_integers(found, batch, "epoch", None)
    _look_at_integers(found, batch, "partition", _PARTITION_MAX)
    for row in np.flatnonzero(_nulls(batch, "committed_at")).tolist():
        found[row].append("committed_at is null")
    for row in np.flatnonzero(_values(batch, "committed_at") < 0).tolist():
        found[row].append("committed_at is before 1970")
    for row in np.flatnonzero(~_nulls(batch, "problem")).tolist():
        found[row].append(f"problem says: {batch.column('problem')[row]}")
    return [BadRow(row, f"{_key_of(batch, row)}: {', '.join(found[row])}") for row in sorted(found)]


def refusal(bad: list[BadRow]) -> str:
    """The first invalid rows as a message."""
    more = f"; and {len(bad) - _SHOWN} more in this batch" if len(bad) > _SHOWN else ""
    return "; ".join(row.text for row in bad[:_SHOWN]) + more


def without(batch: pa.RecordBatch, bad: list[BadRow]) -> pa.RecordBatch:
    """The batch without the invalid rows."""
    good = np.ones(batch.num_rows, np.bool_)
    good[[row.row for row in bad]] = False
    return batch.filter(pa.array(good))


def _look_at_text(
    found: dict[int, list[str]],
    batch: pa.RecordBatch,
    name: str,
    least: int,
    most: int,
    problem_of: Callable[[str], str | None],
) -> None:
    column = batch.column(name)
    if _is_plain(column, least, most):
        return
    for row, raw in enumerate(column.cast(pa.binary()).to_pylist()):
        try:
            problem = "is null" if raw is None else problem_of(raw.decode())
        except UnicodeDecodeError:
            problem = "is not UTF-8"
        if problem:
            found[row].append(f"{name} {problem}")


def _is_plain(column: pa.Array, least: int, most: int) -> bool:
    """True only if every value has a valid length and is printable ASCII. Other columns are checked value by value."""
    if column.null_count:
        return False
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    sizes = np.diff(offsets)
    if sizes.min() < least or sizes.max() > most:
        return False
    if offsets[0] == offsets[-1]:
        return True
    data = np.frombuffer(column.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return bool(data.min() >= ord(" ") and data.max() <= ord("~"))


def _look_at_integers(found: dict[int, list[str]], batch: pa.RecordBatch, name: str, highest: int | None) -> None:
    values = _values(batch, name)
    bad = values < 0 if highest is None else (values < 0) | (values > highest)
    for row in np.flatnonzero(bad).tolist():
        found[row].append(f"{name} is {values[row]}" + ("" if values[row] < 0 else f": over {highest}"))


def _values(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = batch.column(name).cast(pa.int64()).fill_null(0).to_numpy()
    return values


def _nulls(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = batch.column(name).is_null().to_numpy(zero_copy_only=False)
    return nulls


def _name_problem(text: str) -> str | None:
    return name_problem(text)


def _metadata_problem(text: str) -> str | None:
    try:
        check_metadata(text, "")
    except InvalidInputError as error:
        return str(error).strip()
    return None


def _key_of(batch: pa.RecordBatch, row: int) -> str:
    parts = []
    for name in _KEY:
        raw = batch.column(name).cast(pa.binary())[row].as_py()
        parts.append(f"{name} {'null' if raw is None else repr(raw.decode(errors='replace'))}")
    return ", ".join(parts)
