"""What offset files hold, said a second time: whole documents by `json.loads`, without a stream, without a fast path.

Only for documents that are JSON. A number keeps its text, an object its members in their order, twice the same key too.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.queues import MessageQueue, shard_of

LONG_MAX, U64_MAX, QUEUE_MAX, U32_MAX = 2**63 - 1, 2**64 - 1, 2**31 - 1, 2**32 - 1
DIGITS_MAX, METADATA_MAX = 20, 4_096
IGNORED = ("dataVersion", "groupTopicMap", "pullOffsetTable", "processedPullOffsetTable")
# Above these a stream may say that it does not take the file.
DEPTH_MAX, SIZE_MAX = 50, 900

Row = tuple[str, str, int]  # group, shard, offset


class Number(str):
    """A number as it is written."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """An object."""


@dataclass
class Expected:
    """The rows in their order, and how many entries are none."""

    rows: list[Row] = field(default_factory=list)
    rejects: int = 0

    def take(self, row: Row | None) -> None:
        """A row, or what is none."""
        if row:
            self.rows.append(row)
        else:
            self.rejects += 1


def document(data: bytes) -> Any:
    """A JSON document of usual depth, with texts of usual length. Raises ValueError for any other bytes."""
    try:
        text = data.decode("utf-8-sig")
        found = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_no_constant, object_pairs_hook=Members)
    except RecursionError as error:
        raise ValueError("too deep") from error
    _check_usual(found, DEPTH_MAX)
    return found


def broker(found: Members) -> Expected:
    """consumerOffset.json and lmqConsumerOffset.json."""
    expected = Expected()
    for name, table in found:
        if name in IGNORED:
            continue
        if name not in {"offsetTable", "lmqOffsetTable", "resetOffsetTable"} or not isinstance(table, Members):
            expected.take(None)
            continue
        for key, value in table:
            names = _names(key)
            if name == "resetOffsetTable" or names is None:
                expected.take(None)
            elif name == "lmqOffsetTable":
                expected.take(_row(*names, "", Number(0), value))
            elif not isinstance(value, Members):
                expected.take(None)
            else:
                for queue, offset in value:
                    expected.take(_row(*names, "", queue, offset))
    return expected


def client(found: Members, group: str) -> Expected:
    """A client's offsets.json. Its keys are strings here, which hold JSON."""
    expected = Expected()
    for name, table in found:
        if name in IGNORED:
            continue
        if name != "offsetTable" or not isinstance(table, Members):
            expected.take(None)
            continue
        for key, offset in table:
            queue = _queue(key)
            expected.take(_row(queue[0], group, queue[1], queue[2], offset) if queue else None)
    return expected


def of_row(key: bytes, value: Any) -> Expected | None:
    """A row of RocksDB V1; None where it is rejected as a whole."""
    try:
        names = _names(key.decode())
    except UnicodeDecodeError:
        return None
    tables = [table for name, table in value if name != "dataVersion"] if isinstance(value, Members) else []
    known = [name for name, _ in value if name != "dataVersion"] if isinstance(value, Members) else []
    if names is None or known != ["offsetTable"] or not isinstance(tables[0], Members):
        return None
    expected = Expected()
    for queue, offset in tables[0]:
        expected.take(_row(*names, "", queue, offset))
    return expected


def own(found: list[Any]) -> Expected:
    """Our JSON, in the namespace `default`."""
    expected = Expected()
    for value in found:
        expected.take(_own_row(value))
    return expected


def kafka(lines: list[str]) -> Expected:
    """Lines of Kafka's CSV that are not blank, without quotes. The first good one has the number of columns."""
    expected = Expected()
    columns: tuple[int, ...] = (3, 4)
    for line in lines:
        fields = line.split(",")
        row = None
        if len(fields) in columns:
            topic, queue, offset = fields[-3:]
            group = fields[0] if len(fields) == 4 else ""
            row = _kafka_row(group, topic, queue, offset)
        if row:
            columns = (len(fields),)
        expected.take(row)
    return expected


def _kafka_row(group: str, topic: str, queue: str, offset: str) -> Row | None:
    numbers = _number(queue, QUEUE_MAX), _number(offset, LONG_MAX)
    if None in numbers:
        return None
    shard = f"{topic}/{numbers[0]}"
    fine = all(map(_is_name, (group, topic, shard)))
    return (group, shard, numbers[1] or 0) if fine else None


def _own_row(value: Any) -> Row | None:
    fields = dict(value) if isinstance(value, Members) else {}
    if not fields or len(fields) != len(value) or not {"shard", "offset"} <= fields.keys():
        return None
    texts = {name: fields.pop(name, default) for name, default in _TEXTS.items()}
    numbers = {name: fields.pop(name, Number(0)) for name in _NUMBERS}
    fields.pop("dirty", None)
    if fields or not all(type(text) is str and _is_text(text) for text in texts.values()):
        return None
    for name, most in _NUMBERS.items():
        number = numbers[name]
        if not isinstance(number, Number) or not _is_int(number) or not 0 <= int(number) <= most:
            return None
    namespace = texts["namespace"] or "default"
    names = (namespace, texts["group"], texts["shard"], texts["topic"] or "t")
    fine = all(map(_is_name, names)) and len(texts["metadata"].encode()) <= METADATA_MAX
    return (texts["group"], texts["shard"], int(numbers["offset"])) if fine else None


_TEXTS = {"namespace": "", "group": "", "shard": "", "metadata": "", "topic": ""}
_NUMBERS = {"offset": U64_MAX, "committed_at_ms": U64_MAX, "partition": U32_MAX, "epoch": U64_MAX}


def _row(topic: str, group: str, broker_name: str, queue: str, offset: Any) -> Row | None:
    """Numbers stand with quotes or without."""
    numbers = _number(queue, QUEUE_MAX), _number(offset, LONG_MAX)
    if numbers[0] is None or numbers[1] is None or not _is_name(group):
        return None
    try:
        return group, shard_of(MessageQueue(topic, numbers[0], broker_name)), numbers[1]
    except InvalidInputError:
        return None


def _number(text: Any, most: int) -> int | None:
    if not isinstance(text, str) or not 0 < len(text) <= DIGITS_MAX or set(text) - set("0123456789"):
        return None
    return int(text) if int(text) <= most else None


def _is_int(text: str) -> bool:
    return not set(text.removeprefix("-")) - set("0123456789")


def _names(key: str) -> tuple[str, str] | None:
    parts = key.split("@")
    if not _is_text(key) or len(parts) not in {2, 3} or parts[2:] not in ([], ["broadcast"]):
        return None
    return parts[0], "@".join(parts[1:])


def _queue(key: str) -> tuple[str, str, str] | None:
    """Topic, broker, number."""
    try:
        value = json.loads(key, parse_int=Number, parse_float=Number)
        topic, name, number = value["topic"], value["brokerName"], value["queueId"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not all(type(text) is str and _is_text(text) for text in (topic, name)) or not isinstance(number, str):
        return None
    return topic, name, number


def _is_name(text: str) -> bool:
    try:
        return bool(check_name(text, ""))
    except InvalidInputError:
        return False


def _is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _check_usual(value: Any, depth: int) -> None:
    if not depth:
        raise ValueError("too deep")
    for part in _parts(value):
        if isinstance(part, str) and len(part) > SIZE_MAX:
            raise ValueError("too long")
        _check_usual(part, depth - 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Members):
        for key, member in value:
            yield from (key, member)
    elif isinstance(value, list):
        yield from value
