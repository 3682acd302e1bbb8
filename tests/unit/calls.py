"""Contexts for calling OffsetAdmin without gRPC: the caller's address and credentials."""

from collections.abc import Mapping, Sequence
from typing import cast

import grpc

from adapter.client.client import USER_KEY
from adapter.runtime.statuses import Context

TOKEN = "0123456789abcdef"  # noqa: S105 - an example
UNIX, TCP = "unix:", "ipv4:127.0.0.1:5"


class AbortedError(Exception):
    """Stands for the exception that gRPC raises on abort; has its status and text."""


class FakeContext:
    """The part of a gRPC context that the methods use."""

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

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Sequence[tuple[str, str]] = ()) -> None:
        """End the call; the trailing metadata is ignored."""
        del trailing
        raise AbortedError(code, details)


class FakeCall(FakeContext):
    """A call of the built-in server, which knows the user of a caller on the Unix socket."""

    uid: int | None = None

    def peer_uid(self) -> int | None:
        """As the kernel tells it."""
        return self.uid


def call_of_user(uid: int | None, *, authorization: str = "") -> Context:
    """A call on the Unix socket by a process of this user."""
    call = FakeCall(UNIX, {"authorization": authorization} if authorization else {}, {})
    call.uid = uid
    return cast("Context", call)


def context(
    peer: str = UNIX, certificate: Mapping[str, list[bytes]] | None = None, *, authorization: str = "", user: str = ""
) -> Context:
    """A context for one call."""
    metadata = {"authorization": authorization, USER_KEY: user}
    return cast("Context", FakeContext(peer, {name: value for name, value in metadata.items() if value}, certificate or {}))
