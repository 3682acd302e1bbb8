"""Writes the reference of all RPCs and messages as Markdown, from proto/*.proto with their comments.

A parser of as much of the language as these files use. What it finds is compared with the descriptors of the generated code, so
that nothing can be missing: a difference is an error.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

PAGES = {  # file -> the page's heading for it
    "offsets": "The adapter: offsets.proto",
    "lag": "Live lag: lag.proto",
    "meta_service": "The Meta Service: meta_service.proto",
    "metadata": "Metadata: metadata.proto",
    "backup": "Backups: backup.proto",
}
HEAD = """# RPC reference

Generated from the files in [proto](../proto/offsets.proto). Limits and errors are in [the adapter's API](api.md) and
[the Meta Service's](meta-api.md).
"""
MEMBERS = {"service": "call", "enum": "value", "message": "field"}
_FIELD = re.compile(r"(?:(repeated|optional)\s+)?([\w.]+)\s+(\w+)\s*=\s*(\d+)")
_MAP = re.compile(r"(map<\s*\w+\s*,\s*[\w.]+\s*>)\s+(\w+)\s*=\s*(\d+)")
_RPC = re.compile(r"rpc\s+(\w+)\s*\(\s*(stream\s+)?([\w.]+)\s*\)\s*returns\s*\(\s*(stream\s+)?([\w.]+)\s*\)")
_VALUE = re.compile(r"(\w+)\s*=\s*(\d+)")
_OPEN = re.compile(r"(service|message|enum|oneof)\s+(\w+)\s*\{(\})?")


@dataclass
class Item:
    """A service, message, enum or oneof, with its members: (name, what the table shows of it, comment)."""

    kind: str
    name: str
    comment: str
    members: list[tuple[str, str, str]] = field(default_factory=list)


def statements(text: str) -> Iterator[tuple[str, str]]:
    """Each statement on one line, with the comment before it or beside it. A brace that opens or closes ends a statement."""
    comment: list[str] = []
    code = ""
    for line in text.splitlines():
        bare, _, beside = line.strip().partition("//")
        if not bare:
            # A blank line parts a comment from what follows it.
            comment = [*comment, beside.strip()] if beside or line.strip() else []
            continue
        code = f"{code} {bare.strip()}".strip()
        if code.endswith((";", "{", "}")):
            yield code, " ".join(filter(None, [*comment, beside.strip()]))
            code, comment = "", []


def items(text: str) -> list[Item]:
    """All of a file, in its order; what is inside of another is named `Outer.Inner`. The members of a oneof are its message's."""
    found: list[Item] = []
    inside: list[Item] = []
    for code, comment in statements(text):
        if opened := _OPEN.match(code):
            names = [item.name for item in inside[-1:]]
            item = Item(opened[1], ".".join([*names, opened[2]]), comment)
            if item.kind == "oneof":
                item = Item("oneof", inside[-1].name, comment, inside[-1].members)
            else:
                found.append(item)
            if not opened[3]:
                inside.append(item)
        elif code.startswith("}"):
            inside.pop()
        elif inside:
            inside[-1].members.append(_member(inside[-1].kind, code, comment))
    return found


def _member(kind: str, code: str, comment: str) -> tuple[str, str, str]:
    if kind == "service" and (call := _RPC.match(code)):
        name, streams, request, streamed, reply = call.groups()
        return name, f"{streams or ''}`{request}` -> {streamed or ''}`{reply}`", comment
    if kind == "enum" and (value := _VALUE.match(code)):
        return value[1], value[2], comment
    if one := _MAP.match(code):
        return one[2], f"`{one[1]}`", comment
    if one := _FIELD.match(code):
        label = "oneof " if kind == "oneof" else f"{one[1]} " if one[1] else ""
        return one[3], f"{label}`{one[2]}`", comment
    raise ValueError(f"not understood: {code}")


def check(name: str, found: list[Item]) -> None:
    """Raise ValueError when the generated code has anything else."""
    descriptor = import_module(f"adapter.rpc.{name}_pb2").DESCRIPTOR
    there: dict[str, list[str]] = {}

    def note(message: Any, outer: str = "") -> None:  # noqa: ANN401 - protobuf's descriptors have no types here
        full = f"{outer}{message.name}"
        there[full] = [one.name for one in message.fields]
        there.update({f"{full}.{enum.name}": [value.name for value in enum.values] for enum in message.enum_types})
        for inner in message.nested_types:
            if not inner.GetOptions().map_entry:
                note(inner, f"{full}.")

    for message in descriptor.message_types_by_name.values():
        note(message)
    there.update({enum.name: [value.name for value in enum.values] for enum in descriptor.enum_types_by_name.values()})
    there.update({one.name: [method.name for method in one.methods] for one in descriptor.services_by_name.values()})
    here = {item.name: [member[0] for member in item.members] for item in found}
    if {key: sorted(value) for key, value in here.items()} != {key: sorted(value) for key, value in there.items()}:
        raise ValueError(f"proto/{name}.proto was not read as the generated code has it; here {here}, there {there}")


def _cell(text: str) -> str:
    """Text for a cell of a table: nothing in it is markup but code between backticks."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if at % 2 else re.sub(r"([*_<\[\]])", r"\\\1", part) for at, part in enumerate(parts))


def page(name: str, text: str) -> str:
    """One file as Markdown."""
    found = items(text)
    check(name, found)
    lines = [f"## {PAGES[name]}", ""]
    for item in found:
        lines += [f"### {item.kind} {item.name}", ""]
        lines += [_cell(item.comment), ""] if item.comment else []
        if item.members:
            lines += [f"| {MEMBERS[item.kind]} | | |", "| --- | --- | --- |"]
            lines += [f"| `{one}` | {what} | {_cell(comment)} |" for one, what, comment in item.members]
            lines.append("")
    return "\n".join(lines)


def write(protos: Path, target: Path) -> None:
    """Write the page, if it changes."""
    text = "\n".join([HEAD, *(page(name, (protos / f"{name}.proto").read_text(encoding="utf-8")) for name in PAGES)])
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")
