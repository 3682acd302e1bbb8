"""The server over sockets: its addresses, those that cannot be listened on, calls that are given up, and the frames of a drain.

Hostile clients are in test_hostile_clients.py.
"""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hyperframe.frame import DataFrame, GoAwayFrame, RstStreamFrame, SettingsFrame
from structlog.testing import capture_logs

from adapter.client.client import OffsetClient
from adapter.errors import ConfigError, ListenError
from adapter.model.records import SaveEntry
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually
from tests.integration.certificates import Authority
from tests.integration.frames import peer
from tests.integration.helpers import PATIENCE_S, UntilRefused, commits, key, serving

COMMIT, DESCRIBE = "/offsets.v1.OffsetStore/CommitOffsets", "/offsets.v1.OffsetAdmin/DescribeGroup"
REFUSED_STREAM = 7
STREAMS_MAX = 1_000  # of a connection


async def said_first(address: str) -> dict[int, int]:
    """The settings of a server."""
    async with peer(address) as client:
        return dict((await client.next(SettingsFrame)).settings)


async def test_a_connection_may_have_so_many_calls_at_a_time(directory: Path) -> None:
    """Each takes memory."""
    async with serving(directory) as (sidecar, _):
        assert (await said_first(sidecar.addresses[0]))[SettingsFrame.MAX_CONCURRENT_STREAMS] == STREAMS_MAX


async def test_a_file_that_still_chooses_the_server_is_refused(directory: Path) -> None:
    """As every setting that there is not: up to 0.1.0 there were two servers."""
    with pytest.raises(ConfigError, match=r"server\.grpc_server: is not a setting; see the commented file in config/"):
        adapter_config(directory, server={"grpc_server": "builtin"})


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
async def test_both_addresses_are_served(directory: Path, tls: bool) -> None:
    """TCP, with TLS and without, and the Unix socket."""
    authority = Authority(directory)
    cert, private = authority.issue("server")
    section = {"tls": {"cert": str(cert), "key": str(private)}} if tls else {}
    async with running_sidecar(adapter_config(directory, server=section), FakeMeta()) as sidecar:
        tcp, unix = sidecar.addresses
        credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        secure = grpc.aio.secure_channel(tcp, credentials) if tls else grpc.aio.insecure_channel(tcp)
        async with secure, grpc.aio.insecure_channel(unix) as local:
            for channel in (secure, local):
                await OffsetClient(channel, PATIENCE_S).commit("g", {"s": 1})
                health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
                assert health.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_name_with_many_addresses_has_one_port(directory: Path, host: str) -> None:
    """Port 0 is one that is free, the same on each; `addresses` names it."""
    if host == "[::1]" and not _has_ipv6():
        pytest.skip("not run: this machine has no IPv6")
    async with running_sidecar(adapter_config(directory, server={"listen": f"{host}:0"}), FakeMeta()) as sidecar:
        address = sidecar.addresses[0]
        assert address.startswith(f"{host}:")
        port = int(address.rpartition(":")[2])
        found = {info[4][0] for info in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)}
        for one in found:
            async with await anyio.connect_tcp(str(one), port):
                pass


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


UNUSABLE = {
    "too_long": ("{0}/" + "x" * 120, "is over 107 bytes long; choose a shorter path"),
    "below_a_file": ("{0}/file/a.sock", "/file: File exists"),
    "a_file": ("{0}/file", "is a file, not a socket; choose another path or move it away"),
    "no_place_for_files": ("/proc/a.sock", "cannot be listened on: its directory must be writable"),
}


@pytest.mark.parametrize(("path", "problem"), UNUSABLE.values(), ids=UNUSABLE)
async def test_a_socket_that_cannot_be_made_is_told(directory: Path, path: str, problem: str) -> None:
    """By the setting and the path."""
    (directory / "file").write_text("data")
    path = path.format(directory)
    with pytest.raises(ListenError) as caught:
        async with running_sidecar(adapter_config(directory, server={"unix_socket": path}), FakeMeta()):
            pass
    assert str(caught.value).startswith(f"server.unix_socket = {path!r}: ")
    assert str(caught.value).endswith(problem)


