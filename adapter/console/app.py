"""The console's application: its routes, its middleware from the outside in, and its error pages."""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from adapter.console.access import guard
from adapter.console.background import Background
from adapter.console.config import ConsoleConfig
from adapter.console.metrics import ConsoleMetrics
from adapter.console.pages import JSON, Pages, form_of, json_made, json_of, linker, page, pages_of
from adapter.console.parts import Part
from adapter.console.sources.admin_calls import AdminCalls
from adapter.console.sources.asking import Asking
from adapter.console.sources.meta_instances import MetaInstances
from adapter.console.views import fleet as fleet_view
from adapter.console.views import group as group_view
from adapter.console.views import groups as groups_view
from adapter.console.views.charts import Charts
from adapter.console.views.live import Live, StreamKey
from adapter.console.views.view import Fragments, Query, Site, View, digest
from adapter.fleet.fleet import FleetApi
from adapter.runtime.settings.addresses import is_loopback

log = structlog.get_logger(__name__)

VIEWS = {"/": fleet_view.VIEW, "/groups": groups_view.VIEW, "/group": group_view.VIEW}
STATIC = Path(__file__).parent / "static"
STATIC_S = 300  # seconds for which a browser may keep a static file; its address has the version


def make_app(
    settings: ConsoleConfig,
    fleet: FleetApi,
    meta: MetaInstances,
    calls: AdminCalls,
    parts: Sequence[Part] = (),
    metrics: ConsoleMetrics | None = None,
) -> Starlette:
    """The application over a fleet of adapters and the Meta Service's instances; both run already.

    `parts` are added to it: what they need to know of the settings they were given when they were made. Run
    `app.state.background` beside it, for live pages and charts.
    """
    charts = Charts(settings.charts, fleet)
    metrics = metrics or ConsoleMetrics()
    live = Live(fleet, meta, settings.server.streams, metrics)
    site = Site(settings, fleet, meta, Asking(calls), charts)
    app = Starlette(
        routes=[
            *(Route(path, _page_of(view, site, metrics), name=view.name) for path, view in VIEWS.items()),
            *(Route(f"/live/{view.name}", _live_of(view, site, live), name=f"live-{view.name}") for view in VIEWS.values()),
            Route("/healthz", _healthz, name="healthz"),
            Mount("/static", _Static(directory=STATIC, packages=[("adapter.look", "static")]), name="static"),
            *(route for part in parts for route in part.routes),
        ],
        middleware=[
            Middleware(guard.SecurityHeaders),
            Middleware(guard.Limits, hosts=hosts_of(settings)),
            Middleware(guard.Turns),
            *(middleware for part in parts for middleware in part.middleware),
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.state.pages = Pages(parts)
    app.state.settings = settings
    app.state.fleet = fleet
    app.state.meta = meta
    app.state.calls = calls
    app.state.metrics = metrics
    app.state.background = Background(live, charts)
    return app


def _page_of(view: View, site: Site, metrics: ConsoleMetrics) -> Callable[[Request], Awaitable[Response]]:
    """The page of a view, in HTML or JSON."""

    async def answer(request: Request) -> Response:
        with metrics.page(view.name):
            return await made(request)

    async def made(request: Request) -> Response:
        built = await view.build(site, Query(request))
        if form_of(request) == JSON:
            return await json_made(request, built.json)
        pages, link = pages_of(request), linker(request)
        values = {**pages.values(request), **built.values}

        def render() -> str:
            fragments = built.fragments(pages, link)
            live = link(f"live-{view.name}", **built.query, seen=digest(fragments))
            return pages.render(view.template, {**values, "fragments": fragments, "live": live})

        return HTMLResponse(await pages.aside(render))

    return answer


def _live_of(view: View, site: Site, live: Live) -> Callable[[Request], Awaitable[Response]]:
    """The stream of what changes on the page of a view."""

    async def answer(request: Request) -> Response:
        query, pages, link = Query(request), pages_of(request), linker(request)
        built = await view.build(site, query)  # refuses bad parameters before the stream begins
        seen = query.text("seen")

        async def build() -> Fragments:
            now = await view.build(site, query)
            return await pages.aside(lambda: now.fragments(pages, link))

        host = request.client.host if request.client else ""
        return live.open(StreamKey(view.name, link(view.name, **built.query)), build, seen, host)

    return answer


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


async def _healthz(_: Request) -> Response:
    return PlainTextResponse("alive\n")


async def _refused(request: Request, error: Exception) -> Response:
    """The page of an HTTP error."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    return await error_page(request, error.status_code, error.detail, headers=error.headers)


async def error_page(request: Request, status: int, text: str, *, headers: Any = None) -> Response:  # noqa: ANN401 - as of Starlette
    """A page, or JSON, that says what is wrong in `text`."""
    metrics = request.app.state.metrics
    assert isinstance(metrics, ConsoleMetrics)  # noqa: S101 - set by make_app
    metrics.refused(status)
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
