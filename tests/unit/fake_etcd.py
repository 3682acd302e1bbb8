"""One etcd cluster in memory, with etcd's rules, and with calls that fail as a test wants."""

from collections.abc import Callable

import anyio.lowlevel

from adapter.errors import AdapterError
from adapter.model.records import StoreMark
from adapter.rpc import etcd_pb
from tests.etcd_rules import MAX_TXN_OPS, Contents, Rows, range_read, transact

__all__ = ["MAX_TXN_OPS", "FakeCluster"]


class FakeCluster:
    """Like `EtcdCluster`. An exception that `fail` returns before, or `fail_after` after a transaction, is raised."""

    def __init__(self, name: str = "offsets-1", max_ops: int = MAX_TXN_OPS) -> None:
        self.name = name
        self._max_ops = max_ops
        self.available = True
        self.losses = 0
        self.mark: StoreMark | None = None
        self.txns: list[etcd_pb.TxnRequest] = []
        self.resent: list[bool] = []
        self.fail: Callable[[etcd_pb.TxnRequest], AdapterError | None] = lambda _: None
        self.fail_after: Callable[[etcd_pb.TxnRequest], AdapterError | None] = lambda _: None
        self._contents = Contents({})

    @property
    def kvs(self) -> Rows:
        """Everything that is stored."""
        return self._contents.rows

    async def txn(self, request: etcd_pb.TxnRequest, *, resend: bool = True) -> etcd_pb.TxnResponse:
        """A transaction: applied as a whole or not at all."""
        await anyio.lowlevel.checkpoint()
        self.txns.append(request)
        self.resent.append(resend)
        error = self.fail(request)
        if error:
            raise error
        self._contents, reply = transact(self._contents, request, self._max_ops)
        error = self.fail_after(request)
        if error:
            raise error
        return reply

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        """Read a range of keys."""
        await anyio.lowlevel.checkpoint()
        return range_read(self._contents, request)

    def put(self, key: bytes, value: bytes) -> None:
        """Write as another client."""
        request = etcd_pb.TxnRequest()
        put = request.success.add().request_put
        put.key, put.value = key, value
        self._contents, _ = transact(self._contents, request)

    def delete(self, key: bytes) -> None:
        """Delete as another client."""
        request = etcd_pb.TxnRequest()
        request.success.add().request_delete_range.key = key
        self._contents, _ = transact(self._contents, request)

    def value(self, key: bytes) -> bytes | None:
        """The stored value."""
        row = self.kvs.get(key)
        return row.value if row else None
