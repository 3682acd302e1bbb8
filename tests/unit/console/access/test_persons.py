"""Who gets into the console, and how: tokens, the trusted proxy, nobody on loopback; sessions, their end, and forgeries."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from itsdangerous import URLSafeSerializer
from structlog.testing import capture_logs

from adapter.console.access.config import AccessSection
from adapter.console.access.persons import Access
from adapter.console.access.tokens import FAILURES, FAILURES_OF_ALL, WINDOW_S, Failures, Tokens
from adapter.errors import ConfigError
from tests.unit.console.consoles import (
    ADMIN,
    GROUPS_HEADER,
    HERE,
    USER_HEADER,
    VIEW,
    Browser,
    browsing,
    by_proxy,
    by_token,
    secret,
    settings_of,
)

PROXY = "10.1.2.3"
PAGE = "/login"


@contextmanager
def audited() -> Iterator[list[dict[str, Any]]]:
    """The events of the console's audit log inside."""
    found: list[dict[str, Any]] = []
    with capture_logs() as lines:
        yield found
    found += [dict(line) for line in lines if str(line["event"]).startswith("console.")]


async def test_without_a_login_everybody_on_loopback_may_look_and_nobody_may_change() -> None:
    """There is neither a login nor a form."""
    async with browsing(settings_of({})) as browser:
        assert (await browser.get("/")).status_code == 200
        assert (await browser.get("/login")).status_code == 404
        assert (await browser.get("/change?group=g")).status_code == 404
        assert "set-cookie" not in (await browser.get("/")).headers


@pytest.mark.parametrize(
    ("access", "server", "setting"),
    [
        ({}, {}, "access.admin_token_file"),
        (by_proxy(), {}, "access.proxy"),
    ],
)
def test_beyond_loopback_somebody_has_to_log_in(access: dict[str, Any], server: dict[str, Any], setting: str) -> None:
    """The error names the setting; a proxy's header needs TLS even where plaintext is allowed."""
    listen = {"listen": "0.0.0.0:9540", "allow_plaintext_beyond_loopback": True, **server}
    with pytest.raises(ConfigError, match=setting):
        settings_of(access, server=listen)


def test_with_tls_alone_nobody_is_known_either() -> None:
    """It hides what is sent, and asks nobody who they are."""
    with pytest.raises(ConfigError, match=r"access\.admin_token_file"):
        settings_of({}, server={"listen": "0.0.0.0:9540", "tls": {"cert": "c.pem", "key": "k.pem"}})


def test_beyond_loopback_tokens_or_a_proxy_with_tls_are_enough(tmp_path: Path) -> None:
    """Both start."""
    tls = {"cert": "c.pem", "key": "k.pem"}
    settings_of(by_token(tmp_path), server={"listen": "0.0.0.0:9540", "tls": tls})
    settings_of(by_proxy(), server={"listen": "0.0.0.0:9540", "tls": tls})


@pytest.mark.parametrize(
    ("access", "text"),
    [
        ({"changes": True}, "changes = true"),
        ({"proxy": {"addresses": ["0.0.0.0/0"]}}, "every address"),
        ({"proxy": {"addresses": ["proxy.example"]}}, "not an IP address"),
        ({"proxy": {"addresses": ["10.0.0.1"], "user_header": "host"}}, "not the name of a header"),
        ({"proxy": {"addresses": ["10.0.0.1"], "user_header": "x-forwarded-groups"}}, "must differ"),
        ({"origins": ["https://a.example/path"]}, "not an origin"),
        ({"session_minutes": 0}, "session_minutes"),
    ],
)
def test_bad_settings_are_refused_by_name(access: dict[str, Any], text: str) -> None:
    """At the start."""
    with pytest.raises(ConfigError, match=text):
        settings_of(access)


