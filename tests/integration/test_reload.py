"""Certificates, CAs and endpoints that are exchanged while connections are open and calls are under way."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import ConfigError, MetaUnavailableError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.meta.endpoints import Endpoints
from adapter.model.records import SaveEntry, Status
from adapter.rpc import meta_pb
from adapter.runtime.channels import close_channels
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.integration.certificates import Authority, Certificate
from tests.integration.helpers import PATIENCE_S, commits, key, meta_section, record

ENTRY = SaveEntry(key(), record(1))


class Secret:
    """A directory of TLS files as the kubelet lays it out: links to `..data`, a link to the files, which is replaced at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        path.mkdir()
        for name in ("cert", "key", "ca"):
            (path / name).symlink_to(f"..data/{name}")

    def put(self, certificate: Certificate, *authorities: Authority) -> None:
        """Replace all three files; the CA is a bundle."""
        self._number += 1
        there = self.path / f"..{self._number}"
        there.mkdir()
        shutil.copy(certificate.cert, there / "cert")
        shutil.copy(certificate.key, there / "key")
        (there / "ca").write_bytes(b"".join(authority.cert.read_bytes() for authority in authorities))
        (self.path / "..new").symlink_to(there.name)
        (self.path / "..new").rename(self.path / "..data")
        if self._number > 1:
            shutil.rmtree(self.path / f"..{self._number - 1}")

    def server(self) -> str:
        """The TOML table of a server that asks for certificates."""
        return f"[server.tls]\ncert = '{self.path}/cert'\nkey = '{self.path}/key'\nclient_ca = '{self.path}/ca'\n"

    def client(self) -> str:
        """The TOML table of the Meta Service's client."""
        return f"[meta.tls]\nca = '{self.path}/ca'\ncert = '{self.path}/cert'\nkey = '{self.path}/key'\n"


def _credentials(authority: Authority, client: Certificate) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(authority.cert.read_bytes(), client.key.read_bytes(), client.cert.read_bytes())


