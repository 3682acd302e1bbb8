"""A console in memory, and a browser without a screen: it keeps cookies, follows no redirect, and fills in the forms of pages."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from adapter.console.additions import parts_of
from adapter.console.app import make_app
from adapter.console.config import ConsoleConfig
from adapter.fleet.views import AdapterView, Health
from adapter.runtime.settings.config import parse
from tests.unit.console.fakes import FakeCalls, FakeFleet, FakeMeta

VIEW, ADMIN = "view-token-of-vera-0123456789", "admin-token-of-ann-0123456789"
BASE = "http://127.0.0.1"
HERE = {"Origin": BASE}
USER_HEADER, GROUPS_HEADER = "x-forwarded-user", "x-forwarded-groups"


def few(addresses: Sequence[str] = (), away: Sequence[str] = ()) -> FakeFleet:
    """A fleet of which only the addresses are known."""
    return FakeFleet(
        [
            *(AdapterView(address, address, Health.SERVING, broker=f"b{at}") for at, address in enumerate(addresses)),
            *(AdapterView(address, address, Health.AWAY, error="refused") for address in away),
        ]
    )


def secret(directory: Path, name: str, text: str) -> str:
    """A file that only its owner can read; returns its path."""
    path = directory / name
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def by_token(directory: Path, **more: Any) -> dict[str, Any]:
    """[access] with a token file for each role."""
    return {
        "view_token_file": secret(directory, "view", f"vera {VIEW}\n"),
        "admin_token_file": secret(directory, "admin", f"ann {ADMIN}\n"),
        **more,
    }


def by_proxy(**more: Any) -> dict[str, Any]:
    """[access] with a trusted proxy."""
    return {"proxy": {"addresses": ["10.1.0.0/16"], "admin_groups": ["oncall"], **more}}


def settings_of(access: Mapping[str, Any], **sections: Any) -> ConsoleConfig:
    """The settings of a console."""
    return parse({"access": dict(access), **sections}, ConsoleConfig, source="test")


class Browser:
    """Asks a console, from an address, with cookies."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """A page."""
        return await self.client.get(path, headers=headers)

    async def post(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> httpx.Response:
        """A form, as a browser sends one of our own pages unless `headers` say something else."""
        return await self.client.post(path, data=dict(fields), headers=HERE if headers is None else headers)

    async def token_of(self, path: str) -> str:
        """The token of the forms of a page."""
        return hidden((await self.get(path)).text, "form_token")

    async def login(self, token: str, **more: str) -> httpx.Response:
        """Log in through the form."""
        form_token = await self.token_of("/login")
        return await self.post("/login", {"form_token": form_token, "token": token, **more})


def hidden(html: str, name: str) -> str:
    """The value of a hidden field, the first of its name."""
    found = re.search(rf'name="{name}" value="([^"]*)"', html)
    assert found, html
    return unescape(found[1])


@asynccontextmanager
async def browsing(
    settings: ConsoleConfig, fleet: FakeFleet | None = None, *, peer: str = "127.0.0.1", base: str = BASE
) -> AsyncIterator[Browser]:
    """A browser that visits a console with these settings."""
    adapters, calls = fleet or few(), FakeCalls()
    app = make_app(settings, adapters, FakeMeta(), calls, parts_of(settings, adapters, calls))
    transport = httpx.ASGITransport(app, client=(peer, 1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        yield Browser(client)
