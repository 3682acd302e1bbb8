"""The command `offset-adapter` with all of its commands imported: sphinx-click does not see those that are imported on use."""

import click

from adapter.cli.main import cli as lazy


def _loaded(group: click.Group) -> click.Group:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            group.commands[name] = _loaded(command) if isinstance(command, click.Group) else command
    return group


cli = _loaded(lazy)
