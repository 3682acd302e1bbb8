"""Writes docs/pictures/console-*.png: `python -m tests.browser.pictures`. Small: few colours, and no more than what is told."""

import sys
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from adapter.rpc import offsets_pb
from adapter.testing.waiting import PATIENCE_S
from tests.browser.scene import ADMIN, Scene, running
from tests.browser.watched import Watched, launched, watching

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZE = {"width": 1100, "height": 640}
PHONE = {"width": 360, "height": 640}
WORK_S = 45.0  # of the load before the first picture, so that there is something to see
COLOURS = 64
BACK, LATER = 1_000, 200  # how far the reset goes, and what was read between it and the first commit behind it
STOPS_AT = 3_000  # of the load's count: from here on one group commits no more


class Load(threading.Thread):
    """Groups as in a day's work: most keep up, one falls behind, one is stuck, one has stopped."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(name="load", daemon=True)
        self._scene = scene
        self._ended = threading.Event()
        self.moved_by = 0  # where a reset has put the consumers of one group

    def run(self) -> None:
        """Commit until the end."""
        at = 1_000
        while not self._ended.wait(0.25):
            at += 50
            for number in range(6):
                self._scene.commit(f"orders-{number}", {"orders/0": at, "orders/1": at}, high=at, at=number % 2)
            self._scene.commit("payments", {"payments/0": 1_000 + (at - 1_000) // 2 + self.moved_by}, high=at)
            if at < STOPS_AT:
                self._scene.commit("invoices", {"invoices/0": at - 900}, high=at + 3_000)
            self._scene.commit("emails", {"emails/0": 700}, high=at)

    def end(self) -> None:
        """Stop committing."""
        self._ended.set()
        self.join()


def main() -> None:
    """Run the scene with load, and take the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="p") as directory, running(Path(directory), plain=0) as scene:
        load = Load(scene)
        load.start()
        try:
            time.sleep(WORK_S)
            request = offsets_pb.ResetOffsetsRequest(group="payments", shift_by=-BACK, execute=True)
            scene.admins[0].ResetOffsets(request, timeout=PATIENCE_S)
            load.moved_by = -BACK + LATER
            wanted = [offsets_pb.GroupShards(namespace="default", group="payments")]
            read = offsets_pb.ReadOffsetsRequest(groups=wanted, mode=offsets_pb.STORE)  # as consumers do when they start
            scene.stores[0].ReadOffsets(read, timeout=PATIENCE_S)
            with launched() as browser:
                for taken in (reading, changing):
                    taken(browser, scene)
        finally:
            load.end()


def reading(browser: Browser, scene: Scene) -> None:
    """Fleet, groups and a group; the groups in the dark, and on a phone."""
    with watching(browser, scene.reader, viewport=SIZE) as page:
        save(page.open("/").page, "fleet")
        save(page.open("/groups").page, "groups")
        page.open("/group", namespace="default", group="payments")
        expect(page.page.locator("svg.chart").first).to_be_visible(timeout=60_000)
        time.sleep(15)  # for some points of the chart
        save(page.page, "group", whole=True)
    with watching(browser, scene.reader, viewport=SIZE, color_scheme="dark") as page:
        save(page.open("/groups").page, "groups-dark")
    with watching(browser, scene.reader, viewport=PHONE) as page:
        save(page.open("/groups").page, "groups-phone")


def changing(browser: Browser, scene: Scene) -> None:
    """The login, the form, the dry run, and what came of it."""
    with watching(browser, scene.console, viewport=SIZE) as page:
        save(page.open("/login").page, "login")
        page.login(ADMIN)
        page.open("/change", namespace="default", group="invoices")
        page.page.locator("#to-shift").check()
        page.page.get_by_label("Number of messages", exact=True).fill("-20")
        save(page.page, "change")
        press(page, "Show what a reset would change")
        page.page.locator("#confirm").fill("invoices")
        save(page.page, "confirm")
        page.page.locator("#confirm-form button").click()
        expect(page.page.locator("#outcome")).to_contain_text("Done.")
        save(page.page, "done")


def press(page: Watched, name: str) -> None:
    """Press a button, and wait for the next page."""
    page.page.get_by_role("button", name=name).click()
    page.page.wait_for_load_state("load")


def save(page: Page, name: str, *, whole: bool = False) -> None:
    """Take a picture, and make it small."""
    from PIL import Image  # noqa: PLC0415 - comes with matplotlib, of the group `pipeline`

    path = PICTURES / f"console-{name}.png"
    page.wait_for_timeout(500)
    page.screenshot(path=path, full_page=whole)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    sys.stdout.write(f"{path.relative_to(PICTURES.parents[1])}: {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
