"""Commands that are imported when they run: what is listed costs nothing, and a command brings only what it needs."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is, `module:attribute`, and its line in the help of its group: the first sentence of its own."""

    place: str
    help: str

    def load(self) -> click.Command:
        """The command."""
        module, _, attribute = self.place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - of our own table
        return command


class LazyGroup(click.Group):
    """A group that has such commands beside others."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, Lazy], **options: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*arguments, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, sorted."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them, which is imported now."""
        return self.lazy[cmd_name].load() if cmd_name in self.lazy else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write their lines; imports none."""
        others = {name: command.get_short_help_str(formatter.width) for name, command in self.commands.items()}
        lines = {**others, **{name: lazy.help for name, lazy in self.lazy.items()}}
        with formatter.section("Commands"):
            formatter.write_dl([(name, lines[name]) for name in self.list_commands(ctx)])
