"""Options that several commands share; each has one meaning everywhere."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from adapter.cli import completing, contexts, watch, whom
from adapter.cli.columns import Asked
from adapter.cli.output import CSV, JSON, TABLE, Form, warn
from adapter.cli.whom import ADAPTER_VARIABLE, META_VARIABLE
from adapter.errors import InvalidInputError
from adapter.model.records import ERA_BITS, LOWER_HALF, U64_MAX
from adapter.runtime.settings.addresses import ADAPTER_LISTEN, ADAPTER_SOCKET, META_LISTEN, check_target

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
namespace = click.option(
    "--namespace", "-n", default="default", show_default=True, shell_complete=completing.namespace, help="The groups' namespace."
)
only_namespace = click.option("--namespace", "-n", default="", shell_complete=completing.namespace, help="Only this namespace.")
group = click.argument("group", shell_complete=completing.group)
shards = click.argument("shards", nargs=-1, shell_complete=completing.shard)

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

_wide = click.option("--wide", is_flag=True, help="All columns of the table.")
_columns = click.option("--columns", default="", metavar="NAME,...", help="These columns of the table, in this order.")

_context = click.option(
    "--context",
    "context_name",
    metavar="NAME",
    shell_complete=completing.context,
    help=f"The context that says whom to call and with what; an empty NAME is none. [env: {contexts.VARIABLE}]",
)
context = _context  # for a command that looks at servers without calling one of them by an address
_address = click.option(
    "--address",
    show_default=f"that of the context, else unix:{ADAPTER_SOCKET} if it is there, else {ADAPTER_LISTEN}",
    envvar=ADAPTER_VARIABLE,
    help=f"The adapter: unix:PATH or HOST:PORT. [env: {ADAPTER_VARIABLE}]",
)
_meta_address = click.option(
    "--address",
    show_default=f"that of the context, else {META_LISTEN}",
    envvar=META_VARIABLE,
    help=f"The Meta Service: unix:PATH or HOST:PORT. [env: {META_VARIABLE}]",
)
meta_instead = click.option(
    "--meta",
    metavar="[ADDRESS]",
    help=f"Ask the Meta Service instead: at ADDRESS, else as `meta status` finds it. [env: {META_VARIABLE}]",
)
cluster = click.option("--cluster", default="default", show_default=True, help="With --meta: the cluster.")
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


class MetaCommand(click.Command):
    """A command with `meta_instead`, whose ADDRESS may be left out: the next word is one only if it cannot be an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        has_arguments = any(isinstance(each, click.Argument) for each in self.params)
        is_address = _is_address if has_arguments else _is_word
        end = args.index("--") if "--" in args else len(args)
        given = ["--meta=" if word == "--meta" and not is_address(args[at + 1 : end]) else word for at, word in enumerate(args)]
        return super().parse_args(ctx, given[:end] + args[end:])


def _is_word(words: Sequence[str]) -> bool:
    return bool(words) and not words[0].startswith("-")


def _is_address(words: Sequence[str]) -> bool:
    try:
        return bool(words) and bool(check_target(words[0]))
    except ValueError:
        return False


def columns(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds `--wide` and `--columns` to a listing, before `form`, and passes them to it as `columns`."""

    @wraps(command)
    def with_columns(*, wide: bool, columns: str, **others: object) -> object:
        names = [name.strip() for name in columns.split(",") if name.strip()]
        if names and (others["as_json"] or others["output"] != TABLE):
            raise InvalidInputError("--columns: is for tables; JSON and CSV have all fields")
        return command(columns=Asked(wide, names), **others)

    return _wide(_columns(with_columns))


def _as_target(*given: Callable[..., Any], of_meta: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds these options to a command and passes them to it as one argument `target`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_target(
            *,
            context_name: str | None,
            address: str | None,
            tls_ca: Path | None,
            tls_cert: Path | None,
            tls_key: Path | None,
            token_file: Path | None = None,
            **others: object,
        ) -> object:
            context = click.get_current_context()
            given = {"token_file": token_file, "tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
            instead = others.get("meta")
            if isinstance(instead, str):
                target = whom.target_of(context, context_name, instead, given, typed=bool(instead), of_meta=True)
            else:
                target = whom.target_of(context, context_name, address, given, typed=_was_typed(context), of_meta=of_meta)
            if not (others.get("as_json") or others.get("output") in {JSON, CSV} or others.get("fleet")):
                watch.tell_whom(target)
            return command(target=target, **others)

        for option in reversed((*given, *_tls, _context)):
            with_target = option(with_target)
        return with_target

    return decorate


def _was_typed(context: click.Context) -> bool:
    return context.get_parameter_source("address") is ParameterSource.COMMANDLINE


def parse_offset(text: str, field: str) -> int:
    """An offset as typed: decimal digits, 0 to 2^64 - 1. Raises InvalidInputError."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(U64_MAX)) or int(text) > U64_MAX:
        raise InvalidInputError(f"{field}: {text!r} is not a whole number from 0 to {U64_MAX}")
    return int(text)


def parse_epoch(text: str, field: str) -> int:
    """An epoch as typed: era.rewind, as tables show it, or the number that JSON has. Raises InvalidInputError."""
    era, dot, rewind = text.partition(".")
    if not dot:
        return parse_offset(text, field)
    numbers = [
        int(part) if part.isascii() and part.isdecimal() and len(part) <= len(str(LOWER_HALF)) else -1 for part in (era, rewind)
    ]
    if not all(0 <= number <= LOWER_HALF for number in numbers):
        raise InvalidInputError(f"{field}: {text!r} is no epoch: era.rewind, each a whole number from 0 to {LOWER_HALF}")
    return numbers[0] << ERA_BITS | numbers[1]


def check_unterminated(cut: str, *, execute: bool, accepted: bool) -> None:
    """Warn of a file that may be cut; `cut` says where. Raises InvalidInputError instead when it is to be executed."""
    if accepted:
        return
    if execute:
        raise InvalidInputError(f"{cut}; nothing was sent. If the file is whole, add --accept-unterminated")
    warn(f"{cut}; --execute takes it only with --accept-unterminated")


target = _as_target(_address, _token_file)  # for commands that call OffsetAdmin
target_without_token = _as_target(_address)
meta_target = _as_target(_meta_address, of_meta=True)  # for commands that call a Meta Service
