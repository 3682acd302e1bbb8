"""Every link of the documents to a file and to a heading leads somewhere, and so does every page that the code names."""

import os
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = {"build", "dist", "node_modules", "target", "venv"}  # what builds and runs leave behind
NAMED = re.compile(r"\bdocs/[\w./-]+\.(?:md|png|svg)\b")


def files(*endings: str) -> list[Path]:
    """Of the repository, by how their names end."""
    found = []
    for place, directories, names in os.walk(ROOT):
        directories[:] = [name for name in directories if name not in MADE and not name.startswith((".", "__"))]
        found += [Path(place, name) for name in names if name.endswith(endings)]
    return sorted(found)


def prose(text: str) -> str:
    """Without the blocks of code."""
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """As GitHub makes them of the headings: a repeated one has a number."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *$", prose(page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def wrong(page: Path, text: str) -> list[str]:
    """The links in it that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text))):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


def test_every_link_of_a_page_leads_somewhere() -> None:
    """To a file, and to a heading where it names one."""
    pages = files(".md")
    assert len(pages) > 50
    assert {str(page.relative_to(ROOT)): found for page in pages if (found := wrong(page, page.read_text()))} == {}


def test_pages_that_the_code_names_exist() -> None:
    """In comments, messages and settings."""
    named = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(".py", ".toml", ".yaml", ".service", ".sh", ".go", ".rs", ".java", ".proto")
        for name in NAMED.findall(path.read_text())
        if not (ROOT / name).exists()
    }
    assert named == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](test_none.md)", ["test_none.md"]),
        ("[a](#none) [b](#here-too-1)", ["#none"]),
        ("`[a](none.md)` and\n```\n[b](none.md)\n```\n[c](https://none.example)", []),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, text: str, found: list[str]) -> None:
    """And code is no link."""
    page = tmp_path / "page.md"
    page.write_text("# Here, too\n\n## `Here`, too\n")
    assert wrong(page, text) == found
