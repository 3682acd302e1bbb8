"""A page of the browser that is watched: what its console says, what fails to load, and what goes to another host."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from _pytest.mark import ParameterSet
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No name of a machine can be resolved: what needs the network fails, and is seen.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
LIMIT_MS = 60_000  # far above what anything takes
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
SIZES = {"wide": WIDE, "phone": NARROW}
BAD = {"serious", "critical"}


def looks(*tested: str) -> list[ParameterSet]:
    """Colours and widths of a page: those of `make test`, the others before a release. axe-core takes seconds of CPU for each."""
    pairs = {f"{colours}-{width}": (colours, size) for colours in ("light", "dark") for width, size in SIZES.items()}
    return [pytest.param(*pair, id=name, marks=[pytest.mark.release] * (name not in tested)) for name, pair in pairs.items()]


def chromium() -> str:
    """Debian's Chromium, by choice the one without windows, which takes two thirds of the processor time; or skip."""
    found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if not found:
        pytest.skip("not run: chromium-headless-shell is not on PATH, nor chromium (make tools)")
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser without a display."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS], headless=True, timeout=LIMIT_MS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page at one console. At its end nothing may have gone wrong that was not expected."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.problems: list[str] = []
        self.refusals: list[int] = []  # statuses of pages that were refused, as they should be
        page.set_default_timeout(LIMIT_MS)
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("request", lambda request: self._asked(request.url))
        page.on("response", lambda response: self._answered(response.status, response.url))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def open(self, path: str, **query: str) -> "Watched":
        """Load a page of the console."""
        self.page.goto(self.base + path + (f"?{urlencode(query)}" if query else ""), wait_until="load")
        return self

    def login(self, token: str, path: str = "/") -> "Watched":
        """Log in, on the way to a page."""
        self.open(path)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        self.page.wait_for_load_state("load")
        return self

    def text(self) -> str:
        """What can be read on the page."""
        return self.page.locator("body").inner_text()

    def check(self) -> None:
        """Fail if something went wrong."""
        assert not self.problems, self.problems

    def accessible(self) -> None:
        """Fail if axe-core finds something serious."""
        found: Any = Axe().run(self.page, options={"resultTypes": ["violations"]}).response
        bad = [
            f"{one['impact']} {one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']][:3]}"
            for one in found["violations"]
            if one["impact"] in BAD
        ]
        assert not bad, f"{self.page.url}: {bad}"

    def fits(self) -> None:
        """Fail if the page can be scrolled sideways."""
        needed, there = self.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert needed <= there, f"{self.page.url}: {needed} > {there}"

    def _said(self, kind: str, text: str) -> None:
        # The browser says of each page that was refused that it could not load it.
        refused = "Failed to load resource" in text and any(f" {status} " in text for status in self.refusals)
        if kind in {"error", "warning"} and not refused:
            self.problems.append(f"{kind}: {text}")

    def _asked(self, url: str) -> None:
        if not url.startswith((f"{self.base}/", "data:", "about:")):
            self.problems.append(f"request to elsewhere: {url}")

    def _answered(self, status: int, url: str) -> None:
        if status >= 400 and status not in self.refusals:
            self.problems.append(f"{status}: {url}")


@contextmanager
def watching(browser: Browser, base: str, *, cookies_of: BrowserContext | None = None, **options: Any) -> Iterator[Watched]:
    """A page in a context of its own, watched until its end; `cookies_of`: with the session of another one."""
    context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light", "reduced_motion": "reduce", **options})
    try:
        if cookies_of:
            context.add_cookies(cookies_of.cookies())  # type: ignore[arg-type] # of the same types
        watched = Watched(context.new_page(), base)
        yield watched
        watched.check()
    finally:
        context.close()
