"""Parses files of offsets in Spark's workers, into rows of ENTRIES: each entry with its place. Bad lines and files are rows too.

The driver lists the files; each is opened by the worker that parses it. A large CSV is split and parsed in pieces.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from adapter.errors import ConfigError
from adapter.formats import rocketmq_json
from adapter.formats.files import BACKUP
from adapter.formats.kafka_csv import LINE_MAX_BYTES
from adapter.formats.rocketmq_json import Entries
from adapter.formats.rows import NotReadableError, Reject
from adapter.pipeline.config import OffsetFormat

# `place` is a line or a JSON path, empty for a whole file. A row with a `reason` is a reject, `text` its content.
ENTRIES = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("file", "place", "client", "group", "topic", "broker")),
        pa.field("queue", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
LINES = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("value", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
# LINES with their fields as text; all four are null if a line does not have three or four fields.
FIELDS = ("group", "topic", "queue", "offset")
PARTED = pa.schema([*LINES, *(pa.field(name, pa.string()) for name in FIELDS)])
_PIECES = pa.schema([("file", pa.string()), ("line", pa.int64()), ("start", pa.int64()), ("end", pa.int64())])

NAMES: dict[OffsetFormat, tuple[str, ...]] = {
    "rocketmq": ("consumerOffset.json", "lmqConsumerOffset.json"),
    "rocketmq-client": ("offsets.json",),
    "kafka-csv": ("*.csv",),
}
_WILD = frozenset("*?[")
_BATCH_ROWS = 50_000
PIECE_BYTES = 16 * 2**20
# One field of a CSV line; a quote within a quoted field is doubled.
_FIELD = '(?P<f{}>"(?:[^"]|"")*"|[^",][^,]*|)'
_FOUR, _THREE = (f"(?s)^{','.join(map(_FIELD.format, range(count)))}$" for count in (4, 3))
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def find_files(places: Iterable[Path], kind: OffsetFormat) -> list[Path]:
    """The files that the settings name, without duplicates. Raises ConfigError for a path without a file."""
    found: dict[Path, None] = {}
    for place in (place.absolute() for place in places):
        some = _files_at(place, kind)
        if not some:
            raise ConfigError(f"[import] files: {place}: {_nothing(place, kind)}")
        found.update(dict.fromkeys(some))
    return list(found)


def _files_at(place: Path, kind: OffsetFormat) -> list[Path]:
    if place.is_dir():
        names = [name + end for name in NAMES[kind] for end in ("", BACKUP)]
        return sorted({_not_backup(_below(place, path)) for name in names for path in place.rglob(name) if path.is_file()})
    if place.exists() or _backup(place).exists():
        return [place]
    if _WILD & set(str(place)):
        root = Path(place.anchor)
        return sorted(path for path in root.glob(str(place.relative_to(root))) if path.is_file())
    return []


def _below(place: Path, path: Path) -> Path:
    """Check that a found file lies below its directory: a symlink must not lead to other files. Raises ConfigError."""
    if not path.resolve().is_relative_to(place.resolve()):
        raise ConfigError(
            f"[import] files: {path}: links to {path.resolve()}, out of {place}, and is not followed; name the file itself"
        )
    return path


def _nothing(place: Path, kind: OffsetFormat) -> str:
    if place.is_dir():
        return f"has no file named {' or '.join(NAMES[kind])}; name the files, or a pattern"
    return "no file matches" if _WILD & set(str(place)) else "there is no such file or directory"


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP)


def _not_backup(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(BACKUP))


def json_entries(spark: SparkSession, files: list[Path], kind: OffsetFormat) -> DataFrame:
    """ENTRIES of RocketMQ's JSON files, with one Spark task for each file."""
    paths = pa.table({"file": pa.array([str(path) for path in files], pa.string())})
    read = partial(_read_files, kind)
    return spark.createDataFrame(paths).repartition(len(files)).mapInArrow(read, from_arrow_schema(ENTRIES))


def csv_lines(spark: SparkSession, files: list[Path]) -> DataFrame:
    """LINES of CSV files, with one Spark task for each piece. Raises ConfigError if a file cannot be read."""
    pieces = [piece for path in files for piece in cut(path)]
    table = pa.Table.from_pylist([piece.__dict__ for piece in pieces], _PIECES)
    return spark.createDataFrame(table).repartition(max(len(pieces), 1)).mapInArrow(_read_pieces, from_arrow_schema(LINES))


@dataclass(frozen=True)
class Piece:
    """Complete lines of a file: the bytes from `start` to `end`; the first line has the number `line`, counted from 1."""

    file: str
    line: int
    start: int
    end: int


def cut(path: Path, size: int = PIECE_BYTES) -> list[Piece]:
    """Split a file at line breaks into pieces of about `size` bytes. Raises ConfigError if it cannot be read."""
    pieces: list[Piece] = []
    line, start, at = 1, 0, 0
    try:
        with path.open("rb") as file:
            while data := file.read(size):
                last = data.rfind(b"\n") + 1
                if last:
                    pieces.append(Piece(str(path), line, start, at + last))
                    line += data.count(b"\n")
                    start = at + last
                at += len(data)
    except OSError as error:
        raise ConfigError(f"[import] files: {path}: cannot be read: {error.strerror}") from error
    return [*pieces, Piece(str(path), line, start, at)] if at > start else pieces


