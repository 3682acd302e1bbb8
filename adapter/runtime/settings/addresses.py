"""Parsing of addresses in settings and options, and the default addresses of the processes."""

import ipaddress

MAX_PORT = 65_535
_SCHEMES = frozenset({"unix", "unix-abstract", "ipv4", "ipv6", "vsock", "dns"})

ADAPTER_LISTEN = "127.0.0.1:9520"
ADAPTER_SOCKET = "data/adapter.sock"
META_LISTEN = "127.0.0.1:9530"
CONSOLE_LISTEN = "127.0.0.1:9540"


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port` into host and port. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ValueError(f"{address!r} is not host:port with a port from 0 to {MAX_PORT}")
    return host.strip("[]"), int(port)


def check_target(address: str) -> str:
    """The address of a server that gRPC is to call: `host:port`, or one with a scheme, such as `unix:path`. Raises ValueError.

    Of a host alone gRPC would call port 443.
    """
    if address.partition(":")[0] not in _SCHEMES:
        split_address(address)
    return address


def is_loopback(address: str) -> bool:
    """True when only this machine can reach `address`."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
