"""Sockets that a service manager handed over."""

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.runtime.serving import listener
from adapter.runtime.serving.activation import Inherited
from adapter.runtime.serving.listener import listening
from adapter.runtime.settings.config import ServerSection, ServerTls
from adapter.testing.waiting import PATIENCE_S
from tests.integration.certificates import Authority


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Inherited]:
    """A TCP and a Unix socket."""
    tcp, unix = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "a.sock"))
    unix.listen()
    found = Inherited([tcp], [unix])
    monkeypatch.setattr(listener, "inherited", lambda *_, **__: found)
    yield found
    found.close()
    for each in (tcp, unix):
        each.close()


def section(tmp_path: Path, *, tls: ServerTls | None = None) -> ServerSection:
    """The settings that belong to the two sockets."""
    return ServerSection(listen="127.0.0.1:0", unix_socket=str(tmp_path / "a.sock"), tls=tls)


@pytest.mark.parametrize("tls", [False, True])
async def test_who_connects_early_is_answered_once_calls_are_taken(handed: Inherited, tmp_path: Path, *, tls: bool) -> None:
    """On both sockets, with TLS on TCP if it is configured; the one that is a file stays when the server has stopped."""
    port = handed.tcp[0].getsockname()[1]
    files = Authority(tmp_path).issue("server") if tls else None
    settings = section(tmp_path, tls=ServerTls(cert=files.cert, key=files.key) if files else None)
    async with listening(settings, [], lambda _: None) as server:
        assert server.addresses == [f"127.0.0.1:{port}", f"unix:{tmp_path}/a.sock"]
        for address in server.addresses:
            if tls and not address.startswith("unix:"):
                opened = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials((tmp_path / "ca.crt").read_bytes()))
            else:
                opened = grpc.aio.insecure_channel(address)
            async with opened as channel:
                call = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
                await server.accept_waiting()
                assert (await call).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (tmp_path / "a.sock").is_socket()