@asynccontextmanager
async def connected(address: str, authority: Authority, client: Certificate) -> AsyncIterator[OffsetClient]:
    """A client of an adapter, over a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, _credentials(authority, client), options) as channel:
        yield OffsetClient(channel, PATIENCE_S)


async def taken(*services: ServiceProcess) -> None:
    """Wait until processes have noticed that files were replaced."""
    for service in services:
        await eventually(lambda service=service: "config.files_taken" in service.log, PATIENCE_S)  # type: ignore[misc]


async def asked(service: ServiceProcess, times: int) -> None:
    """Send SIGHUP, and wait until it was handled as often as this."""
    service.signal(signal.SIGHUP)
    await eventually(lambda: service.log.count("config.reloaded") >= times, PATIENCE_S)


async def test_a_file_that_became_a_pipe_is_refused_and_sigterm_ends_the_process(directory: Path, meta: ServiceProcess) -> None:
    """The read waited for ever: the reload was never answered, and the process did not end."""
    adapter = adapter_process(directory, meta.address)
    with ended(adapter):
        await anyio.to_thread.run_sync(adapter.start)
        path = directory / "serve.toml"
        path.unlink()
        os.mkfifo(path)
        async with OffsetClient.connect(adapter.address) as client:
            with pytest.raises(grpc.aio.AioRpcError, match="is not a regular file"):
                await client.reload()
            assert "is not a regular file" in (await client.status()).config.last_error
        assert await anyio.to_thread.run_sync(adapter.stop, PATIENCE_S) == 0


async def test_certificates_are_exchanged_on_both_sides_while_commits_go_on(directory: Path) -> None:
    """Without a refused commit: first both authorities are trusted (noticed without a signal), then new certificates are shown.

    A connection that is open lives on; a new one sees the new certificate, and an old client is refused in the end.
    """
    old, new = Authority(directory, "old"), Authority(directory, "new")
    servers, clients = [each.issue("server") for each in (old, new)], [each.issue("client") for each in (old, new)]
    meta_files, server_files, client_files = (Secret(directory / name) for name in ("m", "s", "c"))
    for files, pair in ((meta_files, servers[0]), (server_files, servers[0]), (client_files, clients[0])):
        files.put(pair, old)
    meta = meta_process(directory)
    meta.settings = meta.settings.replace("[metrics]", f"{meta_files.server()}[metrics]")
    adapter = adapter_process(directory, meta.address, extra=client_files.client())
    adapter.settings = adapter.settings.replace("[metrics]", f"{server_files.server()}[metrics]")
    sent = 0
    with ended(meta, adapter):
        meta.launch()
        await anyio.to_thread.run_sync(adapter.start)
        async with connected(adapter.tcp_address, old, clients[0]) as first:

            async def commit_and_flush(client: OffsetClient) -> None:
                nonlocal sent
                sent += 1
                await _until_flushed(adapter, client, sent)

            await commit_and_flush(first)
            for files, pair in ((meta_files, servers[0]), (server_files, servers[0]), (client_files, clients[0])):
                files.put(pair, old, new)
            await taken(meta, adapter)
            await commit_and_flush(first)
            for files, pair in ((meta_files, servers[1]), (server_files, servers[1]), (client_files, clients[1])):
                files.put(pair, old, new)
            await asked(meta, 1)
            await asked(adapter, 1)
            await commit_and_flush(first)
            async with connected(adapter.tcp_address, new, clients[0]) as second:
                await commit_and_flush(second)
            async with connected(adapter.tcp_address, old, clients[0]) as wrong:
                await _refused(wrong)
            for files, pair in ((meta_files, servers[1]), (server_files, servers[1]), (client_files, clients[1])):
                files.put(pair, new)
            await asked(meta, 2)
            await asked(adapter, 2)
            await commit_and_flush(first)
            async with connected(adapter.tcp_address, new, clients[0]) as expired:
                await _refused(expired)
            # A restart of the Meta Service has the adapter connect anew, with its new certificate.
            assert await anyio.to_thread.run_sync(meta.stop) == 0
            meta.launch()
            await eventually(lambda: meta.log.count("server.listening") == 2, PATIENCE_S)
            await _until_flushed(adapter, first, sent + 1)


async def test_half_a_replacement_is_not_taken_and_said(directory: Path) -> None:
    """A certificate without its key: the old pair is shown on, and the status says why, until the key is there as well."""
    authority, stranger = Authority(directory), Authority(directory, "stranger")
    server, other, client = authority.issue("server"), stranger.issue("server"), authority.issue("client")
    files = [directory / name for name in ("cert", "key")]
    for path, source in zip(files, server, strict=True):
        shutil.copy(source, path)
    tls = f"[server.tls]\ncert = '{files[0]}'\nkey = '{files[1]}'\n[metrics]"
    adapter = adapter_process(directory, "127.0.0.1:1", extra="[recovery]\ntimeout_ms = 1\n")
    adapter.settings = adapter.settings.replace("[metrics]", tls)
    with ended(adapter):
        await anyio.to_thread.run_sync(adapter.start)
        shutil.copy(other.cert, files[0])
        await eventually(lambda: "config.files_refused" in adapter.log, PATIENCE_S)
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as admin:
            assert "KEY_VALUES_MISMATCH" in (await admin.status()).config.files_error
            with pytest.raises(grpc.aio.AioRpcError, match=r"server\.tls: .*KEY_VALUES_MISMATCH") as caught:
                await admin.reload()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            async with connected(adapter.tcp_address, authority, client) as same:
                await same.commit("g", {"s": 1})
            shutil.copy(other.key, files[1])
            reply = await admin.reload()
            assert [change.field for change in reply.changed] == ["server.tls"]
            assert (await admin.status()).config.files_error == ""
        async with connected(adapter.tcp_address, stranger, client) as fresh:
            await fresh.commit("g", {"s": 2})


async def test_the_meta_client_goes_over_to_new_files_and_endpoints(directory: Path) -> None:
    """A bad file changes nothing; a call under way on the old channel is answered."""
    one, two = meta_process(directory / "1"), meta_process(directory / "2")
    with ended(one, two):
        await anyio.to_thread.run_sync(one.start)
        await anyio.to_thread.run_sync(two.start)
        async with GrpcMetaClient.open(meta_section(one.address)) as client:
            assert (await client.save([ENTRY]))[0].status is Status.APPLIED
            with pytest.raises(ConfigError, match=r"^meta\.tls"):
                client.prepare(meta_section(two.address, tls={"ca": str(directory / "missing")}))
            assert client.endpoint == one.address
            assert client.prepare(meta_section(one.address)).replaced == ()
            client.prepare(meta_section(two.address)).apply()
            assert client.endpoint == two.address
            assert client.server_reports.moves == 1
            assert await client.get([key()]) == {}
            both = MetaSection(endpoints=(two.address, one.address), timeout_ms=60_000)
            client.prepare(both).apply()
            assert client.endpoint == two.address
            assert client.server_reports.moves == 1
            two.kill()
            assert (await client.get([key()]))[key()].offset == 1
            assert client.endpoint == one.address


async def test_offsets_go_to_the_new_meta_service_when_the_endpoints_change(directory: Path) -> None:
    """Also those that the old one had acknowledged: the new one remembers nothing of this store, so all is compared."""
    one, two = meta_process(directory / "1"), meta_process(directory / "2")
    adapter = adapter_process(directory, one.address)
    with ended(one, two, adapter):
        for service in (one, two, adapter):
            await anyio.to_thread.run_sync(service.start)
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await client.commit("g", {"s": 1, "t": 2})
            await client.flush()
            (adapter.directory / "serve.toml").write_text(adapter.settings.replace(one.address, two.address))
            reply = await client.reload()
            assert [change.field for change in reply.changed] == ["meta.endpoints"]
            await client.commit("g", {"t": 3})
            section = meta_section(two.address)
            async with GrpcMetaClient.open(section) as reader:
                await _until_there(reader, {"s": 1, "t": 3})
            assert (await client.status()).meta_endpoint == two.address


@pytest.mark.parametrize(("names", "counts"), [(("127.0.0.1:2",), False), (("127.0.0.1:1", "127.0.0.1:2"), True)])
async def test_an_answer_of_a_removed_endpoint_does_not_count(names: tuple[str, ...], counts: bool) -> None:
    """What it acknowledged may not be where the next calls go, so it stays dirty (3). With other files alone it counts."""
    channels = {name: grpc.aio.insecure_channel(name) for name in ("127.0.0.1:1", "127.0.0.1:2")}
    endpoints, gate, asked = Endpoints(("127.0.0.1:1",), channels), asyncio.Event(), asyncio.Event()

    async def held(_: Any) -> meta_pb.SaveOffsetDataReply:
        asked.set()
        await gate.wait()
        return meta_pb.SaveOffsetDataReply()

    try:
        call = asyncio.create_task(endpoints.call(held, timeout_s=PATIENCE_S))
        await asked.wait()
        endpoints.replace(names, channels)
        gate.set()
        if counts:
            assert await call == meta_pb.SaveOffsetDataReply()
        else:
            with pytest.raises(MetaUnavailableError, match="no endpoint of the Meta Service any more"):
                await call
        assert endpoints.current == names[0]
        assert await endpoints.call(held, timeout_s=PATIENCE_S) is not None
        assert endpoints.unanswered >= 1, "the next save must not hide what the new server has forgotten"
    finally:
        await close_channels(channels.values())


async def _refused(client: OffsetClient) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.store.CommitOffsets(commits({"s": 2}), timeout=PATIENCE_S)
    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


async def _until_flushed(adapter: ServiceProcess, client: OffsetClient, offset: int) -> None:
    await client.commit("g", {"s": offset})
    async with OffsetClient.connect(adapter.address, PATIENCE_S) as admin:
        with anyio.fail_after(PATIENCE_S):
            while True:  # the first attempts may find a channel that waits to connect again
                if not (await admin.status()).dirty_keys:
                    return
                await anyio.sleep(0.05)


async def _until_there(reader: GrpcMetaClient, offsets: dict[str, int]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while True:
            found = await reader.get([key(shard) for shard in offsets])
            if {key.shard: record.offset for key, record in found.items()} == offsets:
                return
            await anyio.sleep(0.05)
