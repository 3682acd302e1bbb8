"""gRPC measures a connection by pings while it receives: our server does not take them for a flood and hang up."""

import asyncio

from hyperframe.frame import PingFrame

from adapter.runtime.serving.listener import listening
from adapter.sidecar.config import AdapterServerSection
from tests.http2_attacks import PING, Attacker, frame

SERVER = AdapterServerSection(listen="127.0.0.1:0", unix_socket="")
PINGS = 20  # at once: more than a client sends within the time that it takes to receive what was sent to it


async def test_pings_are_answered_and_end_no_connection() -> None:
    """Grpcio's server takes two within 5 minutes while it sends nothing; the third is answered with "Too many pings"."""

    def ping(address: str) -> None:
        with Attacker(address) as peer:
            peer.send(frame(PING, 0, 0, bytes(8)) * PINGS)
            found = peer.read_until(lambda found: sum(isinstance(each, PingFrame) for each in found.frames) >= PINGS)
            assert found.code is None
            peer.send(frame(PING, 0, 0, b"are here"))
            found = peer.read_until(lambda found: any(getattr(each, "opaque_data", b"") == b"are here" for each in found.frames))
            assert found.code is None
            assert found.frames

    async with listening(SERVER, (), lambda _: None) as server:
        await asyncio.to_thread(ping, server.addresses[0])
