"""Contexts for calling OffsetAdmin without gRPC: the caller's address and credentials."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import grpc
from google.protobuf.message import Message

from adapter.client.client import USER_KEY
from adapter.runtime.serving.http2.call import Call, Requests
from adapter.runtime.serving.statuses import Context

TOKEN = "0123456789abcdef"  # noqa: S105 - an example
UNIX, TCP = "unix:", "ipv4:127.0.0.1:5"


class AbortedError(Exception):
    """Stands for the exception that gRPC raises on abort; has its status and text."""


class FakeContext:
    """The part of a call of our server that the methods use."""

    uid: int | None = None
    is_read = True  # the client has read all answers

    def __init__(self, peer: str, metadata: Mapping[str, str], certificate: Mapping[str, list[bytes]]) -> None:
        self._peer = peer
        self._metadata = tuple(metadata.items())
        self._certificate = certificate

    def peer(self) -> str:
        """The caller's address."""
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of the call."""
        return self._metadata

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What TLS says of the caller."""
        return self._certificate

    def peer_uid(self) -> int | None:
        """The user of the caller's process, as the kernel tells it."""
        return self.uid

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Sequence[tuple[str, str]] = ()) -> None:
        """End the call; the trailing metadata is ignored."""
        del trailing
        raise AbortedError(code, details)


def arrived(*requests: Message, ended: bool = True) -> Requests:
    """The requests of a stream, all of which have arrived, and its end; unless `ended`, more are to be put."""
    method = SimpleNamespace(parse=type(requests[0]).FromString)
    found = Requests(cast("Call", SimpleNamespace(method=method, consumed=lambda _: None)))
    for request in requests:
        found.put(request.SerializeToString())
    if ended:
        found.end()
    return found


def call_of_user(uid: int | None, *, authorization: str = "") -> Context:
    """A call on the Unix socket by a process of this user."""
    call = FakeContext(UNIX, {"authorization": authorization} if authorization else {}, {})
    call.uid = uid
    return cast("Context", call)


def context(
    peer: str = UNIX, certificate: Mapping[str, list[bytes]] | None = None, *, authorization: str = "", user: str = ""
) -> Context:
    """A context for one call."""
    metadata = {"authorization": authorization, USER_KEY: user}
    return cast("Context", FakeContext(peer, {name: value for name, value in metadata.items() if value}, certificate or {}))
