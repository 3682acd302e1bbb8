"""Requests of the adapter's and the Meta Service's servers: what both check in the same way."""

from collections.abc import Sequence

from adapter.model.names import check_name
from adapter.runtime.slices import others

NAMES_SLICE = 500  # names that are checked before others have their turns


async def parse_names(names: Sequence[str], field: str) -> dict[str, None]:
    """Names, each once, in slices. Raises InvalidInputError."""
    found: dict[str, None] = {}
    for at, name in enumerate(names):
        if at and at % NAMES_SLICE == 0:
            await others()
        found[check_name(name, f"{field}[{at}]")] = None
    return found
