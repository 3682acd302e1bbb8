"""A person at the console, by HTTP: logs in with a token, reads pages as HTML and as JSON, and keeps pages open that update."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Self

import anyio
import anyio.abc
import httpx

from demo.cluster import DemoError

RELOAD_S = 0.2
VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])


@dataclass
class Element:
    """An element of a page. `parts`: its texts and elements, in their order."""

    tag: str
    attributes: dict[str, str]
    parts: list["Element | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it, with single spaces."""
        return " ".join("".join(_texts(self)).split())

    def all(self, tag: str = "", **attributes: str) -> Iterator["Element"]:
        """The elements in it with this tag and these attributes, in their order; `class_` is one of the classes."""
        wanted_class = attributes.pop("class_", "")
        for part in self.parts:
            if isinstance(part, Element):
                fits = tag in {"", part.tag} and attributes.items() <= part.attributes.items()
                if fits and (not wanted_class or wanted_class in part.attributes.get("class", "").split()):
                    yield part
                yield from part.all(tag, **attributes, **({"class_": wanted_class} if wanted_class else {}))

    def one(self, tag: str = "", **attributes: str) -> "Element":
        """The first such element. Raises DemoError if there is none."""
        found = next(self.all(tag, **attributes), None)
        if found is None:
            raise DemoError(f"the page has no <{tag}> with {attributes}")
        return found

    def replace(self, name: str, by: "Element") -> bool:
        """Replace the element in it with this id; False if there is none."""
        for at, part in enumerate(self.parts):
            if isinstance(part, Element):
                if part.attributes.get("id") == name:
                    self.parts[at] = by
                    return True
                if part.replace(name, by):
                    return True
        return False


def _texts(element: Element) -> Iterator[str]:
    for part in element.parts:
        if isinstance(part, str):
            yield part
        else:
            yield from _texts(part)
            yield " "


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].parts.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content, as in SVG."""
        self._open[-1].parts.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        if any(element.tag == tag for element in self._open[1:]):
            while self._open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Add text."""
        self._open[-1].parts.append(data)


def parsed(html: str) -> Element:
    """The elements of a page."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    return builder.root


class LivePage:
    """A page that a browser has open. `loads`: how often it was loaded; `updates`: how often the console has sent something."""

    def __init__(self) -> None:
        self.root = Element("", {})
        self.loads = 0
        self.updates = 0

    async def follow(self, lines: AsyncIterator[str]) -> None:
        """Take server-sent events until the stream ends, or until the page has to be loaded again."""
        event = ""
        async for line in lines:
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "fragments":
                self.updates += 1
                missing = [name for name, html in json.loads(value) if not self._replace(name, html)]
                if missing:
                    return
            elif name == "data" and event == "away":
                return

    def _replace(self, name: str, html: str) -> bool:
        return self.root.replace(name, next(parsed(html).all()))


class Visitor:
    """A person who has logged in."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def login(cls, address: str, token: str) -> AsyncIterator[Self]:
        """Log in at a console by its form. Raises DemoError if the token is not taken."""
        async with httpx.AsyncClient(base_url=address, timeout=30.0) as http:
            page = parsed((await http.get("/login")).text)
            form = page.one("form", method="post")
            fields = {field.attributes["name"]: field.attributes.get("value", "") for field in form.all("input")}
            reply = await http.post(form.attributes["action"], data={**fields, "token": token}, headers={"Origin": address})
            if reply.status_code != httpx.codes.SEE_OTHER:
                raise DemoError(f"the console does not take the token: {reply.status_code} {parsed(reply.text).text[:300]}")
            yield cls(http)

    async def json(self, path: str, **query: str) -> Any:  # noqa: ANN401 - JSON
        """A page as JSON. Raises DemoError if it is not given."""
        return (await self._get(path, {**query, "format": "json"})).json()

    async def page(self, path: str, **query: str) -> Element:
        """A page. Raises DemoError if it is not given."""
        return parsed((await self._get(path, query)).text)

    async def live(self, path: str, query: Mapping[str, str], *, task_status: anyio.abc.TaskStatus["LivePage"]) -> None:
        """Keep a page open as a browser does, until cancelled: what the console sends changes it. Started with the page."""
        page = LivePage()
        while True:
            page.root = parsed((await self._get(path, query)).text)
            stream = next(element.attributes["data-live"] for element in page.root.all() if "data-live" in element.attributes)
            if not page.loads:
                task_status.started(page)
            page.loads += 1
            try:
                async with self._http.stream("GET", stream, timeout=None) as reply:
                    await page.follow(reply.aiter_lines())
            except httpx.HTTPError:
                await anyio.sleep(RELOAD_S)

    async def _get(self, path: str, query: Mapping[str, str]) -> httpx.Response:
        try:
            reply = await self._http.get(path, params=query)
        except httpx.HTTPError as error:
            raise DemoError(f"the console does not answer: {error or type(error).__name__}") from error
        if reply.status_code != httpx.codes.OK:
            raise DemoError(f"the console answered {path} with {reply.status_code}: {reply.text[:300]}")
        return reply
