"""Options that several commands share; each has one meaning everywhere."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from adapter.cli.connection import Target
from adapter.cli.output import CSV, JSON, TABLE, Form, warn
from adapter.errors import InvalidInputError
from adapter.model.records import U64_MAX
from adapter.runtime.settings.addresses import ADAPTER_LISTEN, ADAPTER_SOCKET, META_LISTEN

if TYPE_CHECKING:  # loads pydantic, which a command without TLS does not need
    from adapter.runtime.settings.config import ClientTls


def default_address() -> str:
    """The default Unix socket if it exists in the working directory, otherwise the default TCP address."""
    with suppress(PermissionError):
        if Path(ADAPTER_SOCKET).is_socket():
            return f"unix:{ADAPTER_SOCKET}"
    return ADAPTER_LISTEN


topics = click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="All shards of this topic: labelled with it, or named TOPIC/N. Repeatable.",
)
execute = click.option(
    "--execute", is_flag=True, help="Make the change. Without this it is a dry run that only shows the change."
)
accept_unterminated = click.option(
    "--accept-unterminated", is_flag=True, help="Accept a CSV file whose last line has no line end, as one that was cut may look."
)
as_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
namespace = click.option("--namespace", "-n", default="default", show_default=True, help="The groups' namespace.")

FILE = click.Path(path_type=Path, dir_okay=False)

config = click.option("--config", type=FILE, help="A TOML file; without it every setting has its default.")

_output = click.option(
    "--output",
    type=click.Choice(get_args(Form)),
    default=TABLE,
    show_default=True,
    help="table: columns at a terminal, tabs in a pipe; json, csv: fields as in docs/output.md.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Short for --output json.")

_address = click.option(
    "--address",
    default=default_address,
    show_default=f"unix:{ADAPTER_SOCKET} if it is there, else {ADAPTER_LISTEN}",
    envvar="OFFSET_ADAPTER_ADDRESS",
    help="The adapter: unix:PATH or HOST:PORT. [env: OFFSET_ADAPTER_ADDRESS]",
)
_meta_address = click.option(
    "--address",
    default=META_LISTEN,
    show_default=True,
    envvar="OFFSET_META_ADDRESS",
    help="The Meta Service: unix:PATH or HOST:PORT. [env: OFFSET_META_ADDRESS]",
)
_token_file = click.option(
    "--token-file",
    type=FILE,
    envvar="OFFSET_ADAPTER_TOKEN_FILE",
    help="A file with the token that the adapter requires on HOST:PORT (not on a Unix socket). [env: OFFSET_ADAPTER_TOKEN_FILE]",
)
_tls = (
    click.option("--tls-ca", type=FILE, help="Use TLS on HOST:PORT and verify the server with this CA certificate. PEM."),
    click.option("--tls-cert", type=FILE, help="The client certificate (mTLS). PEM."),
    click.option("--tls-key", type=FILE, help="The key of the client certificate. PEM."),
)


def form(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds `--output` and its short form `--json` to a listing, and passes them to it as `form`."""

    @wraps(command)
    def with_form(*, output: Form, as_json: bool, **others: object) -> object:
        if as_json and output == CSV:
            raise InvalidInputError("--json and --output csv: name one of them")
        return command(form=JSON if as_json else output, **others)

    return _output(_json(with_form))


def _as_target(*given: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds these options to a command and passes them to it as one argument `target`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_target(
            *,
            address: str,
            tls_ca: Path | None,
            tls_cert: Path | None,
            tls_key: Path | None,
            token_file: Path | None = None,
            **others: object,
        ) -> object:
            return command(target=Target(address, token_file, _tls_of(ca=tls_ca, cert=tls_cert, key=tls_key)), **others)

        for option in reversed(given):
            with_target = option(with_target)
        return with_target

    return decorate


def _tls_of(**files: Path | None) -> "ClientTls | None":
    named = {name: path for name, path in files.items() if path}
    if not named:
        return None
    from adapter.runtime.settings.config import ClientTls, parse  # noqa: PLC0415 - takes 100 ms to import

    return parse(named, ClientTls, source="--tls-ca, --tls-cert, --tls-key")


def parse_offset(text: str, field: str) -> int:
    """An offset as typed: decimal digits, 0 to 2^64 - 1. Raises InvalidInputError."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(U64_MAX)) or int(text) > U64_MAX:
        raise InvalidInputError(f"{field}: {text!r} is not a whole number from 0 to {U64_MAX}")
    return int(text)


def check_unterminated(cut: str, *, execute: bool, accepted: bool) -> None:
    """Warn of a file that may be cut; `cut` says where. Raises InvalidInputError instead when it is to be executed."""
    if accepted:
        return
    if execute:
        raise InvalidInputError(f"{cut}; nothing was sent. If the file is whole, add --accept-unterminated")
    warn(f"{cut}; --execute takes it only with --accept-unterminated")


target = _as_target(_address, _token_file, *_tls)  # for commands that call OffsetAdmin
target_without_token = _as_target(_address, *_tls)
meta_target = _as_target(_meta_address, *_tls)  # for commands that call a Meta Service
