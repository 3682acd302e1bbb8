"""gRPC measures a connection by pings while it receives: no server of ours takes them for a flood and hangs up."""

import asyncio

import pytest
from hyperframe.frame import PingFrame

from adapter.runtime.config import GrpcServerKind
from adapter.runtime.listener import listening
from adapter.sidecar.config import AdapterServerSection
from adapter.testing.sidecars import GRPC_SERVERS
from tests.http2_attacks import PING, Attacker, frame

SERVER = AdapterServerSection(listen="127.0.0.1:0", unix_socket="")
PINGS = 20  # at once: more than a client sends within the time that it takes to receive what was sent to it


@pytest.mark.parametrize("grpc_server", GRPC_SERVERS)
async def test_pings_are_answered_and_end_no_connection(grpc_server: GrpcServerKind) -> None:
    """By default the third within 5 minutes of another one, while the server sends nothing, is answered with "Too many pings"."""

    def ping(address: str) -> None:
        with Attacker(address) as peer:
            peer.send(frame(PING, 0, 0, bytes(8)) * PINGS)
            found = peer.read_until(lambda found: sum(isinstance(each, PingFrame) for each in found.frames) >= PINGS)
            assert found.code is None
            peer.send(frame(PING, 0, 0, b"are here"))
            found = peer.read_until(lambda found: any(getattr(each, "opaque_data", b"") == b"are here" for each in found.frames))
            assert found.code is None
            assert found.frames

    async with listening(SERVER, (), lambda _: None, grpc_server=grpc_server) as server:
        await asyncio.to_thread(ping, server.addresses[0])
