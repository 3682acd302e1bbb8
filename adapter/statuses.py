"""The one table error -> gRPC status, and the wrapper that applies it to a servicer's methods."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog

from adapter import errors
from adapter.errors import AdapterError

log = structlog.get_logger(__name__)

S = TypeVar("S")
Q = TypeVar("Q")
R = TypeVar("R")

Context = grpc.aio.ServicerContext[Any, Any]

TABLE: dict[type[AdapterError], grpc.StatusCode] = {
    errors.InvalidInputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MetaUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.BrokerLogError: grpc.StatusCode.UNAVAILABLE,
    errors.NotReadyError: grpc.StatusCode.UNAVAILABLE,
    errors.DiskFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StorageFailedError: grpc.StatusCode.UNAVAILABLE,
    errors.StoreDamagedError: grpc.StatusCode.DATA_LOSS,
    errors.ContendedError: grpc.StatusCode.ABORTED,
    errors.AccessDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.FencedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownBoundsError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RefusedError: grpc.StatusCode.FAILED_PRECONDITION,
}


def status_of(error: AdapterError) -> grpc.StatusCode:
    """The status that a caller gets for an error."""
    return next((code for kind, code in TABLE.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def answering(method: Callable[[S, Q, Context], Awaitable[R]]) -> Callable[[S, Q, Context], Awaitable[R]]:
    """A unary method whose AdapterErrors become statuses."""

    @wraps(method)
    async def answer(self: S, request: Q, context: Context) -> R:
        try:
            return await method(self, request, context)
        except AdapterError as error:
            await context.abort(status_of(error), str(error))
        except Exception:
            log.exception("rpc.failed", method=method.__name__)
            raise

    return answer
