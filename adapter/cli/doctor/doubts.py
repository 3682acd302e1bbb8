"""Settings of an adapter that are allowed, and may not be meant."""

from collections.abc import Iterator

from adapter.runtime.settings.addresses import is_loopback
from adapter.sidecar.config import AdapterConfig


def doubts(config: AdapterConfig) -> Iterator[str]:
    """A sentence for each."""
    away = [endpoint for endpoint in config.meta.endpoints if not is_loopback(endpoint)]
    if away and config.meta.tls is None:
        yield f"meta.endpoints: {away[0]} is on another machine: without [meta.tls] anybody on the way can change offsets"
    if config.meta.tls is not None:
        yield "meta.tls: RobustMQ's Meta Service has no TLS, and cannot be reached with it; a Meta Service of this project has"
    if config.robustmq.listen and not config.robustmq.broker:
        yield "robustmq.broker: is empty: the RobustMQ broker is not told of resets and deletes, and goes on from what it has"
    if config.robustmq.listen in config.meta.endpoints:
        yield f"robustmq.listen: {config.robustmq.listen} is one of meta.endpoints, too: the adapter would call itself"
