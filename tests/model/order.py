"""The order in which tasks, cancel scopes and connections are cancelled or closed together: drawn by the seed of a run.

They are kept in sets, which Python walks by the addresses of what is in them: the same run could end in another way in another
process.
"""

import asyncio
from random import Random
from typing import Any

from anyio._backends import _asyncio

from adapter.runtime.serving.http2.server import Http2Peer

places = Random(0)  # of the run that is played, which seeds it
_drawn = places.getrandbits


class _Placed:
    """An object that sets keep at a place of the seed's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._place = _drawn(60)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._place


class PlacedTask(_Placed, asyncio.Task[Any]):
    """A task of asyncio."""

    def __repr__(self) -> str:
        """Short: anyio writes it into the reason of each cancellation."""
        return self.get_name()


class PlacedScope(_Placed, _asyncio.CancelScope):
    """A cancel scope of anyio."""


class PlacedPeer(_Placed, Http2Peer):
    """A connection to the built-in server."""
