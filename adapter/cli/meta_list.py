"""The work of `list --meta`: the offsets that a Meta Service holds, whatever its engine."""

from adapter.cli.connection import Target
from adapter.cli.table import Rows
from adapter.errors import InvalidInputError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.paging import DEFAULT_PAGE
from adapter.rpc import offsets_pb
from adapter.sidecar.api.replies import shard_offset


async def list_meta(target: Target, cluster: str, namespace: str, group: str, listed: Rows[offsets_pb.ShardOffset]) -> None:
    """Print the offsets of a cluster page by page. Raises InvalidInputError, and MetaUnavailableError that names the address."""
    try:
        section = MetaSection(cluster=cluster, endpoints=(target.address,), tls=target.tls)
    except ValueError as error:
        raise InvalidInputError(f"--meta or --cluster: {error}") from error
    async with GrpcMetaClient.open(section) as client:
        with listed as rows:
            token = b""
            while True:
                page, token = await client.list_page(namespace, group, DEFAULT_PAGE, token)
                for key, record in page:
                    rows.add(shard_offset(key, record, dirty=False))
                if not token:
                    return
