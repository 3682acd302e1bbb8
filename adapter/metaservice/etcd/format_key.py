"""The key that says which version the keys and values in etcd have: in the metadata Raft group, and in each one with offsets.

It is read before anything is written, and in the metadata Raft group again with each layout: a process that runs on while a later
version takes over stops writing when the fences refuse it. A Raft group without the key is of version 1, unless another one says
otherwise.
"""

from collections.abc import Iterable

import structlog

from adapter.errors import DiskFullError, MetaUnavailableError
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.rpc import etcd_pb
from adapter.runtime.durable import format_mark
from adapter.runtime.durable.format_mark import META_ETCD

log = structlog.get_logger(__name__)

_ADVICE = (
    "Nothing was changed. Restore the key; or if no other Raft group has a later version, delete this one with etcdctl; it is "
    "then written again."
)


def check(name: str, key: bytes, kvs: Iterable[etcd_pb.KeyValue]) -> bool:
    """Check what was read under `key` in a Raft group; whether there is anything.

    Raises StoreVersionError or StoreDamagedError.
    """
    for found in kvs:
        format_mark.check(META_ETCD, found.value, f"{name}: the key {key.decode()}", _ADVICE)
        return True
    return False


async def is_marked(cluster: EtcdCluster, key: bytes) -> bool:
    """Read and check the mark of a Raft group. Raises what `check` does, or MetaUnavailableError."""
    return check(cluster.name, key, (await cluster.range(etcd_pb.RangeRequest(key=key))).kvs)


async def establish(metadata: EtcdCluster, offsets: Iterable[EtcdCluster], key: bytes) -> None:
    """Check all Raft groups, then mark those without a mark. One that cannot be marked now is left for the next start.

    Raises what `check` does; MetaUnavailableError if the metadata Raft group does not answer.
    """
    unmarked = [] if await is_marked(metadata, key) else [metadata]
    for cluster in offsets:
        try:
            if not await is_marked(cluster, key):
                unmarked.append(cluster)
        except MetaUnavailableError as error:
            log.warning("format.unknown", raft_group=cluster.name, error=str(error))
    absent = etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.VERSION, key=key, version=0)
    put = etcd_pb.RequestOp(request_put=etcd_pb.PutRequest(key=key, value=format_mark.encode(META_ETCD)))
    for cluster in unmarked:
        try:
            await cluster.txn(etcd_pb.TxnRequest(compare=[absent], success=[put]))
            await is_marked(cluster, key)  # another process may have been faster
        except (MetaUnavailableError, DiskFullError) as error:
            log.warning("format.not_marked", raft_group=cluster.name, error=str(error))
