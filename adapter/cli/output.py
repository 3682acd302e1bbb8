"""What commands print besides tables: results on standard output; notes, warnings and progress on standard error.

Texts from outside are printed through `visible`, so that they cannot control the terminal.
"""

import base64
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from adapter.cli import terminal
from adapter.cli.columns import Chosen
from adapter.cli.table import LEFT, CsvRows, JsonRows, Rows, Side, Table, print_json, print_table
from adapter.cli.terminal import visible

if TYPE_CHECKING:  # only names of types: the commands that print no messages do not load protobuf
    from collections.abc import Iterable, Mapping, Sequence

    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.message import Message

R = TypeVar("R")

Form = Literal["table", "json", "csv"]  # of a listing: --output
TABLE: Final = "table"
JSON: Final = "json"
CSV: Final = "csv"


def tell(text: str) -> None:
    """Print one line of a result to standard output."""
    click.echo(visible(text))


def warn(text: str) -> None:
    """Print a warning to standard error."""
    note(f"warning: {text}", style="yellow")


def note(text: str, style: str | None = None) -> None:
    """Print one line to standard error, so that standard output holds results only."""
    sys.stdout.flush()  # keeps the order of lines at a terminal
    if style:
        click.secho(visible(text), err=True, fg=style, color=terminal.colour())
    else:
        click.echo(visible(text), err=True)  # secho would write an escape behind it


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


def fields_of(kind: "type[Message]") -> list[str]:
    """The names of a message's fields, as `as_dict` has them."""
    return [name for name, _, _ in _fields(kind.DESCRIPTOR)]


def listing(
    form: Form,
    columns: "Mapping[str, Side] | Chosen",
    cells: "Callable[[R], Sequence[str]]",
    fields: "Sequence[str]",
    values: "Callable[[R], Mapping[str, Any]]" = as_dict,  # type: ignore[assignment] # for rows that are messages
) -> Rows[R]:
    """A printer of rows: a table of their `cells`, JSON of their `values`, or CSV of these `fields` of their `values`.

    With Chosen columns, `cells` has those of all columns.
    """
    if form == JSON:
        return JsonRows[R](values)
    if form == CSV:
        return CsvRows[R](fields, values)
    if isinstance(columns, Chosen):
        return Table[R](columns.sides, lambda row: columns.of(cells(row)), spare=columns.spare)
    return Table[R](columns, cells)


def show_object(
    form: Form, values: "Mapping[str, Any]", rows: "Iterable[tuple[str, str]]", names: tuple[str, str] = ("status", "value")
) -> None:
    """Print one object: its `rows` as a table of two columns, its `values` as JSON, or these as CSV of field and value."""
    if form == JSON:
        print_json(values)
    elif form == TABLE:
        print_table(dict.fromkeys(names, LEFT), rows, prose=True)
    else:
        with CsvRows[tuple[str, Any]](("field", "value"), lambda row: dict(zip(("field", "value"), row, strict=True))) as lines:
            for row in flattened(values):
                lines.add(row)


def flattened(values: "Mapping[str, Any]", prefix: str = "") -> "Iterator[tuple[str, Any]]":
    """The values of an object and of the objects in it, each with its name: `recovery.seconds`. An empty object is a value."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _plain(field: "FieldDescriptor") -> Callable[[Any], Any] | None:
    one: Callable[[Any], Any] | None = None
    if field.message_type is not None:
        one = as_dict
    elif field.enum_type is not None:
        one = partial(enum_name, field.enum_type)
    elif field.type == field.TYPE_BYTES:
        one = _base64
    if field.is_repeated:
        return list if one is None else lambda values: [one(value) for value in values]
    return one


def enum_name(kind: "EnumDescriptor", number: int) -> str:
    """The name of a value of an enum; the number, if it is one of a later version."""
    value = kind.values_by_number.get(number)
    return value.name if value else str(number)


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
