"""Checks of list requests: page sizes and page tokens. A token is the packed key after which the next page starts."""

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model.codec import unpack_names
from adapter.model.names import check_name

MAX_PAGE = 10_000

DEFAULT_PAGE = 1_000

MAX_SCAN_PAGE = 20_000

DEFAULT_SCAN_PAGE = 10_000

MAX_PARTS = 1_000  # parts of one split


def parse_page(namespace: str, group: str, page_size: int, max_page: int = MAX_PAGE) -> tuple[str, ...]:
    """Check a page request and return the names to list below, as `parse_listed`. Raises InvalidInputError."""
    if page_size > max_page:
        raise InvalidInputError(f"page_size: {page_size} is over {max_page}")
    return parse_listed(namespace, group)


def parse_parts(parts: int) -> int:
    """Return the number of parts of a split, 1 to 1,000. Raises InvalidInputError."""
    if not 0 < parts <= MAX_PARTS:
        raise InvalidInputError(f"parts: {parts} is not between 1 and {MAX_PARTS}")
    return parts


def parse_listed(namespace: str, group: str) -> tuple[str, ...]:
    """The names to list below: (), (namespace,) or (namespace, group). Raises InvalidInputError."""
    if group and not namespace:
        raise InvalidInputError("namespace: is empty, but a group is named; name both")
    names = (("namespace", namespace), ("group", group))
    return tuple(check_name(name, field) for field, name in names if name)


def parse_page_token(token: bytes, prefix: bytes, fields: int, field: str = "page_token") -> bytes:
    """Return the page token: empty, or a packed key of `fields` names below `prefix`. Raises InvalidInputError."""
    try:
        names = unpack_names(token)
    except (StoreDamagedError, UnicodeDecodeError):
        names = []
    if token and (len(names) != fields or not token.startswith(prefix)):
        raise InvalidInputError(f"{field}: is not the next_page_token of a page of this list")
    return token
