"""Reading pages in the browser: fleet, groups, a group, live updates; hostile names, keyboard, no JavaScript, widths, colours."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.scene import HOSTILE, PLAIN_GROUPS, Scene
from tests.browser.watched import Watched, looks, watching

GROUPS = PLAIN_GROUPS + len(HOSTILE) + 1
PAGES = ("/", "/groups", "/groups?at_least=stop", "/group?namespace=default&group=spread", "/group?namespace=default&group=none")


@pytest.fixture
def page(browser: Browser, scene: Scene) -> Iterator[Watched]:
    """A page at the console where nobody logs in."""
    with watching(browser, scene.reader) as found:
        yield found


def test_the_fleet_shows_both_adapters_and_the_meta_service(page: Watched, scene: Scene) -> None:
    """By their names, as serving; nobody is asked to log in, and there is no form of a change."""
    page.open("/")
    expect(page.page.locator("#adapters tr")).to_have_count(2)
    text = page.page.locator("#adapters").inner_text().lower()
    assert all(name in text for name in ("broker-a", "broker-b", "serving"))
    expect(page.page.locator("#meta-instances")).to_contain_text(scene.meta.tcp_address)
    assert "Log out" not in page.text()


def test_groups_are_searched(page: Watched) -> None:
    """By a part of the name, by a pattern, and without a hit."""
    page.open("/groups")
    for text, count in (("plain-01", 10), ("plain-*9", 12), ("nobody", 0)):
        page.page.get_by_label("Name, or a pattern").fill(text)
        page.page.keyboard.press("Enter")
        expect(page.page.locator("#groups-count")).to_have_attribute("data-matching", str(count))
        expect(page.page.locator("#groups tr")).to_have_count(count)


def test_groups_are_sorted_by_a_heading(page: Watched) -> None:
    """By name and by lag; the heading says how."""
    page.open("/groups", q="plain-")
    page.page.get_by_role("link", name="group", exact=True).click()
    expect(page.page.locator("#groups tr").first).to_have_attribute("data-group", "plain-000")
    assert page.page.locator("th[aria-sort=ascending]").inner_text().startswith("group")
    page.page.get_by_role("link", name="lag", exact=True).click()
    expect(page.page.locator("#groups tr").first).to_have_attribute("data-group", f"plain-{PLAIN_GROUPS - 1}")


def test_groups_are_paged(page: Watched) -> None:
    """By the server; every group is on one page."""
    page.open("/groups", order="name", namespace="default")
    seen: list[str] = []
    while True:
        seen += page.page.evaluate("[...document.querySelectorAll('#groups tr')].map(row => row.dataset.group)")
        following = page.page.get_by_role("link", name="Next")
        if not following.count():
            break
        before = page.page.url
        following.click()
        page.page.wait_for_url(lambda url, before=before: url != before)  # type: ignore[misc] # mypy cannot infer it
    assert len(seen) == len(set(seen)) == GROUPS
    assert set(HOSTILE) < set(seen)


def test_groups_are_filtered_by_status(page: Watched, scene: Scene) -> None:
    """One that commits the same offset again and again is found as worse than the others."""
    page.open("/groups", q="stuck", at_least="stall")
    for _ in range(200):
        scene.commit("stuck", {"t/0": 7}, high=1_000)
        page.page.wait_for_timeout(150)
        page.open("/groups", q="stuck", at_least="warn")
        if page.page.locator("#groups tr").count():
            break
    expect(page.page.locator("#groups tr")).to_have_count(1)
    assert page.page.locator("#groups tr td[data-field=status]").get_attribute("data-value") in {"stall", "warn", "stop"}


def test_a_group_shows_its_shards_of_both_adapters(page: Watched) -> None:
    """Each with its offset, bounds, lag and adapter."""
    page.open("/groups", q="spread")
    page.page.get_by_role("link", name="spread").click()
    rows = page.page.locator("#shards tr")
    expect(rows).to_have_count(3)
    seen = {
        row.get_attribute("data-shard"): (
            row.locator("[data-field=offset]").get_attribute("data-value"),
            row.locator("[data-field=lag]").get_attribute("data-value"),
            row.locator("[data-field=adapter]").inner_text().split("\n")[0],
        )
        for row in rows.all()
    }
    assert seen == {
        "t/0": ("400", "600", "broker-a"),
        "t/1": ("500", "500", "broker-a"),
        "t/2": ("600", "400", "broker-b"),
    }


def test_a_commit_is_seen_without_a_reload(page: Watched, scene: Scene) -> None:
    """By server-sent events, on the pages of the group and of the groups."""
    page.open("/group", namespace="default", group="plain-005")
    page.page.evaluate("window.sameDocument = true")
    expect(page.page.locator("html")).to_have_attribute("data-connected", "yes")
    scene.commit("plain-005", {"t/0": 999}, high=5_000, at=1)
    row = page.page.locator('#shards tr[data-shard="t/0"]')
    expect(row.locator("[data-field=offset]")).to_have_attribute("data-value", "999", timeout=60_000)
    expect(row.locator("[data-field=lag]")).to_have_attribute("data-value", "4001", timeout=60_000)
    assert page.page.evaluate("window.sameDocument")


def test_hostile_names_are_text_and_lead_to_their_pages(page: Watched) -> None:
    """Nothing of them runs, on the list, in the links and on the pages."""
    page.open("/groups", order="name", size="250")
    names = page.page.evaluate("[...document.querySelectorAll('#groups tr')].map(row => row.dataset.group)")
    assert set(HOSTILE) < set(names)
    links = page.page.evaluate("[...document.querySelectorAll('#groups tr')].map(row => row.querySelector('a').href)")
    assert page.page.title() != "hit"
    for group in HOSTILE:
        page.page.goto(links[names.index(group)], wait_until="load")
        expect(page.page.locator("#shards tr")).to_have_count(1)
        assert page.page.locator("#shards tr").get_attribute("data-shard") == group
        assert page.page.title() != "hit"
        assert "49" not in page.page.locator("h1").inner_text()
        assert "\u202e" not in page.text()


def test_with_the_keyboard_alone(page: Watched) -> None:
    """Skip to the content, through the menu, and into a group; what has the focus is seen."""
    page.open("/")
    keyboard = page.page.keyboard
    keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.className") == "skip"
    keyboard.press("Enter")
    assert page.page.evaluate("location.hash") == "#main"
    page.open("/")
    for _ in range(20):
        keyboard.press("Tab")
        if page.page.evaluate("document.activeElement.textContent") == "Groups":
            break
    outline = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    keyboard.press("Enter")
    expect(page.page.locator("h1")).to_have_text("Groups")
    for _ in range(40):
        keyboard.press("Tab")
        if page.page.evaluate("!!document.activeElement.closest('#groups')"):
            break
    keyboard.press("Enter")
    expect(page.page.locator("#shards")).to_be_visible()


def test_without_javascript_the_pages_are_all_there(browser: Browser, scene: Scene) -> None:
    """Search, sort, page, a group: only what is live is missing, and the page says so."""
    with watching(browser, scene.reader, java_script_enabled=False) as page:
        page.open("/")
        expect(page.page.locator("#adapters tr")).to_have_count(2)
        expect(page.page.locator("#live-state")).to_contain_text("reload it")
        page.page.get_by_role("link", name="Groups").first.click()
        page.page.get_by_label("Name, or a pattern").fill("spread")
        page.page.get_by_role("button", name="Show").click()
        page.page.get_by_role("link", name="spread").click()
        expect(page.page.locator("#shards tr")).to_have_count(3)


@pytest.mark.parametrize(("scheme", "size"), looks("dark-phone"))
def test_every_page_is_accessible_and_fits(browser: Browser, scene: Scene, scheme: str, size: dict[str, int]) -> None:
    """Axe-core finds nothing serious, light and dark; at 360 pixels nothing has to be scrolled sideways."""
    with watching(browser, scene.reader, color_scheme=scheme, viewport=size) as page:
        page.refusals = [404]
        for path in PAGES:
            page.open(path)
            expect(page.page.locator("h1")).to_be_visible()
            page.fits()
            page.accessible()
        background = page.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        parts = [int(part) for part in re.findall(r"\d+", background)[:3]]
        assert (sum(parts) < 384) is (scheme == "dark")
