"""TLS of the gRPC server, as it is served: which handshakes it takes, how many at a time, for how long, and how connections end.

On uvloop, as the processes; tests/integration/test_tls.py has it on asyncio's own event loop.
"""

import asyncio
import gc
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hyperframe.frame import GoAwayFrame, HeadersFrame

from adapter.rpc import offsets_pb
from adapter.runtime import descriptors
from adapter.runtime.serving.http2 import handshakes
from adapter.runtime.serving.http2.handshakes import HANDSHAKES_MAX
from adapter.runtime.serving.http2.server import Http2Peer, Http2Server
from adapter.runtime.serving.listener import GrpcServer, listening
from adapter.runtime.settings.certificates import ServerCertificate
from adapter.runtime.settings.config import ServerSection, ServerTls
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests import http2_attacks as attacks
from tests.http2_attacks import Attacker, Calls
from tests.http2_client import PREFACE
from tests.integration.certificates import Authority, Certificate
from tests.integration.helpers import PATIENCE_S, UntilRefused, commits, rpc, wait_until
from tests.integration.honest import Held

HALF_OPEN = 1_000
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(32)  # the beginning of one: 150 bytes are missing
CHECK = health_pb2.HealthCheckRequest()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs all certificates here."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    """The adapter's."""
    return authority.issue("server")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, server: Certificate) -> Iterator[ServiceProcess]:
    """An adapter that serves TLS."""
    directory = tmp_path_factory.mktemp("d")
    meta = meta_process(directory)
    service = adapter_process(directory, meta.address, extra=f"[server.tls]\ncert = '{server.cert}'\nkey = '{server.key}'\n")
    with ended(meta, service):
        meta.start()
        service.start()
        yield service


def context(authority: Authority, *protocols: str, shown: Certificate | None = None) -> ssl.SSLContext:
    """A client's, which offers these protocols."""
    made = ssl.create_default_context(cafile=authority.cert)
    if protocols:
        made.set_alpn_protocols(protocols)
    if shown:
        made.load_cert_chain(shown.cert, shown.key)
    return made


def received(peer: socket.socket) -> bytes:
    """What comes first; nothing if the connection ends, however."""
    try:
        return peer.recv(1)
    except (ConnectionResetError, ssl.SSLEOFError):
        return b""


def connected(service: ServiceProcess) -> socket.socket:
    """A connection that has said nothing."""
    return socket.create_connection(("127.0.0.1", service.port), PATIENCE_S)


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)], ids=["none", "http1"])
def test_a_client_that_does_not_agree_on_http2_is_hung_up_on(
    adapter: ServiceProcess, authority: Authority, protocols: tuple[str, ...]
) -> None:
    """Before a byte is sent: what it would make of HTTP/2 is unknown."""
    with context(authority, *protocols).wrap_socket(connected(adapter), server_hostname="localhost") as peer:
        assert received(peer) == b""


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_tls_is_of_1_2_or_later(adapter: ServiceProcess, authority: Authority, version: str) -> None:
    """With HTTP/2 agreed on, and a cipher that RFC 9113 allows."""
    made = context(authority, "h2")
    made.minimum_version = made.maximum_version = ssl.TLSVersion[version]
    with made.wrap_socket(connected(adapter), server_hostname="localhost") as peer:
        assert peer.selected_alpn_protocol() == "h2"
        assert "GCM" in peer.cipher()[0] or "CHACHA20" in peer.cipher()[0]  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_tls_1_1_is_refused(adapter: ServiceProcess, authority: Authority) -> None:
    """Whatever else the client takes."""
    made = context(authority, "h2")
    made.set_ciphers("ALL:@SECLEVEL=0")
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        made.wrap_socket(connected(adapter), server_hostname="localhost")
    wait_until(lambda: "UNSUPPORTED_PROTOCOL" in adapter.log, "the log says why")


def test_old_ciphers_are_refused(adapter: ServiceProcess, authority: Authority) -> None:
    """Those of TLS 1.2 without authenticated encryption (RFC 9113, 9.2.2)."""
    made = context(authority, "h2")
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    with pytest.raises(ssl.SSLError):
        made.wrap_socket(connected(adapter), server_hostname="localhost")
    wait_until(lambda: "NO_SHARED_CIPHER" in adapter.log, "the log says why")


