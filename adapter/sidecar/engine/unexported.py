"""What an export of all local groups does not have: groups that stand in the Meta Service and have no live offset here.

It is looked at before the export, so a group that begins here meanwhile is told and exported, and none is exported and not told.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

from adapter.errors import AdapterError
from adapter.meta.client import MetaClient
from adapter.model.codec import group_prefix
from adapter.model.records import GroupKey
from adapter.sidecar.engine.groups import Groups

PAGE = 500  # offsets: reading a page of them takes the loop some milliseconds
CANNOT_LIST = "this Meta Service does not list its offsets"


class Unexported(NamedTuple):
    """Groups and offsets that are not here, counted so far. `unknown`: why the rest is not known; or empty."""

    groups: int = 0
    offsets: int = 0
    unknown: str = ""


async def missing(meta: MetaClient, groups: Groups, namespace: str) -> AsyncIterator[Unexported]:
    """Count page by page, with the sum so far after each: a large Meta Service takes minutes. Empty namespace: of all.

    That the Meta Service does not answer is told in the last one.
    """
    count = Unexported()
    if not meta.kind.lists_offsets:
        yield count._replace(unknown=CANNOT_LIST)
        return
    group, absent, token = GroupKey("", ""), False, b""
    while True:
        try:
            page, token = await meta.list_page(namespace, "", PAGE, token)
        except AdapterError as error:
            yield count._replace(unknown=str(error))
            return
        for key, record in page:
            if not record.live:
                continue
            if key.group_key != group:
                group = key.group_key
                absent = not await _is_here(groups, group)
                count = count._replace(groups=count.groups + absent)
            count = count._replace(offsets=count.offsets + absent)
        yield count
        if not token:
            return


async def _is_here(groups: Groups, group: GroupKey) -> bool:
    async for _ in groups.live(group_prefix(group)):
        return True
    return False
