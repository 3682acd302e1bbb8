"""gRPC measures a connection by pings while it receives: no server of ours takes them for a flood and hangs up.

Servers ping as well: a client that does not answer has vanished.
"""

import asyncio

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hyperframe.frame import PingFrame

from adapter.runtime import listener
from adapter.runtime.config import GrpcServerKind
from adapter.runtime.listener import listening
from adapter.sidecar.config import AdapterServerSection
from adapter.testing.sidecars import GRPC_SERVERS
from adapter.testing.waiting import eventually
from tests.http2_attacks import PING, Attacker, frame
from tests.integration.http2.test_slow_clients import Vanishing

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


async def test_a_client_that_vanished_is_noticed_by_grpcios_server_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no FIN: a machine that lost its power, a cable. Its calls end; here in seconds instead of minutes."""
    asked = {"grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms"}
    monkeypatch.setattr(listener, "OPTIONS", [(name, 1_000 if name in asked else value) for name, value in listener.OPTIONS])
    async with (
        listening(SERVER, (), lambda _: None) as server,
        Vanishing(server.addresses[0]).carrying() as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        assert server._health._watching
        proxy.gone = True
        await eventually(lambda: not server._health._watching)
        watch.cancel()
