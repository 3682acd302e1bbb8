"""Translates etcd's errors by one table, and says after which of them another member is worth a try."""

import grpc
import grpc.aio

from adapter.errors import AdapterError, DiskFullError, MetaUnavailableError, RefusedError

NO_SPACE = "mvcc: database space exceeded"  # distinguishes a used-up quota from too many requests: both are RESOURCE_EXHAUSTED
DRILL = "compact, defragment and disarm the alarm: see docs/etcd.md"

_ELSEWHERE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
}
# What one member refuses and another may do: a learner, which only copies, and a member that has just started and does not know
# the version of its cluster yet. FAILED_PRECONDITION since etcd 3.6; UNAVAILABLE in 3.4 and 3.5.
_NOT_HERE = ("rpc not supported for learner", "etcdserver: not capable")
# etcd's errors for a token that has expired, or was issued before a change of users.
_OLD_TOKEN = ("auth: revision in header is old", "user name is empty", "invalid auth token")


def translate(where: str, error: grpc.aio.AioRpcError, timeout_s: float) -> AdapterError:
    """Translate the error of a call to the member `where`.

    MetaUnavailableError: another member may answer. DiskFullError: the quota is used up in the whole cluster. RefusedError: no
    member will.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and NO_SPACE in details:
        return DiskFullError(f"{where}: etcd's quota is used up: {DRILL}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return MetaUnavailableError(f"{where}: no answer within {timeout_s:g} s")
    text = f"{where}: {code.name}: {details}"
    if code is grpc.StatusCode.INVALID_ARGUMENT and "too many operations" in details:
        return RefusedError(f"{text}; set etcd.max_txn_ops to what etcd has as --max-txn-ops")
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return RefusedError(
            f"{text}: the snapshot took longer than --auto-compaction-retention of etcd; raise that, or read faster"
        )
    not_here = code is grpc.StatusCode.FAILED_PRECONDITION and any(refused in details for refused in _NOT_HERE)
    return MetaUnavailableError(text) if code in _ELSEWHERE or not_here else RefusedError(text)


def wants_token(error: grpc.aio.AioRpcError) -> bool:
    """True if the same call may succeed with a new authentication token."""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or any(text in (error.details() or "") for text in _OLD_TOKEN)
