"""Forms: only our own pages can send them, and only within limits. GET changes nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from adapter.console.access.csrf import FIELDS_MAX, FILE_MAX, FORM_MAX, SAFE
from tests.unit.console.consoles import ADMIN, BASE, HERE, VIEW, Browser, browsing, by_token, settings_of

FOREIGN = "https://evil.example"


def unsafe_routes(browser: Browser) -> list[tuple[str, str]]:
    """Every route of the console that takes more than GET: its method and path."""
    app: Any = browser.client._transport
    return [
        (method, route.path)
        for route in app.app.routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method not in SAFE
    ]


def changing(tmp_path: Path) -> Any:
    """The settings of a console in which an admin may change offsets."""
    return settings_of(by_token(tmp_path, changes=True))


async def test_the_unsafe_routes_are_these(tmp_path: Path) -> None:
    """A new one shows up here, and in the tests below."""
    async with browsing(changing(tmp_path)) as browser:
        assert sorted(unsafe_routes(browser)) == [
            ("POST", "/change"),
            ("POST", "/change/execute"),
            ("POST", "/change/rest"),
            ("POST", "/login"),
            ("POST", "/logout"),
        ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": FOREIGN},
        {"Origin": "null"},
        {"Origin": f"{BASE}.evil.example"},
        {"Origin": BASE.replace("http:", "https:")},
        {"Origin": f"{BASE}:8080"},
        {"Origin": "", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": BASE},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": BASE},
    ],
)
async def test_no_unsafe_route_takes_what_comes_from_elsewhere(tmp_path: Path, headers: Mapping[str, str]) -> None:
    """Even with the session's cookie and the form's token."""
    async with browsing(changing(tmp_path)) as browser:
        await browser.login(ADMIN)
        token = await browser.token_of("/change?group=g")
        for method, path in unsafe_routes(browser):
            fields = {"form_token": token, "kind": "delete", "group": "g", "token": ADMIN}
            answer = await browser.client.request(method, path, data=fields, headers=dict(headers))
            assert (answer.status_code, "not come from a page of this console" in answer.text) == (403, True), path
        assert (await browser.get("/")).status_code == 200  # not even the logout was carried out


@pytest.mark.parametrize(
    "headers", [{"Origin": BASE}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": BASE.upper(), "Sec-Fetch-Site": "same-origin"}]
)
async def test_our_own_pages_are_let_through(tmp_path: Path, headers: Mapping[str, str]) -> None:
    """With either header: not every browser sends both."""
    async with browsing(changing(tmp_path)) as browser:
        token = await browser.token_of("/login")
        answer = await browser.post("/login", {"form_token": token, "token": VIEW}, headers)
        assert answer.status_code == 303


async def test_a_configured_origin_is_ours_too(tmp_path: Path) -> None:
    """For a proxy that gives the console another name than the one in Host."""
    settings = settings_of(by_token(tmp_path, origins=["https://console.example"]))
    async with browsing(settings) as browser:
        token = await browser.token_of("/login")
        answer = await browser.post("/login", {"form_token": token, "token": VIEW}, {"Origin": "https://console.example"})
        assert answer.status_code == 303


@pytest.mark.parametrize("form_token", ["", "0" * 64, "\N{SNOWMAN}", "x" * 10_000])
async def test_no_unsafe_route_takes_a_form_without_its_token(tmp_path: Path, form_token: str) -> None:
    """Of this session; that of another one is none."""
    async with browsing(changing(tmp_path)) as browser, browsing(changing(tmp_path)) as other:
        await browser.login(ADMIN)
        await other.login(ADMIN)
        for token in (form_token, await other.token_of("/change?group=g")):
            for method, path in unsafe_routes(browser):
                fields = {"form_token": token, "kind": "delete", "group": "g"}
                answer = await browser.client.request(method, path, data=fields, headers=HERE)
                assert (answer.status_code, "not of your present session" in answer.text) == (403, True), path
        assert (await browser.get("/")).status_code == 200


async def test_who_may_only_look_reaches_no_page_of_changes(tmp_path: Path) -> None:
    """Nor somebody without a session; a form that was open when the session ended says so."""
    async with browsing(changing(tmp_path)) as browser:
        answer = await browser.post("/change", {"form_token": "", "kind": "delete", "group": "g"})
        assert (answer.status_code, "your session has ended" in answer.text) == (401, True)
        await browser.login(VIEW)
        token = await browser.token_of("/")
        for path in ("/change?group=g", "/change/plan?id=x", "/change/result?id=x"):
            assert (await browser.get(path)).status_code == 403
        for path in ("/change", "/change/execute", "/change/rest"):
            assert (await browser.post(path, {"form_token": token, "kind": "delete", "group": "g", "id": "x"})).status_code == 403


async def test_without_the_setting_there_are_no_changes(tmp_path: Path) -> None:
    """Not even for an admin."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        await browser.login(ADMIN)
        token = await browser.token_of("/")
        assert (await browser.get("/change?group=g")).status_code == 404
        assert (await browser.post("/change", {"form_token": token, "kind": "delete", "group": "g"})).status_code == 404


async def test_get_changes_nothing(tmp_path: Path) -> None:
    """Routes that change something do not answer it."""
    async with browsing(changing(tmp_path)) as browser:
        await browser.login(ADMIN)
        for path in ("/logout", "/change/execute", "/change/rest"):
            assert (await browser.get(path)).status_code == 405
        assert (await browser.get("/")).status_code == 200


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"a=" + b"x" * FORM_MAX, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"f%d=" % at for at in range(FIELDS_MAX + 1)), "application/x-www-form-urlencoded", 400),
        (b"a=1&a=2", "application/x-www-form-urlencoded", 400),
        (b"a=%ff", "application/x-www-form-urlencoded", 400),
        (b"a=\xff", "application/x-www-form-urlencoded", 400),
        (b"&&&", "application/x-www-form-urlencoded", 400),
        (b"{}", "application/json", 415),
        (b"x", "text/plain", 415),
        (b"", "", 415),
        (b"no boundary", "multipart/form-data", 400),
        (
            b"--b\r\nContent-Disposition: form-data; name=x\r\n\r\n" + b"x" * (FORM_MAX + 1) + b"\r\n--b--",
            "multipart/form-data; boundary=b",
            400,
        ),
        (
            b"--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\n" + b"x" * (FILE_MAX + 1) + b"\r\n--b--",
            "multipart/form-data; boundary=b",
            413,
        ),
        (
            b"--b\r\nContent-Disposition: form-data; name=x; filename=f\r\n\r\nx\r\n" * 2 + b"--b--",
            "multipart/form-data; boundary=b",
            400,
        ),
    ],
)
async def test_what_is_no_form_of_ours_is_refused(tmp_path: Path, content: bytes, kind: str, status: int) -> None:
    """By its size, its number of fields or its type, before anything of it is used."""
    async with browsing(changing(tmp_path)) as browser:
        await browser.login(ADMIN)
        headers = {**HERE, "Content-Type": kind} if kind else HERE
        assert (await browser.client.post("/change", content=content, headers=headers)).status_code == status


async def test_a_huge_body_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Also where it does not say how long it is."""
    read = 0

    async def body() -> Any:
        nonlocal read
        for _ in range(10_000):
            read += 65_536
            yield b"x" * 65_536

    async with browsing(changing(tmp_path)) as browser:
        await browser.login(ADMIN)
        headers = {**HERE, "Content-Type": "application/x-www-form-urlencoded"}
        assert (await browser.client.post("/change", content=body(), headers=headers)).status_code == 413
    assert read <= FORM_MAX + 2 * 65_536
