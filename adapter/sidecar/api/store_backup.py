"""The gRPC service `offsets.v1.StoreBackup` of an adapter, for those who may call OffsetAdmin."""

from collections.abc import Awaitable, Callable

from adapter import __version__
from adapter.rpc import backup_grpc, backup_pb
from adapter.runtime.durable.backups import ADAPTER
from adapter.runtime.serving import store_backup
from adapter.runtime.serving.statuses import Context
from adapter.sidecar.api.access import Access, audited
from adapter.sidecar.engine.core import Core


class AdapterBackup(backup_grpc.StoreBackupServicer):
    """`core` gives the open core, or raises NotReadyError."""

    def __init__(self, core: Callable[[], Awaitable[Core]], access: Access, broker: str) -> None:
        self._core = core
        self._access = access
        self._broker = broker

    @audited
    async def BackupStore(  # type: ignore[override]  # noqa: D102 - a method that writes its replies
        self, request: backup_pb.BackupStoreRequest, context: Context
    ) -> None:
        core = await self._core()
        store = core.ledger.store
        head = backup_pb.BackupStoreReply.Store(
            kind=ADAPTER,
            id=store.store_id,
            seq=store.acknowledged_seq,
            taken_at_ms=core.clocks.now_ms(),
            broker=self._broker,
            version=__version__,
        )
        await store_backup.answer(head, store.checkpoints, request, context)
