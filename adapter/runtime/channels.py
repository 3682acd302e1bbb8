"""Channels to a gRPC server, with TLS or without. A bad file is named before anything is sent."""

import ssl
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from adapter.errors import ConfigError

if TYPE_CHECKING:  # a command without TLS does without what checks settings
    from adapter.runtime.config import ClientTls

Options = Sequence[tuple[str, int]]

# Else a new channel takes over the connection of another one in this process, with its pause after a failure.
_ITS_OWN = ("grpc.use_local_subchannel_pool", 1)


def open_channel(address: str, tls: "ClientTls | None", options: Options, *, name: str = "tls") -> grpc.aio.Channel:
    """A channel that connects on first use; to a Unix socket without TLS. Raises ConfigError that names `name` for bad files."""
    if tls is None or address.startswith("unix:"):
        return grpc.aio.insecure_channel(address, [*options, _ITS_OWN])
    return grpc.aio.secure_channel(address, credentials(tls, name), [*options, _ITS_OWN])


async def close_channels(channels: Iterable[grpc.aio.Channel]) -> None:
    """Close them, also when the caller is being cancelled: gRPC's threads write answers into memory that is gone without it."""
    import anyio  # noqa: PLC0415 - a command that makes one call does without

    with anyio.CancelScope(shield=True):
        for channel in channels:
            await channel.close()


def credentials(tls: "ClientTls", name: str) -> grpc.ChannelCredentials:
    """What a client verifies by and shows. Raises ConfigError that names `name` for files that cannot be used."""
    try:
        ca, key, cert = (path.read_bytes() if path else None for path in (tls.ca, tls.key, tls.cert))
        # gRPC would fail each call without saying why: let the standard library look first.
        context = ssl.create_default_context(cafile=str(tls.ca))
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    except ssl.SSLError as error:
        files = ", ".join(str(path) for path in (tls.ca, tls.cert, tls.key) if path)
        raise ConfigError(f"{name}: {files}: not PEM files that belong together: {error.reason}") from error
    except OSError as error:
        raise ConfigError(f"{name}: {error.filename}: {error.strerror}") from error
    return grpc.ssl_channel_credentials(ca, key, cert)
