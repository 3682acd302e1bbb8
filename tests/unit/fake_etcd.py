"""One etcd cluster in memory, with etcd's rules for transactions, and with calls that fail as a test wants."""

from collections.abc import Callable, Iterable

import anyio.lowlevel

from adapter.errors import AdapterError
from adapter.model.records import StoreMark
from adapter.rpc import etcd_pb

MAX_TXN_OPS = 128

_COMPARE = etcd_pb.Compare


class FakeCluster:
    """Like `EtcdCluster`. An exception that `fail` returns before, or `fail_after` after a transaction, is raised."""

    def __init__(self, name: str = "offsets-1") -> None:
        self.name = name
        self.available = True
        self.losses = 0
        self.mark: StoreMark | None = None
        self.revision = 1
        self.kvs: dict[bytes, etcd_pb.KeyValue] = {}
        self.txns: list[etcd_pb.TxnRequest] = []
        self.resent: list[bool] = []
        self.fail: Callable[[etcd_pb.TxnRequest], AdapterError | None] = lambda _: None
        self.fail_after: Callable[[etcd_pb.TxnRequest], AdapterError | None] = lambda _: None

    async def txn(self, request: etcd_pb.TxnRequest, *, resend: bool = True) -> etcd_pb.TxnResponse:
        """A transaction: applied as a whole or not at all."""
        await anyio.lowlevel.checkpoint()
        self.txns.append(request)
        self.resent.append(resend)
        error = self.fail(request)
        if error:
            raise error
        _check(request, MAX_TXN_OPS, set())
        self.revision += 1
        reply = self._txn(request)
        error = self.fail_after(request)
        if error:
            raise error
        return reply

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        """Read a range of keys."""
        await anyio.lowlevel.checkpoint()
        return self._range(request)

    def put(self, key: bytes, value: bytes) -> None:
        """Write as another client."""
        self.revision += 1
        self._put(key, value)

    def value(self, key: bytes) -> bytes | None:
        """The stored value."""
        return self.kvs[key].value if key in self.kvs else None

    def _txn(self, request: etcd_pb.TxnRequest) -> etcd_pb.TxnResponse:
        succeeded = all(self._holds(compare) for compare in request.compare)
        reply = etcd_pb.TxnResponse(succeeded=succeeded)
        for op in request.success if succeeded else request.failure:
            answer = reply.responses.add()
            kind = op.WhichOneof("request")
            if kind == "request_txn":
                answer.response_txn.CopyFrom(self._txn(op.request_txn))
            elif kind == "request_range":
                answer.response_range.CopyFrom(self._range(op.request_range))
            elif kind == "request_put":
                self._put(op.request_put.key, op.request_put.value)
                answer.response_put.SetInParent()
            else:
                gone = [self.kvs.pop(kv.key) for kv in self._between(op.request_delete_range.key, b"")]
                answer.response_delete_range.deleted = len(gone)
        reply.header.revision = self.revision
        return reply

    def _holds(self, compare: etcd_pb.Compare) -> bool:
        found = list(self._between(compare.key, compare.range_end))
        if not found and compare.target == _COMPARE.VALUE:
            return False
        return all(_compared(compare, kv) for kv in found or [etcd_pb.KeyValue()])

    def _put(self, key: bytes, value: bytes) -> None:
        before = self.kvs.get(key, etcd_pb.KeyValue(create_revision=self.revision))
        self.kvs[key] = etcd_pb.KeyValue(
            key=key,
            value=value,
            create_revision=before.create_revision,
            mod_revision=self.revision,
            version=before.version + 1,
        )

    def _range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        found = list(self._between(request.key, request.range_end))
        kvs = found[: request.limit] if request.limit else found
        return etcd_pb.RangeResponse(kvs=kvs, more=len(kvs) < len(found), count=len(found))

    def _between(self, start: bytes, end: bytes) -> Iterable[etcd_pb.KeyValue]:
        return [self.kvs[key] for key in sorted(self.kvs) if key == start or start <= key < end]


def _compared(compare: etcd_pb.Compare, kv: etcd_pb.KeyValue) -> bool:
    stands: bytes | int
    given: bytes | int
    if compare.target == _COMPARE.VALUE:
        stands, given = kv.value, compare.value
    elif compare.target == _COMPARE.VERSION:
        stands, given = kv.version, compare.version
    else:
        stands, given = kv.mod_revision, compare.mod_revision
    order = (stands > given) - (stands < given)  # type: ignore[operator]  # both are bytes, or both numbers
    return {_COMPARE.EQUAL: order == 0, _COMPARE.GREATER: order > 0, _COMPARE.LESS: order < 0}[compare.result]


def _check(request: etcd_pb.TxnRequest, room: int, written: set[bytes]) -> None:
    """Etcd's limits: the number of operations, also of nested ones, and no key written twice."""
    size = max(len(request.compare), len(request.success), len(request.failure))
    assert size <= room, "etcdserver: too many operations in txn request"
    branches = [set(written), set(written)]
    for branch, ops in zip(branches, (request.success, request.failure), strict=True):
        for op in ops:
            if op.HasField("request_txn"):
                _check(op.request_txn, room - size, branch)
            elif op.HasField("request_put"):
                assert op.request_put.key not in branch, "etcdserver: duplicate key given in txn request"
                branch.add(op.request_put.key)
    written |= branches[0] | branches[1]
