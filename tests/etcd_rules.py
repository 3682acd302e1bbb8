"""What etcd does with a transaction or a range read, as a pure function of what is stored.

`tests/contract/test_etcd_rules.py` holds it to the real etcd. Not here: leases, history (reads of an old revision), sorting.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from adapter.rpc import etcd_pb

MAX_TXN_OPS = 128

_COMPARE = etcd_pb.Compare
_NO_END = b"\0"  # as the end of a range: everything from its start on


class Row(NamedTuple):
    """What is stored under a key."""

    value: bytes
    create_revision: int
    mod_revision: int
    version: int


Rows = Mapping[bytes, Row]

_ABSENT = Row(b"", 0, 0, 0)


class RuleError(Exception):
    """What etcd refuses, in its words; nothing was done."""


class Contents(NamedTuple):
    """All rows of a Raft group, and the revision of its last write."""

    rows: Rows
    revision: int = 1


def transact(before: Contents, request: etcd_pb.TxnRequest, max_ops: int = MAX_TXN_OPS) -> tuple[Contents, etcd_pb.TxnResponse]:
    """Apply a transaction as a whole; return what is stored then, and the answer. Raises RuleError."""
    _check_size(request, max_ops)
    _check_writes(request.success)
    _check_writes(request.failure)
    work = _Work(before)
    reply = work.run(request)
    after = Contents(work.rows, work.writes) if work.written else before
    _put_revision(reply, after.revision)
    return after, reply


def range_read(contents: Contents, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
    """Answer a range read. Raises RuleError."""
    if request.revision > contents.revision:
        raise RuleError("etcdserver: mvcc: required revision is a future revision")
    if 0 < request.revision < contents.revision:
        raise NotImplementedError("reads of an old revision")
    found = list(_between(contents.rows, request.key, request.range_end))
    count = len(found)
    found = [key for key in found if contents.rows[key].mod_revision >= request.min_mod_revision]
    kept = found[: request.limit] if request.limit else found
    reply = etcd_pb.RangeResponse(more=len(kept) < len(found), count=count)
    reply.header.revision = contents.revision
    for key in () if request.count_only else kept:
        row = contents.rows[key]
        reply.kvs.add(
            key=key,
            value=b"" if request.keys_only else row.value,
            create_revision=row.create_revision,
            mod_revision=row.mod_revision,
            version=row.version,
        )
    if request.count_only:
        reply.more = False
    return reply


def writes(request: etcd_pb.TxnRequest) -> bool:
    """Whether it could write anything, on whichever of its ways."""
    return any(
        not op.HasField("request_range") and (not op.HasField("request_txn") or writes(op.request_txn))
        for op in (*request.success, *request.failure)
    )


class _Work:
    """One transaction under way."""

    def __init__(self, before: Contents) -> None:
        self.rows = dict(before.rows)
        self.revision = before.revision
        self.writes = before.revision + 1
        self.written = False

    def run(self, request: etcd_pb.TxnRequest) -> etcd_pb.TxnResponse:
        # All comparisons, those of nested transactions included, come before the first operation.
        return self._run(request, self._ways(request))

    def _ways(self, request: etcd_pb.TxnRequest) -> Iterator[bool]:
        succeeded = all(self._holds(compare) for compare in request.compare)
        ways = [succeeded]
        for op in request.success if succeeded else request.failure:
            if op.HasField("request_txn"):
                ways += self._ways(op.request_txn)
        return iter(ways)

    def _run(self, request: etcd_pb.TxnRequest, ways: Iterator[bool]) -> etcd_pb.TxnResponse:
        succeeded = next(ways)
        reply = etcd_pb.TxnResponse(succeeded=succeeded)
        for op in request.success if succeeded else request.failure:
            answer = reply.responses.add()
            kind = op.WhichOneof("request")
            if kind == "request_txn":
                answer.response_txn.CopyFrom(self._run(op.request_txn, ways))
            elif kind == "request_range":
                now = Contents(self.rows, self.writes if self.written else self.revision)
                answer.response_range.CopyFrom(range_read(now, op.request_range))
            elif kind == "request_put":
                self._put(op.request_put.key, op.request_put.value)
                answer.response_put.SetInParent()
            else:
                gone = list(_between(self.rows, op.request_delete_range.key, op.request_delete_range.range_end))
                for key in gone:
                    del self.rows[key]
                self.written |= bool(gone)
                answer.response_delete_range.deleted = len(gone)
        return reply

    def _holds(self, compare: etcd_pb.Compare) -> bool:
        found = [self.rows[key] for key in _between(self.rows, compare.key, compare.range_end)]
        if not found and compare.target == _COMPARE.VALUE:
            return False
        return all(_compared(compare, row) for row in found or [_ABSENT])

    def _put(self, key: bytes, value: bytes) -> None:
        before = self.rows.get(key)
        created = before.create_revision if before else self.writes
        self.rows[key] = Row(value, created, self.writes, before.version + 1 if before else 1)
        self.written = True


def _put_revision(reply: etcd_pb.TxnResponse, revision: int) -> None:
    reply.header.revision = revision


def _between(rows: Rows, start: bytes, end: bytes) -> Iterator[bytes]:
    if not end:
        return iter([start] if start in rows else [])
    return iter(sorted(key for key in rows if start <= key and (end == _NO_END or key < end)))


def _compared(compare: etcd_pb.Compare, row: Row) -> bool:
    stands: bytes | int
    given: bytes | int
    if compare.target == _COMPARE.VALUE:
        stands, given = row.value, compare.value
    elif compare.target == _COMPARE.VERSION:
        stands, given = row.version, compare.version
    elif compare.target == _COMPARE.CREATE:
        stands, given = row.create_revision, compare.create_revision
    else:
        stands, given = row.mod_revision, compare.mod_revision
    order = (stands > given) - (stands < given)  # type: ignore[operator]  # both are bytes, or both numbers
    return {
        _COMPARE.EQUAL: order == 0,
        _COMPARE.NOT_EQUAL: order != 0,
        _COMPARE.GREATER: order > 0,
        _COMPARE.LESS: order < 0,
    }[compare.result]


def _check_size(request: etcd_pb.TxnRequest, room: int) -> None:
    """The number of operations; those of a nested transaction are added to those of the outer one."""
    size = max(len(request.compare), len(request.success), len(request.failure))
    if size > room:
        raise RuleError("etcdserver: too many operations in txn request")
    for op in (*request.success, *request.failure):
        if op.HasField("request_txn"):
            _check_size(op.request_txn, room - size)


def _check_writes(ops: Sequence[etcd_pb.RequestOp]) -> tuple[set[bytes], list[etcd_pb.DeleteRangeRequest]]:
    """No key is written twice on any way through: as etcd's `checkIntervals` decides it. Returns the puts and the deletions."""
    deleted = [op.request_delete_range for op in ops if op.HasField("request_delete_range")]
    puts: set[bytes] = set()
    for op in ops:
        if op.HasField("request_txn"):
            puts_then, deleted_then = _check_writes(op.request_txn.success)
            puts_else, deleted_else = _check_writes(op.request_txn.failure)
            _refuse_twice(puts_then, puts, deleted)
            _refuse_twice(puts_else, puts - puts_then, deleted)
            puts |= puts_then | puts_else
            deleted = [*deleted, *deleted_then, *deleted_else]
    for op in ops:
        if op.HasField("request_put"):
            _refuse_twice({op.request_put.key}, puts, deleted)
            puts.add(op.request_put.key)
    return puts, deleted


def _refuse_twice(keys: set[bytes], puts: set[bytes], deleted: Sequence[etcd_pb.DeleteRangeRequest]) -> None:
    if keys & puts or any(
        key in _between(dict.fromkeys(keys, _ABSENT), one.key, one.range_end) for one in deleted for key in keys
    ):
        raise RuleError("etcdserver: duplicate key given in txn request")
