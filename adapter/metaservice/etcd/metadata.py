"""Metadata in the metadata Raft group: one etcd key for each entry; its revision is etcd's mod_revision.

A compare-and-set is one transaction, sent once: a resent one would meet its own write and report a conflict. Everything else may
be sent again when a member fails. Reads are linearizable.
"""

from adapter.errors import MetaUnavailableError
from adapter.metaservice.etcd import format_key
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.metadata import Entry, Page, PageBuilder, conflict
from adapter.model.codec import pack_names, prefix_end
from adapter.rpc import etcd_pb

FIRST_SLICE = 4  # entries in the first read of a page, in case they are large
MAX_SLICE = 32  # entries in one read, each up to 1 MiB, which must be answered within the deadline


class EtcdMetadata:
    """Works through the client of the metadata Raft group. All keys start with `prefix`."""

    def __init__(self, cluster: EtcdCluster, prefix: str) -> None:
        self._cluster = cluster
        self._keys = Keys(prefix)
        self._open = False

    async def open(self) -> None:
        """Check the version of what is in etcd. Raises StoreVersionError, StoreDamagedError or MetaUnavailableError."""
        await format_key.establish(self._cluster, (), self._keys.format)
        self._open = True

    async def put(self, cluster: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write in one transaction; its revision becomes the entry's."""
        where = self._where(cluster) + key.encode()
        put = etcd_pb.RequestOp(request_put=etcd_pb.PutRequest(key=where, value=value))
        return (await self._write(where, key, put, expected)).header.revision

    async def get(self, cluster: str, key: str) -> Entry | None:
        """Read one key."""
        found = await self._cluster.range(etcd_pb.RangeRequest(key=self._where(cluster) + key.encode()))
        return Entry(key, found.kvs[0].value, found.kvs[0].mod_revision) if found.kvs else None

    async def delete(self, cluster: str, key: str, expected: int | None = None) -> bool:
        """Delete in one transaction. If it was sent twice, False may also mean that the first one deleted the key."""
        where = self._where(cluster) + key.encode()
        delete = etcd_pb.RequestOp(request_delete_range=etcd_pb.DeleteRangeRequest(key=where))
        done = await self._write(where, key, delete, expected)
        return done.responses[0].response_delete_range.deleted > 0

    async def list_page(self, cluster: str, prefix: str, size: int, after: str) -> Page:
        """Read a page by consecutive bounded reads. Only a page from one read shows a single moment."""
        where = self._where(cluster)
        end = prefix_end(where + prefix.encode())
        start = where + (after.encode() + b"\0" if after else prefix.encode())
        builder, limit = PageBuilder(size), FIRST_SLICE
        while True:
            request = etcd_pb.RangeRequest(key=start, range_end=end, limit=min(limit, builder.remaining))
            found = await self._cluster.range(request)
            for at, row in enumerate(found.kvs, start=1):
                builder.add(Entry(row.key[len(where) :].decode(), row.value, row.mod_revision))
                if not builder.remaining:
                    return builder.page(more=found.more or at < len(found.kvs))
            if not found.more:
                return builder.page(more=False)
            start = found.kvs[-1].key + b"\0"
            limit = min(2 * limit, MAX_SLICE)

    async def _write(self, where: bytes, key: str, write: etcd_pb.RequestOp, expected: int | None) -> etcd_pb.TxnResponse:
        if not self._open:
            await self.open()
        if expected is None:
            return await self._cluster.txn(etcd_pb.TxnRequest(success=[write]))
        # The MOD of an absent key is 0.
        compare = etcd_pb.Compare(key=where, target=etcd_pb.Compare.MOD, result=etcd_pb.Compare.EQUAL, mod_revision=expected)
        look = etcd_pb.RequestOp(request_range=etcd_pb.RangeRequest(key=where, keys_only=True))
        request = etcd_pb.TxnRequest(compare=[compare], success=[write], failure=[look])
        try:
            done = await self._cluster.txn(request, resend=False)
        except MetaUnavailableError as error:
            raise MetaUnavailableError(f"key {key!r}: it is unknown whether it was written: read it again: {error}") from error
        if not done.succeeded:
            rows = done.responses[0].response_range.kvs
            raise conflict(key, expected, rows[0].mod_revision if rows else 0)
        return done

    def _where(self, cluster: str) -> bytes:
        return self._keys.metadata + pack_names(cluster)