def _read_files(kind: OffsetFormat, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for name in batch.column("file").to_pylist():
            rows = rows_of(Path(name), kind)
            while some := list(islice(rows, _BATCH_ROWS)):
                yield _entries(Path(name), kind, some)


class Row(NamedTuple):
    """A row of ENTRIES without the columns that come from the file's path."""

    place: str
    group: str = ""
    topic: str = ""
    queue: int | None = None
    broker: str = ""
    offset: int | None = None
    text: str = ""
    reason: str | None = None


def rows_of(path: Path, kind: OffsetFormat) -> Iterator[Row]:
    """The rows of a file. If it is unreadable: a reject, and the rows of its backup, which RocketMQ reads in that case too.

    The file is read twice, so that no entry of a truncated file is used.
    """
    try:
        _read_to_the_end(path, kind)
    except NotReadableError as error:
        try:
            _read_to_the_end(_backup(path), kind)
        except NotReadableError:
            yield Row("", reason=str(error))
            return
        yield Row("", reason=f"{error}; {_backup(path).name} is taken instead")
        path = _backup(path)
    for entry in _found(path, kind):
        if isinstance(entry, Reject):
            yield Row(entry.place, text=entry.text, reason=entry.reason)
        else:
            for queue, offset in entry.offsets:
                yield Row(entry.place_of(queue), entry.group, entry.topic, queue, entry.broker, offset)


def _read_to_the_end(path: Path, kind: OffsetFormat) -> None:
    for _ in _found(path, kind):
        pass


def _found(path: Path, kind: OffsetFormat) -> Entries:
    parse = rocketmq_json.client_file if kind == "rocketmq-client" else rocketmq_json.broker_file
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotReadableError(f"cannot be read: {error.strerror}") from error
    with file:
        yield from parse(file)


def _entries(path: Path, kind: OffsetFormat, rows: list[Row]) -> pa.RecordBatch:
    columns: dict[str, Sequence[Any]] = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
    columns["file"] = [str(path)] * len(rows)
    columns["client"] = [""] * len(rows)
    if kind == "rocketmq-client":
        columns["group"] = [path.parent.name] * len(rows)
        columns["client"] = [path.parent.parent.name] * len(rows)
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in ENTRIES], schema=ENTRIES)


def _read_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for piece in batch.to_pylist():
            with Path(piece["file"]).open("rb") as file:
                file.seek(piece["start"])
                yield lines(Piece(**piece), file.read(piece["end"] - piece["start"]))


def lines(piece: Piece, data: bytes) -> pa.RecordBatch:
    """LINES of a piece without blank lines. A line that is not UTF-8 is a reject, and so is a file in UTF-16."""
    if piece.start == 0:
        if data.startswith(_UTF16):
            return _lines(piece, [0], [""], ["is UTF-16; save it as UTF-8"])
        data = data.removeprefix(_BOM)
    raw = pa.array(data.split(b"\n"), pa.binary())
    numbers = pa.array(range(piece.line, piece.line + len(raw)), pa.int64())
    try:
        values, reasons = raw.cast(pa.string()), pa.nulls(len(raw), pa.string())
    except pa.ArrowInvalid:
        values, reasons = _decoded(raw)
    some = pc.not_equal(pc.utf8_trim_whitespace(values), "")
    return _lines(piece, numbers.filter(some), values.filter(some), reasons.filter(some))


def parted(rows: DataFrame) -> DataFrame:
    """Split LINES into fields: PARTED. By Arrow, since Spark matches a regular expression against the line for every field."""
    return rows.mapInArrow(_parted, from_arrow_schema(PARTED))


def _parted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        text = pc.replace_substring_regex(batch.column("value"), "\r$", "")
        long = pc.greater(pc.binary_length(text), LINE_MAX_BYTES)
        text = pc.if_else(pc.and_(pc.is_null(batch.column("reason")), pc.invert(long)), text, None)
        four, three = pc.extract_regex(text, _FOUR), pc.extract_regex(text, _THREE)
        none = pc.if_else(pc.is_valid(three), "", None)
        found = [pc.coalesce(pc.struct_field(four, [at]), pc.struct_field(three, [at - 1]) if at else none) for at in range(4)]
        yield pa.RecordBatch.from_arrays([*batch.columns, *map(_unquoted, found)], schema=PARTED)


def _unquoted(field: pa.Array) -> pa.Array:
    inner = pc.replace_substring(pc.utf8_slice_codeunits(field, 1, -1), '""', '"')
    return pc.if_else(pc.starts_with(field, '"'), inner, field)


def _decoded(raw: pa.Array) -> tuple[pa.Array, pa.Array]:
    values, reasons = [], []
    for line in raw.to_pylist():
        reason = None
        try:
            value = line.decode()
        except UnicodeDecodeError as error:
            value, reason = line.decode(errors="replace"), f"is not UTF-8 at byte {error.start + 1}"
        values.append(value)
        reasons.append(reason)
    return pa.array(values, pa.string()), pa.array(reasons, pa.string())


def _lines(piece: Piece, numbers: Any, values: Any, reasons: Any) -> pa.RecordBatch:  # noqa: ANN401 - columns of any kind
    columns = {"file": [piece.file] * len(numbers), "line": numbers, "value": values, "reason": reasons}
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in LINES], schema=LINES)
