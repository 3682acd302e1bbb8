"""Connections that do nothing: how many of them a process has hung up."""

import socket
from collections.abc import Sequence


def hung_up(peers: Sequence[socket.socket]) -> int:
    """How many of them the other side has closed."""
    count = 0
    for peer in peers:
        peer.settimeout(0)
        try:
            while data := peer.recv(65_536):
                pass
            count += not data
        except BlockingIOError:
            pass
        except ConnectionError:
            count += 1
    return count
