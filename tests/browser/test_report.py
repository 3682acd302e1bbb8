"""The report's page in a real browser: all in one file, names that are harmless, sorting, links, both colours, both widths."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from adapter.pipeline.places import Place
from adapter.pipeline.report import job as report_job
from tests.browser.watched import Watched, launched, looks, watching
from tests.unit.pipeline.reports import AT_MS, HOSTILE, fleet

CONSOLE = "https://console.example"
ROWS = "#worst tbody tr"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser, without the processes of the console's tests."""
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the directory with the page, as a file."""
    directory = tmp_path_factory.mktemp("report")
    report_job.write(fleet(), Place.of("data/lag"), Place.of(directory), CONSOLE, AT_MS + 60_000)
    return Path(directory).as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Watched]:
    """The page, watched: it may ask for nothing, and its console stays silent."""
    with watching(browser, address) as found:
        yield found.open("/index.html")


def groups(page: Watched) -> list[str]:
    """The groups of the table, as they are sorted."""
    found: list[str] = page.page.evaluate(f"[...document.querySelectorAll('{ROWS}')].map(row => row.dataset.group)")
    return found


@pytest.mark.parametrize(("colours", "size"), looks("dark-phone"))
def test_it_can_be_read_in_both_colours_and_widths(browser: Browser, address: str, colours: str, size: dict[str, int]) -> None:
    """The worst group is first; nothing is scrolled sideways but a table in its frame."""
    with watching(browser, address, viewport=size, color_scheme=colours) as page:
        page.open("/index.html").fits()
        page.accessible()
        assert page.page.locator(ROWS).first.inner_text().split()[:3] == ["1", "stopped", "in"]
        assert page.page.locator("svg.chart").first.is_visible()
        background = page.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert background == {"light": "rgb(251, 251, 252)", "dark": "rgb(18, 21, 26)"}[colours]


def test_names_do_nothing(page: Watched) -> None:
    """They are shown as text, letter by letter."""
    assert page.page.title() == "Consumer lag"
    assert groups(page)[1 : len(HOSTILE) + 1] == list(HOSTILE)
    text = page.page.locator("#worst table").inner_text()
    assert all(name in text for name in HOSTILE)


def test_a_heading_sorts_in_both_directions(page: Watched) -> None:
    """Numbers as numbers, the largest first; unknown ones are last; the keyboard does it, too."""
    lag = page.page.get_by_role("button", name="lag", exact=True)
    lag.click()
    assert groups(page)[:2] == ["stopped", HOSTILE[-1]]
    assert groups(page)[-1] == "unknown"
    lag.focus()
    page.page.keyboard.press("Enter")
    assert groups(page)[0].startswith("healthy-")
    assert groups(page)[-2:] == ["stopped", "unknown"]
    expect(page.page.locator("#worst th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
    page.page.locator("#worst").get_by_role("button", name="group", exact=True).click()
    assert groups(page).index("healthy-0") < groups(page).index("stopped") < groups(page).index("unknown")
    assert page.page.locator("#worst th[aria-sort]").inner_text().startswith("group")


def test_a_name_leads_to_the_group(page: Watched) -> None:
    """To its charts, and from there to the console."""
    page.page.locator(ROWS).first.get_by_role("link", name="stopped", exact=True).click()
    article = page.page.locator("article:target")
    expect(article.locator("h3")).to_contain_text("stopped")
    expect(article).to_be_in_viewport()
    expected = f"{CONSOLE}/group?namespace=default&group=stopped"
    expect(article.get_by_role("link", name="In the console")).to_have_attribute("href", expected)


def test_without_javascript_nothing_is_missing(browser: Browser, address: str) -> None:
    """Only the headings cannot be pressed."""
    with watching(browser, address, java_script_enabled=False) as page:
        page.open("/index.html")
        assert page.page.locator(ROWS).count() == len(fleet().worst)
        assert page.page.get_by_role("button").count() == 0
        assert page.page.locator("svg.chart").count() > 2
