"""RocketMQ's offset files: bytes -> rows, with the place of each. No I/O.

Promises that whatever stands in a table is either an offset or a reject with its reason. fastjson writes JSON with keys that are
numbers, or whole objects: these are put into quotes first, outside of strings. Everything else has to be JSON.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

LONG_MAX = 2**63 - 1
QUEUE_MAX = 2**31 - 1  # Java's int
TEXT_SHOWN = 120  # characters of what was rejected
_LEVELS_SHOWN = 3
_DIGITS_MAX = len(str(LONG_MAX))

SEPARATOR = "@"
# What the broker puts behind the group for the offsets that it keeps for broadcasting consumers: `topic@group@broadcast`.
BROADCAST = "broadcast"
# Groups of light message queues begin so. A broker that has these on looks for them in lmqOffsetTable alone; their queue is 0.
LMQ = "%LMQ%"
# Not what was consumed: derived, or how far was pulled. Of the last three only rocketmq-rust writes any.
IGNORED = frozenset({"dataVersion", "groupTopicMap", "pullOffsetTable", "processedPullOffsetTable"})

# A string; or, after { or a comma, a number or an object before a colon.
_ODD_KEY = re.compile(
    rb'"(?:[^"\\]|\\.)*+"|([{,]\s*+)(?:(-?\d++)|(\{(?:"(?:[^"\\]|\\.)*+"|[^{}"]++)*+\}))(?=\s*+:)',
    re.DOTALL,
)


class Row(NamedTuple):
    """One offset of a file; or, with a `reason`, what cannot be imported, and the beginning of what stands there as `text`.

    `broker` is empty where the file does not tell it, `group` where its path does, `place` for a file as a whole.
    """

    place: str
    group: str = ""
    topic: str = ""
    queue: int | None = None
    broker: str = ""
    offset: int | None = None
    text: str = ""
    reason: str | None = None


def reject(place: str, text: str, reason: str) -> Row:
    """What cannot be imported."""
    return Row(place, text=text, reason=reason)


Rows = Iterator[Row]


class NotReadableError(ValueError):
    """A file is not JSON, or torn, or not an object."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in order, and those that are there twice."""


def broker_file(data: bytes) -> Rows:
    """The rows of consumerOffset.json or lmqConsumerOffset.json. Raises NotReadableError."""
    return _tables(data, {"offsetTable": _queues, "lmqOffsetTable": _lmq, "resetOffsetTable": _pending_reset})


def client_file(data: bytes) -> Rows:
    """The rows of offsets.json; the group is in its path. Raises NotReadableError."""
    return _tables(data, {"offsetTable": _message_queue})


def _tables(data: bytes, readers: dict[str, Callable[[str, str, Any], Rows]]) -> Rows:
    for name, table in _document(data):
        place = f"$.{name}"
        if name in IGNORED:
            continue
        if name not in readers:
            yield reject(place, shown(table), f"{name!r} is not a table of offsets that is known here")
        elif not isinstance(table, _Pairs):
            yield reject(place, shown(table), "is not an object")
        else:
            for key, value in table:
                yield from readers[name](_printable(f"{place}[{json.dumps(key, ensure_ascii=False)}]"), key, value)


def _document(data: bytes) -> _Pairs:
    try:
        text = quoted_keys(data.removeprefix(b"\xef\xbb\xbf")).decode()
        document = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise NotReadableError(f"is not UTF-8 at byte {error.start + 1}") from error
    except RecursionError as error:
        raise NotReadableError("is not JSON: is nested too deeply") from error
    except ValueError as error:
        raise NotReadableError("is empty" if not data.strip() else f"is not JSON, or torn: {error}") from error
    if not isinstance(document, _Pairs):
        raise NotReadableError("is not a JSON object")
    return document


def _no_number(text: str) -> Any:  # noqa: ANN401 - never returns
    raise ValueError(f"{text} is not a number")


def quoted_keys(data: bytes) -> bytes:
    """JSON with the keys that fastjson does not quote (numbers, objects) as strings. All else is as it was."""
    return _ODD_KEY.sub(_quoted_key, data)


