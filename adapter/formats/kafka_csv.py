"""Kafka's CSV as a stream, as kafka-consumer-groups writes and reads it (`CsvUtils`). At most one line is in memory.

`group,topic,partition,offset` without a header, and without the group column for a single group. Topic and partition become our
shard `topic/partition`. Every line that is not blank becomes a row, or a reject with field and reason. The format has no place
for the number of rows: that a file was cut shows only where the cut is within a line (`unterminated`).
"""

import csv
import re
from collections.abc import Iterable, Iterator
from typing import IO

from adapter.errors import InvalidInputError
from adapter.formats.problems import USE_JSON, Sieve
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject, shortened, whole_number, with_names
from adapter.model.names import check_name
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX

UNTERMINATED = "has no line end: the file may be cut here"
CHUNK_BYTES = 2**20
LINE_MAX_BYTES = 4_096  # two names of 255 bytes, with every quote doubled, and two numbers are far below
# Jackson quotes every string that is longer than this, or has a character up to and including the comma.
_UNQUOTED_MAX = 24
_QUOTED_FROM = "-"

_WITHOUT_GROUP, _WITH_GROUP = 3, 4
_COLUMNS = {_WITHOUT_GROUP: "topic,partition,offset", _WITH_GROUP: "group,topic,partition,offset"}
# A line without quotes whose names and numbers are certainly valid; most lines are. Others are parsed field by field.
_NAME = rb"([ !#-+\--~]{1,100})"
_PLAIN = re.compile(rb"(?:" + _NAME + rb",)?" + _NAME + rb",(0|[1-9][0-9]{0,8}),([0-9]{1,18})")
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read(file: IO[bytes], naming: Naming) -> Iterator[OffsetRow | Reject]:
    """The rows of a file. The first good line decides whether there is a group column. Raises NotReadableError."""
    columns = 0
    for number, (line, size) in enumerate(_lines(file), start=1):
        row = _plain_row(line, columns, naming) if columns else None
        if row:
            yield row
            continue
        if size <= LINE_MAX_BYTES and not line.strip():
            continue
        try:
            fields = _fields(line, size, columns)
            yield with_names(_row(fields), naming)
            columns = len(fields)
        except InvalidInputError as error:
            yield Reject(number, "", shortened(line.decode(errors="replace")), str(error))


def _plain_row(line: bytes, columns: int, naming: Naming) -> OffsetRow | None:
    """The row of a line that a regular expression accepts; None for any other line."""
    found = _PLAIN.fullmatch(line)
    if not found:
        return None
    group_bytes, topic_bytes, partition, offset = found.groups()
    group = naming.group if group_bytes is None else group_bytes.decode()
    if (
        columns != (_WITHOUT_GROUP if group_bytes is None else _WITH_GROUP)
        or not group
        or (naming.group and group != naming.group)
    ):
        return None
    topic = topic_bytes.decode()
    return OffsetRow(naming.namespace, group, f"{topic}/{partition.decode()}", int(offset), "", 0, topic, int(partition))


def unterminated(file: IO[bytes]) -> Reject | None:
    """The last line, if it has no line end, as where a file was cut: 1234 may be the rest of 123456789012. Raises OSError."""
    line, last = 1, b""
    while data := file.read(CHUNK_BYTES):
        _, end, rest = data.rpartition(b"\n")
        line += data.count(b"\n")
        last = rest if end else last + rest[: LINE_MAX_BYTES - len(last)]
    return Reject(line, "", shortened(last.decode(errors="replace")), UNTERMINATED) if last.strip() else None


def write(file: IO[bytes], rows: Iterable[OffsetRow], naming: Naming) -> int:
    """Write rows, without the group column if `naming` names the group; returns how many.

    Raises InvalidInputError that names all rows that the format cannot hold.
    """
    sieve = Sieve(naming, _problem)
    for row in sieve.passed(rows):
        topic, _, partition = row.shard.rpartition("/")
        group = [] if naming.group else [_quoted(row.group)]
        file.write((",".join([*group, _quoted(topic), partition, str(row.offset)]) + "\n").encode())
    return sieve.done()


def _problem(row: OffsetRow) -> str | None:
    return None if split_shard(row.shard) else f"is not of the form topic/partition, which Kafka's CSV is made of; {USE_JSON}"


def split_shard(shard: str) -> tuple[str, int] | None:
    """The topic and partition of a shard `topic/partition`; None for any other, which a CSV could not restore."""
    topic, _, text = shard.rpartition("/")
    if not topic or not (text.isascii() and text.isdecimal()) or len(text) > len(str(QUEUE_MAX)):
        return None
    partition = int(text)
    return (topic, partition) if str(partition) == text and partition <= QUEUE_MAX else None


def _lines(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each line up to the maximum length, without its line end; and its full length."""
    line = _piece(file)
    if line.startswith(_UTF16):
        raise NotReadableError("is UTF-16; save it as UTF-8")
    line = line.removeprefix(_BOM)
    while line:
        size, tail = len(line), line[-2:]
        while not tail.endswith(b"\n") and (more := _piece(file)):
            size, tail = size + len(more), (tail + more)[-2:]
        end = 2 if tail == b"\r\n" else tail.endswith(b"\n")
        yield line.removesuffix(b"\n").removesuffix(b"\r"), size - end
        line = _piece(file)


def _piece(file: IO[bytes]) -> bytes:
    try:
        return file.readline(LINE_MAX_BYTES + 8)
    except OSError as error:
        raise NotReadableError(f"cannot be read: {error.strerror}") from error


def _fields(line: bytes, size: int, columns: int) -> list[str]:
    if size > LINE_MAX_BYTES:
        raise InvalidInputError(f"is {size:,} bytes long; no line of offsets is over {LINE_MAX_BYTES:,}")
    try:
        text = line.decode()
        fields = next(csv.reader([text], strict=True)) if '"' in text else text.split(",")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"is not UTF-8 at byte {error.start + 1}") from error
    except csv.Error as error:
        raise InvalidInputError(f"is not CSV: {error}") from error
    wanted = (columns,) if columns else tuple(_COLUMNS)
    if len(fields) not in wanted:
        allowed = " or ".join(f"{count} ({_COLUMNS[count]})" for count in wanted)
        raise InvalidInputError(f"has {len(fields)} columns, not {allowed}{', as before' if columns else ''}")
    return fields


def _row(fields: list[str]) -> OffsetRow:
    *group, topic, partition_text, offset_text = fields
    if not topic:
        raise InvalidInputError("topic is empty")
    partition = whole_number(partition_text, "partition", QUEUE_MAX)
    return OffsetRow(
        namespace="",
        group=check_name(group[0], "group") if group else "",
        shard=f"{topic}/{partition}",
        offset=whole_number(offset_text, "offset", LONG_MAX),
        topic=check_name(topic, "topic"),
        partition=partition,
    )


def _quoted(text: str) -> str:
    """Quote a string as Jackson's `CsvEncoder` does."""
    if len(text) <= _UNQUOTED_MAX and all(char >= _QUOTED_FROM for char in text):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'
