"""Channels to a gRPC server, with TLS or without. Certificate files are checked before anything is sent."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from adapter.errors import ConfigError
from adapter.runtime.settings.addresses import check_target

if TYPE_CHECKING:  # a command without TLS needs neither pydantic nor certificates
    from adapter.runtime.settings.certificates import PemFiles
    from adapter.runtime.settings.config import ClientTls

R = TypeVar("R")
Options = Sequence[tuple[str, int | str]]

# gRPC repeats a call that was not sent, without a limit and without a pause. A peer that says goodbye (GOAWAY) and stays
# connected refuses each at once: hundreds of megabytes for one call, and a core. Our own retries have a backoff and a limit.
NO_REPEATS = ("grpc.enable_retries", 0)
_ALWAYS = (
    # Without it a new channel shares the connection of another one in this process, and its backoff after a failure.
    ("grpc.use_local_subchannel_pool", 1),
    NO_REPEATS,
)


def open_channel(
    address: str, tls: "ClientTls | None", options: Options, *, name: str = "tls", server_name: str = ""
) -> grpc.aio.Channel:
    """Make a channel that connects on first use; to a Unix socket without TLS.

    `server_name` is the name that the server's certificate has to have, if it is not that of the address.
    Raises ConfigError for an address without a port and, with `name`, for bad files.
    """
    files = None
    if tls and not address.startswith("unix:"):
        from adapter.runtime.settings.certificates import read_client_files  # noqa: PLC0415 - as above

        files = read_client_files(tls, name)
    return open_channel_with(address, files, options, server_name)


def open_channel_with(address: str, files: "PemFiles | None", options: Options, server_name: str = "") -> grpc.aio.Channel:
    """Make a channel as `open_channel` does, with files that are read already."""
    _check(address)
    if files is None or address.startswith("unix:"):
        return grpc.aio.insecure_channel(address, [*options, *_ALWAYS])
    named = [("grpc.ssl_target_name_override", server_name)] if server_name else []
    return grpc.aio.secure_channel(address, files.channel_credentials(), [*options, *named, *_ALWAYS])


def open_blocking_channel(address: str, tls: "ClientTls | None", options: Options = (), *, name: str = "tls") -> grpc.Channel:
    """The same for threads."""
    _check(address)
    if tls is None or address.startswith("unix:"):
        return grpc.insecure_channel(address, [*options, *_ALWAYS])
    return grpc.secure_channel(address, credentials(tls, name), [*options, *_ALWAYS])


def _check(address: str) -> None:
    try:
        check_target(address)
    except ValueError as error:
        raise ConfigError(f"{error}, nor unix:PATH") from None


async def close_channels(channels: Iterable[grpc.aio.Channel]) -> None:
    """Close channels, also when the caller is being cancelled: else gRPC's threads would write answers into freed memory."""
    import anyio  # noqa: PLC0415 - takes time to import; a command that makes one call does not need it

    with anyio.CancelScope(shield=True):
        for channel in channels:
            await channel.close()


async def known_to_its_scope(call: Awaitable[R]) -> R:
    """Await a call so that a cancel scope of anyio around it knows its own cancellation.

    It knows it by a text, and grpc.aio raises another error without it: then the scope lets it through, and a call that took too
    long looks as if somebody had cancelled the task (findings/grpcio-cancel-escapes-anyio-scopes.sh, grpcio 1.85, anyio 4.16).
    """
    try:
        return await call
    except asyncio.CancelledError:
        await mark_again()
        raise


async def mark_again() -> None:
    """Raise a scope's cancellation anew, as it knows it: for who has caught one of grpc.aio or asyncio.gather. Else return."""
    import anyio.lowlevel  # noqa: PLC0415 - takes time to import; a call that nobody cancels does not need it

    await anyio.lowlevel.checkpoint_if_cancelled()


class RetiredChannels:
    """Channels that no new call uses. Each is closed `linger_s` seconds later, when no deadline of a call on it can be left."""

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, channels: Iterable[grpc.aio.Channel]) -> None:
        """Close these later."""
        closing = asyncio.create_task(self._close(list(channels)), name="channels.retired")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all of them now."""
        closing = list(self._closing)
        for task in closing:
            task.cancel()
        if closing:
            await asyncio.wait(closing)

    async def _close(self, channels: Sequence[grpc.aio.Channel]) -> None:
        try:
            await asyncio.sleep(self._linger_s)
        finally:
            await close_channels(channels)


def credentials(tls: "ClientTls", name: str) -> grpc.ChannelCredentials:
    """Read the CA and the client's own certificate. Raises ConfigError, with `name`, for files that cannot be used."""
    from adapter.runtime.settings.certificates import read_client_files  # noqa: PLC0415 - as above

    return read_client_files(tls, name).channel_credentials()
