"""The values that all formats share: an offset with its names, and an entry that cannot be read, with its place and reason.

Pure. A row that has passed `with_names` can be stored as it is.
"""

from dataclasses import dataclass
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey

TEXT_SHOWN = 120  # characters shown of a rejected entry
_DIGITS_MAX = 20  # including leading zeros
_VALUE_SHOWN = 50  # characters shown of a bad value


class NotReadableError(InvalidInputError):
    """The file as a whole cannot be read: torn, not JSON, not UTF-8.

    The message names the line and says what to do, but does not name the file.
    """


class OffsetRow(NamedTuple):
    """One offset in a file. Epoch 0 and time 0 mean unknown."""

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
        """The key under which the offset is stored."""
        return OffsetKey(self.namespace, self.group, self.shard)


class Reject(NamedTuple):
    """An entry of a file that cannot be used.

    `line` starts at 1, and is 0 where a file has no lines; `place` is a JSON path, a key in hex, or empty; `text` is the
    beginning of the entry.
    """

    line: int
    place: str
    text: str
    reason: str


@dataclass(frozen=True)
class Naming:
    """Values for what a file does not contain.

    With `group`, a row without a group belongs to it, and a row of another group is rejected.
    """

    namespace: str = DEFAULT_NAMESPACE
    group: str = ""
    broker: str = ""


def with_names(row: OffsetRow, naming: Naming) -> OffsetRow:
    """The row with all its names filled in. Raises InvalidInputError that says which one is bad or missing."""
    namespace, group = row.namespace or naming.namespace, group_for(row.group, naming)
    if naming.group and namespace != naming.namespace:
        raise InvalidInputError(f"namespace: {namespace!r} is not {naming.namespace!r}; --namespace names another")
    check_name(namespace, "namespace")
    check_name(group, "group")
    check_name(row.shard, "shard")
    return row._replace(namespace=namespace, group=group)


def group_for(group: str, naming: Naming) -> str:
    """The group of a row that names `group`, or none. Raises InvalidInputError if it is missing or not the requested one."""
    if not group and not naming.group:
        raise InvalidInputError("group is missing; --group names it for the whole file")
    if group and naming.group and group != naming.group:
        raise InvalidInputError(f"group: {group!r} is not {naming.group!r}, the only group whose offsets are read")
    return group or naming.group


def whole_number(text: str, field: str, largest: int) -> int:
    """Parse digits to a number from 0 to `largest`. Raises InvalidInputError that shows the text."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and (number := int(text)) <= largest:
        return number
    raise not_whole(repr(text), field, largest)


def not_whole(text: str, field: str, largest: int) -> InvalidInputError:
    """The error for a value that is not a number from 0 to `largest`."""
    return InvalidInputError(f"{field}: {shortened(text, _VALUE_SHOWN)} is not a whole number from 0 to {largest}")


def shortened(text: str, size: int = TEXT_SHOWN) -> str:
    """The first `size` characters of a text, with ... if there are more."""
    return text if len(text) <= size else f"{text[:size]}..."
