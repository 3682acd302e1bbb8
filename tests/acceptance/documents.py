"""The how-to documents, their sections and their blocks of code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOW_TO = (ROOT / "docs" / "how-to.md").read_text()
CONSUMERS = (ROOT / "docs" / "consumers.md").read_text()


def section(title: str, page: str = HOW_TO) -> str:
    """The text below a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    """The code in it, one item per block."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
