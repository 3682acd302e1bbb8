"""The console's process over adapters that run here: what it shows, how it stops, its certificate, and its limits."""

import asyncio
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from adapter.client.client import OffsetClient
from adapter.console import process
from adapter.console.config import ConsoleConfig
from adapter.console.sources.admin_calls import AdminCalls, NotToldError
from adapter.console.sources.meta_instances import MetaInstances
from adapter.errors import ConfigError, ListenError
from adapter.fleet import fleet as fleets
from adapter.fleet.fleet import Fleet
from adapter.fleet.views import AdapterView, Health
from adapter.rpc import offsets_pb
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.config import parse
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.integration.certificates import Authority, Certificate
from tests.integration.helpers import PATIENCE_S, serving

HOSTILE = '<b>"&\u202e{{7*7}}/ä%2F'


def settings_of(*adapters: str, **sections: Any) -> ConsoleConfig:
    """A console of these adapters, on a free port."""
    values: dict[str, Any] = {
        "server": {"listen": "127.0.0.1:0"},
        "fleet": {"adapters": adapters, "timeout_ms": 60_000, "interval_ms": 100},
    }
    for name, section in sections.items():
        values.setdefault(name, {}).update(section)
    return parse(values, ConsoleConfig, source="test")


class Running:
    """A console that runs, and how it ended."""

    def __init__(self, address: str, stop: Callable[[], None], ended: asyncio.Task[int]) -> None:
        self.address = address
        self.stop = stop
        self.ended = ended


@asynccontextmanager
async def running(settings: ConsoleConfig) -> AsyncIterator[Running]:
    """The process, without its signals."""
    asked, serves = anyio.Event(), asyncio.get_running_loop().create_future()

    async def until(stop: Callable[[], None]) -> None:
        await asked.wait()
        stop()

    task = asyncio.create_task(process.run(settings, until, ready=serves.set_result))
    with anyio.fail_after(PATIENCE_S):
        await asyncio.wait([task, serves], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    yield Running(serves.result(), asked.set, task)
    asked.set()
    with anyio.fail_after(PATIENCE_S):
        assert await task == 0


async def commit(client: OffsetClient, group: str, **offsets: int) -> None:
    """Commit offsets of logs that end at 1,000."""
    shards = [
        offsets_pb.ShardCommit(shard=shard, offset=offset, low_watermark=10, high_watermark=1_000)
        for shard, offset in offsets.items()
    ]
    groups = [offsets_pb.GroupCommits(group=group, shards=shards, member_id="m<1>", generation=4)]
    await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=PATIENCE_S)


async def until_shown(client: httpx.AsyncClient, path: str, when: Callable[[Any], bool]) -> Any:
    """The JSON of a page, once it is so."""
    found: Any = None
    with anyio.fail_after(PATIENCE_S):
        while True:
            answer = await client.get(path)
            found = answer.json()
            if answer.status_code == 200 and when(found):
                return found
            await anyio.sleep(0.05)


async def test_pages_show_what_the_adapters_say(directory: Path) -> None:
    """Groups, shards, members, changes: as the adapters' own calls tell them."""
    async with serving(directory, FakeMeta()) as (sidecar, client):
        await commit(client, HOSTILE, a=400, b=5)
        async with running(settings_of(sidecar.addresses[-1])) as console, httpx.AsyncClient(base_url=console.address) as browser:
            start = await until_shown(browser, "/?format=json", lambda found: found["adapters"][0]["health"] == "serving")
            groups = await until_shown(browser, "/groups?format=json", lambda found: found["matching"] == 1)
            path = str(httpx.URL("/group", params={"group": HOSTILE, "order": "name", "format": "json"}))
            group = await until_shown(browser, path, lambda found: bool(found["members"]))
            html = await browser.get(path.replace("json", "html"))
        status = await client.status()
    assert start["adapters"][0]["version"] == status.version
    assert groups["groups"][0]["group"] == HOSTILE
    assert groups["groups"][0]["lag"] == 600 + 990
    assert [(row["shard"], row["offset"], row["low"], row["high"], row["lag"], row["lost"]) for row in group["shards"]] == [
        ("a", 400, 10, 1_000, 600, 0),
        ("b", 5, 10, 1_000, 990, 5),
    ]
    assert [(one["member_id"], one["generation"]) for one in group["members"]] == [("m<1>", 4)]
    assert group["changes_unknown"] == []
    assert (html.status_code, "<b>" in html.text) == (200, False)


async def test_a_change_is_on_the_groups_timeline(directory: Path) -> None:
    """With its kind, from where to where."""
    async with serving(directory, FakeMeta()) as (sidecar, client):
        await commit(client, "g", a=400)
        request = offsets_pb.ResetOffsetsRequest(namespace="default", group="g", to_offset=100, execute=True)
        await client.admin.ResetOffsets(request, timeout=PATIENCE_S)
        async with running(settings_of(sidecar.addresses[-1])) as console, httpx.AsyncClient(base_url=console.address) as browser:
            found = await until_shown(browser, "/group?group=g&format=json", lambda found: bool(found["changes"]))
            html = (await browser.get("/group?group=g")).text
    [change] = found["changes"]
    assert (change["kind"], change["shards"]) == ("reset", 1)
    assert [(row["before"]["offset"], row["after"]["offset"]) for row in change["rows"]] == [(400, 100)]
    assert 'data-kind="reset"' in html


