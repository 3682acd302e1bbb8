"""A strict parser of the consumer offset table of a RocketMQ broker (store/config/consumerOffset.json).

Keys of `offsetTable` are `topic@group`, their values map queue id -> offset. fastjson writes integer keys without quotes; a
tokenizer adds them. Anything ambiguous is refused with its place; no entry is skipped.

Here group = group and shard = `topic/queueId`, with topic and queue id as labels (topic and partition). The queue id is what
follows the last slash, so that no two queues share a shard.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey

RETRY_PREFIX = "%RETRY%"  # prefix of the topic with a group's failed messages, which are delivered again
JAVA_INT_MAX = 2**31 - 1
JAVA_LONG_MAX = 2**63 - 1

_DERIVED = {"dataVersion", "groupTopicMap"}  # fields that 5.x adds, without offsets

# A string (an unterminated one extends to the end and fails later), or an integer in the position of a key.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|(?P<before>[{,]\s*)(?P<key>-?\d+)(?=\s*:)', re.DOTALL)


class TableError(Exception):
    """An invalid table. The message names the file and the place."""


class QueueOffset(NamedTuple):
    """A group's next offset to read in one queue of a topic."""

    group: str
    topic: str
    queue_id: int
    offset: int

    @property
    def key(self) -> OffsetKey:
        """Its key in the adapter."""
        return OffsetKey(DEFAULT_NAMESPACE, self.group, f"{self.topic}/{self.queue_id}")

    @property
    def is_retry(self) -> bool:
        """True for a retry topic, to which no producer writes."""
        return self.topic.startswith(RETRY_PREFIX)


def read_tables(paths: Iterable[Path]) -> list[QueueOffset]:
    """The offsets of several files. Raises TableError, also if two files have the same queue of the same group."""
    source: dict[OffsetKey, Path] = {}
    found: list[QueueOffset] = []
    for path in paths:
        for entry in read_table(path):
            if entry.key in source:
                raise TableError(f"{path}: {'/'.join(entry.key)} is in {source[entry.key]} too")
            source[entry.key] = path
            found.append(entry)
    if not found:
        raise TableError("no offset was found in any file")
    return found


def read_table(path: Path) -> list[QueueOffset]:
    """The offsets of one file, in its order. Raises TableError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: cannot be read: {error}") from error
    try:
        return parse_table(text)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def parse_table(text: str) -> list[QueueOffset]:
    """The offsets of a table's text, in its order. Raises TableError."""
    table = _object(_parse(text), "the file")
    unknown = sorted(table.keys() - _DERIVED - {"offsetTable"})
    if unknown:
        raise TableError(f"{unknown[0]!r} is unknown here and may hold offsets")
    if "offsetTable" not in table:
        raise TableError("'offsetTable' is missing")
    return [entry for name, queues in _object(table["offsetTable"], "'offsetTable'").items() for entry in _entries(name, queues)]


def quote_integer_keys(text: str) -> str:
    """The text of fastjson as JSON: `{0:543}` becomes `{"0":543}`. Strings are not changed, whatever they contain."""

    def quoted(match: re.Match[str]) -> str:
        return match[0] if match["key"] is None else f'{match["before"]}"{match["key"]}"'

    return _TOKEN.sub(quoted, text)


def _parse(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(quote_integer_keys(text), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        # Without the column, which the added quotes have shifted.
        raise TableError(f"is not JSON with integer keys: line {error.lineno}: {error.msg}") from error
    except RecursionError as error:
        raise TableError("is nested too deeply") from error
    except ValueError as error:
        raise TableError(f"has a number that cannot be read: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise TableError(f"the key {name!r} is there twice")
        values[name] = value
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise TableError(f"{name} is not a number")


def _object(value: Any, where: str) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(value, dict):
        raise TableError(f"{where} is not an object")
    return value


def _entries(name: str, queues: Any) -> list[QueueOffset]:  # noqa: ANN401
    parts = name.split("@")
    if len(parts) != 2 or not all(parts):
        raise TableError(f"the key {name!r} is not topic@group")
    topic, group = parts
    return [
        QueueOffset(group, topic, _queue_id(name, queue), _offset(name, queue, offset))
        for queue, offset in _object(queues, repr(name)).items()
    ]


def _queue_id(name: str, text: str) -> int:
    # Canonical digits only: "01" and "1" would be two names of one queue.
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", text) or int(text) > JAVA_INT_MAX:
        raise TableError(f"{name!r}: the queue id {text!r} is not a whole number from 0 to {JAVA_INT_MAX}")
    return int(text)


def _offset(name: str, queue: str, value: Any) -> int:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= JAVA_LONG_MAX:
        raise TableError(f"{name!r}, queue {queue}: the offset {value!r} is not a whole number from 0 to {JAVA_LONG_MAX}")
    return value