async def test_who_is_not_logged_in_comes_to_the_login_and_back(tmp_path: Path) -> None:
    """To the page that was asked for; the cookie is closed to scripts and other sites."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        asked = await browser.get("/groups?text=a%26b")
        assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=%2Fgroups%3Ftext%3Da%2526b")
        login = await browser.get(asked.headers["location"])
        assert 'value="/groups?text=a%26b"' in login.text
        done = await browser.login(VIEW, next="/groups?text=a%26b")
        assert (done.status_code, done.headers["location"]) == (303, "/groups?text=a%26b")
        cookie = done.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "; secure" not in cookie
        page = await browser.get("/groups?text=a%26b")
        assert page.status_code == 200
        assert "vera" in page.text


async def test_under_https_the_cookie_is_secure_and_of_this_host(tmp_path: Path) -> None:
    """Also where a proxy in front ends TLS."""
    async with browsing(settings_of(by_token(tmp_path, tls_in_front=True))) as browser:
        cookie = (await browser.get("/login")).headers["set-cookie"]
    assert cookie.startswith("__Host-offset_console=")
    assert "secure" in cookie.lower()


async def test_scripts_get_an_error_and_streams_an_event_instead_of_a_login_page(tmp_path: Path) -> None:
    """A stream ends with what makes the page load itself again."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        assert (await browser.get("/groups?format=json")).status_code == 401
        stream = await browser.get("/live/fleet")
        assert (stream.status_code, stream.text) == (200, "event: away\ndata: login\n\n")


async def test_a_script_reads_with_its_token_and_changes_nothing(tmp_path: Path) -> None:
    """Without a cookie; a wrong token counts as a wrong login, and the right one waits then as well."""

    async def asked(browser: Browser, token: str, path: str = "/groups?format=json") -> Any:
        return await browser.get(path, authorization=f"Bearer {token}")

    settings = settings_of({**by_token(tmp_path), "changes": True})
    async with browsing(settings) as browser:
        for token in (VIEW, ADMIN):
            answer = await asked(browser, token)
            assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
        assert (await asked(browser, ADMIN, "/change?group=g&format=json")).status_code != 200
        posted = await browser.post("/logout", {}, headers={"Authorization": f"Bearer {ADMIN}"})
        assert posted.status_code in {401, 403}
        with audited() as lines:
            for _ in range(FAILURES):
                refused = await asked(browser, f"{VIEW}x")
                assert (refused.status_code, "not known" in refused.json()["error"]) == (401, True)
        assert {line["event"] for line in lines} == {"console.refused"}
        assert VIEW not in str(lines)
        assert (await asked(browser, VIEW)).status_code == 429


@pytest.mark.parametrize("token", ["", "mistaken", VIEW[:-1], f"{VIEW}x", f"vera {VIEW}", "\N{SNOWMAN}", "x" * 1_000])
async def test_a_wrong_token_lets_nobody_in(tmp_path: Path, token: str) -> None:
    """And is in no log, and on no page."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        with audited() as lines:
            answer = await browser.login(token)
        assert answer.status_code == 403
        assert (await browser.get("/")).status_code == 303
    assert [line["event"] for line in lines] == ["console.refused"]
    assert not token or (token not in str(lines) and f'"{token}"' not in answer.text)


async def test_too_many_wrong_tokens_have_to_wait_even_with_the_right_one(tmp_path: Path) -> None:
    """Of one address; others are not held up."""
    settings = settings_of(by_token(tmp_path))
    async with browsing(settings) as browser:
        for _ in range(FAILURES):
            assert (await browser.login("wrong")).status_code == 403
        late = await browser.login(ADMIN)
        assert (late.status_code, int(late.headers["retry-after"]) > 0) == (429, True)


def test_failures_are_forgotten_after_a_minute_and_counted_for_all() -> None:
    """An address waits until its fifth but last failure is a minute old; many addresses together are held up too."""
    now = [0.0]
    failures = Failures(lambda: now[0])
    for at in range(FAILURES):
        now[0] = float(at)
        failures.note("a")
    assert failures.wait_s("a") == WINDOW_S - (FAILURES - 1)
    assert failures.wait_s("b") == 0
    now[0] = WINDOW_S
    assert failures.wait_s("a") == 0
    for at in range(FAILURES_OF_ALL):
        failures.note(f"peer {at}")
    assert failures.wait_s("c") > 0


async def test_logout_ends_the_session_also_for_a_copy_of_its_cookie(tmp_path: Path) -> None:
    """It is logged, as the login was, with the person's name."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        with audited() as lines:
            await browser.login(ADMIN)
            copy = dict(browser.client.cookies)
            done = await browser.post("/logout", {"form_token": await browser.token_of("/")})
            assert done.status_code == 303
            browser.client.cookies.update(copy)
            assert (await browser.get("/")).status_code == 303
    assert [(line["event"], line["person"]) for line in lines] == [("console.login", "ann"), ("console.logout", "ann")]