async def test_an_adapter_that_goes_is_seen_in_an_open_page(directory: Path) -> None:
    """The stream says so; nobody reloads."""
    async with AsyncExitStack() as stack:
        sidecar, client = await stack.enter_async_context(serving(directory, FakeMeta()))
        await commit(client, "g", a=400)
        async with running(settings_of(sidecar.addresses[-1])) as console, httpx.AsyncClient(base_url=console.address) as browser:
            await until_shown(browser, "/?format=json", lambda found: found["adapters"][0]["health"] == "serving")
            async with browser.stream("GET", "/live/fleet", timeout=PATIENCE_S) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                lines = stream.aiter_lines()
                async for line in lines:
                    if "problems" in line:
                        break
                await stack.aclose()  # the adapter stops
                async for line in lines:
                    if "adapter-away" in line:
                        return
                pytest.fail("the stream ended before it said so")


async def test_a_stop_does_not_wait_for_open_pages(directory: Path) -> None:
    """SIGTERM with readers: their streams end, the exit code is 0."""
    async with (
        serving(directory, FakeMeta()) as (sidecar, _),
        running(settings_of(sidecar.addresses[-1], stop={"grace_ms": 600_000})) as console,
        httpx.AsyncClient(base_url=console.address) as browser,
    ):
        async with browser.stream("GET", "/live/groups", timeout=PATIENCE_S) as stream:
            assert stream.status_code == 200
            console.stop()
            async for _ in stream.aiter_bytes():
                pass
        with anyio.fail_after(PATIENCE_S):
            assert await asyncio.shield(console.ended) == 0


async def test_a_replaced_certificate_is_taken_for_new_connections(directory: Path) -> None:
    """Without a restart; one that cannot be used is not taken."""
    authority = Authority(directory)
    first, second = authority.issue("first"), authority.issue("second")
    cert, key = directory / "c.crt", directory / "c.key"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    tls = {"cert": str(cert), "key": str(key)}
    context = ssl.create_default_context(cafile=str(authority.cert))
    async with running(settings_of(server={"tls": tls})) as console:
        assert console.address.startswith("https://")
        async with httpx.AsyncClient(base_url=console.address, verify=context) as browser:
            assert (await browser.get("/healthz")).status_code == 200
        assert await _name_shown(console.address, context) == "first"
        shutil.copy(second.key, key)
        shutil.copy(second.cert, cert)
        os.kill(os.getpid(), signal.SIGHUP)
        with anyio.fail_after(PATIENCE_S):
            while await _name_shown(console.address, context) != "second":  # noqa: ASYNC110 - a reload has no event here
                await anyio.sleep(0.05)


async def _name_shown(address: str, context: ssl.SSLContext) -> str:
    host, port = split_address(address.removeprefix("https://").rstrip("/"))
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(dict(part[0] for part in subject)["commonName"])


@pytest.mark.parametrize("size", [20_000, 1_000_000])
async def test_a_request_with_a_head_that_is_too_large_is_refused(size: int) -> None:
    """In one packet or in many; and the next one is answered."""
    async with running(settings_of()) as console, httpx.AsyncClient(base_url=console.address) as browser:
        try:
            refused = (await browser.get("/", headers={"X-Long": "x" * size})).status_code
        except (httpx.RemoteProtocolError, httpx.WriteError, httpx.ReadError):
            refused = 431  # the connection was closed while it was sent
        assert refused in {400, 431}
        assert (await browser.get("/healthz")).status_code == 200


async def test_below_a_root_path_a_proxy_finds_every_link() -> None:
    """The proxy takes the path off; the links have it."""
    async with (
        running(settings_of(server={"root_path": "/ops"})) as console,
        httpx.AsyncClient(base_url=console.address) as browser,
    ):
        answer = await browser.get("/groups")
        script = await browser.get("/static/console.js")
        stream = browser.stream("GET", "/live/groups", timeout=PATIENCE_S)
        async with stream as live:
            assert live.status_code == 200
    assert (answer.status_code, script.status_code) == (200, 200)
    links = re.findall(r'(?:href|src|action|data-live)="([^"#]+)"', answer.text)
    assert links
    assert all(link.startswith("/ops/") for link in links)


async def test_connections_are_bounded() -> None:
    """Those that never finish a request go for those that come; 15 of them made /healthz answer 503."""
    async with running(settings_of(server={"connections": 10, "streams": 5})) as console:
        host, port = split_address(console.address.removeprefix("http://").rstrip("/"))
        idle = [await asyncio.open_connection(host, port) for _ in range(15)]
        async with httpx.AsyncClient(base_url=console.address) as browser:
            assert (await browser.get("/healthz")).status_code == 200
            assert (await browser.get("/")).status_code == 200
        for _, writer in idle:
            writer.close()


