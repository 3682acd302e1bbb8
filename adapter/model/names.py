"""Which names of namespaces, groups, shards and topics, and which metadata, are allowed.

Names are 1 to 255 bytes of UTF-8 without control characters. The `check_*` functions return their value or raise
InvalidInputError that names the field.
"""

import re
from collections.abc import Iterable, Sequence

from adapter.errors import InvalidInputError


def name_of_part(value: str) -> str:
    """Validate a name in a configuration file, under the same rules. Raises ValueError, as pydantic expects."""
    try:
        return check_name(value, "the name")
    except InvalidInputError as error:
        raise ValueError(str(error)) from error


NAME_MAX_BYTES = 255

METADATA_MAX_BYTES = 4096  # Kafka's offset.metadata.max.bytes

MAX_GOOD = 100_000

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_good: set[str] = set()  # found to be allowed: most names come again and again


def name_problem(name: str, max_bytes: int = NAME_MAX_BYTES) -> str | None:
    """Why `name` is not allowed as a name; None if it is."""
    if len(name) > max_bytes:  # not hashed either: it may have megabytes
        return _too_long(name, max_bytes)
    if max_bytes != NAME_MAX_BYTES:
        return _problem(name, max_bytes)
    if name in _good:
        return None
    problem = _problem(name, max_bytes)
    if problem is None:
        if len(_good) >= MAX_GOOD:
            _good.clear()
        _good.add(name)
    return problem


def _problem(name: str, max_bytes: int) -> str | None:
    if not name:
        return "is empty"
    try:
        if len(name.encode()) > max_bytes:
            return _too_long(name, max_bytes)
    except UnicodeEncodeError as error:
        return f"has half of a surrogate pair, U+{ord(name[error.start]):04X}, at position {error.start}"
    found = _CONTROL.search(name)
    if found:
        return f"has the control character U+{ord(found[0]):04X} at position {found.start()}"
    return None


def _too_long(name: str, max_bytes: int) -> str:
    return f"is {len(name.encode(errors='surrogatepass'))} bytes long; at most {max_bytes} are allowed"


def check_name(name: str, field: str) -> str:
    """Return `name`. Raises InvalidInputError that names `field` and the problem."""
    problem = name_problem(name)
    if problem:
        raise InvalidInputError(f"{field} {problem}")
    return name


def were_good(names: Iterable[str]) -> bool:
    """Whether all of these are names that were found to be allowed. If not, they may be so all the same."""
    return _good.issuperset(names)


def check_names(names: Sequence[str], fields: Sequence[str]) -> None:
    """Raise InvalidInputError that names the field for the first name that is not allowed."""
    if not were_good(names):
        for name, field in zip(names, fields, strict=True):
            check_name(name, field)


def forget_good() -> None:
    """Let each name be looked at again when it comes next, which takes a microsecond: so those go that nobody uses any more."""
    _good.clear()


def check_metadata(metadata: str, field: str) -> str:
    """Return `metadata`. Raises InvalidInputError if it is over 4,096 bytes."""
    if len(metadata) * 4 > METADATA_MAX_BYTES and len(metadata.encode()) > METADATA_MAX_BYTES:
        raise InvalidInputError(f"{field} is {len(metadata.encode())} bytes long; at most {METADATA_MAX_BYTES} are allowed")
    return metadata


def check_topic(topic: str, field: str) -> str:
    """Return `topic`, a label that may be empty. Raises InvalidInputError."""
    return check_name(topic, field) if topic else topic
