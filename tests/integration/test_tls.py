"""TLS and mTLS, of the Meta Service and of the adapter."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import ConfigError, MetaUnavailableError
from adapter.meta.client import GrpcMetaClient
from adapter.metaservice import process
from adapter.metaservice.config import MetaConfig
from adapter.model.records import SaveEntry, Status
from adapter.runtime.settings.config import parse
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually
from tests.integration.certificates import Authority, Certificate
from tests.integration.helpers import PATIENCE_S, commits, key, meta_section, record

ENTRY = SaveEntry(key(), record(1))


@asynccontextmanager
async def running_meta(directory: Path, **tls: Path) -> AsyncIterator[str]:
    """A Meta Service in this process; gives its address."""
    values = {
        "server": {"listen": "127.0.0.1:0", "tls": {name: str(path) for name, path in tls.items()}},
        "metrics": {"listen": ""},
        "store": {"path": str(directory / "meta")},
    }
    config = parse(values, MetaConfig, source="test")
    addresses: list[str] = []
    stop = anyio.Event()

    async def until(ask: Any) -> None:
        await stop.wait()
        ask()

    service = asyncio.create_task(process.run(config, until, addresses.extend))
    try:
        await eventually(lambda: bool(addresses) or service.done(), PATIENCE_S)
        if service.done():
            service.result()
        yield addresses[0]
    finally:
        stop.set()
        assert await service == 0


def _credentials(authority: Authority, client: Certificate | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        authority.cert.read_bytes(),
        client.key.read_bytes() if client else None,
        client.cert.read_bytes() if client else None,
    )


async def test_the_meta_service_is_reached_over_tls_and_verified(directory: Path) -> None:
    """With its authority it answers; with another one, or in plain text, nothing is sent to it."""
    authority, stranger = Authority(directory), Authority(directory, "stranger")
    server = authority.issue("server")
    async with running_meta(directory, cert=server.cert, key=server.key) as address:
        async with GrpcMetaClient.open(meta_section(address, tls={"ca": str(authority.cert)})) as client:
            assert (await client.save([ENTRY]))[0].status is Status.APPLIED
            assert (await client.get([key()]))[key()].position == record(1).position
        for tls in ({"ca": str(stranger.cert)}, None):
            async with GrpcMetaClient.open(meta_section(address, tls=tls)) as client:
                with pytest.raises(MetaUnavailableError, match=address):
                    await client.get([key()])


async def test_the_meta_service_asks_for_a_certificate_when_it_is_told_to(directory: Path) -> None:
    """mTLS: one that its authority has signed; none, or a stranger's, is not enough."""
    authority, stranger = Authority(directory), Authority(directory, "stranger")
    server, broker, other = authority.issue("server"), authority.issue("broker"), stranger.issue("broker")
    ca = {"ca": str(authority.cert)}
    shown = {"cert": str(broker.cert), "key": str(broker.key)}
    wrong = {"cert": str(other.cert), "key": str(other.key)}
    async with running_meta(directory, cert=server.cert, key=server.key, client_ca=authority.cert) as address:
        async with GrpcMetaClient.open(meta_section(address, tls={**ca, **shown})) as client:
            assert (await client.save([ENTRY]))[0].status is Status.APPLIED
        for tls in (ca, {**ca, **wrong}):
            async with GrpcMetaClient.open(meta_section(address, tls=tls)) as client:
                with pytest.raises(MetaUnavailableError, match=address):
                    await client.get([key()])


async def test_the_adapter_serves_over_tls_and_asks_for_a_certificate(directory: Path) -> None:
    """Mutual TLS on the TCP address; the unix socket is guarded by its mode."""
    authority = Authority(directory)
    server, broker = authority.issue("server"), authority.issue("broker")
    tls = {"cert": str(server.cert), "key": str(server.key), "client_ca": str(authority.cert)}
    path = directory / "x.sock"
    config = adapter_config(directory, server={"tls": tls, "unix_socket": str(path)})
    async with running_sidecar(config, FakeMeta()) as sidecar:
        address = sidecar.addresses[0]
        async with grpc.aio.secure_channel(address, _credentials(authority, broker)) as channel:
            await OffsetClient(channel, PATIENCE_S).commit("g", {"s": 1})
        async with grpc.aio.secure_channel(address, _credentials(authority)) as channel:
            await _refused(channel)
        async with grpc.aio.insecure_channel(address) as channel:
            await _refused(channel)
        async with OffsetClient.connect(f"unix:{path}", PATIENCE_S) as client:
            assert (await client.read("g"))["s"].offset == 1


async def test_with_tls_the_adapter_may_listen_beyond_loopback(directory: Path) -> None:
    """Which it refuses without (test_start_errors)."""
    authority = Authority(directory)
    server = authority.issue("server")
    tls = {"cert": str(server.cert), "key": str(server.key)}
    config = adapter_config(directory, server={"listen": "0.0.0.0:0", "tls": tls})
    async with running_sidecar(config, FakeMeta()) as sidecar:
        port = sidecar.addresses[0].rpartition(":")[2]
        async with grpc.aio.secure_channel(f"localhost:{port}", _credentials(authority)) as channel:
            await OffsetClient(channel, PATIENCE_S).commit("g", {"s": 1})


async def test_tls_files_that_cannot_be_read_are_named(directory: Path) -> None:
    """On either side, before anything is sent."""
    missing = directory / "missing.crt"
    with pytest.raises(ConfigError, match=r"^meta\.tls: .*missing\.crt: No such file"):
        async with GrpcMetaClient.open(meta_section("127.0.0.1:1", tls={"ca": str(missing)})):
            pass
    config = adapter_config(directory, server={"tls": {"cert": str(missing), "key": str(missing)}})
    with pytest.raises(ConfigError, match=r"^server\.tls: .*missing\.crt: No such file"):
        async with running_sidecar(config, FakeMeta()):
            pass


async def test_tls_files_that_are_no_certificates_are_told_apart_from_a_port_in_use(directory: Path) -> None:
    """The port is free; what is wrong is server.tls."""
    garbage = directory / "garbage.pem"
    garbage.write_text("no certificate")
    config = adapter_config(directory, server={"tls": {"cert": str(garbage), "key": str(garbage)}})
    with pytest.raises(ConfigError, match=r"^server\.tls"):
        async with running_sidecar(config, FakeMeta()):
            pass


async def _refused(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await OffsetClient(channel).store.CommitOffsets(commits({"s": 2}), timeout=PATIENCE_S)  # `commit` would try for seconds
    assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
