"""One scene and one browser for each module: what one changes, another one does not see."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.scene import Scene, running
from tests.browser.watched import LIMIT_MS, chromium, launched

expect.set_options(timeout=LIMIT_MS)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The processes."""
    chromium()
    with running(tmp_path_factory.mktemp("b")) as found:
        yield found


@pytest.fixture(scope="module")
def browser(scene: Scene) -> Iterator[Browser]:
    """A browser."""
    del scene  # first, so that it is ended last
    with launched() as found:
        yield found
