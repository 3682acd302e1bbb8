"""The picture in the documents is what `top` looks like."""

import importlib.util
import re
from html import unescape
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[4] / "docs"


def drawing() -> ModuleType:
    """The program that draws it."""
    spec = importlib.util.spec_from_file_location("top_picture", DOCS / "top_picture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(picture: str) -> list[str]:
    """The texts of an SVG."""
    return [unescape(text) for text in re.findall(r"<text [^>]*>(.*?)</text>", picture)]


async def test_the_picture_shows_the_table_as_it_is() -> None:
    """Drawn anew it has the same texts: `python docs/top_picture.py` after a change of the table. It loads nothing."""
    kept = (DOCS / "top.svg").read_text()
    assert texts(await drawing().drawn()) == texts(kept)
    assert len(texts(kept)) > 50
    assert {*re.findall(r"https?://[^\"' ]+", kept)} == {"http://www.w3.org/2000/svg"}
    assert "(top.svg)" in (DOCS / "watch-lag.md").read_text()
