"""Offsets in files: Kafka's CSV, and JSON with everything. Bytes <-> rows, no I/O.

Promises to name every bad line by number, field and reason, and never gives a part of a file that has one.
CSV is what kafka-consumer-groups writes and reads (`CsvUtils`): `group,topic,partition,offset`, no header, and no group column
for a single group. Its topic and partition are our shard `topic/partition`.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple

from adapter.errors import InvalidInputError
from adapter.model import U64_MAX, GroupKey, OffsetKey, check_metadata, check_name, check_topic

CSV_OFFSET_MAX = 2**63 - 1  # Java's long
CSV_PARTITION_MAX = 2**31 - 1  # Java's int
PARTITION_MAX = 2**32 - 1
LINE_MAX_BYTES = 4_096  # two names of 255 bytes, with every quote doubled, and two numbers are far below
PROBLEMS_SHOWN = 100
VALUE_SHOWN = 50  # characters of a bad value

# Jackson quotes what is longer than this, or has a character up to the comma, without a closer look.
_UNQUOTED_MAX = 24
_QUOTED_FROM = "-"

_USE_JSON = "use --format json, or a file name that ends in .json"
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class Format(Enum):
    """How a file holds offsets."""

    CSV = "csv"
    JSON = "json"

    @classmethod
    def of(cls, path: str) -> "Format":
        """JSON for a name that ends in .json, else CSV."""
        return cls.JSON if PurePath(path).suffix.lower() == ".json" else cls.CSV


class OffsetRow(NamedTuple):
    """One offset in a file. Epoch 0 and time 0: not known."""

    namespace: str
    group: str
    shard: str
    offset: int
    metadata: str = ""
    committed_at_ms: int = 0
    topic: str = ""
    partition: int = 0
    epoch: int = 0

    @property
    def key(self) -> OffsetKey:
        """What the offset is stored under."""
        return OffsetKey(self.namespace, self.group, self.shard)


def split_shard(shard: str) -> tuple[str, int] | None:
    """The topic and partition of a shard `topic/partition`; None for any other, which could not come back from a CSV."""
    topic, _, text = shard.rpartition("/")
    if not topic or not (text.isascii() and text.isdecimal()) or len(text) > len(str(CSV_PARTITION_MAX)):
        return None
    partition = int(text)
    return (topic, partition) if str(partition) == text and partition <= CSV_PARTITION_MAX else None


def to_csv(rows: Iterable[OffsetRow], *, with_group: bool) -> bytes:
    """Kafka's CSV. Raises InvalidInputError that names every row that it cannot hold."""
    lines: list[str] = []
    problems: list[str] = []
    for row in rows:
        parts = split_shard(row.shard)
        if parts is None:
            problems.append(f"shard {row.shard!r} of group {row.group!r} is not of the form topic/partition")
        elif row.offset > CSV_OFFSET_MAX:
            problems.append(f"offset {row.offset} of shard {row.shard!r} of group {row.group!r} is over {CSV_OFFSET_MAX}")
        else:
            group = [_quoted(row.group)] if with_group else []
            lines.append(",".join([*group, _quoted(parts[0]), str(parts[1]), str(row.offset)]) + "\n")
    if problems:
        raise InvalidInputError(_listed([f"{text}: Kafka's CSV cannot hold it; {_USE_JSON}" for text in problems]))
    return "".join(lines).encode()


def to_json(rows: Iterable[OffsetRow]) -> bytes:
    """A JSON array with one row per line."""
    lines = [json.dumps(row._asdict(), ensure_ascii=False) for row in rows]
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode() if lines else b"[]\n"


def parse(data: bytes, kind: Format, *, source: str, namespace: str, group: str = "") -> list[OffsetRow]:
    """The rows of a file. Raises InvalidInputError that names every bad one, after `source`.

    A row that names no namespace is in `namespace`. With `group` given, a row that names none is of this group, and one that
    names another, or another namespace, is bad.
    """
    if data.startswith(_UTF16_BOMS):
        raise InvalidInputError(f"{source}: is UTF-16; save it as UTF-8")
    data = data.removeprefix(_BOM)
    only = GroupKey(namespace, group)
    found: list[OffsetRow] = []
    places: dict[OffsetKey, str] = {}
    problems: list[str] = []
    for place, read in _csv_entries(data) if kind is Format.CSV else _json_entries(data, source):
        try:
            row = _checked(read(), only, places)
        except InvalidInputError as error:
            problems.append(f"{source}: {place}: {error}")
        else:
            found.append(row)
            places[row.key] = place
    if problems:
        raise InvalidInputError(_listed(problems))
    if not found:
        raise InvalidInputError(f"{source}: holds no offsets")
    return found


_Entries = Iterator[tuple[str, Callable[[], OffsetRow]]]


def _csv_entries(data: bytes) -> _Entries:
    reader = _CsvReader()
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield f"line {number}", partial(reader.row, line.removesuffix(b"\r"))


