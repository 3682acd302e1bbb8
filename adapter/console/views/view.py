"""A page as data, as JSON, and as fragments of HTML that can be sent one by one when they change.

A view builds everything that its page shows of the fleet, and nothing that depends on the person who asks: all streams of one
view share what it built.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request

from adapter.console.config import ConsoleConfig
from adapter.console.pages import Pages
from adapter.console.sources.asking import Asking
from adapter.console.sources.meta_instances import MetaInstances
from adapter.console.views.charts import Charts
from adapter.fleet.fleet import FleetApi

Link = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Table:
    """A part of a table whose rows are sent one by one: what stands before them, the rows by their ids, and what is behind."""

    start: Markup
    rows: Mapping[str, Markup]
    end: Markup

    def __html__(self) -> str:
        """All of it."""
        return "".join([self.start, *self.rows.values(), self.end])


Fragments = Mapping[str, Markup | Table]  # by the id of the element


class Query:
    """The parameters of a request, each checked. Bad ones raise HTTPException 400 that names the parameter."""

    def __init__(self, request: Request) -> None:
        self.given = request.query_params

    def text(self, name: str, *, most: int = 255) -> str:
        """A text; empty if there is none."""
        value = self.given.get(name, "")
        if len(value) > most:
            raise HTTPException(400, f"{name}: has more than {most} characters")
        return value

    def needed(self, name: str) -> str:
        """A text that is not empty."""
        value = self.text(name)
        if not value:
            raise HTTPException(400, f"{name}: is missing")
        return value

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number in a range."""
        value = self.given.get(name, "")
        if not value:
            return default
        if not (value.isascii() and value.isdecimal() and len(value) <= len(str(most)) and least <= int(value) <= most):
            raise HTTPException(400, f"{name}: {value[:20]!r} is not a whole number from {least:,} to {most:,}")
        return int(value)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words; the first one if there is none."""
        value = self.given.get(name, "") or choices[0]
        if value not in choices:
            raise HTTPException(400, f"{name}: {value[:40]!r} is none of {', '.join(choices)}")
        return value


@dataclass(frozen=True, slots=True)
class Built:
    """What a view shows now. `json` and `fragments` are called in a thread, and read nothing that changes.

    `values` are for the page's template beside `fragments`. `query`: the parameters in a fixed order, for one stream of all who
    ask for the same.
    """

    query: Mapping[str, object]
    json: Callable[[], object]
    fragments: Callable[[Pages, Link], Fragments]
    values: Mapping[str, Any] = field(default_factory=dict)


class Site(NamedTuple):
    """What views are built from."""

    settings: ConsoleConfig
    fleet: FleetApi
    meta: MetaInstances
    asking: Asking
    charts: Charts


Build = Callable[[Site, Query], Awaitable[Built]]


class View(NamedTuple):
    """A page: the name of its route, its template, and how it is built."""

    name: str
    template: str
    build: Build


def html_of(fragment: Markup | Table) -> str:
    """A fragment as a whole."""
    return fragment.__html__()


def difference(before: Fragments | None, now: Fragments) -> list[tuple[str, str]]:
    """What a page that shows `before` needs to show `now`: ids and their HTML. None: it shows nothing that is known."""
    if before is None:
        return [(name, html_of(fragment)) for name, fragment in now.items()]
    found: list[tuple[str, str]] = []
    for name, fragment in now.items():
        old = before.get(name)
        if isinstance(fragment, Table) and isinstance(old, Table) and _same_frame(old, fragment):
            found += [(row, html) for row, html in fragment.rows.items() if old.rows[row] != html]
        elif old is None or html_of(old) != html_of(fragment):
            found.append((name, html_of(fragment)))
    return found


def _same_frame(old: Table, new: Table) -> bool:
    """True if the same rows are in the same order."""
    return (old.start, old.end) == (new.start, new.end) and list(old.rows) == list(new.rows)


def digest(fragments: Fragments) -> str:
    """What identifies the content of fragments."""
    found = hashlib.blake2b(digest_size=12)
    for name, fragment in fragments.items():
        found.update(name.encode())
        found.update(html_of(fragment).encode("utf-8", "surrogatepass"))
    return found.hexdigest()
