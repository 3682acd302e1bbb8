"""One scene for all tests of the browser, and one browser for each module."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser.scene import Scene, running
from tests.browser.watched import chromium, launched


@pytest.fixture(scope="session")
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
