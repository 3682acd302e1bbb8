"""Pages of a list: their sizes, and the tokens that say where the next one begins."""

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model.codec import unpack_names
from adapter.model.names import check_name

MAX_PAGE = 10_000

DEFAULT_PAGE = 1_000

MAX_SCAN_PAGE = 20_000

DEFAULT_SCAN_PAGE = 10_000

MAX_PARTS = 1_000  # of a split


def parse_page(namespace: str, group: str, page_size: int, max_page: int = MAX_PAGE) -> tuple[str, ...]:
    """The names to list below: none, a namespace, or a namespace and a group. Raises InvalidInputError."""
    if page_size > max_page:
        raise InvalidInputError(f"page_size: {page_size} is over {max_page}")
    return parse_listed(namespace, group)


def parse_parts(parts: int) -> int:
    """The number of parts of a split. Raises InvalidInputError."""
    if not 0 < parts <= MAX_PARTS:
        raise InvalidInputError(f"parts: {parts} is not between 1 and {MAX_PARTS}")
    return parts


def parse_listed(namespace: str, group: str) -> tuple[str, ...]:
    """The names to list below: none, a namespace, or a namespace and a group. Raises InvalidInputError."""
    if group and not namespace:
        raise InvalidInputError("namespace: is empty, but a group is named; name both")
    names = (("namespace", namespace), ("group", group))
    return tuple(check_name(name, field) for field, name in names if name)


def parse_page_token(token: bytes, prefix: bytes, fields: int, field: str = "page_token") -> bytes:
    """The token of a former page of the list below `prefix`: a key of so many fields. Raises InvalidInputError."""
    try:
        names = unpack_names(token)
    except (StoreDamagedError, UnicodeDecodeError):
        names = []
    if token and (len(names) != fields or not token.startswith(prefix)):
        raise InvalidInputError(f"{field}: is not the next_page_token of a page of this list")
    return token
