"""The addresses behind the entries of `adapters`: a name in DNS has any number, which come and go."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from adapter.errors import TransientError
from adapter.fleet.section import DNS
from adapter.runtime.settings.addresses import split_address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class UnresolvedError(TransientError):
    """A name could not be resolved now."""


async def addresses_of(configured: str, resolve: Resolve, timeout_s: float) -> Sequence[str]:
    """The addresses that an entry stands for now, sorted. Raises UnresolvedError, also after `timeout_s` seconds."""
    if not configured.startswith(DNS):
        return [configured]
    host, port = split_address(configured.removeprefix(DNS))
    try:
        async with asyncio.timeout(timeout_s):
            return sorted({*await resolve(host, port)})
    except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
        reason = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise UnresolvedError(f"{configured}: {reason}") from error


def server_name(configured: str) -> str:
    """The name that the certificates of an entry's adapters are for, where it is not the host of their address; else empty."""
    return split_address(configured.removeprefix(DNS))[0] if configured.startswith(DNS) else ""


async def resolve(host: str, port: int) -> Sequence[str]:
    """All IPv4 and IPv6 addresses of a name, in a thread. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [f"[{where[0]}]:{port}" if family == socket.AF_INET6 else f"{where[0]}:{port}" for family, _, _, _, where in found]
