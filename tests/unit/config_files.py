"""The example configuration files: their settings, comments and examples."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

TABLES = {"meta.topics"}  # settings whose keys a user chooses

FILES = Path(__file__).parents[2] / "config"


def with_examples(name: str) -> str:
    """A file with the settings that it only shows in comments."""
    text = (FILES / name).read_text()
    return re.sub(r"(?m)^# (?=\[[a-z\[.\]]+$|[a-z_]+ = )", "", text)


def settings(kind: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting below a section, by its dotted name."""
    for name, field in kind.model_fields.items():
        section = next(iter(models_in(field.annotation)), None)
        if section:
            yield from settings(section, f"{path}{name}.")
        else:
            yield f"{path}{name}", field


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in an annotation: itself, optional, or many."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def names_in(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """Every setting of a parsed file, by its dotted name."""
    for name, value in values.items():
        inner = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
        if isinstance(inner, dict) and f"{path}{name}" not in TABLES:
            yield from names_in(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def comment_above(text: str, name: str) -> str:
    """The comment lines directly above a setting."""
    section, _, field = name.rpartition(".")
    below = text[text.index(f"[{section}]") :]
    found = re.search(rf"((?:^#.*\n)+)(?:^[a-z_]+ = .*\n)*?^{field} = ", below, re.MULTILINE)
    assert found, f"{name} has no comment"
    return found[1]
