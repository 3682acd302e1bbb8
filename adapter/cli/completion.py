"""The command `completion`: prints the script by which a shell completes commands and options. click makes it."""

import click
from click.shell_completion import ShellComplete, get_completion_class

from adapter.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")
_NAME = "offset-adapter"
_VARIABLE = "_OFFSET_ADAPTER_COMPLETE"  # as click derives it from the name


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a SHELL.

    bash: offset-adapter completion bash > ~/.local/share/bash-completion/completions/offset-adapter

    zsh: offset-adapter completion zsh > "${fpath[1]}/_offset-adapter"

    fish: offset-adapter completion fish > ~/.config/fish/completions/offset-adapter.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(f"{shell}: this version of click does not know it")
    made = kind(context.find_root().command, {}, _NAME, _VARIABLE)
    click.echo(ShellComplete.source(made))  # not made.source(), which starts a bash to ask for its version
