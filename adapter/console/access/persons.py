"""Who may see the console, and who may change offsets; login and logout.

Every request passes `Guarded` first, so that no page can forget to ask. A person is known by the header of a trusted proxy, by a
session that began with a token, or, a script that only reads, by the token itself; where neither is configured, everybody who
reaches the console may look, and nobody may change anything. A header from elsewhere than the proxy is refused, and logged. Every
login, logout and refusal is an event of the audit log, which no log level hides. No token is ever logged.
"""

import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

import structlog
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.console.access import csrf
from adapter.console.access.config import AccessSection
from adapter.console.access.guard import LIVE, STATIC
from adapter.console.access.sessions import Session, Sessions
from adapter.console.access.tokens import Failures, Token, Tokens
from adapter.console.pages import JSON, form_of, json_of, linker, page
from adapter.console.parts import Part
from adapter.errors import ConfigError
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.runtime.settings.secret_files import read_secret
from adapter.runtime.telemetry import logs
from adapter.runtime.telemetry.logs import harmless

log = structlog.get_logger(__name__)
audit = logs.audit()

COOKIE = "offset_console"
KEY_MIN = 32  # characters of a key file
NAME_MAX = 128  # characters of a person's name in a header
HEALTH, LOGIN, LOGOUT = "/healthz", "/login", "/logout"
AWAY = b"event: away\ndata: login\n\n"

# Of what a browser takes out of an address, or for a slash, nothing may be in it.
_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]*")


class Person(NamedTuple):
    """Who makes a request: `how` is "token", "bearer" (a script: it only reads), "proxy", or "" where nobody logs in."""

    name: str
    admin: bool
    how: str


NOBODY = Person("", admin=False, how="")


class Known(NamedTuple):
    """What is known of a request's person; `person` is None before a login. `fresh`: the session is new, and needs its cookie."""

    person: Person | None
    session: Session
    fresh: bool


