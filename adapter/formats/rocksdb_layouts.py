"""Keys and values of RocketMQ's RocksDB stores, V1 and V2, to and from entries. No I/O.

Any bytes give either an entry, which for V2 encodes to the same bytes, or an InvalidInputError with the reason. V1 follows
RocksDBConsumerOffsetManager; V2 follows ConsumerOffsetManagerV2, TableId and ConfigHelper of org.apache.rocketmq.broker.config.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from adapter.errors import InvalidInputError
from adapter.formats.rocketmq_json import BROADCAST, OFFSETS, SEPARATOR, VERSION, Queues
from adapter.formats.rows import Reject, shortened, whole_number
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX

# V1: column families, of which RocketMQ opens all three (ConfigRocksDBStorage.postLoad); the offsets are in the first.
VERSION_FAMILY = "kvDataVersion"
VERSION_KEY = b"kvDataVersionKey"
FAMILIES = ("default", VERSION_FAMILY, "forbidden")
# 5.5 with useSingleRocksDBForAllConfigs: V1's rows in a family of a store that also has topics and groups. A family is made when
# its first row is written.
SINGLE_FAMILY = "consumerOffset"
SINGLE_FAMILIES = frozenset(
    {SINGLE_FAMILY, f"{SINGLE_FAMILY}Version", "topic", "topicVersion", "subscriptionGroup", "subscriptionGroupVersion"}
)
_IGNORED = frozenset({VERSION})
_UNQUOTED_MAX = 2**53 - 1  # fastjson's BrowserCompatible quotes larger longs: RocksDBConsumerOffsetManager.putWriteBatch
# A value as brokers write it, with numbers small enough to be valid without a check; any other is parsed completely.
_PAIR = rb'(?:[0-9]{1,9}|"[0-9]{1,9}"):(?:0|[1-9][0-9]{0,17}|"[0-9]{1,18}")'
_PLAIN = re.compile(rb'\{"offsetTable":\{(%b(?>(?:,%b)*))\}\}' % (_PAIR, _PAIR))
_BARE_KEY = re.compile(rb'"(?>(?:[^"\\]|\\.)*)"|([{,]\s*+)(-?\d++)(?=\s*+:)', re.DOTALL)

# V2: the keys of a table start with one byte for "table" and two for the table's number.
TABLES, AFTER_TABLES = b"\x01", b"\x02"
CONSUMER = bytes.fromhex("010001")
AFTER_CONSUMER = bytes.fromhex("010002")
AFTER_KNOWN = bytes.fromhex("010005")  # after pull offsets (2), topics (3) and subscription groups (4), which are not read
TOPICS, GROUPS = bytes.fromhex("01000302"), bytes.fromhex("01000402")  # the rows of both, without that of their version
CONSUMER_VERSION = CONSUMER + b"\x01data_version"
_DATA = CONSUMER + b"\x02"
_AFTER_NAME = b"\x01"
_LENGTH = struct.Struct(">H")
_QUEUE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
QUEUE_BYTES = _QUEUE.size
_VERSION = struct.Struct(">qqq")  # state machine's, milliseconds, counter


class Entry(NamedTuple):
    """One offset in RocketMQ's terms."""

    group: str
    topic: str
    queue: int
    offset: int


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of its members, in order, including duplicates."""


def decode_v1(key: bytes, value: bytes) -> Iterator[Queues | Reject]:
    """The offsets of one row, and rejects for everything in it that is no offset."""
    place, plain = shown_key(key), _PLAIN.fullmatch(value)
    try:
        topic, group = _names(_text(key, "key"))
        if plain:
            numbers = [*map(int, plain[1].replace(b'"', b"").replace(b":", b",").split(b","))]
            yield Queues(0, place, group, topic, "", [*zip(numbers[::2], numbers[1::2], strict=True)], keyed=True)
            return
        queues = _queues(value)
    except InvalidInputError as error:
        yield Reject(0, place, shortened(printable(value)), printable(str(error)))
        return
    offsets = []
    for queue, offset in queues:
        try:
            offsets.append((whole_number(queue, "queue", QUEUE_MAX), whole_number(str(offset), "offset", LONG_MAX)))
        except InvalidInputError as error:
            shown = shortened(printable(queue))
            yield Reject(0, f'{place}["{shown}"]', shortened(printable(str(offset))), printable(str(error)))
    if offsets:
        yield Queues(0, place, group, topic, "", offsets, keyed=True)


def encode_v1(group: str, topic: str, offsets: Mapping[int, int]) -> tuple[bytes, bytes]:
    """The row of a group's offsets in one topic; `offsets` maps queue to offset."""
    table = {str(queue): offset if offset <= _UNQUOTED_MAX else str(offset) for queue, offset in offsets.items()}
    return f"{topic}{SEPARATOR}{group}".encode(), json.dumps({OFFSETS: table}, separators=(",", ":")).encode()


