"""Our JSON as a stream: an array with one object for each offset, with all its fields.

Every element of the array becomes a row, or a reject with field and reason. At most one is in memory.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

from adapter.errors import InvalidInputError
from adapter.formats.json_stream import CHUNK_BYTES, FLAT_OBJECT, SPACE, JsonStream
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject, not_whole, shortened, with_names
from adapter.model.names import check_metadata, check_topic
from adapter.model.records import U64_MAX

PARTITION_MAX = 2**32 - 1
ROW_MAX = 64 * 1024  # characters; an offset with the longest texts, all escaped, has half of that
_MAX = {"offset": U64_MAX, "committed_at_ms": U64_MAX, "partition": PARTITION_MAX, "epoch": U64_MAX}
_TEXTS = frozenset({"namespace", "group", "shard", "metadata", "topic"})
_IGNORED = frozenset({"dirty"})  # so that what `list --json` prints can be imported

# A row as `write` makes it, whose names and numbers are certainly valid; most rows are. Others are checked field by field.
_NAME, _NUMBER = r"([ !#-\[\]-~]{1,200})", "(0|[1-9][0-9]{0,17})"
_PLAIN = (
    f'{{"namespace": "{_NAME}", "group": "{_NAME}", "shard": "{_NAME}", "offset": {_NUMBER}, "metadata": "{_NAME}?", '
    f'"committed_at_ms": {_NUMBER}, "topic": "{_NAME}?", "partition": (0|[1-9][0-9]{{0,8}}), "epoch": {_NUMBER}}}'
)
_ROW = re.compile(f"({_PLAIN}|{FLAT_OBJECT}){SPACE},")
_USE_CSV = "; --format kafka-csv reads Kafka's CSV"


def read(file: IO[bytes], naming: Naming, chunk_bytes: int = CHUNK_BYTES) -> Iterator[OffsetRow | Reject]:
    """The rows of a file. Raises NotReadableError, possibly after some rows."""
    stream = JsonStream(file, chunk_bytes)
    first = stream.next()
    if not first:
        raise NotReadableError("is empty")
    if first != "[":
        _not_an_array(stream)
    for number, found in enumerate(stream.items(_ROW)):
        if isinstance(found, str):
            stream.next()
            line, text = stream.line, stream.value(ROW_MAX)
        elif row := _plain_row(found, naming):
            yield row
            continue
        else:
            line, text = stream.key_line, found[1]
        try:
            yield with_names(_row(_value(text, line)), naming)
        except InvalidInputError as error:
            if isinstance(error, NotReadableError):
                raise
            yield Reject(line, f"$[{number}]", " ".join(shortened(text).split()), str(error))
    stream.end()


def write(file: IO[bytes], rows: Iterable[OffsetRow], _naming: Naming) -> int:
    """Write rows, one per line, so that two files can be compared; returns how many. Every row can be written."""
    count = 0
    encode = json.JSONEncoder(ensure_ascii=False).encode
    for count, (namespace, group, shard, offset, metadata, committed_at_ms, topic, partition, epoch) in enumerate(rows, start=1):
        file.write(
            (
                f'{"," if count > 1 else "["}\n{{"namespace": {encode(namespace)}, "group": {encode(group)}, '
                f'"shard": {encode(shard)}, "offset": {offset}, "metadata": {encode(metadata)}, '
                f'"committed_at_ms": {committed_at_ms}, "topic": {encode(topic)}, "partition": {partition}, "epoch": {epoch}}}'
            ).encode()
        )
    file.write(b"\n]\n")
    return count


def _not_an_array(stream: JsonStream) -> None:
    try:
        stream.value()
        stream.end()
    except NotReadableError as error:
        raise NotReadableError(f"{error}{_USE_CSV}") from error
    raise NotReadableError("is not a JSON array of offsets")


def _plain_row(found: re.Match[str], naming: Naming) -> OffsetRow | None:
    _, namespace, group, shard, offset, metadata, committed, topic, partition, epoch = found.groups(default="")
    if not shard or (naming.group and (namespace, group) != (naming.namespace, naming.group)):
        return None
    return OffsetRow(namespace, group, shard, int(offset), metadata, int(committed), topic, int(partition), int(epoch))


class _Pairs(dict[str, Any]):
    """A JSON object that records a key that occurred twice."""

    twice: str | None = None


def _pairs(pairs: list[tuple[str, Any]]) -> _Pairs:
    value = _Pairs(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        value.twice = next(name for name in names if names.count(name) > 1)
    return value


_decode = json.JSONDecoder(object_pairs_hook=_pairs).decode


def _value(text: str, line: int) -> Any:  # noqa: ANN401 - whatever stands in the file
    if len(text) > ROW_MAX:
        raise InvalidInputError(f"has over {ROW_MAX:,} characters; no offset has")
    try:
        return _decode(text)
    except ValueError as error:  # a key without quotes: only fastjson writes such
        raise NotReadableError(f"is not JSON, or torn: line {line}: {error}") from error


def _row(value: Any) -> OffsetRow:  # noqa: ANN401
    if not isinstance(value, _Pairs):
        raise InvalidInputError("is not an object")
    if value.twice is not None:
        raise InvalidInputError(f"{value.twice!r} is there twice")
    for field in ("shard", "offset"):
        if field not in value:
            raise InvalidInputError(f"{field} is missing")
    for field, item in value.items():
        if field in _TEXTS:
            _check_text(item, field)
        elif field in _MAX:
            _check_number(item, field, _MAX[field])
        elif field not in _IGNORED:
            raise InvalidInputError(f"{field!r} is not a field of an offset")
    of = value.get
    return OffsetRow(
        namespace=of("namespace", ""),
        group=of("group", ""),
        shard=value["shard"],
        offset=value["offset"],
        metadata=check_metadata(of("metadata", ""), "metadata"),
        committed_at_ms=of("committed_at_ms", 0),
        topic=check_topic(of("topic", ""), "topic"),
        partition=of("partition", 0),
        epoch=of("epoch", 0),
    )


def _check_text(value: Any, field: str) -> None:  # noqa: ANN401
    if not isinstance(value, str):
        raise InvalidInputError(f"{field}: {shortened(repr(value), 50)} is not a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{field}: has half of a surrogate pair at position {error.start}") from error


def _check_number(value: Any, field: str, largest: int) -> None:  # noqa: ANN401
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise not_whole(repr(value), field, largest)
