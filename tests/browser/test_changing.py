"""Login, logout and changes in the browser: what a person sees at each step, and what stands in the adapters behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from adapter.rpc import offsets_pb
from tests.browser.scene import ADMIN, HOSTILE, VIEW, Scene
from tests.browser.watched import Watched, looks, watching

NAME_OF_ADMIN = "ann (admin)"


@pytest.fixture
def page(browser: Browser, scene: Scene) -> Iterator[Watched]:
    """A page at the console with tokens and changes, in which nobody is logged in yet."""
    with watching(browser, scene.console) as found:
        yield found


@pytest.fixture
def admin(page: Watched) -> Watched:
    """The same, with an admin."""
    return page.login(ADMIN)


def form(page: Watched, group: str) -> None:
    """The form of a change, by the button on the group's page."""
    page.open("/group", namespace="default", group=group)
    page.page.locator("#change-link").click()
    expect(page.page.locator("h1")).to_contain_text("Change the offsets")


def reset_to(page: Watched, group: str, offset: int) -> None:
    """As far as the dry run."""
    form(page, group)
    page.page.get_by_label("an offset, the same in every shard").check()
    page.page.get_by_label("Offset", exact=True).fill(str(offset))
    page.page.get_by_role("button", name="Show what a reset would change").click()
    expect(page.page.locator("#plan")).to_be_visible()


def confirm(page: Watched, name: str) -> None:
    """Type a name, and press the button."""
    page.page.locator("#confirm").fill(name)
    page.page.locator("#confirm-form button").click()


def test_login_and_logout(page: Watched) -> None:
    """One comes to the page that one asked for, sees who one is, and is out afterwards, also with the back button."""
    page.login(VIEW, "/groups?q=spread")
    assert page.page.url == f"{page.base}/groups?q=spread"
    assert "vera (view)" in page.text()
    page.open("/group", namespace="default", group="spread")
    expect(page.page.locator("#change-link")).to_have_count(0)
    page.page.get_by_role("button", name="Log out").click()
    expect(page.page.locator("h1")).to_have_text("Log in")
    page.page.go_back()
    page.page.reload()
    expect(page.page.locator("h1")).to_have_text("Log in")


def test_a_wrong_token_is_said_to_the_screen_reader_too(page: Watched) -> None:
    """And the right one lets in afterwards."""
    page.refusals = [403]
    page.login("not-the-token-of-anybody")
    expect(page.page.get_by_role("alert")).to_contain_text("not known here")
    expect(page.page.get_by_label("Token")).to_have_attribute("aria-invalid", "true")
    page.accessible()
    page.login(ADMIN)
    assert NAME_OF_ADMIN in page.text()


def test_a_live_page_of_an_ended_session_comes_to_the_login(page: Watched, browser: Browser, scene: Scene) -> None:
    """Without a click: nothing is shown any more to who was logged out elsewhere."""
    page.login(VIEW)
    expect(page.page.locator("html")).to_have_attribute("data-connected", "yes")
    with watching(browser, scene.console, cookies_of=page.page.context) as other:
        other.open("/groups")
        other.page.get_by_role("button", name="Log out").click()
        expect(other.page.locator("h1")).to_have_text("Log in")
    expect(page.page.locator("h1")).to_have_text("Log in", timeout=60_000)


def test_a_reset_from_the_group_to_its_timeline(admin: Watched, scene: Scene) -> None:
    """Dry run, wrong name, right name, done, read back; the group's page says who did it."""
    group = "plain-010"
    before = scene.offsets(group)
    reset_to(admin, group, 500)
    expect(admin.page.locator("#plan tbody tr")).to_have_count(len(before))
    assert "stop its consumers first" in admin.text()
    assert scene.offsets(group) == before
    admin.refusals = [400]
    confirm(admin, "plain-01")
    expect(admin.page.get_by_role("alert")).to_contain_text("not the name of the group")
    assert scene.offsets(group) == before
    confirm(admin, group)
    expect(admin.page.locator("#outcome")).to_contain_text("Done. 2 offsets are as confirmed, and read back")
    assert scene.offsets(group) == dict.fromkeys(before, 500)
    admin.page.get_by_role("link", name="Back to the group").click()
    change = admin.page.locator("#changes li[data-kind=reset]").first
    expect(change).to_contain_text("ann", timeout=60_000)


