"""click commands that are imported when they run, so that `--help` is fast and a command loads only the modules it needs."""

import gc
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HELP_WIDTH = 80  # of a command that is not lazy, beside its name in a shell's list


class Lazy(NamedTuple):
    """The place of a command, `module:attribute`, and its line in the help of its group (the first sentence of its own help)."""

    place: str
    help: str

    def load(self) -> click.Command:
        """Import and return the command."""
        module, _, attribute = self.place.partition(":")
        command = getattr(import_module(module), attribute)
        if not gc.isenabled() and not isinstance(command, LazyGroup):  # by adapter.__main__, until the last import
            gc.freeze()
            gc.enable()
        assert isinstance(command, click.Command)  # noqa: S101 - the table is our own
        return command


class LazyGroup(click.Group):
    """A click group with lazy commands beside ordinary ones."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, Lazy], **options: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*arguments, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported now if it is lazy; None if there is none."""
        return self.lazy[cmd_name].load() if cmd_name in self.lazy else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help section `Commands` without importing a lazy command."""
        lines = self._lines(formatter.width)
        with formatter.section("Commands"):
            formatter.write_dl([(name, lines[name]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete the name of a command, or an option, without importing a lazy command."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only shells ask

        lines = self._lines(_HELP_WIDTH)
        found = [CompletionItem(name, help=lines[name]) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def _lines(self, width: int) -> dict[str, str]:
        others = {name: command.get_short_help_str(width) for name, command in self.commands.items()}
        return {**others, **{name: lazy.help for name, lazy in self.lazy.items()}}
