"""What commands print besides tables: results on standard output; notes, warnings and progress on standard error.

Texts from outside are printed through `visible`, so that they cannot control the terminal.
"""

import base64
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import click

from adapter.cli.table import JsonRows, Rows, Side, Table, visible

if TYPE_CHECKING:  # only names of types: the commands that print no messages do not load protobuf
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

R = TypeVar("R")


def tell(text: str) -> None:
    """Print one line of a result to standard output."""
    click.echo(visible(text))


def warn(text: str) -> None:
    """Print a warning to standard error."""
    note(f"warning: {text}", style="yellow")


def note(text: str, style: str | None = None) -> None:
    """Print one line to standard error, so that standard output holds results only."""
    sys.stdout.flush()  # keeps the order of lines at a terminal
    click.secho(visible(text), err=True, fg=style)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if it is a terminal and `total` is unknown (None) or above 1. Yields `advance(count)`."""
    if total in {0, 1} or not _is_watched():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - takes 50 ms to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Rich must not redirect standard output: it may be a file, or a pipe into a script that reads JSON.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def as_dict(message: "Message") -> dict[str, Any]:
    """A message for JSON: every field except absent optional ones. 64-bit numbers stay numbers, bytes become base64."""
    values: dict[str, Any] = {}
    for name, optional, plain in _fields(message.DESCRIPTOR):
        if not optional or message.HasField(name):
            value = getattr(message, name)
            values[name] = value if plain is None else plain(value)
    return values


def listing(
    columns: "Mapping[str, Side]",
    cells: "Callable[[R], Sequence[str]]",
    *,
    as_json: bool,
    values: "Callable[[Any], Mapping[str, Any]]" = as_dict,
) -> Rows[R]:
    """A printer of rows: a table of their `cells`, or JSON of their `values`."""
    return JsonRows[R](values) if as_json else Table[R](columns, cells)


def _plain(field: "FieldDescriptor") -> Callable[[Any], Any] | None:
    one: Callable[[Any], Any] | None = None
    if field.message_type is not None:
        one = as_dict
    elif field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        one = names.__getitem__
    elif field.type == field.TYPE_BYTES:
        one = _base64
    if field.is_repeated:
        return list if one is None else lambda values: [one(value) for value in values]
    return one


def when(unix_ms: int) -> str:
    """A Unix time in milliseconds as local time; empty for 0, which means unknown."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000)) if unix_ms else ""


def _is_watched() -> bool:
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))


@cache
def _fields(descriptor: "Descriptor") -> list[tuple[str, bool, Callable[[Any], Any] | None]]:
    """For each field: its name, whether it can be absent, and the conversion of its value for JSON (None: none)."""
    return [(field.name, field.has_presence, _plain(field)) for field in descriptor.fields]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
