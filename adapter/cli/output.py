"""What the command prints beside tables: results, notes, warnings, progress."""

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
    """Print a sentence."""
    click.echo(visible(text))


def warn(text: str) -> None:
    """Print a warning to standard error."""
    note(f"warning: {text}", style="yellow")


def note(text: str, style: str | None = None) -> None:
    """Print a sentence to standard error, where it does not disturb what is on standard output."""
    sys.stdout.flush()  # at a terminal, what came before stands before it
    click.secho(visible(text), err=True, fg=style)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while there is more than one thing to do (None: nobody knows how many), if a person looks at it."""
    if total in {0, 1} or not _person_looks():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - 50 ms, which a script does not wait for
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Standard output stays what it is: it may be a file, or a script that reads JSON.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def as_dict(message: "Message") -> dict[str, Any]:
    """A message for a script: every field, but those that can be absent and are. Numbers are numbers, also those of 64 bits."""
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
    """A Unix time in milliseconds as local time; 0 is unknown, and empty."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000)) if unix_ms else ""


def _person_looks() -> bool:
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))


@cache
def _fields(descriptor: "Descriptor") -> list[tuple[str, bool, Callable[[Any], Any] | None]]:
    """Of each field the name, whether it can be absent, and what JSON needs made of its value."""
    return [(field.name, field.has_presence, _plain(field)) for field in descriptor.fields]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
