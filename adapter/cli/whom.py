"""Whom a command calls: by an option, the environment, a context or the default, and with which token and certificates."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from adapter.cli import contexts
from adapter.cli.connection import Target
from adapter.cli.contexts import Context
from adapter.errors import ConfigError
from adapter.runtime.settings.addresses import ADAPTER_LISTEN, ADAPTER_SOCKET, META_LISTEN

if TYPE_CHECKING:  # loads pydantic, which a command without TLS does not need
    from adapter.runtime.settings.config import ClientTls

ADAPTER_VARIABLE, META_VARIABLE = "OFFSET_ADAPTER_ADDRESS", "OFFSET_META_ADDRESS"


def default_address() -> str:
    """The default Unix socket if it exists in the working directory, otherwise the default TCP address."""
    with suppress(PermissionError):
        if Path(ADAPTER_SOCKET).is_socket():
            return f"unix:{ADAPTER_SOCKET}"
    return ADAPTER_LISTEN


def target_of(
    command: click.Context,
    context_name: str | None,
    address: str | None,
    files: Mapping[str, Path | None],
    *,
    typed: bool,
    of_meta: bool = False,
) -> Target:
    """Whom to call: by the option, else the environment, else the context, else the default. Raises ConfigError.

    An address that is not the context's own gets its token and certificates only if the context was typed beside it. `files`: the
    options `token_file`, `tls_ca`, `tls_cert` and `tls_key`.
    """
    asked = _asked(command, context_name, address, typed=typed, of_meta=of_meta)
    kept = asked.context or Context()
    tls = _tls_of("--tls-ca, --tls-cert, --tls-key", ca=files["tls_ca"], cert=files["tls_cert"], key=files["tls_key"])
    tls = tls or _tls_of("the context's tls_", ca=kept.tls_ca, cert=kept.tls_cert, key=kept.tls_key)
    if files["token_file"] is None and kept.token_file:
        return Target(asked.address, Path(kept.token_file), tls, asked.how, "the context's token_file")
    return Target(asked.address, files["token_file"], tls, asked.how)


def target_in(name: str, context: Context) -> Target:
    """The adapter of a context. Raises ConfigError for certificates that cannot be read."""
    tls = _tls_of("the context's tls_", ca=context.tls_ca, cert=context.tls_cert, key=context.tls_key)
    token_file = Path(context.token_file) if context.token_file else None
    return Target(context.address, token_file, tls, f"context {name}", "the context's token_file")


class _Asked(NamedTuple):
    """Whom to call. `how` it is known, unless it was typed; `context`: what its token and certificates are of."""

    address: str
    how: str = ""
    context: Context | None = None


def _asked(command: click.Context, context_name: str | None, address: str | None, *, typed: bool, of_meta: bool) -> _Asked:
    chosen = typed_context(command, context_name)
    variable = META_VARIABLE if of_meta else ADAPTER_VARIABLE
    address = address or os.environ.get(variable)
    if address and (typed or not chosen):
        kept = contexts.named(chosen) if chosen else None
        return _Asked(address, "" if typed else f"by {variable}", kept[1] if kept else None)
    found = contexts.named(chosen)
    if found is None:
        return _Asked(META_LISTEN if of_meta else default_address(), "the default")
    name, kept_context = found
    own = kept_context.meta if of_meta else kept_context.address
    if not own:
        field, who = ("meta", "Meta Service") if of_meta else ("address", "adapter")
        raise ConfigError(
            f"context {name}: has no {field}: offset-adapter context set {name} --{field} HOST:PORT names the {who}"
        )
    return _Asked(own, f"context {name}", kept_context)


def typed_context(command: click.Context, context_name: str | None) -> str | None:
    """The name of the context that was typed, behind the command or before it; None if none was."""
    root: str | None = command.find_root().params.get("context_name")
    return root if context_name is None else context_name


def _tls_of(source: str, **files: Path | str | None) -> "ClientTls | None":
    named = {name: path for name, path in files.items() if path}
    if not named:
        return None
    from adapter.runtime.settings.config import ClientTls, parse  # noqa: PLC0415 - takes 100 ms to import

    return parse(named, ClientTls, source=source)
