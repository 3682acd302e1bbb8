"""What every request passes: names, sizes, time."""

import anyio
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from adapter.console.access.guard import LOOPBACK_NAMES, TARGET_MAX, Limits
from adapter.console.app import hosts_of
from adapter.console.config import ConsoleConfig
from adapter.errors import ConfigError
from adapter.runtime.settings.config import parse
from tests.unit.console.fakes import BASE, FakeFleet, application, client_of


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body; `/slow` never answers."""
    if scope["path"] == "/slow":
        await anyio.sleep_forever()
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


async def asked(app: Limits, method: str = "GET", path: str = "/", **options: object) -> Response:
    """One request."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        answer = await client.request(method, path, **options)  # type: ignore[arg-type]
    return Response(answer.content, answer.status_code)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9540", "LOCALHOST:1", "[::1]:9540"])
async def test_on_loopback_the_console_is_called_by_its_own_names(host: str) -> None:
    """With any port: another process may forward one."""
    async with client_of(application(FakeFleet())) as client:
        assert (await client.get("/", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil", "", "a b", "[::2]", "localhost:1:2"]
)
async def test_a_foreign_name_is_refused(host: str) -> None:
    """A page of another site that gave its own name this address reads nothing (DNS rebinding)."""
    async with client_of(application(FakeFleet())) as client:
        answer = await client.get("/", headers={"Host": host})
    assert (answer.status_code, "server.hosts" in answer.text) == (421, True)


def test_names_are_those_of_the_settings() -> None:
    """Beyond loopback any name, unless some are given."""
    values = {"server": {"listen": "0.0.0.0:1", "allow_plaintext_beyond_loopback": True}, "access": {"view_token_file": "t"}}
    assert hosts_of(ConsoleConfig()) == LOOPBACK_NAMES
    assert not hosts_of(parse(values, ConsoleConfig, source="f"))
    assert hosts_of(parse({"server": {"hosts": ["a.example"]}}, ConsoleConfig, source="f")) == ("a.example",)


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ({"hosts": ["A.example"]}, "hosts"),
        ({"hosts": ["a.example:80"]}, "hosts"),
        ({"root_path": "/ops/"}, "root_path"),
        ({"root_path": "ops"}, "root_path"),
        ({"root_path": "/a b"}, "root_path"),
        ({"streams": 101}, "streams"),
        ({"listen": "0.0.0.0:9540"}, "listen"),
    ],
)
def test_a_bad_setting_is_named(server: dict[str, object], names: str) -> None:
    """By section and key."""
    with pytest.raises(ConfigError, match=rf"server.*{names}"):
        parse({"server": server}, ConsoleConfig, source="f")


async def test_a_long_target_and_a_large_body_are_refused() -> None:
    """By what the header says, and by what comes without one."""
    app = Limits(echo, (), body_max=10)
    assert (await asked(app, "POST", content=b"x" * 10)).status_code == 200
    assert (await asked(app, "POST", content=b"x" * 11)).status_code == 413

    async def chunks() -> object:
        for _ in range(3):
            yield b"x" * 5

    assert (await asked(app, "POST", content=chunks())).status_code == 413
    assert (await asked(app, path="/" + "x" * TARGET_MAX)).status_code == 414
    assert (await asked(app, path="/?" + "x" * TARGET_MAX)).status_code == 414
    assert (await asked(app, headers={"Content-Length": "-1"})).status_code == 413


async def test_what_is_not_answered_in_time_is_given_up() -> None:
    """503, and the work ends."""
    answer = await asked(Limits(echo, (), request_s=0.05), path="/slow")
    assert answer.status_code == 503