def test_a_second_press_and_the_back_button_reset_once(admin: Watched, scene: Scene) -> None:
    """The history has one reset."""
    group = "plain-012"
    reset_to(admin, group, 300)
    confirm(admin, group)
    expect(admin.page.locator("#outcome")).to_contain_text("Done.")
    done = admin.page.url
    admin.page.reload()
    expect(admin.page.locator("#outcome")).to_contain_text("Done.")
    admin.page.go_back()
    if admin.page.locator("#confirm").count():  # from the browser's memory
        confirm(admin, group)
    expect(admin.page.locator("#outcome")).to_contain_text("Done.")
    assert admin.page.url == done
    request = offsets_pb.ListChangesRequest(namespace="default", group=group)
    assert [change.kind for change in scene.admins[0].ListChanges(request).changes] == ["reset"]


def test_a_clone_and_a_delete(admin: Watched, scene: Scene) -> None:
    """The clone is confirmed by its own name."""
    group, copy = "plain-014", "copy of plain-014"
    form(admin, group)
    admin.page.get_by_label("The other group").fill(copy)
    admin.page.get_by_role("button", name="Show what a clone would change").click()
    confirm(admin, copy)
    expect(admin.page.locator("#outcome")).to_contain_text("Done.")
    assert scene.offsets(copy) == scene.offsets(group)
    form(admin, group)
    admin.page.get_by_role("button", name="Show what a delete would remove").click()
    expect(admin.page.locator("#plan")).to_contain_text("deleted")
    confirm(admin, group)
    expect(admin.page.locator("#outcome")).to_contain_text("Done.")
    assert scene.offsets(group) == {}


def test_a_group_over_two_adapters_is_reset_at_both(admin: Watched, scene: Scene) -> None:
    """Each shard by its owner."""
    scene.commit("two", {"a": 50}, at=0)
    scene.commit("two", {"b": 60}, at=1)
    admin.open("/change", group="two")
    admin.page.get_by_label("by a number of messages").check()
    admin.page.get_by_label("Number of messages", exact=True).fill("-10")
    admin.page.get_by_role("button", name="Show what a reset would change").click()
    confirm(admin, "two")
    expect(admin.page.locator("#outcome")).to_contain_text("Done. 2 offsets")
    assert (scene.offsets("two", 0)["a"], scene.offsets("two", 1)["b"]) == (40, 50)


def test_a_file_resets_each_shard(admin: Watched, scene: Scene, tmp_path: Path) -> None:
    """As the command reads it; a bad one comes back with the line that is wrong."""
    group, plan = "plain-016", tmp_path / "plan.csv"
    admin.refusals = [400]
    for text in ("t,0,1\nt,one,2\n", "t,0,1\nt,1,2\n"):
        plan.write_text(text)
        form(admin, group)
        admin.page.get_by_label("the offsets in a file").check()
        admin.page.get_by_label("File", exact=True).set_input_files(plan)
        admin.page.get_by_role("button", name="Show what a reset would change").click()
        if "one" in text:
            expect(admin.page.get_by_role("alert")).to_contain_text("line 2")
    confirm(admin, group)
    expect(admin.page.locator("#outcome")).to_contain_text("Done.")
    assert scene.offsets(group) == {"t/0": 1, "t/1": 2}


def test_hostile_names_are_changed_as_what_they_are(admin: Watched, scene: Scene) -> None:
    """They are text on every page, and are typed as they are shown."""
    for group in HOSTILE[:4]:
        reset_to(admin, group, 2)
        assert admin.page.title() != "hit"
        shown = admin.page.locator("#confirm-form strong").inner_text()
        confirm(admin, shown)
        expect(admin.page.locator("#outcome")).to_contain_text("Done.")
        assert scene.offsets(group) == {group: 2}
        assert admin.page.title() != "hit"


