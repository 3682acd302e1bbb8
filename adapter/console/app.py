"""The console's application: its routes, its middleware from the outside in, and its error pages."""

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from adapter.console import guard
from adapter.console.admin_calls import AdminCalls
from adapter.console.background import Background
from adapter.console.config import ConsoleConfig
from adapter.console.meta_instances import MetaInstances
from adapter.console.pages import JSON, Pages, form_of, json_of, page
from adapter.console.parts import Part
from adapter.fleet.fleet import FleetApi
from adapter.runtime.addresses import is_loopback

log = structlog.get_logger(__name__)

STATIC = Path(__file__).parent / "static"
STATIC_S = 300  # seconds for which a browser may keep a static file; its address has the version


def make_app(
    settings: ConsoleConfig, fleet: FleetApi, meta: MetaInstances, calls: AdminCalls, parts: Sequence[Part] = ()
) -> Starlette:
    """The application over a fleet of adapters and the Meta Service's instances; both run already.

    `parts` are added to it: what they need to know of the settings they were given when they were made. Run
    `app.state.background` beside it, for live pages and charts.
    """
    app = Starlette(
        routes=[
            Route("/", _fleet, name="fleet"),
            Route("/groups", _groups, name="groups"),
            Route("/group", _group, name="group"),
            Route("/healthz", _healthz, name="healthz"),
            Mount("/static", _Static(directory=STATIC), name="static"),
            *(route for part in parts for route in part.routes),
        ],
        middleware=[
            Middleware(guard.SecurityHeaders),
            Middleware(guard.Limits, hosts=hosts_of(settings)),
            *(middleware for part in parts for middleware in part.middleware),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.state.pages = Pages(parts)
    app.state.settings = settings
    app.state.fleet = fleet
    app.state.meta = meta
    app.state.calls = calls
    app.state.background = Background()
    return app


def hosts_of(settings: ConsoleConfig) -> Sequence[str]:
    """The names by which the console may be called; empty: any."""
    if settings.server.hosts or not is_loopback(settings.server.listen):
        return settings.server.hosts
    return guard.LOOPBACK_NAMES


class _Static(StaticFiles):
    """Static files that a browser may keep for a while."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:  # noqa: ANN401 - as in the class above
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = f"public, max-age={STATIC_S}"
        return response


async def _fleet(request: Request) -> Response:
    return await page(request, "placeholder.html", title="Fleet", nav="fleet")


async def _groups(request: Request) -> Response:
    return await page(request, "placeholder.html", title="Groups", nav="groups")


async def _group(request: Request) -> Response:
    return await page(request, "placeholder.html", title="Group", nav="groups")


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("alive\n")


async def _refused(request: Request, error: Exception) -> Response:
    """The page of an HTTP error."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    return await error_page(request, error.status_code, error.detail, headers=error.headers)


async def error_page(request: Request, status: int, text: str, *, headers: Any = None) -> Response:  # noqa: ANN401 - as of Starlette
    """A page, or JSON, that says what is wrong in `text`."""
    if form_of(request) == JSON:
        response = await json_of(request, {"error": text})
        response.status_code = status
    else:
        title = HTTPStatus(status).phrase
        response = await page(request, "error.html", status=status, title=title, text=text)
    response.headers.update(headers or {})
    return response


async def _failed(_: Request, error: Exception) -> Response:
    """A bug: the log has it. This answer is outside of all middleware."""
    log.error("console.failed", error=repr(error))
    return PlainTextResponse("something went wrong here; the console's log says what\n", 500, dict(guard.HEADERS))
