"""How a page is made: the templates with what all of them need, links, and the answer in HTML or JSON.

Every text is escaped by Jinja; nothing here marks a text as safe. Names travel in query parameters, so that a slash or an escape
in one changes no path. Links are paths without a host, so that a forged Host header appears in none.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from adapter.console.parts import Part
from adapter.look.pages import environment
from adapter.model.records import epoch_text
from adapter.runtime.version import version

T = TypeVar("T")

RENDERERS = 2  # threads that render pages: more would only compete for the interpreter
HTML, JSON = "html", "json"


class Pages:
    """The templates, and what the parts of the console add to each."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._limiter: anyio.CapacityLimiter | None = None
        self._environment = environment("adapter.console")
        self._environment.filters["epoch"] = epoch_text
        self._environment.globals.update(version=version())

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Render a template. Takes milliseconds for each 100 rows; call it in a thread for more."""
        return self._environment.get_template(template).render(values)

    def macros(self, template: str) -> Any:  # noqa: ANN401 - macros are functions that return Markup
        """The macros of a template, for fragments."""
        return self._environment.get_template(template).module

    async def render_aside(self, template: str, values: Mapping[str, Any]) -> str:
        """Render a template in one of a few threads, so that a long page does not hold the event loop."""
        return await self.aside(lambda: self.render(template, values))

    async def aside(self, work: Callable[[], T]) -> T:
        """Run work in one of the threads for pages."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(RENDERERS)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def values(self, request: Request) -> dict[str, Any]:
        """What every template of this request gets."""
        found: dict[str, Any] = {"request": request, "link": linker(request), "asset": _assets(request), "nav": ""}
        for part in self._parts:
            found.update(part.values(request))
        return found


def pages_of(request: Request) -> Pages:
    """The templates of the application that answers a request."""
    found = request.app.state.pages
    assert isinstance(found, Pages)  # noqa: S101 - set by make_app
    return found


def linker(request: Request) -> Callable[..., str]:
    """A function `link(name, **query)`: the path of a named route below the root path; values that are None are left out."""
    root = str(request.scope.get("root_path", ""))
    paths: dict[str, str] = {}

    def link(name: str, /, **query: object) -> str:
        path = paths.get(name) or paths.setdefault(name, root + str(request.app.url_path_for(name)))
        asked = urlencode({key: value for key, value in query.items() if value is not None}, errors="surrogateescape")
        return f"{path}?{asked}" if asked else path

    return link


def _assets(request: Request) -> Callable[[str], str]:
    """A function that gives the address of a static file: with the version, so that a browser does not use an older one."""
    root = str(request.scope.get("root_path", ""))
    asked = urlencode({"v": version()})
    return lambda name: f"{root}{request.app.url_path_for('static', path=name)}?{asked}"


async def page(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:  # noqa: ANN401 - a template takes all
    """The page of a template."""
    pages = pages_of(request)
    return HTMLResponse(await pages.render_aside(template, {**pages.values(request), **values}), status)


def form_of(request: Request) -> str:
    """`json` or `html`: by the parameter `format`, else by the header Accept."""
    asked = request.query_params.get("format")
    if asked in {HTML, JSON}:
        return asked
    accepts = request.headers.get("accept", "")
    return JSON if "application/json" in accepts and "text/html" not in accepts else HTML


async def json_of(request: Request, value: object) -> Response:
    """A value in JSON, for scripts."""
    return await json_made(request, lambda: value)


async def json_made(request: Request, make: Callable[[], object]) -> Response:
    """The same of a value that takes time to make: `make` is called in a thread."""
    text = await pages_of(request).aside(lambda: json.dumps(make(), ensure_ascii=True, separators=(",", ":")))
    return Response(text, media_type="application/json")
