"""What a Meta Service holds, whatever its engine, for `list --meta` and `export --meta`; of RobustMQ's that of one group."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adapter.cli.connection import Target
from adapter.cli.table import Rows
from adapter.errors import InvalidInputError, UnknownCallError
from adapter.meta.client import Entry, GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.paging import DEFAULT_PAGE
from adapter.model.records import DEFAULT_NAMESPACE, GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from adapter.sidecar.api.replies import shard_offset


async def list_meta(target: Target, cluster: str, namespace: str, group: str, listed: Rows[offsets_pb.ShardOffset]) -> None:
    """Print the offsets of a cluster page by page. Raises InvalidInputError, and MetaUnavailableError that names the address."""
    async with opened(target, cluster) as client:
        with listed as rows:
            async for page in pages(client, namespace, group):
                for key, record in page:
                    rows.add(shard_offset(key, record, dirty=False))


@asynccontextmanager
async def opened(target: Target, cluster: str) -> AsyncIterator[GrpcMetaClient]:
    """A client of a Meta Service. Raises InvalidInputError for an address or cluster that cannot be one."""
    try:
        section = MetaSection(cluster=cluster, endpoints=(target.address,), tls=target.tls)
    except ValueError as error:
        raise InvalidInputError(f"--meta or --cluster: {error}") from error
    logs.setup(LogSection(level="error"))  # standard output is for the offsets
    async with GrpcMetaClient.open(section) as client:
        yield client


async def pages(client: GrpcMetaClient, namespace: str, group: str) -> AsyncIterator[list[Entry]]:
    """The live offsets below a namespace and group, both or the group empty: of all. Raises as `list_meta`."""
    token = b""
    while True:
        try:
            page, token = await client.list_page(namespace, group, DEFAULT_PAGE, token)
        except UnknownCallError as error:
            page = await _of_one_group(client, namespace, group, error)
        yield page
        if not token:
            return


async def _of_one_group(client: GrpcMetaClient, namespace: str, group: str, error: UnknownCallError) -> list[Entry]:
    """The offsets of a group, from a server that has no list. Raises `error` if it is none that answers for a group, either."""
    await client.get([])
    if client.kind.lists_offsets:
        raise error
    try:
        page = await client.groups_page([GroupKey(namespace or DEFAULT_NAMESPACE, group or "any")])
    except UnknownCallError:
        raise error from None
    if not group:
        raise InvalidInputError(
            f"a group is needed (`list --group`, `export GROUP`): {client.endpoint} cannot list its offsets (it is RobustMQ's "
            "Meta Service), and answers for one group at a time"
        )
    return page.entries