def test_half_open_handshakes_keep_no_honest_client_out(adapter: ServiceProcess, authority: Authority) -> None:
    """Some say nothing, some begin. Only so many are open, and the oldest go."""
    held = Held(adapter)
    sockets, memory = held.sockets(), held.memory()
    with ExitStack() as peers:
        for at in range(HALF_OPEN):
            peer = peers.enter_context(connected(adapter))
            peer.sendall(CLIENT_HELLO if at % 2 else b"")
        began = time.monotonic()
        with rpc(f"localhost:{adapter.port}", authority.cert.read_bytes()) as stubs:
            stubs.store.CommitOffsets(commits({"s": 1}), timeout=PATIENCE_S)
            assert time.monotonic() - began < handshakes.HANDSHAKE_S / 2
            assert held.sockets() - sockets <= HANDSHAKES_MAX + 2
            assert held.memory() - memory < 64 * 2**20


def on_uvloop(main: Callable[[], Awaitable[Any]]) -> None:
    """Run a test as the processes run."""

    async def run() -> None:
        await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def section(server: Certificate, client_ca: Path | None = None) -> ServerSection:
    """The settings of a server with TLS."""
    return ServerSection(listen="127.0.0.1:0", tls=ServerTls(cert=server.cert, key=server.key, client_ca=client_ca))


def serve(settings: ServerSection) -> Any:
    """It, in this process, with the health service alone."""
    return listening(settings, [], lambda _: None)


def port_of(made: GrpcServer) -> int:
    """Where it listens."""
    return int(made.addresses[0].rpartition(":")[2])


def test_a_handshake_that_never_ends_is_closed(server: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its limit, whether it has begun or not."""
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.3)

    async def main() -> None:
        async with serve(section(server)) as made:
            for said in (b"", CLIENT_HELLO):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(made))
                writer.write(said)
                began = time.monotonic()
                async with asyncio.timeout(PATIENCE_S):
                    with suppress(ConnectionResetError):
                        assert await reader.read() == b""
                assert 0.2 < time.monotonic() - began < PATIENCE_S / 2
                writer.close()

    on_uvloop(main)


def test_honest_clients_that_come_together_are_all_served(
    authority: Authority, server: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many times as many as there may be handshakes: each waits for room."""
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 4)
    monkeypatch.setattr(handshakes, "HANDSHAKE_LEAST_S", PATIENCE_S)  # longer than a busy machine takes

    async def main() -> None:
        async with serve(section(server)) as made:
            assert await asyncio.gather(*(answers(port_of(made), authority) for _ in range(100))) == [True] * 100

    on_uvloop(main)


async def answers(port: int, trusts: Authority, shown: Certificate | None = None) -> bool:
    """Whether the health service answers at the first connection."""
    parts = (shown.key.read_bytes(), shown.cert.read_bytes()) if shown else (None, None)
    credentials = grpc.ssl_channel_credentials(trusts.cert.read_bytes(), *parts)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check(CHECK, timeout=PATIENCE_S)
        return await call.code() is grpc.StatusCode.OK


