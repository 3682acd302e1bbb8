"""Request checks that the adapter's and the Meta Service's servers share."""

from collections.abc import Sequence

from adapter.model.names import check_name
from adapter.runtime.slices import others

NAMES_SLICE = 500  # names checked before the event loop runs other tasks


async def parse_names(names: Sequence[str], field: str) -> dict[str, None]:
    """Check names and return each once, in order, as keys of a dict. Yields to the event loop. Raises InvalidInputError."""
    found: dict[str, None] = {}
    for at, name in enumerate(names):
        if at and at % NAMES_SLICE == 0:
            await others()
        found[check_name(name, f"{field}[{at}]")] = None
    return found
