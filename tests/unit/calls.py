"""Calls of OffsetAdmin without gRPC: from where they come, and what they show."""

from collections.abc import Mapping, Sequence
from typing import cast

import grpc

from adapter.client.client import USER_KEY
from adapter.runtime.statuses import Context

TOKEN = "0123456789abcdef"  # noqa: S105 - an example
UNIX, TCP = "unix:", "ipv4:127.0.0.1:5"


class AbortedError(Exception):
    """What gRPC raises for an abort, with what it was told."""


class FakeContext:
    """A call as gRPC shows it to a method."""

    def __init__(self, peer: str, metadata: Mapping[str, str], certificate: Mapping[str, list[bytes]]) -> None:
        self._peer = peer
        self._metadata = tuple(metadata.items())
        self._certificate = certificate

    def peer(self) -> str:
        """Where it comes from."""
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """What came with it."""
        return self._metadata

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What TLS knows."""
        return self._certificate

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Sequence[tuple[str, str]] = ()) -> None:
        """End it. When to come back is of no interest here."""
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
    """A call."""
    metadata = {"authorization": authorization, USER_KEY: user}
    return cast("Context", FakeContext(peer, {name: value for name, value in metadata.items() if value}, certificate or {}))
