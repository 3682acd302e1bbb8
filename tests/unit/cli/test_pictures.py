"""The pictures of commands in the documents: small, complete in themselves, shown by a page, and with today's columns."""

import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import pytest

from adapter.cli.columns import CORE
from adapter.cli.groups.show import DESCRIBE_COLUMNS, LIST_COLUMNS
from demo.pictures import DRAWN, PICTURES

DOCS = Path(__file__).parents[3] / "docs"
BYTES_MAX = 60_000


def words(picture: str) -> list[list[str]]:
    """Those of each line of an SVG, from above."""
    lines: dict[float, str] = {}
    for at, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        lines[float(at)] = lines.get(float(at), "") + unescape(text)
    return [lines[at].replace("\xa0", " ").split() for at in sorted(lines)]


@pytest.mark.parametrize(("name", "line"), DRAWN.items())
def test_a_picture_shows_its_command_and_is_shown(name: str, line: str) -> None:
    """`python -m demo.pictures` draws them. They load nothing from other hosts."""
    kept = (PICTURES / f"{name}.svg").read_text()
    assert len(kept) < BYTES_MAX
    assert ["$", "offset-adapter", *line.split()] in words(kept)
    assert {*re.findall(r"https?://[^\"' ]+", kept)} == {"http://www.w3.org/2000/svg"}
    assert sum(f"(pictures/{name}.svg)" in page.read_text() for page in DOCS.glob("*.md")) == 1


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("groups-list", list(LIST_COLUMNS.chosen(CORE).sides)),
        ("groups-describe", list(DESCRIBE_COLUMNS.chosen(CORE).sides)),
    ],
)
def test_a_picture_has_the_columns_of_the_table(name: str, columns: Sequence[str]) -> None:
    """Draw them anew when these change."""
    assert columns in words((PICTURES / f"{name}.svg").read_text())
