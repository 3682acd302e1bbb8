"""The Protocol of a store of metadata entries, and the rules and size limits of keys and values.

Every implementation passes tests/contract/test_metadata.py. A key has one value and the revision of the write that made it.
"""

from typing import NamedTuple, Protocol

from adapter.errors import ContendedError, InvalidInputError
from adapter.model.names import name_problem

KEY_MAX_BYTES = 1_024
VALUE_MAX_BYTES = 2**20
MAX_PAGE = 1_000
DEFAULT_PAGE = 100
# A page ends after the value that reaches this size. With at most 2 MiB of values and 1 MiB of keys it stays below 4 MiB, the
# default limit of gRPC clients.
PAGE_BYTES = 2**20
REVISION_MAX = 2**63 - 1  # etcd's are signed


class RevisionConflictError(ContendedError):
    """A compare-and-set found another revision than expected. Nothing was written."""


class Entry(NamedTuple):
    """A stored entry. `revision` is that of the write that made it: it grows with every write and is never 0."""

    key: str
    value: bytes
    revision: int


class Page(NamedTuple):
    """A page of a listing; `after` is the key after which the next page starts, empty at the end."""

    entries: list[Entry]
    after: str


class MetadataStore(Protocol):
    """A store of the metadata of clusters. What a method acknowledged survives a power cut; reads see every acknowledged write.

    `expected` makes a write a compare-and-set: it is the revision that must be stored, 0 for an absent key; otherwise the method
    raises RevisionConflictError. Every method raises MetaUnavailableError or StorageFailedError when the outcome of a write is
    unknown, DiskFullError when nothing was written for lack of space.
    """

    async def put(self, cluster: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write a value; returns its revision."""

    async def get(self, cluster: str, key: str) -> Entry | None:
        """Read an entry; None if the key is absent."""

    async def delete(self, cluster: str, key: str, expected: int | None = None) -> bool:
        """Delete a key; False if it was absent."""

    async def list_page(self, cluster: str, prefix: str, size: int, after: str) -> Page:
        """Entries whose keys start with `prefix`, in byte order. May end before `size` if they are large."""


class PageBuilder:
    """Collects entries of a page until it has `size` of them, or PAGE_BYTES of values."""

    def __init__(self, size: int) -> None:
        self._entries: list[Entry] = []
        self._size = size
        self._bytes = 0

    @property
    def remaining(self) -> int:
        """How many more entries fit at most; 0 when the page is full."""
        return 0 if self._bytes >= PAGE_BYTES else self._size - len(self._entries)

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self._entries.append(entry)
        self._bytes += len(entry.value)

    def page(self, *, more: bool) -> Page:
        """The page. `more`: entries follow it."""
        return Page(self._entries, self._entries[-1].key if more else "")


def conflict(key: str, expected: int, standing: int) -> RevisionConflictError:
    """The error of a compare-and-set that found the revision `standing`, 0 for an absent key."""
    found = f"revision {standing} stands" if standing else "it is absent"
    wanted = f"revision {expected}" if expected else "that it is absent"
    return RevisionConflictError(f"key {key!r}: {found}, expected was {wanted}; nothing was written")


def check_key(key: str) -> str:
    """Return `key`. Raises InvalidInputError."""
    problem = name_problem(key, KEY_MAX_BYTES)
    if problem:
        raise InvalidInputError(f"key {problem}")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, which may be empty. Raises InvalidInputError."""
    problem = prefix and name_problem(prefix, KEY_MAX_BYTES)
    if problem:
        raise InvalidInputError(f"prefix {problem}")
    return prefix


def check_value(value: bytes) -> bytes:
    """Return `value`. Raises InvalidInputError if it is over 1 MiB."""
    if len(value) > VALUE_MAX_BYTES:
        raise InvalidInputError(f"value is {len(value)} bytes long; at most {VALUE_MAX_BYTES} are allowed")
    return value


def check_revision(expected: int) -> int:
    """Return the revision that a compare-and-set expects. Raises InvalidInputError."""
    if expected > REVISION_MAX:
        raise InvalidInputError(f"expected_revision {expected} is over {REVISION_MAX}")
    return expected


def check_page_size(size: int) -> int:
    """Return the page size, 0 meaning the default. Raises InvalidInputError."""
    if size > MAX_PAGE:
        raise InvalidInputError(f"page_size: {size} is over {MAX_PAGE}")
    return size or DEFAULT_PAGE


def check_page_token(token: bytes, prefix: str) -> str:
    """Return the key after which a page starts. Raises InvalidInputError for a token of another list."""
    try:
        after = token.decode()
    except UnicodeDecodeError:
        after = "\0"
    if token and (name_problem(after, KEY_MAX_BYTES) or not after.startswith(prefix)):
        raise InvalidInputError("page_token: is not the next_page_token of a page of this list")
    return after
