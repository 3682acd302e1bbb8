"""Request checks that the adapter's and the Meta Service's servers share."""

from collections.abc import Sequence

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE, GroupKey
from adapter.runtime.serving.large_calls import MAX_NAMED
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


async def parse_groups(namespace: str, groups: Sequence[str]) -> list[GroupKey]:
    """Groups of a namespace (empty: the default one), each once, in the order given. Raises InvalidInputError."""
    namespace = check_name(namespace or DEFAULT_NAMESPACE, "namespace")
    if not groups:
        raise InvalidInputError("groups: is empty; at least one group is needed")
    if len(groups) > MAX_NAMED:
        raise InvalidInputError(f"groups: are {len(groups)}, over {MAX_NAMED}; ask in several calls")
    return [GroupKey(namespace, name) for name in await parse_names(groups, "groups")]