async def test_a_port_that_is_taken_is_named() -> None:
    """The start fails with the setting."""
    async with running(settings_of()) as console:
        taken = console.address.removeprefix("http://").rstrip("/")
        with pytest.raises(ListenError, match=r"server\.listen"):
            await process.run(settings_of(server={"listen": taken}), _never)


async def test_a_token_file_that_cannot_be_read_is_named(directory: Path) -> None:
    """At the start, not at the first page."""
    settings = settings_of(fleet={"token_file": str(directory / "none")})
    with pytest.raises(ConfigError, match=r"fleet\.token_file"):
        await process.run(settings, _never)


async def test_an_adapter_that_dns_knows_is_asked_by_its_name(directory: Path) -> None:
    """Its certificate is for the name of the settings, not for the address that the name has now."""
    authority = Authority(directory)
    server = authority.issue("server", "DNS:adapters.example")
    token = directory / "token"
    token.write_text("t" * 32)
    token.chmod(0o600)
    sections: dict[str, Any] = {
        "server": {"tls": {"cert": str(server.cert), "key": str(server.key)}},
        "admin": {"token_file": str(token)},
    }
    fleet = {"tls": {"ca": str(authority.cert)}, "token_file": str(token), "timeout_ms": 60_000}
    async with serving(directory, **sections) as (sidecar, client):
        await client.commit("g", {"a": 7})
        address = sidecar.addresses[0]
        views = [AdapterView(address, "dns:adapters.example:9520", Health.SERVING)]
        async with AdminCalls.open(settings_of(fleet=fleet).fleet, lambda: views) as calls:
            assert [row.shard for row in (await calls.describe(address, "default", "g")).shards] == ["a"]
            views.clear()
            calls.client("unix:elsewhere")
            assert list(calls._opened) == ["unix:elsewhere"]


async def test_a_renewed_client_certificate_is_used_without_a_restart(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the calls to adapters and to the Meta Service that were refused with the former one."""
    monkeypatch.setattr(fleets, "FILES_S", 0.0)
    authority = Authority(directory)
    former, renewed = Authority(directory, "other").issue("console"), authority.issue("console")
    mine = former._replace(cert=directory / "mine.crt", key=directory / "mine.key")

    def use(certificate: Certificate) -> None:
        for path, content in zip(mine, certificate, strict=True):
            path.write_bytes(content.read_bytes())

    use(former)
    server = authority.issue("server")
    tls = {"cert": str(server.cert), "key": str(server.key), "client_ca": str(authority.cert)}
    ours = {"ca": str(authority.cert), "cert": str(mine.cert), "key": str(mine.key)}
    async with serving(directory, server={"tls": tls}) as (sidecar, client):
        await client.commit("g", {"a": 7})
        address = sidecar.addresses[0]
        settings = settings_of(
            fleet={"adapters": [address], "tls": ours, "interval_ms": 50}, meta={"endpoints": [address], "tls": ours}
        )
        async with (
            Fleet.open(settings.fleet) as fleet,
            AdminCalls.open(settings.fleet, lambda: fleet.adapters) as calls,
            MetaInstances.opened(settings.meta) as meta,
        ):
            with pytest.raises(NotToldError, match="UNAVAILABLE"):
                await calls.describe(address, "default", "g")
            await meta.ask()
            assert "UNAVAILABLE" in meta.instances[0].error
            await eventually(lambda: "UNAVAILABLE" in fleet.adapters[0].error)
            use(renewed)
            await eventually(lambda: fleet.adapters[0].lag_known and fleet.adapters[0].health is Health.SERVING)
            assert [row.shard for row in (await calls.describe(address, "default", "g")).shards] == ["a"]
            for _ in range(2):
                await meta.ask()
            assert "is no Meta Service of this project" in meta.instances[0].error


async def test_what_is_no_message_of_an_adapter_is_told() -> None:
    """Another service may have the address by now."""

    async def nothing(*_: object, **__: object) -> None:
        """As grpc.aio gives what it cannot parse."""

    async with AdminCalls.open(settings_of().fleet, tuple) as calls:
        admin = calls.client("127.0.0.1:1").admin
        admin.DescribeGroup = admin.ListChanges = nothing  # type: ignore[assignment]
        for ask in (calls.describe, calls.changes):
            with pytest.raises(NotToldError, match="no message of an adapter"):
                await ask("127.0.0.1:1", "default", "g")


async def _never(_: Callable[[], None]) -> None:
    await anyio.sleep_forever()


def test_without_the_extra_the_command_says_how_to_install_it(directory: Path) -> None:
    """A person has installed the adapter alone."""
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['offset-adapter', 'console']\n"
        "from adapter.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'itsdangerous<3,>=2.2' " in done.stderr
