"""What a store has to do to stand behind MetadataStore, and the rules and bounds of its keys and values.

Every store passes tests/contract/test_metadata.py. A key has one value and the revision of the write that made it.
"""

from typing import NamedTuple, Protocol

from adapter.errors import ContendedError, InvalidInputError
from adapter.model.names import name_problem

KEY_MAX_BYTES = 1_024
VALUE_MAX_BYTES = 2**20
MAX_PAGE = 1_000
DEFAULT_PAGE = 100
# A page ends behind the value that reaches this: with at most 2 MiB of values and 1 MiB of keys it is below the 4 MiB that a
# gRPC client takes unless told otherwise.
PAGE_BYTES = 2**20
REVISION_MAX = 2**63 - 1  # etcd's are signed


class RevisionConflictError(ContendedError):
    """A compare-and-set met another revision than it expected. Nothing was written."""


class Entry(NamedTuple):
    """What stands under a key, and the revision of the write that made it: it grows with every write and is never 0."""

    key: str
    value: bytes
    revision: int


class Page(NamedTuple):
    """A page of a listing; `after` is the key behind which the next one begins, empty at the end."""

    entries: list[Entry]
    after: str


class MetadataStore(Protocol):
    """Entries of clusters. What a method acknowledged survives a power cut; a read sees every acknowledged write.

    `expected` makes a write a compare-and-set: the revision that has to stand, 0 for an absent key; otherwise it raises
    RevisionConflictError. Every method raises MetaUnavailableError or StorageFailedError, and it is unknown then whether a write
    was applied; DiskFullError when nothing was written for lack of space.
    """

    async def put(self, cluster: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write a value; its revision."""

    async def get(self, cluster: str, key: str) -> Entry | None:
        """What stands; None: the key is absent."""

    async def delete(self, cluster: str, key: str, expected: int | None = None) -> bool:
        """Take a key away; False when it was absent."""

    async def list_page(self, cluster: str, prefix: str, size: int, after: str) -> Page:
        """Entries whose keys start with `prefix`, in the order of their bytes. May end before `size` when they are large."""


class PageBuilder:
    """A page that takes entries until it has `size` of them, or PAGE_BYTES of values."""

    def __init__(self, size: int) -> None:
        self._entries: list[Entry] = []
        self._size = size
        self._bytes = 0

    @property
    def remaining(self) -> int:
        """How many more it takes at most."""
        return 0 if self._bytes >= PAGE_BYTES else self._size - len(self._entries)

    def add(self, entry: Entry) -> None:
        """Take one, behind the others."""
        self._entries.append(entry)
        self._bytes += len(entry.value)

    def page(self, *, more: bool) -> Page:
        """The page, where there is `more` behind it or not."""
        return Page(self._entries, self._entries[-1].key if more else "")


def conflict(key: str, expected: int, standing: int) -> RevisionConflictError:
    """The error of a compare-and-set that met the revision `standing`, 0 for an absent key."""
    found = f"revision {standing} stands" if standing else "it is absent"
    wanted = f"revision {expected}" if expected else "that it is absent"
    return RevisionConflictError(f"key {key!r}: {found}, expected was {wanted}; nothing was written")


def check_key(key: str) -> str:
    """Return `key`, or raise InvalidInputError."""
    problem = name_problem(key, KEY_MAX_BYTES)
    if problem:
        raise InvalidInputError(f"key {problem}")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, which may be empty, or raise InvalidInputError."""
    problem = prefix and name_problem(prefix, KEY_MAX_BYTES)
    if problem:
        raise InvalidInputError(f"prefix {problem}")
    return prefix


def check_value(value: bytes) -> bytes:
    """Return `value`, or raise InvalidInputError."""
    if len(value) > VALUE_MAX_BYTES:
        raise InvalidInputError(f"value is {len(value)} bytes long; at most {VALUE_MAX_BYTES} are allowed")
    return value


def check_revision(expected: int) -> int:
    """Return the revision that a compare-and-set expects, or raise InvalidInputError."""
    if expected > REVISION_MAX:
        raise InvalidInputError(f"expected_revision {expected} is over {REVISION_MAX}")
    return expected


def check_page_size(size: int) -> int:
    """The size of a page, 0 for the default. Raises InvalidInputError."""
    if size > MAX_PAGE:
        raise InvalidInputError(f"page_size: {size} is over {MAX_PAGE}")
    return size or DEFAULT_PAGE


def check_page_token(token: bytes, prefix: str) -> str:
    """The key behind which a page begins. Raises InvalidInputError for what is not the token of a page of this list."""
    try:
        after = token.decode()
    except UnicodeDecodeError:
        after = "\0"
    if token and (name_problem(after, KEY_MAX_BYTES) or not after.startswith(prefix)):
        raise InvalidInputError("page_token: is not the next_page_token of a page of this list")
    return after