async def test_a_port_in_use_is_told_also_when_its_owner_would_share_it(directory: Path) -> None:
    """Two adapters on one port would each get half of the commits."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        config = adapter_config(directory, server={"listen": listen})
        with pytest.raises(ListenError) as caught:
            async with running_sidecar(config, FakeMeta()):
                pass
    problem = "cannot be listened on: choose another port or stop what uses it"
    assert str(caught.value) == f"server.listen = {listen!r}: {problem}"
    assert not (directory / "a.sock").exists()


async def test_nobody_on_tcp_passes_for_the_owner_of_the_socket(directory: Path) -> None:
    """Whatever a call says of itself: OffsetAdmin is closed to it."""
    async with running_sidecar(adapter_config(directory), FakeMeta()) as sidecar:
        tcp, unix = sidecar.addresses
        for authority in (unix, "unix:", "localhost"):
            async with grpc.aio.insecure_channel(tcp, [("grpc.default_authority", authority)]) as channel:
                said = (("x-forwarded-for", unix), ("forwarded", f"for={unix}"), ("peer", unix))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await OffsetClient(channel).admin.Status(offsets_pb.StatusRequest(), metadata=said, timeout=PATIENCE_S)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        async with grpc.aio.insecure_channel(unix, [("grpc.default_authority", tcp)]) as channel:
            assert (await OffsetClient(channel, PATIENCE_S).status()).recovery.done


class HeldMeta(FakeMeta):
    """Its saves wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = anyio.Event()

    async def save(self, entries: Sequence[SaveEntry]) -> Any:
        self.saves.append(list(entries))
        await self.release.wait()
        return self.apply(entries)


async def test_a_drain_finishes_what_is_in_flight_and_says_go_away(directory: Path) -> None:
    """Every connection is told; the call in flight is answered after that; then the connections end, and the address (8)."""
    meta = HeldMeta()
    message = commits({"in_flight": 1}).SerializeToString()
    async with (
        running_sidecar(adapter_config(directory, mode="write_through"), meta) as sidecar,
        peer(sidecar.addresses[0]) as idle,
        peer(sidecar.addresses[1]) as busy,
    ):
        stream = await busy.call(COMMIT, message)
        await eventually(lambda: bool(meta.saves), PATIENCE_S)
        sidecar.stop()
        for client, last in ((idle, 0), (busy, stream)):
            # First that no more is wished for; then, when the peer knows, what the last call was that counted.
            told = [await client.next(GoAwayFrame) for _ in range(2)]
            assert [(frame.last_stream_id, frame.error_code) for frame in told] == [(2**31 - 1, 0), (last, 0)]
        meta.release.set()
        assert await busy.status(stream) == 0
        for client in (idle, busy):
            with pytest.raises((anyio.IncompleteRead, anyio.BrokenResourceError)):
                await client.next(DataFrame)
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            await anyio.connect_unix(sidecar.addresses[1].removeprefix("unix:"))
    assert meta.records.keys() == {key("in_flight")}


async def test_no_commit_is_cancelled_in_a_drain(directory: Path) -> None:
    """Many at a time on many connections, and no wait between them: each is acknowledged, and there, or UNAVAILABLE (8)."""
    meta, load = FakeMeta(), UntilRefused("abcdef")
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with anyio.create_task_group() as tasks, running_sidecar(adapter_config(directory), meta) as sidecar:
        for at, shard in enumerate(load.acknowledged):
            tasks.start_soon(load.run, grpc.aio.insecure_channel(sidecar.addresses[at % 2], options), shard)
        await load.reach(40)
    assert load.refused == {grpc.StatusCode.UNAVAILABLE}
    assert all(meta.records[key(shard)].offset >= offset for shard, offset in load.acknowledged.items())


async def test_a_commit_that_is_given_up_holds_up_nobody(directory: Path) -> None:
    """Cancelled, or past its deadline, while the Meta Service hangs: other calls of that connection go on, nothing is logged."""
    meta = HeldMeta()
    policy = [{"groups": "through", "mode": "write_through"}]
    with capture_logs() as lines:
        async with serving(directory, meta, policy=policy, flush={"interval_ms": 60_000}) as (_, client):
            call = client.store.CommitOffsets(commits({"s": 1}, "through"), timeout=PATIENCE_S)
            await eventually(lambda: bool(meta.saves), PATIENCE_S)
            assert call.cancel()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.store.CommitOffsets(commits({"s": 2}, "through"), timeout=0.05)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert await client.commit("g", {"s": 1}) == []
            meta.release.set()
            await client.store.CommitOffsets(commits({"s": 3}, "through"), timeout=PATIENCE_S)
    assert meta.records[key("s", "through")].offset == 3
    assert not [line for line in lines if line["log_level"] in {"error", "critical"}]


