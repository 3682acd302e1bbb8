"""The one table error -> gRPC status, and the wrapper that applies it to a servicer's methods.

An error with a retry delay sends it in trailing metadata, see `pushback`.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from itertools import accumulate
from math import ceil
from typing import Any, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio
import structlog

from adapter import errors
from adapter.errors import AdapterError
from adapter.runtime.serving.failures import FAILED, META_SERVICE, SERVER
from adapter.runtime.serving.pushback import PUSHBACK

log = structlog.get_logger(__name__)

S = TypeVar("S")
Q = TypeVar("Q")
R = TypeVar("R")

Context = grpc.aio.ServicerContext[Any, Any]

TEXT_MAX = 5_000  # bytes of a status's text, as they are sent: clients refuse headers of over 8 KiB

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


def text_of(error: AdapterError) -> str:
    """Return the text of an error for a status: of many lines those for which there is room, and how many are left out."""
    text = str(error)
    lines = text.split("\n")
    kept = sum(size <= TEXT_MAX for size in accumulate(len(quote(f"{line}\n")) for line in lines))
    left = len(lines) - kept
    return "\n".join([*lines[:kept], f"and {left:,} more lines"]) if kept and left else text


def trailing_of(error: AdapterError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata of a failed call: the retry delay, if there is one; for UNAVAILABLE, which side failed."""
    after_s = error.retry_after_s if isinstance(error, errors.TransientError) else 0.0
    pushback = ((PUSHBACK, str(ceil(after_s * 1000))),) if after_s > 0 else ()
    if status_of(error) is not grpc.StatusCode.UNAVAILABLE:
        return pushback
    return (*pushback, (FAILED, META_SERVICE if isinstance(error, errors.MetaUnavailableError) else SERVER))


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
