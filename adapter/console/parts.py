"""What other modules add to the console: routes, middleware, and values that every template gets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute

from adapter.runtime.settings.live import NOTHING_NEW, Prepared


def _nothing(_: Request) -> Mapping[str, Any]:
    return {}


def _nothing_new() -> Prepared:
    return NOTHING_NEW


class Part(NamedTuple):
    """One module's addition.

    `middleware` runs inside the security headers and the limits, in this order, the first one outermost. `values` gives what
    every template of a request gets, such as the person who is logged in. `prepare` reads its files again, at a reload; it raises
    ConfigError.
    """

    routes: Sequence[BaseRoute] = ()
    middleware: Sequence[Middleware] = ()
    values: Callable[[Request], Mapping[str, Any]] = _nothing
    prepare: Callable[[], Prepared] = _nothing_new
