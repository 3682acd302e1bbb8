"""What the commands share: calling an adapter, sentences for a person, protobuf messages as JSON."""

import asyncio
import base64
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import grpc
import grpc.aio

from adapter.cli.table import JsonRows, Rows, Side, Table, print_json, visible
from adapter.client import OffsetClient
from adapter.errors import AdapterError
from adapter.failures import FAILED, META_SERVICE
from adapter.secret_files import read_token
from adapter.wording import counted

if TYPE_CHECKING:  # a command without TLS does without what checks settings
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

    from adapter.config import ClientTls

__all__ = [
    "CallError",
    "Target",
    "as_dict",
    "connected",
    "counted",
    "listing",
    "note",
    "print_json",
    "progress",
    "run",
    "tell",
    "warn",
    "when",
]

R = TypeVar("R")


class CallError(AdapterError):
    """A call of a tool failed."""


class Target(NamedTuple):
    """Which adapter a command calls, how it is verified, and the file with the token that it is shown."""

    address: str
    token_file: Path | None = None
    tls: "ClientTls | None" = None


def run(tool: Callable[..., Coroutine[Any, Any, R]], *arguments: object, **switches: object) -> R:
    """Run a tool to its end."""
    return asyncio.run(tool(*arguments, **switches))


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[OffsetClient]:
    """A client of an adapter. What fails while it is used is raised as a CallError, a bad file as a ConfigError."""
    token = read_token(target.token_file, "--token-file") if target.token_file else ""
    try:
        async with OffsetClient.connect(target.address, token=token, tls=target.tls) as client:
            yield client
    except grpc.aio.AioRpcError as error:
        raise CallError(f"{target.address}: {error.code().name}: {error.details()}{_who_failed(error)}") from error


def _who_failed(error: grpc.aio.AioRpcError) -> str:
    """Who did not answer: the adapter itself, or somebody whom it asked, as it says in its answer."""
    failed = dict(error.trailing_metadata() or ()).get(FAILED)
    if failed == META_SERVICE:
        return "; the adapter answers, the Meta Service does not"
    if failed is not None:
        return ""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return "; is the adapter running there, and ready? (--address)"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "; the adapter did not answer in time"
    return ""


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


def _person_looks() -> bool:
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))


def as_dict(message: "Message") -> dict[str, Any]:
    """A message for a script: every field, but those that can be absent and are. Numbers are numbers, also those of 64 bits."""
    values: dict[str, Any] = {}
    for name, optional, plain in _fields(message.DESCRIPTOR):
        if not optional or message.HasField(name):
            value = getattr(message, name)
            values[name] = value if plain is None else plain(value)
    return values


@cache
def _fields(descriptor: "Descriptor") -> list[tuple[str, bool, Callable[[Any], Any] | None]]:
    """Of each field the name, whether it can be absent, and what JSON needs made of its value."""
    return [(field.name, field.has_presence, _plain(field)) for field in descriptor.fields]


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


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def listing(
    columns: "Mapping[str, Side]",
    cells: "Callable[[R], Sequence[str]]",
    *,
    as_json: bool,
    values: "Callable[[Any], Mapping[str, Any]]" = as_dict,
) -> Rows[R]:
    """What rows go to: a table of `cells`, or JSON of `values`."""
    return JsonRows[R](values) if as_json else Table[R](columns, cells)


def when(unix_ms: int) -> str:
    """A Unix time in milliseconds as local time; 0 is unknown, and empty."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000)) if unix_ms else ""