def names_v2(names: bytes) -> tuple[str, str]:
    """Group and topic of a row in the consumer table, from its key without the queue. Raises InvalidInputError."""
    if not names.startswith(_DATA):
        raise InvalidInputError("key: is not that of an offset")
    group, rest = _name(names.removeprefix(_DATA), "group")
    topic, rest = _name(rest, "topic")
    if rest:
        raise InvalidInputError(f"key: has {len(rest)} bytes too many behind the topic")
    return group, topic


def name_v2(key: bytes) -> str:
    """The topic or group of a row in the tables of these, which `TOPICS` or `GROUPS` begins. Raises InvalidInputError."""
    return _text(key[len(TOPICS) + _LENGTH.size :], "name")


def queue_v2(key: bytes, value: bytes) -> tuple[int, int]:
    """Queue and offset of a row in the consumer table. Raises InvalidInputError."""
    if len(value) != _OFFSET.size:
        raise InvalidInputError(f"offset: has {len(value)} bytes instead of {_OFFSET.size}")
    ((queue,), (offset,)) = _QUEUE.unpack(key[-QUEUE_BYTES:]), _OFFSET.unpack(value)
    if queue < 0 or offset < 0:
        raise InvalidInputError(f"queue: {queue} is below 0" if queue < 0 else f"offset: {offset} is below 0")
    return queue, offset


def encode_v2(entry: Entry) -> tuple[bytes, bytes]:
    """The row of one offset."""
    names = b"".join(_LENGTH.pack(len(name)) + name + _AFTER_NAME for name in (entry.group.encode(), entry.topic.encode()))
    return _DATA + names + _QUEUE.pack(entry.queue), _OFFSET.pack(entry.offset)


def version_v2(now_ms: int) -> bytes:
    """The value of `CONSUMER_VERSION`."""
    return _VERSION.pack(0, now_ms, 1)


def shown_key(key: bytes) -> str:
    """A key for display: as text if it is printable, else in hex."""
    text = printable(key)
    return text if text.isprintable() and text.encode() == key else key.hex()


def _names(key: str) -> tuple[str, str]:
    """Topic and group of V1's key. RocketMQ's names have no @, so a key with more of them is rejected."""
    topic, *group = key.split(SEPARATOR)
    if len(group) != 1 and group[1:] != [BROADCAST]:
        raise InvalidInputError(f"key: is not topic{SEPARATOR}group")
    return topic, SEPARATOR.join(group)


def _queues(value: bytes) -> list[tuple[str, Any]]:
    """Parse V1's value. fastjson quotes keys and values or not, depending on its version and features."""
    try:
        fields = json.loads(_BARE_KEY.sub(_quoted_key, value).decode(), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"is not JSON: {error}") from error
    if not isinstance(fields, _Pairs):
        raise InvalidInputError("is not a JSON object")
    known = [(name, table) for name, table in fields if name not in _IGNORED]
    if [name for name, _ in known] != [OFFSETS] or not isinstance(known[0][1], _Pairs):
        raise InvalidInputError(f"is not an object with one {OFFSETS} of queues and offsets")
    return known[0][1]


def _quoted_key(found: re.Match[bytes]) -> bytes:
    before, number = found.groups()
    return found[0] if number is None else b'%b"%b"' % (before, number)


def _name(data: bytes, field: str) -> tuple[str, bytes]:
    """A name in V2's key, and the rest after it."""
    start, end = _LENGTH.size, _LENGTH.size
    if len(data) >= start:
        end += _LENGTH.unpack_from(data)[0]
    if len(data) < start or data[end : end + 1] != _AFTER_NAME:
        raise InvalidInputError(f"key: the {field} is not as long as it says")
    return _text(data[start:end], field), data[end + 1 :]


def _text(data: bytes, field: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{field}: is not UTF-8 at byte {error.start + 1}") from error


def printable(text: str | bytes) -> str:
    """A text for display: invalid UTF-8 and halves of surrogate pairs are escaped."""
    return (text.encode(errors="backslashreplace") if isinstance(text, str) else text).decode(errors="backslashreplace")