class SilentMeta(FakeMeta):
    """Nobody who asks it for groups gets an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.given_up = 0

    async def groups_page(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        try:
            await anyio.sleep_forever()
        finally:
            self.given_up += 1


async def test_the_work_for_a_call_that_is_given_up_ends(directory: Path) -> None:
    """By its client, by its deadline, or with its connection."""
    meta, request = SilentMeta(), offsets_pb.DescribeGroupRequest(group="g")
    async with serving(directory, meta) as (sidecar, client):
        call = client.admin.DescribeGroup(request, timeout=PATIENCE_S)
        await eventually(lambda: meta.asked == 1, PATIENCE_S)
        call.cancel()
        await eventually(lambda: meta.given_up == 1, PATIENCE_S)
        async with peer(sidecar.addresses[1]) as other:
            await other.call(DESCRIBE, request.SerializeToString(), ("grpc-timeout", "50m"))
            await eventually(lambda: meta.given_up == 2, PATIENCE_S)
            await other.call(DESCRIBE, request.SerializeToString())
            await eventually(lambda: meta.asked == 3, PATIENCE_S)
        await eventually(lambda: meta.given_up == 3, PATIENCE_S)


async def test_a_call_that_outlasts_the_grace_time_is_unavailable(directory: Path) -> None:
    """It may have been done or not, as always then. A call on a connection that was told to go is refused as not begun (8)."""
    meta = HeldMeta()
    section = {"mode": "write_through", "stop": {"grace_ms": 300, "drain_timeout_ms": 100}}
    async with (
        running_sidecar(adapter_config(directory, **section), meta) as sidecar,
        peer(sidecar.addresses[1]) as client,
    ):
        stream = await client.call(COMMIT, commits({"s": 1}).SerializeToString())
        await eventually(lambda: bool(meta.saves), PATIENCE_S)
        sidecar.stop()
        for _ in range(2):
            await client.next(GoAwayFrame)
        late = await client.call(COMMIT, commits({"s": 2}).SerializeToString())
        assert (await client.next(RstStreamFrame, late)).error_code == REFUSED_STREAM
        assert await client.status(stream) == grpc.StatusCode.UNAVAILABLE.value[0]
        meta.release.set()


async def test_the_adapter_itself_answers_when_a_deadline_has_passed(directory: Path) -> None:
    """A client whose own clock does not look: `grpc-timeout` is enough."""
    meta = HeldMeta()
    async with (
        running_sidecar(adapter_config(directory, mode="write_through"), meta) as sidecar,
        peer(sidecar.addresses[1]) as client,
    ):
        stream = await client.call(COMMIT, commits({"s": 1}).SerializeToString(), ("grpc-timeout", "50m"))
        assert await client.status(stream) == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        meta.release.set()


async def test_metadata_has_a_limit(directory: Path) -> None:
    """Some is taken, much is refused, and the connection goes on."""
    async with serving(directory) as (_, client):
        await client.store.CommitOffsets(commits({"s": 1}), metadata=(("x", "y" * 4_000),), timeout=PATIENCE_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.store.CommitOffsets(commits({"s": 2}), metadata=(("x", "y" * 30_000),), timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.read("g"))["s"].offset == 1


async def test_compressed_messages_are_refused(directory: Path) -> None:
    """With the status for it; nothing is stored, and the connection goes on."""
    async with serving(directory) as (_, client):
        large = commits({"s": 1}, metadata="m" * 4_000)  # a client leaves small ones as they are
        call = client.store.CommitOffsets(large, compression=grpc.Compression.Gzip, timeout=PATIENCE_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        found = (caught.value.code(), caught.value.details())
        assert found == (grpc.StatusCode.UNIMPLEMENTED, "compressed messages are not taken")
        assert await client.read("g") == {}
