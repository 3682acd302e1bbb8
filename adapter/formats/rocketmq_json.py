"""Reads RocketMQ's offset files as streams: brokers' consumerOffset.json and lmqConsumerOffset.json, clients' offsets.json.

Every entry of a table becomes an offset, or a reject with line, place and reason. A key that occurs twice gives both offsets; the
importer's merge keeps the larger one.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, NamedTuple

from adapter.errors import InvalidInputError
from adapter.formats.json_stream import CHUNK_BYTES, FLAT_OBJECT, SPACE, JsonStream
from adapter.formats.rows import NotReadableError, Reject, not_whole, shortened, whole_number
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX

SEPARATOR = "@"
# Suffix of the group in the keys of broadcasting consumers: `topic@group@broadcast`.
BROADCAST = "broadcast"
# Prefix of the groups of light message queues. A broker with enableLmq reads them only from lmqOffsetTable, with queue 0
# (LmqConsumerOffsetManager.queryOffset); one without does not read that table (ConsumerOffsetManager.decode).
LMQ = "%LMQ%"
OFFSETS, LMQ_OFFSETS = "offsetTable", "lmqOffsetTable"
VERSION = "dataVersion"
# Tables without consumed offsets: derived data, and pull positions. Only rocketmq-rust writes the last three.
IGNORED = frozenset({VERSION, "groupTopicMap", "pullOffsetTable", "processedPullOffsetTable"})
_PENDING_RESETS = "resetOffsetTable"
_PLACE_SHOWN = 600  # characters shown of a key; two names of 255 fit

# A complete member as brokers write it, with numbers small enough to be valid without a check. Anything else is parsed piece by
# piece.
_NAME = r'[^"\\\x00-\x1f@]'
_NAMES = rf'("({_NAME}*+)@({_NAME}*+(?>(?:@{BROADCAST})?))"){SPACE}:{SPACE}'
_OFFSET = "(?:0|[1-9][0-9]{0,17}+)"
_PAIR = f'{SPACE}(?:[0-9]{{1,9}}+|"[0-9]{{1,9}}+"){SPACE}:{SPACE}(?:{_OFFSET}|"{_OFFSET}"){SPACE}'
_QUEUES = re.compile(rf"{_NAMES}\{{({_PAIR}(?>(?:,{_PAIR})*))\}}{SPACE},")
_LMQ_QUEUE = re.compile(f"{_NAMES}({_OFFSET}){SPACE},")
_MESSAGE_QUEUE = re.compile(f"({FLAT_OBJECT}){SPACE}:{SPACE}({_OFFSET}){SPACE},")


class Queues(NamedTuple):
    """Offsets of some queues of one topic for one group, as (queue, offset).

    `broker` is empty where the file does not name it, `group` where it is in the file's path. `place` is the JSON path: of the
    object that holds all of the queues if `keyed`, else of the one queue.
    """

    line: int
    place: str
    group: str
    topic: str
    broker: str
    offsets: list[tuple[int, int]]
    keyed: bool = False

    def place_of(self, queue: int) -> str:
        """The JSON path of one of the queues."""
        return f'{self.place}["{queue}"]' if self.keyed else self.place


Entries = Iterator[Queues | Reject]
_Table = Callable[[JsonStream, str], Entries]


def data_version(now_ms: int) -> bytes:
    """RocketMQ's DataVersion as JSON, for offsets that are written now.

    A broker with RocksDB takes over a consumerOffset.json, or an older store, only if its counter is above that of the store that
    it uses, and counts on from there. So ours is above any that a broker has counted, and is taken over once.
    """
    return json.dumps({"counter": now_ms, "stateVersion": 0, "timestamp": now_ms}, separators=(",", ":")).encode()


def broker_file(file: IO[bytes], chunk_bytes: int = CHUNK_BYTES) -> Entries:
    """The entries of consumerOffset.json or lmqConsumerOffset.json. Raises NotReadableError, possibly after some entries."""
    tables: dict[str, _Table] = {OFFSETS: _offset_table, LMQ_OFFSETS: _lmq_table, _PENDING_RESETS: _pending_resets}
    return _tables(JsonStream(file, chunk_bytes), tables)


def client_file(file: IO[bytes], chunk_bytes: int = CHUNK_BYTES) -> Entries:
    """The entries of offsets.json, whose path names the group. Raises NotReadableError, possibly after some entries."""
    return _tables(JsonStream(file, chunk_bytes), {OFFSETS: _client_table})


def _tables(stream: JsonStream, tables: dict[str, _Table]) -> Entries:
    if not stream.next():
        raise NotReadableError("is empty")
    if stream.next() != "{":
        stream.value()
        stream.end()
        raise NotReadableError("is not a JSON object")
    for key in stream.members():
        name = _text(str(key))
        place = f"$.{_printable(shortened(name))}"
        if name in IGNORED:
            stream.value()
        elif name not in tables:
            yield _reject(stream, place, f"{name!r} is an unknown table")
        elif stream.next() != "{":
            yield _reject(stream, place, "is not an object")
        else:
            yield from tables[name](stream, place)
    stream.end()


def _offset_table(stream: JsonStream, table: str) -> Entries:
    for found in stream.members(_QUEUES):
        if isinstance(found, str):
            yield from _queues(stream, table, found)
        else:
            key, topic, group, queues = found.groups()
            numbers = [*map(int, queues.replace('"', "").replace(":", ",").split(","))]
            offsets = [*zip(numbers[::2], numbers[1::2], strict=True)]
            yield Queues(stream.key_line, f"{table}[{key}]", group, topic, "", offsets, keyed=True)


def _queues(stream: JsonStream, table: str, key: str) -> Entries:
    """The queues of one key, one by one."""
    line, place = stream.key_line, _place(table, key)
    if stream.next() != "{":
        yield _reject(stream, place, "is not an object of queues and offsets")
        return
    try:
        topic, group = _names(key)
    except InvalidInputError as error:
        yield _reject(stream, place, str(error))
        return
    for queue in map(str, stream.members()):
        stream.next()
        at, text = stream.line, stream.value()
        try:
            entry = (_whole(queue, "queueId", QUEUE_MAX), _whole(text, "offset", LONG_MAX))
        except InvalidInputError as error:
            yield Reject(at, _place(place, queue), _shown(text), str(error))
        else:
            yield Queues(line, place, group, topic, "", [entry], keyed=True)


def _lmq_table(stream: JsonStream, table: str) -> Entries:
    for found in stream.members(_LMQ_QUEUE):
        if isinstance(found, str):
            yield _entry(stream, _place(table, found), partial(_lmq_queue, found))
        else:
            key, topic, group, offset = found.groups()
            yield Queues(stream.key_line, f"{table}[{key}]", group, topic, "", [(0, int(offset))])


def _lmq_queue(key: str) -> tuple[str, str, str, int]:
    topic, group = _names(key)
    return group, topic, "", 0


def _client_table(stream: JsonStream, table: str) -> Entries:
    for found in stream.members(_MESSAGE_QUEUE):
        if isinstance(found, str):
            yield _entry(stream, _place(table, found), partial(_message_queue, found))
            continue
        key, offset = found.groups()
        place = _place(table, key)
        try:
            group, topic, broker, queue = _message_queue(key)
        except InvalidInputError as error:
            yield Reject(stream.key_line, place, offset, str(error))
        else:
            yield Queues(stream.key_line, place, group, topic, broker, [(queue, int(offset))])


def _message_queue(key: str) -> tuple[str, str, str, int]:
    """Parse a MessageQueue as fastjson writes it: an object, or one in a string, with its fields in any order."""
    try:
        queue = json.loads(_text(key))
        topic, broker, number = (queue[name] for name in ("topic", "brokerName", "queueId"))
    except (ValueError, TypeError, KeyError, RecursionError):
        topic = broker = number = None
    if not isinstance(topic, str) or not isinstance(broker, str):
        raise InvalidInputError("key: is not a queue with brokerName, queueId and topic")
    _check_pairs(topic + broker, "key")
    return "", topic, broker, _whole(json.dumps(number), "queueId", QUEUE_MAX)


def _entry(stream: JsonStream, place: str, queue_of: Callable[[], tuple[str, str, str, int]]) -> Queues | Reject:
    """Parse an entry whose key is one queue and whose value is its offset."""
    stream.next()
    line, at, text = stream.key_line, stream.line, stream.value()
    bad = line
    try:
        group, topic, broker, queue = queue_of()
        bad = at
        return Queues(line, place, group, topic, broker, [(queue, _whole(text, "offset", LONG_MAX))])
    except InvalidInputError as error:
        return Reject(bad, place, _shown(text), str(error))


def _pending_resets(stream: JsonStream, table: str) -> Entries:
    for key in stream.members():
        reason = "is a pending reset, not an offset; repeat the reset after the import"
        yield _reject(stream, _place(table, str(key)), reason)


def _names(key: str) -> tuple[str, str]:
    """Topic and group of `topic@group`. RocketMQ's names have no @, so a key with more of them is rejected."""
    text = _text(key)
    _check_pairs(text, "key")
    topic, *rest = text.split(SEPARATOR)
    if not key.startswith('"') or not rest:
        raise InvalidInputError("key: is not topic@group")
    if len(rest) == 1 or (len(rest) == 2 and rest[1] == BROADCAST):  # noqa: PLR2004 - see BROADCAST
        return topic, SEPARATOR.join(rest)
    raise InvalidInputError(f"key: has {len(rest)} @: it is unclear which one separates topic and group")


def _check_pairs(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{field}: has half of a surrogate pair at position {error.start}") from error


def _whole(value: str, field: str, largest: int) -> int:
    """Parse a number, possibly in quotes: fastjson quotes long ones on request."""
    try:
        return whole_number(_text(value), field, largest)
    except InvalidInputError as error:
        raise not_whole(_shown(value), field, largest) from error


def _text(value: str) -> str:
    """The content of a string; any other value as written."""
    if not value.startswith('"'):
        return value
    return str(json.loads(value)) if "\\" in value else value[1:-1]


def _reject(stream: JsonStream, place: str, reason: str) -> Reject:
    """Take the next value and reject it."""
    stream.next()
    return Reject(stream.line, place, _shown(stream.value()), reason)


def _place(table: str, key: str) -> str:
    """The JSON path of a key. A key that is not a string is shown in quotes."""
    text = key if key.startswith('"') else json.dumps(key, ensure_ascii=False)
    return f"{table}[{shortened(' '.join(text.split()), _PLACE_SHOWN)}]"


def _shown(text: str) -> str:
    return " ".join(shortened(text).split())


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
