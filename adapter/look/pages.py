"""What pages are made with: templates in which every text is escaped, the style, and ids for names that may hold anything."""

import hashlib
from pathlib import Path

import jinja2

from adapter.look import shown

STATIC = Path(__file__).parent / "static"


def environment(package: str) -> jinja2.Environment:
    """The templates in the directory `templates` of a package, and those of this one; with the filters of `shown`."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("adapter.look")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(shown.FILTERS)
    return made


def style() -> str:
    """The style sheet, for a page that has it inside."""
    return (STATIC / "look.css").read_text(encoding="utf-8")


def row_id(prefix: str, *names: str) -> str:
    """The id of a row, the same whenever and wherever it is made: names may hold anything, an id may not."""
    found = hashlib.blake2b(digest_size=8)
    for name in names:
        data = name.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(4, "big") + data)
    return f"{prefix}-{found.hexdigest()}"