def session_id(browser: Browser) -> str:
    """The id of a browser's session, as its cookie has it."""
    ((_, cookie),) = dict(browser.client.cookies).items()
    return str(URLSafeSerializer("any").load_payload(cookie.rpartition(".")[0].encode())[0])


async def test_a_login_begins_another_session(tmp_path: Path) -> None:
    """So that nobody can have put a known one into the browser before; the forms of the old one are of no use."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        old_form = await browser.token_of("/login")
        before = session_id(browser)
        await browser.login(ADMIN)
        assert session_id(browser) != before
        assert (await browser.post("/logout", {"form_token": old_form})).status_code == 403


async def test_a_forged_or_changed_cookie_is_none(tmp_path: Path) -> None:
    """Without the key nobody can make one, nor make another person of one."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        await browser.login(VIEW)
        ((name, cookie),) = dict(browser.client.cookies).items()
        payload, _, signature = cookie.rpartition(".")
        plain = json.dumps(["id", "ann", True, "", 0, 2**40]).encode()
        forged = base64.urlsafe_b64encode(plain).rstrip(b"=").decode()
        for value in (f"{forged}.{signature}", f"{payload}.", payload, f"{cookie}x", forged, "x" * 4_000, "", "a.b.c"):
            browser.client.cookies.clear()
            browser.client.cookies.set(name, value)
            assert (await browser.get("/")).status_code == 303, value


def access_of(section: dict[str, Any], now: list[float]) -> Access:
    """An Access with a clock that a test moves."""
    return Access(AccessSection(**section), https=False, clock=lambda: now[0])


def test_a_session_ends_after_its_time(tmp_path: Path) -> None:
    """Whatever is done in it."""
    now = [1_000.0]
    sessions = access_of(by_token(tmp_path, session_minutes=10), now).sessions
    cookie = sessions.cookie_of(sessions.begin("ann", admin=True))
    now[0] += 599
    assert sessions.read(cookie)
    now[0] += 1
    assert sessions.read(cookie) is None


def test_a_key_file_keeps_sessions_over_a_restart(tmp_path: Path) -> None:
    """Without one, each start has another key."""
    kept = by_token(tmp_path, session_key_file=secret(tmp_path, "key", "k" * 32))
    for section, stays in ((kept, True), (by_token(tmp_path), False)):
        first, second = access_of(section, [1_000.0]), access_of(section, [1_000.0])
        cookie = first.sessions.cookie_of(first.sessions.begin("ann", admin=True))
        assert (second.sessions.read(cookie) is not None) is stays
    with pytest.raises(ConfigError, match="session_key_file"):
        access_of(by_token(tmp_path, session_key_file=secret(tmp_path, "key", "short")), [0.0])


async def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    """After a reload of the files, also if the person has another token, or another role, now."""
    access = by_token(tmp_path)
    settings = settings_of(access)
    for text in (f"ann {ADMIN[::-1]}\n", f"bob {ADMIN}\n"):
        secret(tmp_path, "admin", f"ann {ADMIN}\n")
        async with browsing(settings) as browser:
            await browser.login(ADMIN)
            assert (await browser.get("/")).status_code == 200
            secret(tmp_path, "admin", text)
            for part in parts(browser):
                part.prepare().apply()
            assert (await browser.get("/")).status_code == 303


def parts(browser: Any) -> Any:
    """The parts of the console that a browser visits."""
    return browser.client._transport.app.state.pages._parts


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "\\\\evil.example",
        "/a\\..\\b",
        "javascript:alert(1)",
        "/%0d%0aSet-Cookie: a=b\r\n",
        "/\tevil",
        "/a b",
        "",
        "evil",
        "/\N{SNOWMAN}",
    ],
)
async def test_a_login_leads_to_no_other_site(tmp_path: Path, target: str) -> None:
    """Only to a path of this console."""
    async with browsing(settings_of(by_token(tmp_path))) as browser:
        done = await browser.login(VIEW, next=target)
    assert (done.status_code, done.headers["location"]) == (303, "/")