class Access:
    """Decides who somebody is. `https`: people reach the console by https."""

    def __init__(
        self, section: AccessSection, *, https: bool, root_path: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """Read the files. Raises ConfigError."""
        self.section = section
        self.https = https or section.tls_in_front
        self.root_path = root_path
        self.cookie = f"__Host-{COOKIE}" if self.https and not root_path else COOKIE
        self.sessions = Sessions(_key_of(section), section.session_minutes, clock)
        self.failures = Failures(clock)
        self._tokens = self._read_tokens()
        self._networks = [ipaddress.ip_network(address) for address in section.proxy.addresses]

    def prepare(self) -> Prepared:
        """Read the tokens again. Raises ConfigError. Sessions of tokens that are gone end."""
        tokens = self._read_tokens()
        if tokens.tokens == self._tokens.tokens:
            return NOTHING_NEW

        def apply() -> None:
            self._tokens = tokens

        return Prepared(apply, ["access.admin_token_file, access.view_token_file"])

    def identify(self, connection: HTTPConnection) -> Known:
        """Who makes a request. Raises HTTPException for a header that is not the proxy's, or that names nobody."""
        session = self.sessions.read(connection.cookies.get(self.cookie, ""))
        fresh = session is None
        session = session or self.sessions.begin()
        if self.section.open:
            return Known(NOBODY, session, fresh=False)
        by_proxy = self._named_by_proxy(connection)
        if by_proxy:
            return Known(by_proxy, session, fresh)
        shown = _bearer_of(connection)
        if shown:
            return Known(self._of_bearer(connection, shown), session, fresh=False)
        if session.name and self._still_stands(session):
            return Known(Person(session.name, session.admin, "token"), session, fresh=False)
        if session.name:
            session, fresh = self.sessions.begin(), True
        return Known(None, session, fresh)

    def still(self, known: Known, connection: HTTPConnection) -> bool:
        """Whether a stream of this person may go on."""
        if known.person and known.person.how == "bearer":
            return self._tokens.whose(_bearer_of(connection)) is not None
        return not known.person or known.person.how != "token" or self.identify(connection).person == known.person

    def login(self, token: str) -> Session | None:
        """The session of a token; None for a wrong one."""
        found = self._tokens.whose(token)
        return self.sessions.begin(found.name, admin=found.admin, proof=self.sessions.proof_of(found.token)) if found else None

    def keep(self, response: Response, session: Session) -> None:
        """Give the browser the cookie of a session."""
        response.set_cookie(
            self.cookie,
            self.sessions.cookie_of(session),
            max_age=session.until_s - session.began_s,
            path=self.root_path or "/",
            secure=self.https,
            httponly=True,
            samesite="strict",
        )

    def drop(self, response: Response) -> None:
        """Have the browser forget its cookie."""
        response.delete_cookie(self.cookie, path=self.root_path or "/", secure=self.https, httponly=True, samesite="strict")

    def is_local(self, target: str) -> bool:
        """Whether a path leads to one of our own pages, and to nowhere else."""
        return bool(_LOCAL.fullmatch(target)) and target.startswith(f"{self.root_path}/")

    def _of_bearer(self, connection: HTTPConnection, shown: str) -> Person:
        """Whose token a script shows. Raises HTTPException for a wrong one, and after too many of them."""
        peer = _peer(connection)
        wait_s = self.failures.wait_s(peer)
        if wait_s:
            _refused(connection, "too many wrong tokens")
            raise HTTPException(429, f"too many wrong tokens: try again in {wait_s:.0f} s")
        found = self._tokens.whose(shown)
        if found is None:
            self.failures.note(peer)
            _refused(connection, "wrong token")
            raise HTTPException(401, "Authorization: this token is not known here")
        return Person(found.name, admin=False, how="bearer")

    def _read_tokens(self) -> Tokens:
        return Tokens.read(self.section.view_token_file, self.section.admin_token_file)

    def _still_stands(self, session: Session) -> bool:
        return any(
            one.name == session.name and one.admin == session.admin and self.sessions.proof_of(one.token) == session.proof
            for one in self._tokens.tokens
        )

    def _named_by_proxy(self, connection: HTTPConnection) -> Person | None:
        proxy = self.section.proxy
        if not proxy.used:
            return None
        names, groups = connection.headers.getlist(proxy.user_header), connection.headers.getlist(proxy.groups_header)
        if not names and not groups:
            return None
        peer = _peer(connection)
        if not self._is_proxy(peer):
            _refused(connection, "a header of the proxy came from elsewhere")
            log.error(
                "console.forged_header", peer=peer, header=proxy.user_header, help="access.proxy.addresses does not have it"
            )
            raise HTTPException(403, f"{peer} is not a proxy of access.proxy.addresses, and may not say who somebody is")
        name = _name_of(names)
        if name is None:
            _refused(connection, f"{proxy.user_header} does not name one person")
            raise HTTPException(400, f"the proxy's header {proxy.user_header} does not name one person")
        of_person = {group.strip() for line in groups for group in line.split(",")}
        return Person(name, not of_person.isdisjoint(proxy.admin_groups), "proxy")

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


class Guarded:
    """Lets only known people in, and only requests of our own pages change something."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = str(scope.get("path", "")).removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path.startswith(STATIC) or path == HEALTH:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        access = self._access
        if csrf.is_foreign(request, access.section.origins, https=access.https):
            _refused(request, "not from a page of this console")
            await refuse(request, HTTPStatus.FORBIDDEN, csrf.FOREIGN, send)
            return
        try:
            known = access.identify(request)
        except HTTPException as error:
            await refuse(request, error.status_code, error.detail, send)
            return
        scope.setdefault("state", {})["known"] = known
        if known.person is None and path != LOGIN:
            answer = await self._ask_to_log_in(request, path)
            await answer(scope, receive, send)
            return
        if path.startswith(LIVE):
            await self._stream(request, known, receive, send)
            return
        await self._app(scope, receive, _with_cookie(access, known, send) if known.fresh else send)

    async def _ask_to_log_in(self, request: Request, path: str) -> Response:
        if path.startswith(LIVE):
            return Response(AWAY, media_type="text/event-stream")  # the page loads itself again, and so comes to the login
        if not self._access.section.by_token:
            return await answer(request, 401, "the proxy in front of this console did not say who you are")
        if request.method not in csrf.SAFE:
            text = "your session has ended, or you have not logged in. Nothing was changed. Log in, and do it again"
            return await answer(request, 401, text)
        if form_of(request) == JSON:
            return await answer(request, 401, "log in first")
        query = request.scope.get("query_string", b"").decode("latin-1")
        target = request.scope.get("raw_path", b"/").decode("latin-1") + (f"?{query}" if query else "")
        asked = {"next": target} if self._access.is_local(target) else {}
        return RedirectResponse(f"{self._access.root_path}{LOGIN}?{urlencode(asked)}", 303)

    async def _stream(self, request: Request, known: Known, receive: Receive, send: Send) -> None:
        async def while_it_may(message: Message) -> None:
            if message["type"] == "http.response.body" and not self._access.still(known, request):
                await send({"type": "http.response.body", "body": AWAY, "more_body": False})
                raise _OverError
            await send(message)

        try:
            await self._app(request.scope, receive, while_it_may)
        except* _OverError:
            pass


class _OverError(Exception):
    """The session of a stream is over."""


def part(access: Access) -> Part:
    """Login, logout, and the guard of all routes."""

    async def login(request: Request) -> Response:
        return await _login(request, access)

    async def logout(request: Request) -> Response:
        return await _logout(request, access)

    def values(request: Request) -> Mapping[str, Any]:
        known = known_of(request)
        name = known.person.name if known.person else ""
        return {
            "person": known.person,
            "form_token": access.sessions.form_token(known.session, name),
            "logs_in": access.section.by_token,
            "may_change": may_change(access, known.person),
        }

    routes = [Route(LOGIN, login, methods=["GET", "POST"], name="login"), Route(LOGOUT, logout, methods=["POST"], name="logout")]
    return Part(routes, [Middleware(Guarded, access=access)], values, access.prepare)


def known_of(connection: HTTPConnection) -> Known:
    """Who makes this request. A page of an error outside of the guard knows nobody."""
    found = connection.scope.get("state", {}).get("known")
    return (
        found
        if isinstance(found, Known)
        else Known(None, Session("", "", admin=False, proof="", began_s=0, until_s=0), fresh=False)
    )


def may_change(access: Access, person: Person | None) -> bool:
    """Whether this person may change offsets here."""
    return access.section.changes and person is not None and person.admin


async def answer(request: Request, status: int, text: str) -> Response:
    """A page, or JSON, that says what is wrong."""
    if form_of(request) == JSON:
        response = await json_of(request, {"error": text})
        response.status_code = status
        return response
    return await page(request, "error.html", status=status, title=HTTPStatus(status).phrase, text=text)


async def refuse(request: Request, status: int, text: str, send: Send) -> None:
    """Answer with an error before the request is routed."""
    response = await answer(request, status, text)
    await response(request.scope, request.receive, send)


async def _login(request: Request, access: Access) -> Response:
    if not access.section.by_token:
        raise HTTPException(404, "nobody logs in here with a token")
    known = known_of(request)
    if request.method in csrf.SAFE:
        return await _login_page(request, access, request.query_params.get("next", ""), "")
    form = await csrf.form_of(request, access.sessions, known.session, known.person.name if known.person else "")
    peer, target = _peer(request), form.text("next")
    wait_s = access.failures.wait_s(peer)
    if wait_s:
        _refused(request, "too many wrong tokens")
        text = f"There were too many wrong tokens. Try again in {wait_s:.0f} s."
        response = await _login_page(request, access, target, text, status=429)
        response.headers["Retry-After"] = f"{wait_s:.0f}"
        return response
    session = access.login(form.text("token").strip())
    if session is None:
        access.failures.note(peer)
        _refused(request, "wrong token")
        return await _login_page(request, access, target, "This token is not known here.", status=403)
    if known.session.name:
        access.sessions.end(known.session)
    audit.info("console.login", person=session.name, admin=session.admin, peer=peer)
    response = RedirectResponse(target if access.is_local(target) else linker(request)("fleet"), 303)
    access.keep(response, session)
    return response


async def _login_page(request: Request, access: Access, target: str, problem: str, *, status: int = 200) -> Response:
    local = target if access.is_local(target) else ""
    return await page(request, "login.html", status=status, next=local, problem=problem)


async def _logout(request: Request, access: Access) -> Response:
    known = known_of(request)
    name = known.person.name if known.person else ""
    await csrf.form_of(request, access.sessions, known.session, name)
    access.sessions.end(known.session)
    audit.info("console.logout", person=harmless(name), peer=_peer(request))
    response = RedirectResponse(linker(request)("login" if access.section.by_token else "fleet"), 303)
    access.drop(response)
    return response


def _with_cookie(access: Access, known: Known, send: Send) -> Send:
    """Adds the cookie of a new session, unless the answer has one already."""

    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if "set-cookie" not in headers:
                made = Response()
                access.keep(made, known.session)
                headers.append("set-cookie", made.headers["set-cookie"])
        await send(message)

    return send_with


def _refused(connection: HTTPConnection, reason: str) -> None:
    audit.info(
        "console.refused",
        reason=reason,
        peer=_peer(connection),
        method=connection.scope["method"],
        path=harmless(connection.url.path),
    )


def _peer(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else "unix"


def _bearer_of(connection: HTTPConnection) -> str:
    """The token of `Authorization: Bearer` (RFC 6750) of a request that changes nothing; empty if there is none."""
    if connection.scope.get("method") not in csrf.SAFE:
        return ""
    scheme, _, shown = connection.headers.get("authorization", "").partition(" ")
    return shown.strip() if scheme.lower() == "bearer" else ""


def _name_of(values: list[str]) -> str | None:
    """The one name of a header; None if there is none, or more, or it is not one line of text."""
    if len(values) != 1:
        return None
    try:
        name = values[0].encode("latin-1").decode().strip()
    except UnicodeDecodeError:
        return None
    return name if name and len(name) <= NAME_MAX and name.isprintable() else None


def _key_of(section: AccessSection) -> bytes:
    """The key of the sessions: that of the file, or a new one. Raises ConfigError."""
    if section.session_key_file is None:
        return secrets.token_bytes(KEY_MIN)
    key = read_secret(section.session_key_file, "access.session_key_file")
    if len(key) < KEY_MIN:
        raise ConfigError(
            f"access.session_key_file: {section.session_key_file}: holds {len(key)} characters, a key needs at least {KEY_MIN}"
        )
    return key.encode()


__all__ = ["Access", "Guarded", "Known", "Person", "Token", "answer", "known_of", "may_change", "part"]