def test_an_open_form_of_an_ended_session_changes_nothing(admin: Watched, browser: Browser, scene: Scene) -> None:
    """The page says so; and a form that another site sends has no session at all."""
    group = "plain-018"
    reset_to(admin, group, 1)
    with watching(browser, scene.console, cookies_of=admin.page.context) as other:
        other.open("/groups")
        other.page.get_by_role("button", name="Log out").click()
    admin.refusals = [401]
    confirm(admin, group)
    expect(admin.page.locator("main")).to_contain_text("your session has ended")
    assert scene.offsets(group)["t/1"] == 1_000


def test_a_form_of_another_site_is_refused(admin: Watched, scene: Scene) -> None:
    """Even one that knows everything but the session: the cookie is not sent, and the origin is another one."""
    group = "plain-020"
    reset_to(admin, group, 1)
    names = {name: admin.page.locator(f"#confirm-form [name={name}]").input_value() for name in ("form_token", "id", "seen")}
    fields = "".join(f'<input name="{name}" value="{value}">' for name, value in {**names, "confirm": group}.items())
    other = admin.page.context.new_page()
    other.set_content(f'<form method="post" action="{scene.console}/change/execute">{fields}<button>go</button></form>')
    with other.expect_response("**/change/execute") as answered:
        other.get_by_role("button").click()
    assert answered.value.status == 403
    assert scene.offsets(group)["t/1"] == 1_000


def test_with_the_keyboard_alone(admin: Watched, scene: Scene) -> None:
    """From the form to the result."""
    group, keyboard = "plain-022", admin.page.keyboard
    admin.open("/change", namespace="default", group=group)
    admin.page.locator("#to-shift").focus()
    keyboard.press("Space")
    keyboard.press("Tab")
    while admin.page.evaluate("document.activeElement.name") != "shift":
        keyboard.press("Tab")
    keyboard.type("-5")
    keyboard.press("Enter")
    expect(admin.page.locator("#plan")).to_be_visible()
    admin.page.locator("#main").focus()
    for _ in range(20):
        keyboard.press("Tab")
        if admin.page.evaluate("document.activeElement.id") == "confirm":
            break
    keyboard.type(group)
    keyboard.press("Enter")
    expect(admin.page.locator("#outcome")).to_contain_text("Done.")
    assert scene.offsets(group)["t/1"] == 995


def test_without_javascript(browser: Browser, scene: Scene) -> None:
    """Login, reset and logout are forms."""
    group = "plain-024"
    with watching(browser, scene.console, java_script_enabled=False) as page:
        page.login(ADMIN)
        reset_to(page, group, 77)
        confirm(page, group)
        expect(page.page.locator("#outcome")).to_contain_text("Done.")
        page.page.get_by_role("button", name="Log out").click()
        expect(page.page.locator("h1")).to_have_text("Log in")
    assert set(scene.offsets(group).values()) == {77}


@pytest.mark.parametrize(("scheme", "size"), looks("light-wide"))
def test_every_page_of_a_change_is_accessible_and_fits(browser: Browser, scene: Scene, scheme: str, size: dict[str, int]) -> None:
    """Axe-core finds nothing serious on the login, the form, a problem, the dry run and the result."""
    group = "plain-026"
    with watching(browser, scene.console, color_scheme=scheme, viewport=size) as page:
        page.refusals = [400]

        def look() -> None:
            page.fits()
            page.accessible()

        page.open("/login")
        look()
        page.login(ADMIN)
        form(page, group)
        look()
        page.page.locator("#to-time").check()
        page.page.get_by_role("button", name="Show what a reset would change").click()
        expect(page.page.get_by_role("alert")).to_be_visible()
        look()
        reset_to(page, group, 100)
        look()
        confirm(page, group)
        expect(page.page.locator("#outcome")).to_contain_text("Done.")
        look()