async def test_the_proxy_says_who_somebody_is() -> None:
    """And by the groups whether it is an admin; without a header nobody is known."""
    for groups, role in (("dev, oncall", "admin"), ("dev", "view"), ("", "view")):
        async with browsing(settings_of(by_proxy()), peer=PROXY) as browser:
            named = {USER_HEADER.encode(): "J\u00fcrgen@example.org".encode(), GROUPS_HEADER.encode(): groups.encode()}
            page = await browser.client.get("/", headers=named)
            assert page.status_code == 200
            assert "J\u00fcrgen@example.org" in page.text
            assert f"({role}" in page.text.replace("\n", "")
            assert (await browser.get("/")).status_code == 401


@pytest.mark.parametrize("peer", ["10.2.0.1", "127.0.0.1", "::1", "unknown"])
@pytest.mark.parametrize("header", [USER_HEADER, GROUPS_HEADER])
async def test_a_header_from_elsewhere_is_refused_loudly(peer: str, header: str) -> None:
    """It is an event of the audit log, and an error."""
    async with browsing(settings_of(by_proxy()), peer=peer) as browser:
        with audited() as lines:
            answer = await browser.get("/", **{header: "root"})
    assert answer.status_code == 403
    assert [line["event"] for line in lines] == ["console.refused", "console.forged_header"]
    assert lines[1]["log_level"] == "error"


async def test_a_proxy_over_ipv6_mapped_ipv4_is_the_same_proxy() -> None:
    """As a socket for both shows it."""
    async with browsing(settings_of(by_proxy()), peer=f"::ffff:{PROXY}") as browser:
        assert (await browser.get("/", **{USER_HEADER: "ann"})).status_code == 200


@pytest.mark.parametrize("name", ["", " ", "a\tb", "x" * 129])
async def test_a_header_that_names_nobody_is_refused(name: str) -> None:
    """Rather than taken for some person."""
    async with browsing(settings_of(by_proxy()), peer=PROXY) as browser:
        assert (await browser.get("/", **{USER_HEADER: name})).status_code == 400
        both = await browser.client.get("/", headers=[(USER_HEADER, "ann"), (USER_HEADER, "bob")])
        assert both.status_code == 400


async def test_a_session_of_one_person_has_no_forms_for_another() -> None:
    """The proxy logs somebody else in while the cookie stays."""
    async with browsing(settings_of({**by_proxy(), "changes": True}), peer=PROXY) as browser:
        ann = {USER_HEADER: "ann", GROUPS_HEADER: "oncall"}
        page = await browser.client.get("/change?group=g", headers=ann)
        assert page.status_code == 200
        token = page.text.partition('name="form_token" value="')[2].partition('"')[0]
        fields = {"form_token": token, "kind": "delete", "group": "g"}
        assert (await browser.post("/change", fields, {**HERE, **ann})).status_code == 400  # no adapter: it was looked at
        assert (await browser.post("/change", fields, {**HERE, **ann, USER_HEADER: "bob"})).status_code == 403


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no token"),
        ("ann\nbob\n", "is not a name and a token"),
        (f"ann {ADMIN} more\n", "is not a name and a token"),
        ("ann short\n", "at least 16"),
        (f"a,b {ADMIN}\n", "other characters"),
        (f"ann {ADMIN}\nbob {ADMIN}\n", "a token occurs twice"),
        ("\N{SNOWMAN}" * 20, "printable ASCII"),
    ],
)
def test_a_bad_token_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """With its setting, its path and its line, and without the token."""
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=problem) as refused:
        Tokens.read(None, path)
    assert ADMIN not in str(refused.value)


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """As every file with a secret."""
    path = Path(secret(tmp_path, "t", f"ann {ADMIN}\n"))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Tokens.read(path, None)


def test_a_file_of_one_token_and_one_of_many_are_read(tmp_path: Path) -> None:
    """Comments and empty lines are left out."""
    tokens = Tokens.read(
        Path(secret(tmp_path, "v", f"# people\n\nann {ADMIN}\nbob  {ADMIN[::-1]}\n")), Path(secret(tmp_path, "a", f"{VIEW}\n"))
    )
    assert [(one.name, one.admin) for one in tokens.tokens] == [("ann", False), ("bob", False), ("admin", True)]
    assert tokens.whose(VIEW) == tokens.tokens[2]
    assert tokens.whose(f"{VIEW} ") is None