def test_a_descriptor_that_is_reserved_gets_no_handshake(server: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused at once, and counted, as without TLS."""
    refused = list[str]()

    async def main() -> None:
        files = ServerCertificate(ServerTls(cert=server.cert, key=server.key))
        made = Http2Server(lambda: refused.append("one"))
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        await made.listen(listener, lambda: files.context)
        monkeypatch.setattr(descriptors, "is_reserved", lambda _: True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        await made.stop(0)

    on_uvloop(main)
    assert refused == ["one"]


def test_connections_leave_nothing_that_only_the_collector_would_free(server: Certificate, authority: Authority) -> None:
    """It is postponed in a process: each way in which a connection ends has to free its buffers by itself."""

    def come_and_go(port: int) -> None:
        good, other = context(authority, "h2"), context(authority, "http/1.1")
        stranger = ssl.create_default_context()
        for made, said in ((good, PREFACE), (good, b"GET / HTTP/1.1\r\n"), (other, b""), (stranger, b""), (None, b"")):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as peer, suppress(ssl.SSLError, ConnectionError):
                if made:
                    with made.wrap_socket(peer, server_hostname="localhost") as secure:
                        secure.sendall(said)
                        secure.recv(1)

    def held() -> dict[int, object]:
        return {id(each): each for each in gc.get_objects() if isinstance(each, Http2Peer | ssl.SSLObject)}

    async def main() -> None:
        async with serve(section(server)) as made:
            before = held()  # what other tests of this process left
            gc.disable()
            try:
                await asyncio.to_thread(come_and_go, port_of(made))
                await eventually(lambda: held().keys() <= before.keys(), PATIENCE_S)
            finally:
                gc.enable()

    on_uvloop(main)


def test_certificates_are_asked_for_and_renewed(authority: Authority, tmp_path: Path) -> None:
    """None, and a stranger's, is refused. With a new CA the clients of the old one are refused, as soon as they connect again."""
    stranger = Authority(tmp_path, "stranger")
    ours, theirs, first = authority.issue("client"), stranger.issue("client"), authority.issue("first")
    settings = ServerTls(cert=tmp_path / "cert", key=tmp_path / "key", client_ca=tmp_path / "ca")

    def put(certificate: Certificate, ca: Authority) -> None:
        settings.cert.write_bytes(certificate.cert.read_bytes())
        settings.key.write_bytes(certificate.key.read_bytes())
        (tmp_path / "ca").write_bytes(ca.cert.read_bytes())

    async def main() -> None:
        put(first, authority)
        certificate = ServerCertificate(settings)
        server = ServerSection(listen="127.0.0.1:0", tls=settings)
        async with listening(server, [], lambda _: None, certificate=certificate) as made:
            port = port_of(made)
            assert [await answers(port, authority, each) for each in (ours, None, theirs)] == [True, False, False]
            put(stranger.issue("second"), stranger)
            certificate.prepare(settings).apply()
            assert [await answers(port, stranger, each) for each in (ours, None, theirs)] == [False, False, True]
            assert not await answers(port, authority, ours)

    on_uvloop(main)


def test_a_drain_over_tls_answers_what_was_sent_and_ends_with_a_goodbye(
    tmp_path: Path, authority: Authority, server: Certificate
) -> None:
    """Both GOAWAYs, the answer between them, and close_notify: `recv` raises for a connection that is cut."""
    meta = meta_process(tmp_path)
    service = adapter_process(tmp_path, meta.address, extra=f"[server.tls]\ncert = '{server.cert}'\nkey = '{server.key}'\n")
    with ended(meta, service):
        meta.start()
        service.start()
        Attacker.context = context(authority, "h2")
        Attacker.context.check_hostname = False
        try:
            calls = Calls()
            with Attacker(service.tcp_address) as peer:
                peer.socket.suppress_ragged_eofs = False  # type: ignore[attr-defined]
                for number in range(1, 51):
                    peer.send(calls.whole(attacks.COMMIT, commits({"s": number}, "drained").SerializeToString()))
                service.process.terminate()  # type: ignore[union-attr]
                found = peer.read_until(lambda found: sum(isinstance(each, GoAwayFrame) for each in found.frames) == 2)
                answered = {
                    each.stream_id for each in found.frames if isinstance(each, HeadersFrame) and "END_STREAM" in each.flags
                }
                last = [each.last_stream_id for each in found.frames if isinstance(each, GoAwayFrame)]
                assert last == [2**31 - 1, calls.last]
                assert answered == set(range(1, calls.last + 1, 2))
                assert peer.socket.recv(1) == b""
        finally:
            Attacker.context = None
        assert service.process.wait(PATIENCE_S) == 0  # type: ignore[union-attr]


def test_a_stop_over_tls_loses_no_commit_that_was_acknowledged(tmp_path: Path, authority: Authority, server: Certificate) -> None:
    """Many at a time on many connections, and no wait between them; a restart has them all (1, 8)."""
    meta = meta_process(tmp_path)
    service = adapter_process(tmp_path, meta.address, extra=f"[server.tls]\ncert = '{server.cert}'\nkey = '{server.key}'\n")
    load = UntilRefused("abcd")

    async def load_and_stop() -> None:
        credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with asyncio.TaskGroup() as tasks:
            for shard in load.acknowledged:
                tasks.create_task(load.run(grpc.aio.secure_channel(f"localhost:{service.port}", credentials, options), shard))
            await load.reach(200)
            service.process.terminate()  # type: ignore[union-attr]

    with ended(meta, service):
        meta.start()
        service.start()
        asyncio.run(load_and_stop())
        assert service.process.wait(PATIENCE_S) == 0  # type: ignore[union-attr]
        assert load.refused == {grpc.StatusCode.UNAVAILABLE}
        service.start()
        with rpc(service.address) as stubs:
            wanted = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group="g", shards=list(load.acknowledged))])
            found = {row.shard: row.offset for row in stubs.store.ReadOffsets(wanted, timeout=PATIENCE_S).offsets}
        assert all(found[shard] >= offset for shard, offset in load.acknowledged.items())
