"""What a failed call to a Meta Service means, for the asynchronous and the blocking client. See `translated`."""

from typing import Any

import grpc

from adapter.errors import AdapterError, MetaUnavailableError, RefusedError, TimedOutError, UnknownCallError
from adapter.runtime.statuses import pushback_s

# The same request may succeed when it is sent again: another endpoint is tried at once.
_UNAVAILABLE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}


def translated(endpoint: str, error: Any, timeout_s: float) -> AdapterError:  # noqa: ANN401 - two types: what a failed call has
    """A failed call (a `grpc.RpcError` with its code, or an `AioRpcError`) as one of our errors; its text names the endpoint.

    MetaUnavailableError where trying again may help (TimedOutError when the deadline passed; with the pause that an overloaded
    server asks for), RefusedError where it cannot (UnknownCallError when the server does not have the call).
    """
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOutError(f"{endpoint}: no answer within {timeout_s:g} s")
    text = f"{endpoint}: {code.name}: {error.details()}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnknownCallError(f"{text}: the server is no Meta Service of offset-adapter, or an older one")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return MetaUnavailableError(text, retry_after_s=pushback_s(error.trailing_metadata()))
    return MetaUnavailableError(text) if code in _UNAVAILABLE else RefusedError(text)
