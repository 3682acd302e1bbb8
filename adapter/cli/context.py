"""The command `context`: whom the other commands call, by a name."""

from collections.abc import Sequence

import click

from adapter.cli import completing, contexts, options
from adapter.cli.contexts import Context
from adapter.cli.output import Form, listing, show_object, tell, warn
from adapter.cli.table import LEFT, Side
from adapter.errors import ConfigError, InvalidInputError

FIELDS = ("name", "current", *Context._fields)
_COLUMNS: dict[str, Side] = dict.fromkeys(("current", "name", "address", "meta"), LEFT)

_Row = tuple[str, bool, Context]
_name = click.argument("name", shell_complete=completing.context)


@click.group()
def context() -> None:
    """Name the servers that commands call: list, show, use, set, remove."""


@context.command("list")
@options.form
def list_command(form: Form) -> None:
    """List the contexts."""
    found = contexts.load()
    with listing(form, _COLUMNS, _cells, FIELDS, _values) as rows:
        for name, each in sorted(found.by_name.items()):
            rows.add((name, name == found.current, each))


@context.command()
@click.argument("name", required=False, shell_complete=completing.context)
@options.form
def show(name: str | None, form: Form) -> None:
    """Show a context: NAME, or the one that commands use now. Exit code 2 when there is none."""
    found = contexts.named(name)
    if found is None:
        raise ConfigError("no context is in use: offset-adapter context use NAME; commands call the default addresses")
    name, each = found
    rows = (("name", name), *((field, value) for field, value in each._asdict().items() if value))
    show_object(form, {"name": name, **each._asdict()}, rows, ("field", "value"))


@context.command()
@_name
def use(name: str) -> None:
    """Have commands call the servers of a context, from now on."""
    with contexts.changing() as found:
        found.find(name, "NAME")
        found.current = name
    tell(f"in use: {name}")


@context.command("set")
@_name
@click.option("--address", help="The adapter: unix:PATH or HOST:PORT.")
@click.option("--meta", help="The Meta Service: unix:PATH or HOST:PORT.")
@click.option("--token-file", help="A file with the token that the adapter requires on HOST:PORT.")
@click.option("--tls-ca", help="Use TLS on HOST:PORT and verify the servers with this CA certificate. PEM.")
@click.option("--tls-cert", help="The client certificate (mTLS). PEM.")
@click.option("--tls-key", help="The key of the client certificate. PEM.")
def set_command(name: str, **given: str | None) -> None:
    """Make a context, or change the given fields of one.

    An empty field is taken out. The first context is in use at once.
    """
    values = {field: contexts.absolute(field, value) for field, value in given.items() if value is not None}
    contexts.check_name(name)
    with contexts.changing() as found:
        made = name not in found.by_name
        if made and not (values.get("address") or values.get("meta")):
            raise InvalidInputError(f"--address: is missing: whom do commands with the context {name} call?")
        before = found.by_name.get(name, Context())
        kept = {field: value for field, value in {**before._asdict(), **values}.items() if value}
        found.by_name[name] = contexts.checked(kept, f"context {name}: ")
        if made and len(found.by_name) == 1:
            found.current = name
        in_use = found.current == name
    tell(f"{'made' if made else 'changed'}: {name}" + (", which is in use" if in_use else f"; context use {name} takes it"))


@context.command()
@_name
def remove(name: str) -> None:
    """Remove a context."""
    with contexts.changing() as found:
        found.find(name, "NAME")
        del found.by_name[name]
        was_used = found.current == name
        if was_used:
            found.current = ""
    tell(f"removed: {name}")
    if was_used:
        warn("it was in use: commands call the default addresses until `context use` names another one")


def _cells(row: _Row) -> Sequence[str]:
    name, current, each = row
    return ("*" if current else "", name, each.address, each.meta)


def _values(row: _Row) -> dict[str, object]:
    name, current, each = row
    return {"name": name, "current": current, **each._asdict()}
