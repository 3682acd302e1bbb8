"""Pages of the documents, their sections, commands and blocks of code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    """One of docs/, without its ending."""
    return (ROOT / "docs" / f"{name}.md").read_text()


def section(title: str, text: str) -> str:
    """What is below a heading of a page."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    """The code in it, one item per block."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
