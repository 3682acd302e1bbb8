"""The one table error -> gRPC status, and the wrapper that applies it to a servicer's methods.

An error with a retry delay sends it in gRPC's own trailing metadata, which is parsed here, too (gRFC A6).
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from math import ceil
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog

from adapter import errors
from adapter.errors import AdapterError
from adapter.runtime.failures import FAILED, META_SERVICE, SERVER

log = structlog.get_logger(__name__)

S = TypeVar("S")
Q = TypeVar("Q")
R = TypeVar("R")

Context = grpc.aio.ServicerContext[Any, Any]

PUSHBACK = "grpc-retry-pushback-ms"
MAX_PUSHBACK_S = 60.0  # the longest that is obeyed: a wrong value must not stop a client for good

TABLE: dict[type[AdapterError], grpc.StatusCode] = {
    errors.InvalidInputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MetaUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.BrokerLogError: grpc.StatusCode.UNAVAILABLE,
    errors.NotReadyError: grpc.StatusCode.UNAVAILABLE,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DiskFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StorageFailedError: grpc.StatusCode.UNAVAILABLE,
    errors.StoreDamagedError: grpc.StatusCode.DATA_LOSS,
    errors.ContendedError: grpc.StatusCode.ABORTED,
    errors.AccessDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.FencedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownBoundsError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SwitchedOffError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnknownGroupError: grpc.StatusCode.NOT_FOUND,
    errors.RefusedError: grpc.StatusCode.FAILED_PRECONDITION,
}


def status_of(error: AdapterError) -> grpc.StatusCode:
    """Return the gRPC status for an error."""
    return next((code for kind, code in TABLE.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def trailing_of(error: AdapterError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of a failed call: the retry delay, if there is one; for UNAVAILABLE, which side failed."""
    after_s = error.retry_after_s if isinstance(error, errors.TransientError) else 0.0
    pushback = ((PUSHBACK, str(ceil(after_s * 1000))),) if after_s > 0 else ()
    if status_of(error) is not grpc.StatusCode.UNAVAILABLE:
        return pushback
    return (*pushback, (FAILED, META_SERVICE if isinstance(error, errors.MetaUnavailableError) else SERVER))


def pushback_s(trailing: Iterable[tuple[str, str | bytes]] | None) -> float:
    """Seconds that the server asked us to wait, by the trailing metadata of a failed call; 0 if it did not."""
    said = next((value for key, value in trailing or () if key == PUSHBACK), "")
    return min(int(said) / 1000, MAX_PUSHBACK_S) if isinstance(said, str) and said.isdecimal() else 0.0


def answering(method: Callable[[S, Q, Context], Awaitable[R]]) -> Callable[[S, Q, Context], Awaitable[R]]:
    """Wrap a unary method so that its AdapterErrors become statuses."""

    @wraps(method)
    async def answer(self: S, request: Q, context: Context) -> R:
        try:
            return await method(self, request, context)
        except AdapterError as error:
            await context.abort(status_of(error), str(error), trailing_of(error))
        except Exception:
            log.exception("rpc.failed", method=method.__name__)
            raise

    return answer
