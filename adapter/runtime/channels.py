"""Channels to a gRPC server, with TLS or without. Certificate files are checked before anything is sent."""

import ssl
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from adapter.errors import ConfigError

if TYPE_CHECKING:  # pydantic takes time to import, and a command without TLS does not need it
    from adapter.runtime.config import ClientTls

Options = Sequence[tuple[str, int]]

# Without it a new channel shares the connection of another one in this process, and its backoff after a failure.
_ITS_OWN = ("grpc.use_local_subchannel_pool", 1)


def open_channel(address: str, tls: "ClientTls | None", options: Options, *, name: str = "tls") -> grpc.aio.Channel:
    """Make a channel that connects on first use; to a Unix socket without TLS. Raises ConfigError, with `name`, for bad files."""
    if tls is None or address.startswith("unix:"):
        return grpc.aio.insecure_channel(address, [*options, _ITS_OWN])
    return grpc.aio.secure_channel(address, credentials(tls, name), [*options, _ITS_OWN])


async def close_channels(channels: Iterable[grpc.aio.Channel]) -> None:
    """Close channels, also when the caller is being cancelled: else gRPC's threads would write answers into freed memory."""
    import anyio  # noqa: PLC0415 - takes time to import; a command that makes one call does not need it

    with anyio.CancelScope(shield=True):
        for channel in channels:
            await channel.close()


def credentials(tls: "ClientTls", name: str) -> grpc.ChannelCredentials:
    """Read the CA and the client's own certificate. Raises ConfigError, with `name`, for files that cannot be used."""
    try:
        ca, key, cert = (path.read_bytes() if path else None for path in (tls.ca, tls.key, tls.cert))
        # gRPC would fail each call without a reason: let the standard library check the files first.
        context = ssl.create_default_context(cafile=str(tls.ca))
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    except ssl.SSLError as error:
        files = ", ".join(str(path) for path in (tls.ca, tls.cert, tls.key) if path)
        raise ConfigError(f"{name}: {files}: not PEM files that belong together: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"{name}: {error.filename}: {error.strerror}") from error
    return grpc.ssl_channel_credentials(ca, key, cert)