def _quoted_key(found: re.Match[bytes]) -> bytes:
    before, number, whole = found.groups()
    if number:
        return bytes(before) + b'"' + bytes(number) + b'"'
    if whole:
        return bytes(before) + json.dumps(whole.decode(errors="surrogateescape"), ensure_ascii=False).encode(
            errors="surrogateescape"
        )
    return found[0]


def _queues(place: str, key: str, queues: Any) -> Rows:  # noqa: ANN401 - whatever stands in the file
    if not isinstance(queues, _Pairs):
        yield reject(place, shown(queues), "is not an object of queues and offsets")
        return
    try:
        topic, group = _names(key)
    except ValueError as error:
        yield reject(place, shown(queues), f"key: {error}")
        return
    for text, value in queues:
        yield _entry(f'{place}["{text}"]', group, topic, text, "", value)


def _lmq(place: str, key: str, value: Any) -> Rows:  # noqa: ANN401
    try:
        topic, group = _names(key)
    except ValueError as error:
        yield reject(place, shown(value), f"key: {error}")
    else:
        yield _entry(place, group, topic, 0, "", value)


def _pending_reset(place: str, _key: str, value: Any) -> Rows:  # noqa: ANN401
    yield reject(place, shown(value), "is a reset that no consumer has taken up yet, not an offset; do it again after the import")


def _message_queue(place: str, key: str, value: Any) -> Rows:  # noqa: ANN401
    try:
        queue = json.loads(key)
        topic, broker, number = (queue[name] for name in ("topic", "brokerName", "queueId"))
    except (ValueError, TypeError, KeyError, RecursionError):
        topic = broker = number = None
    if not isinstance(topic, str) or not isinstance(broker, str):
        yield reject(place, shown(value), "key: is not a queue with brokerName, queueId and topic")
        return
    try:
        _check_whole(topic + broker)
    except ValueError as error:
        yield reject(place, shown(value), f"key: {error}")
    else:
        yield _entry(place, "", topic, number, broker, value)


def _names(key: str) -> tuple[str, str]:
    """Topic and group of `topic@group`. No name of RocketMQ has an @, so that one with more is not guessed at."""
    _check_whole(key)
    topic, *rest = key.split(SEPARATOR)
    if len(rest) == 1 or (len(rest) == 2 and rest[1] == BROADCAST):  # noqa: PLR2004 - see BROADCAST
        return topic, SEPARATOR.join(rest)
    if not rest:
        raise ValueError("is not topic@group")
    raise ValueError(f"has {len(rest)} @: which of them parts topic and group cannot be known")


def _check_whole(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has half of a surrogate pair at position {error.start}") from error


def _entry(place: str, group: str, topic: str, queue: Any, broker: str, offset: Any) -> Row:  # noqa: ANN401
    try:
        return Row(place, group, topic, _whole(queue, "queueId", QUEUE_MAX), broker, _whole(offset, "offset", LONG_MAX))
    except ValueError as error:
        return reject(_printable(place), shown(offset), str(error))


def _whole(value: Any, field: str, largest: int) -> int:  # noqa: ANN401
    """A number, or its digits: fastjson quotes long ones on request. Raises ValueError."""
    number = value
    if isinstance(value, str) and len(value) <= _DIGITS_MAX and value.isascii() and value.isdecimal():
        number = int(value)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= largest:
        raise ValueError(f"{field}: {shown(value)} is not a whole number from 0 to {largest}")
    return number


def shown(value: Any) -> str:  # noqa: ANN401
    """A value as a reject shows it: shortened."""
    text = _printable(json.dumps(_plain(value, _LEVELS_SHOWN), ensure_ascii=False))
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}..."


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _plain(value: Any, levels: int) -> Any:  # noqa: ANN401
    if isinstance(value, _Pairs):
        return {key: _plain(item, levels - 1) for key, item in value} if levels else "..."
    return value if not isinstance(value, list) or levels else "..."