class _CsvReader:
    """Reads line by line, as Kafka does: no name has a line break. The first good line says whether there is a group column."""

    def __init__(self) -> None:
        self._columns = 0

    def row(self, line: bytes) -> OffsetRow:
        """One line. Raises InvalidInputError."""
        fields = self._fields(line)
        *group, topic, partition_text, offset = fields
        if not topic:
            raise InvalidInputError("topic is empty")
        partition = _whole(partition_text, "partition", CSV_PARTITION_MAX)
        row = OffsetRow(
            namespace="",
            group=check_name(group[0], "group") if group else "",
            shard=f"{topic}/{partition}",
            offset=_whole(offset, "offset", CSV_OFFSET_MAX),
            topic=check_name(topic, "topic"),
            partition=partition,
        )
        self._columns = len(fields)
        return row

    def _fields(self, line: bytes) -> list[str]:
        if len(line) > LINE_MAX_BYTES:
            raise InvalidInputError(f"is {len(line):,} bytes long; no line of offsets is over {LINE_MAX_BYTES:,}")
        try:
            text = line.decode()
            fields = next(csv.reader([text], strict=True))
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"is not UTF-8 at byte {error.start + 1}") from error
        except csv.Error as error:
            raise InvalidInputError(f"is not CSV: {error}") from error
        wanted = (self._columns,) if self._columns else (3, 4)
        if len(fields) not in wanted:
            names = {3: "topic,partition,offset", 4: "group,topic,partition,offset"}
            allowed = " or ".join(f"{count} ({names[count]})" for count in wanted)
            raise InvalidInputError(f"has {len(fields)} columns, not {allowed}{', as before' if self._columns else ''}")
        return fields


def _json_entries(data: bytes, source: str) -> _Entries:
    try:
        values = json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{source}: is not UTF-8 at byte {error.start + 1}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{source}: is not JSON: {error}; --format csv reads Kafka's CSV") from error
    if not isinstance(values, list):
        raise InvalidInputError(f"{source}: is not a JSON array of offsets")
    for number, value in enumerate(values, start=1):
        yield f"row {number}", partial(_json_row, value)


_JSON_MAX = {"offset": U64_MAX, "committed_at_ms": U64_MAX, "partition": PARTITION_MAX, "epoch": U64_MAX}
_JSON_TEXTS = ("namespace", "group", "shard", "metadata", "topic")
_JSON_IGNORED = {"dirty"}  # so that what `list --json` prints can be imported


def _json_row(value: Any) -> OffsetRow:  # noqa: ANN401 - whatever stands in the file
    if not isinstance(value, dict):
        raise InvalidInputError("is not an object")
    for field in ("shard", "offset"):
        if field not in value:
            raise InvalidInputError(f"{field} is missing")
    for field, item in value.items():
        if field in _JSON_TEXTS:
            _check_text(item, field)
        elif field in _JSON_MAX:
            _check_number(item, field, _JSON_MAX[field])
        elif field not in _JSON_IGNORED:
            raise InvalidInputError(f"{field!r} is not a field of an offset")
    row = OffsetRow(**{"namespace": "", "group": "", **{name: value[name] for name in value.keys() & set(OffsetRow._fields)}})
    check_metadata(row.metadata, "metadata")
    check_topic(row.topic, "topic")
    return row


def _check_text(value: Any, field: str) -> None:  # noqa: ANN401
    if not isinstance(value, str):
        raise InvalidInputError(f"{field}: {_shown(value)} is not a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{field}: has half of a surrogate pair at position {error.start}") from error


def _check_number(value: Any, field: str, largest: int) -> None:  # noqa: ANN401
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise InvalidInputError(f"{field}: {_shown(value)} is not a whole number from 0 to {largest}")


def _checked(row: OffsetRow, only: GroupKey, places: Mapping[OffsetKey, str]) -> OffsetRow:
    """The row with all its names, none of `places`. Raises InvalidInputError."""
    if not row.group and not only.group:
        raise InvalidInputError("group is missing; --group names it for the whole file")
    placed = row._replace(namespace=row.namespace or only.namespace, group=row.group or only.group)
    if only.group and placed.group != only.group:
        raise InvalidInputError(f"group: {placed.group!r} is not {only.group!r}, of which alone the offsets are taken")
    if only.group and placed.namespace != only.namespace:
        raise InvalidInputError(f"namespace: {placed.namespace!r} is not {only.namespace!r}; --namespace names another")
    for field in ("namespace", "group", "shard"):
        check_name(getattr(placed, field), field)
    if placed.key in places:
        raise InvalidInputError(f"shard: {placed.shard!r} of group {placed.group!r} is already in {places[placed.key]}")
    return placed


def _whole(text: str, field: str, largest: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(U64_MAX)) or int(text) > largest:
        raise InvalidInputError(f"{field}: {_shown(text)} is not a whole number from 0 to {largest}")
    return int(text)


def _shown(value: Any) -> str:  # noqa: ANN401
    text = repr(value)
    return text if len(text) <= VALUE_SHOWN else f"{text[:VALUE_SHOWN]}..."


def _quoted(text: str) -> str:
    """As Jackson's `CsvEncoder` writes a string."""
    if len(text) <= _UNQUOTED_MAX and all(char >= _QUOTED_FROM for char in text):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _listed(problems: list[str]) -> str:
    more = len(problems) - PROBLEMS_SHOWN
    return "\n".join(problems[:PROBLEMS_SHOWN] + ([f"... and {more:,} more"] if more > 0 else []))
