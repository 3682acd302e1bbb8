"""Who may call OffsetAdmin and StoreBackup, over real gRPC, and the audit log of a real process.

Every method of the services is tried, as its descriptor lists them: a new one cannot be forgotten.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass
from structlog.testing import capture_logs

from adapter.client.client import USER_KEY, OffsetClient
from adapter.errors import ConfigError
from adapter.rpc import backup_pb, offsets_grpc, offsets_pb
from adapter.sidecar.api.access import READS
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from adapter.testing.sidecars import adapter_config, running_sidecar
from tests.integration.certificates import Authority, Certificate
from tests.integration.helpers import PATIENCE_S, commits, rpc, serving

SERVICES = (offsets_pb.DESCRIPTOR.services_by_name["OffsetAdmin"], backup_pb.DESCRIPTOR.services_by_name["StoreBackup"])
GUARDED = [method for service in SERVICES for method in service.methods]
METHODS = [method.name for method in GUARDED]
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - an example
WRONG = "wrong-horse-battery-staples"
CLOSED = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}

Metadata = tuple[tuple[str, str | bytes], ...]


def bearer(token: str) -> Metadata:
    """What a client sends to show a token."""
    return (("authorization", f"Bearer {token}"),)


def token_file(directory: Path, token: str = TOKEN, mode: int = 0o600) -> Path:
    """A file with a token."""
    path = directory / "token"
    path.write_text(f"{token}\n")
    path.chmod(mode)
    return path


async def answers(channel: grpc.aio.Channel, metadata: Metadata = ()) -> dict[str, grpc.StatusCode]:
    """The status of every method of OffsetAdmin and StoreBackup, called with an empty request."""
    found = {}
    for method in GUARDED:
        kind = channel.unary_stream if method.server_streaming else channel.unary_unary
        call: Any = kind(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )(GetMessageClass(method.input_type)(), metadata=metadata, timeout=PATIENCE_S)
        if method.server_streaming:  # its status comes behind what it sends
            with suppress(grpc.aio.AioRpcError):
                _ = [reply async for reply in call]
        found[method.name] = await call.code()
    return found


def logged(found: dict[str, grpc.StatusCode]) -> list[tuple[str, str]]:
    """What the audit log has of these answers, as method and outcome: all but successful looks at the state."""
    return [(name, code.name) for name, code in found.items() if name not in READS or code is not grpc.StatusCode.OK]


@contextmanager
def audit_lines() -> Iterator[list[dict[str, Any]]]:
    """The audit events of what is called inside."""
    found: list[dict[str, Any]] = []
    with capture_logs() as lines:
        yield found
    found += [dict(line) for line in lines if line["event"] == "admin.call"]


async def test_on_plain_tcp_every_admin_method_is_refused(directory: Path) -> None:
    """Each with a line in the audit log; on the Unix socket, in the same process, none is."""
    async with running_sidecar(adapter_config(directory), FakeMeta()) as sidecar:
        tcp, unix = sidecar.addresses
        with audit_lines() as lines:
            async with grpc.aio.insecure_channel(tcp) as channel:
                assert await answers(channel) == dict.fromkeys(METHODS, grpc.StatusCode.PERMISSION_DENIED)
                assert await answers(channel, bearer(TOKEN)) == dict.fromkeys(METHODS, grpc.StatusCode.PERMISSION_DENIED)
        assert [line["method"] for line in lines] == 2 * METHODS
        assert {(line["who"], line["outcome"]) for line in lines} == {("unknown", "PERMISSION_DENIED")}
        with audit_lines() as lines:
            async with grpc.aio.insecure_channel(unix) as channel:
                found = await answers(channel)
        assert (list(found), CLOSED & set(found.values())) == (METHODS, set())
        assert [(line["method"], line["outcome"]) for line in lines] == logged(found)
        assert all(line["who"].startswith("unix:") for line in lines)


async def test_with_a_token_file_tcp_is_open_to_who_shows_the_token(directory: Path) -> None:
    """For every method; a wrong token, or none, is not enough. The Unix socket needs none."""
    config = adapter_config(directory, admin={"token_file": str(token_file(directory))})
    async with running_sidecar(config, FakeMeta()) as sidecar:
        tcp, unix = sidecar.addresses
        async with grpc.aio.insecure_channel(tcp) as channel:
            with audit_lines() as lines:
                for metadata in ((), bearer(WRONG), bearer(""), (("authorization", TOKEN),)):
                    assert await answers(channel, metadata) == dict.fromkeys(METHODS, grpc.StatusCode.UNAUTHENTICATED)
                allowed = await answers(channel, bearer(TOKEN))
        async with grpc.aio.insecure_channel(unix) as channel:
            assert await answers(channel) == allowed
    assert not CLOSED & set(allowed.values())
    count = len(logged(allowed))
    assert [line["who"] for line in lines[-count - 1 :]] == ["unknown", *count * ["token"]]
    assert not any(secret in str(lines) for secret in (TOKEN, WRONG))


async def test_the_store_stays_open_on_tcp(directory: Path) -> None:
    """Brokers need no token, with one configured or not, and leave no line in the audit log."""
    for admin in ({}, {"token_file": str(token_file(directory))}):
        async with running_sidecar(adapter_config(directory, admin=admin), FakeMeta()) as sidecar:
            with audit_lines() as lines:
                async with OffsetClient.connect(sidecar.addresses[0], PATIENCE_S) as client:
                    await client.commit("g", {"s": 1})
                    assert (await client.read("g"))["s"].offset == 1
                    await client.persist("g")
                    assert await client.remove("g") == 1
            assert lines == []


def _credentials(authority: Authority, client: Certificate | None = None) -> grpc.ChannelCredentials:
    parts = (client.key.read_bytes(), client.cert.read_bytes()) if client else (None, None)
    return grpc.ssl_channel_credentials(authority.cert.read_bytes(), *parts)


@pytest.mark.parametrize("with_token", [False, True])
async def test_under_mtls_a_client_certificate_opens_tcp(directory: Path, with_token: bool) -> None:
    """Its names say who called. With a token file too, the token is needed as well."""
    authority = Authority(directory)
    server, broker = authority.issue("server"), authority.issue("broker")
    tls = {"cert": str(server.cert), "key": str(server.key), "client_ca": str(authority.cert)}
    admin = {"token_file": str(token_file(directory))} if with_token else {}
    async with (
        running_sidecar(adapter_config(directory, server={"tls": tls}, admin=admin), FakeMeta()) as sidecar,
        grpc.aio.secure_channel(sidecar.addresses[0], _credentials(authority, broker)) as channel,
    ):
        with audit_lines() as lines:
            plain, shown = await answers(channel), await answers(channel, bearer(TOKEN))
    certificate = "certificate:CN=broker 127.0.0.1 localhost"
    assert not CLOSED & set(shown.values())
    assert plain == (dict.fromkeys(METHODS, grpc.StatusCode.UNAUTHENTICATED) if with_token else shown)
    assert {line["who"] for line in lines[len(METHODS) :]} == {f"token, {certificate}" if with_token else certificate}


async def test_tls_without_client_certificates_opens_nothing(directory: Path) -> None:
    """The channel is private, but anybody can make it."""
    authority = Authority(directory)
    server, broker = authority.issue("server"), authority.issue("broker")
    config = adapter_config(directory, server={"tls": {"cert": str(server.cert), "key": str(server.key)}})
    async with running_sidecar(config, FakeMeta()) as sidecar:
        for client in (None, broker):
            async with grpc.aio.secure_channel(sidecar.addresses[0], _credentials(authority, client)) as channel:
                assert await answers(channel) == dict.fromkeys(METHODS, grpc.StatusCode.PERMISSION_DENIED)


async def test_a_reset_is_in_the_audit_log_with_before_and_after(directory: Path) -> None:
    """Once as a dry run, once as done; what is refused by a rule is there too."""
    async with serving(directory) as (_, client):
        await client.commit("g", {"a": 7, "b": 9})
        await client.flush()
        with audit_lines() as lines:
            for execute in (False, True):
                await client.admin.ResetOffsets(offsets_pb.ResetOffsetsRequest(group="g", to_offset=3, execute=execute))
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await client.admin.ResetOffsets(offsets_pb.ResetOffsetsRequest(execute=True))
    assert [(line["dry_run"], line["outcome"]) for line in lines] == [(True, "OK"), (False, "OK"), (False, "INVALID_ARGUMENT")]
    assert "rows" not in lines[0]  # it changed nothing
    rows = lines[1]["rows"]
    assert [row["key"] for row in rows] == [["default", "g", "a"], ["default", "g", "b"]]
    assert [row["before"] for row in rows] == [{"epoch": 1, "offset": 7}, {"epoch": 1, "offset": 9}]
    assert [row["after"]["offset"] for row in rows] == [3, 3]
    assert all(row["after"]["epoch"] > 1 for row in rows)


class Recorder(grpc.aio.ServerInterceptor):
    """Notes what comes with calls."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, str]] = {}

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Note one."""
        name = str(handler_call_details.method).rpartition("/")[2]
        self.seen[name] = {key: str(value) for key, value in handler_call_details.invocation_metadata or ()}
        return await continuation(handler_call_details)


async def test_a_client_shows_its_token_on_admin_calls_only() -> None:
    """Unary or streaming. The store has no use for it. Nothing is implemented here: what counts is what was sent."""
    recorder = Recorder()
    server = grpc.aio.server(interceptors=[recorder])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with OffsetClient.connect(f"127.0.0.1:{port}", PATIENCE_S, token=TOKEN) as client:
            for call in (client.read("g"), client.status(), client.admin.ExportOffsets(offsets_pb.ExportOffsetsRequest()).read()):
                with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                    await call
    finally:
        await server.stop(None)
    shown = {name: (seen.get("authorization"), USER_KEY in seen) for name, seen in recorder.seen.items()}
    admin = (f"Bearer {TOKEN}", True)
    assert shown == {"ReadOffsets": (None, False), "Status": admin, "ExportOffsets": admin}


async def test_a_bad_token_file_stops_the_start(directory: Path) -> None:
    """By the name of the setting, before anything is opened."""
    config = adapter_config(directory, admin={"token_file": str(directory / "no")})
    with pytest.raises(ConfigError, match=r"^admin\.token_file: .*No such file"):
        async with running_sidecar(config, FakeMeta()):
            pass
    assert not config.store.path.exists()


def test_a_bad_token_file_stops_the_process(directory: Path, meta: ServiceProcess) -> None:
    """With exit code 1 and one line."""
    path = token_file(directory, mode=0o644)
    adapter = adapter_process(directory, meta.address, extra=f"[admin]\ntoken_file = '{path}'")
    with ended(adapter):
        adapter.launch()
        assert adapter.process is not None
        assert adapter.process.wait(PATIENCE_S) == 1
    assert f"admin.token_file: {path}: others than its owner have access to it: chmod 600" in adapter.log
    assert TOKEN not in adapter.log


def test_the_audit_log_is_written_at_every_log_level(directory: Path, meta: ServiceProcess) -> None:
    """Success, refusal and failure, with only errors wanted; and no token, right or wrong."""
    extra = f"[admin]\ntoken_file = '{token_file(directory)}'\n[log]\nlevel = 'error'\nformat = 'json'"
    adapter = adapter_process(directory, meta.address, extra=extra)
    with ended(adapter):
        adapter.start()
        with rpc(adapter.tcp_address) as stubs:
            stubs.store.CommitOffsets(commits({"s": 5}), timeout=PATIENCE_S)
            _call(stubs.admin, bearer(TOKEN), group="g")
            _call(stubs.admin, bearer(WRONG), group="g")
            _call(stubs.admin, (*bearer(TOKEN), (USER_KEY, "ann")), group="")
        assert adapter.stop() == 0
    lines = [json.loads(line) for line in adapter.log.splitlines()]
    assert [line["event"] for line in lines] == 3 * ["admin.call"]
    assert [(line["who"], line["claimed"], line["outcome"]) for line in lines] == [
        ("token", "", "OK"),
        ("unknown", "", "UNAUTHENTICATED"),
        ("token", "ann", "INVALID_ARGUMENT"),
    ]
    assert [row["before"]["offset"] for row in lines[0]["rows"]] == [5]
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") and line["timestamp"] for line in lines)
    assert not any(secret in adapter.log for secret in (TOKEN, WRONG))


def _call(admin: offsets_grpc.OffsetAdminStub, metadata: Metadata, group: str) -> None:
    request = offsets_pb.ResetOffsetsRequest(group=group, to_offset=2, execute=True)
    with suppress(grpc.RpcError):
        admin.ResetOffsets(request, metadata=metadata, timeout=PATIENCE_S)
