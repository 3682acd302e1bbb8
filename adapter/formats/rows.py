"""What is read from a file and written to one: an offset with its names, or what cannot be read, with its line and reason.

Pure values. Promises that a row which passes `placed` can be stored as it is.
"""

from dataclasses import dataclass
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey

TEXT_SHOWN = 120  # characters of what was rejected
LONG_MAX = 2**63 - 1  # Java's long: RocketMQ's and Kafka's offsets
QUEUE_MAX = 2**31 - 1  # Java's int
_DIGITS_MAX = 20  # with zeros in front
_VALUE_SHOWN = 50  # characters of a bad value


class NotReadableError(InvalidInputError):
    """A file as a whole: torn, not JSON, not UTF-8. The text names the line and says what to do, but not the file."""


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


class Reject(NamedTuple):
    """What stands in a file and cannot be taken.

    `line` is from 1, and 0 where a file has none; `place` is a JSON path, a key in hex, or empty; `text` is the beginning of
    what stands there.
    """

    line: int
    place: str
    text: str
    reason: str


@dataclass(frozen=True)
class Naming:
    """What a file does not tell. With `group`, a row without one is of this group, and one of another group is rejected."""

    namespace: str = DEFAULT_NAMESPACE
    group: str = ""
    broker: str = ""


def with_names(row: OffsetRow, naming: Naming) -> OffsetRow:
    """The row with all its names. Raises InvalidInputError that says which one is bad or missing."""
    namespace, group = row.namespace or naming.namespace, group_for(row.group, naming)
    if naming.group and namespace != naming.namespace:
        raise InvalidInputError(f"namespace: {namespace!r} is not {naming.namespace!r}; --namespace names another")
    check_name(namespace, "namespace")
    check_name(group, "group")
    check_name(row.shard, "shard")
    return row._replace(namespace=namespace, group=group)


def group_for(group: str, naming: Naming) -> str:
    """The group of a row that names this one, or none. Raises InvalidInputError when it is missing, or not the one wanted."""
    if not group and not naming.group:
        raise InvalidInputError("group is missing; --group names it for the whole file")
    if group and naming.group and group != naming.group:
        raise InvalidInputError(f"group: {group!r} is not {naming.group!r}, of which alone the offsets are taken")
    return group or naming.group


def whole_number(text: str, field: str, largest: int) -> int:
    """The number that some digits are. Raises InvalidInputError that shows what stands there."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and (number := int(text)) <= largest:
        return number
    raise not_whole(repr(text), field, largest)


def not_whole(text: str, field: str, largest: int) -> InvalidInputError:
    """That a value is not a number as it should be."""
    return InvalidInputError(f"{field}: {shortened(text, _VALUE_SHOWN)} is not a whole number from 0 to {largest}")


def shortened(text: str, size: int = TEXT_SHOWN) -> str:
    """The beginning of a text."""
    return text if len(text) <= size else f"{text[:size]}..."
