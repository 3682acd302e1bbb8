"""etcd's errors: which of them another member is asked after."""

import grpc
import grpc.aio
import pytest

from adapter.errors import AdapterError, DiskFullError, MetaUnavailableError, RefusedError
from adapter.metaservice.etcd.errors import translate

S = grpc.StatusCode
LEARNER, NOT_CAPABLE = "etcdserver: rpc not supported for learner", "etcdserver: not capable"


# The errors of rpctypes/error.go of etcd 3.5.35, 3.6.16 and 3.7.3 that our calls may get; of 3.4 only a learner was tried.
@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (S.UNAVAILABLE, LEARNER, MetaUnavailableError),  # 3.4, 3.5
        (S.FAILED_PRECONDITION, LEARNER, MetaUnavailableError),  # 3.6, 3.7
        (S.UNAVAILABLE, NOT_CAPABLE, MetaUnavailableError),  # 3.4, 3.5
        (S.FAILED_PRECONDITION, NOT_CAPABLE, MetaUnavailableError),  # 3.6, 3.7
        (S.UNAVAILABLE, "etcdserver: no leader", MetaUnavailableError),
        (S.UNAVAILABLE, "etcdserver: leader changed", MetaUnavailableError),
        (S.UNAVAILABLE, "etcdserver: server stopped", MetaUnavailableError),
        (S.UNAVAILABLE, "etcdserver: request timed out", MetaUnavailableError),
        (S.UNAVAILABLE, "etcdserver: unhealthy cluster", MetaUnavailableError),
        (S.DATA_LOSS, "etcdserver: corrupt cluster", MetaUnavailableError),
        (S.RESOURCE_EXHAUSTED, "etcdserver: too many requests", MetaUnavailableError),
        (S.CANCELLED, "etcdserver: request canceled", MetaUnavailableError),
        (S.DEADLINE_EXCEEDED, "context deadline exceeded", MetaUnavailableError),
        (S.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", DiskFullError),
        (S.PERMISSION_DENIED, "etcdserver: permission denied", RefusedError),
        (S.FAILED_PRECONDITION, "etcdserver: authentication is not enabled", RefusedError),
        (S.FAILED_PRECONDITION, "etcdserver: not leader", RefusedError),  # MoveLeader alone, which is for the leader
        (S.FAILED_PRECONDITION, "etcdserver: bad leader transferee", RefusedError),
        (S.FAILED_PRECONDITION, "etcdserver: lease already exists", RefusedError),
        (S.NOT_FOUND, "etcdserver: requested lease not found", RefusedError),
        (S.INVALID_ARGUMENT, "etcdserver: request is too large", RefusedError),
        (S.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", RefusedError),
    ],
    ids=lambda value: str(getattr(value, "name", "") or getattr(value, "__name__", value)),
)
def test_what_only_this_member_refuses_is_asked_of_the_next(
    code: grpc.StatusCode, details: str, kind: type[AdapterError]
) -> None:
    """The same error has another code since etcd 3.6."""
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
    found = translate("127.0.0.1:2379", error, 1.0)
    assert type(found) is kind
    assert "127.0.0.1:2379" in str(found)
