"""How long a server asks its clients to wait before they try again: gRPC's own trailing metadata (gRFC A6)."""

from collections.abc import Iterable

PUSHBACK = "grpc-retry-pushback-ms"
MAX_PUSHBACK_S = 60.0  # the longest that is obeyed: a wrong value must not stop a client for good


def pushback_s(trailing: Iterable[tuple[str, str | bytes]] | None) -> float:
    """Seconds that the server asked us to wait, by the trailing metadata of a failed call; 0 if it did not."""
    said = next((value for key, value in trailing or () if key == PUSHBACK), "")
    return min(int(said) / 1000, MAX_PUSHBACK_S) if isinstance(said, str) and said.isdecimal() else 0.0
