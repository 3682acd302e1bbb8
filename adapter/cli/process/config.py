"""The command `config`: prints the configuration files that the package brings, each setting with its default and its comment."""

from pathlib import Path

import click

import adapter

KINDS = ("adapter", "meta", "console", "job")
_PACKAGE = Path(adapter.__file__).parent


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
def config(kind: str) -> None:
    """Print a commented configuration file, with every setting: `offset-adapter config adapter > adapter.toml`.

    Its values are the defaults, so that a process with it does what one without a file does. `job` is that of
    offset-adapter-spark.
    """
    click.echo(file_of(kind, _PACKAGE).read_text(encoding="utf-8"), nl=False)


def file_of(kind: str, package: Path) -> Path:
    """The file of a kind: a wheel has it in the package, a checkout beside it."""
    inside = package / "config"
    return (inside if inside.is_dir() else package.parent / "config") / f"{kind}.toml"
