"""What a failed call to a Meta Service means, for the asynchronous and the blocking client. See `translated`."""

import re
from typing import Any

import grpc

from adapter.errors import AdapterError, MetaUnavailableError, RefusedError, TimedOutError, UnknownCallError
from adapter.runtime.serving.pushback import pushback_s

# The same request may succeed when it is sent again: another endpoint is tried at once.
_UNAVAILABLE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}

# A server, or a proxy before it, that does not let this caller in.
_DENIED = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}

# What RobustMQ answers to a write that another node has to take (openraft's ForwardToLeader): the consumer group as
# `TENANT/GROUP`, and the leader's address where one is known.
_FORWARD = re.compile(
    r"(?:partition '(?P<group>.*)': .*?)?has to forward request to(?:.*?rpc_addr: \\?\"(?P<leader>[^\"\\]+))?", re.DOTALL
)


NOT_THERE = (
    "the server does not have this call: it is RobustMQ's Meta Service, an older one of offset-adapter, or no Meta Service"
)


class NotLeaderError(MetaUnavailableError):
    """Another node is the leader for a group (RobustMQ). The groups before it in the same save were written.

    `group` is `NAMESPACE/GROUP`, empty where the server names none; `leader` is an address, empty while there is no leader.
    """

    def __init__(self, text: str, group: str, leader: str) -> None:
        super().__init__(text)
        self.group = group
        self.leader = leader


class DeniedError(RefusedError):
    """The endpoint does not let this caller in, or serves no offsets, whatever it asks for; another one may."""


def translated(endpoint: str, error: Any, timeout_s: float) -> AdapterError:  # noqa: ANN401 - two types: what a failed call has
    """A failed call (a `grpc.RpcError` with its code, or an `AioRpcError`) as one of our errors; its text names the endpoint.

    MetaUnavailableError where trying again may help (TimedOutError when the deadline passed; NotLeaderError when another node has
    to be asked; with the pause that an overloaded server asks for), RefusedError where it cannot (UnknownCallError when the
    server does not have the call, DeniedError when another endpoint may take it).
    """
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOutError(f"{endpoint}: no answer within {timeout_s:g} s")
    text = f"{endpoint}: {code.name}: {error.details()}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnknownCallError(f"{text}: {NOT_THERE}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return MetaUnavailableError(text, retry_after_s=pushback_s(error.trailing_metadata()))
    if code is grpc.StatusCode.INTERNAL and (forward := _FORWARD.search(error.details() or "")):
        return NotLeaderError(text, forward["group"] or "", forward["leader"] or "")
    if code in _DENIED:
        return DeniedError(text)
    return MetaUnavailableError(text) if code in _UNAVAILABLE else RefusedError(text)
