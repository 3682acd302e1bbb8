"""The gRPC service `offsets.v1.StoreBackup` of a Meta Service."""

from adapter import __version__
from adapter.errors import SwitchedOffError
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.rpc import backup_grpc, backup_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.durable.backups import META
from adapter.runtime.serving import store_backup
from adapter.runtime.serving.statuses import Context, answering


class MetaBackup(backup_grpc.StoreBackupServicer):
    """`engine`: the embedded one; None where the offsets are in etcd."""

    def __init__(self, engine: RocksDbEngine | None, metrics: MetaMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    @answering
    async def BackupStore(  # type: ignore[override]  # noqa: D102 - a method that writes its replies
        self, request: backup_pb.BackupStoreRequest, context: Context
    ) -> None:
        self._metrics.calls.labels("BackupStore").inc()
        if self._engine is None:
            raise SwitchedOffError(
                'engine = "etcd": this process keeps nothing. Back up each Raft group with `etcdctl snapshot save`; docs/etcd.md '
                "tells how, and how to put them back"
            )
        (mark,) = self._engine.marks()
        head = backup_pb.BackupStoreReply.Store(
            kind=META, id=mark.store_id, seq=mark.revision, taken_at_ms=wall_ms(), version=__version__
        )
        await store_backup.answer(head, self._engine.checkpoints, request, context)
