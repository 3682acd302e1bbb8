"""Colours and completion."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from adapter.cli import terminal
from adapter.cli.completion import SHELLS
from adapter.cli.main import COMMANDS, cli
from adapter.cli.process.meta import COMMANDS as META_COMMANDS
from tests.unit.cli.test_command_start import GRPC, HEAVY
from tests.unit.cli.test_table import Terminal


@pytest.mark.parametrize(("value", "coloured"), [(None, True), ("", True), ("1", False)])
def test_no_color_takes_the_colours_of_a_terminal_away(
    monkeypatch: pytest.MonkeyPatch, value: str | None, *, coloured: bool
) -> None:
    """Set to anything but an empty text, as no-color.org has it."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setattr("sys.stderr", made := Terminal())
    click.secho("red", fg="red", err=True, color=terminal.colour())
    assert ("\x1b[31m" in made.getvalue()) is coloured


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_gets_its_script(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    """For the installed command; no shell is started for it."""
    monkeypatch.setenv("PATH", "")
    ran = CliRunner().invoke(cli, ["completion", shell])
    assert ran.exit_code == 0
    assert "offset-adapter" in ran.output
    assert f"_OFFSET_ADAPTER_COMPLETE={shell}_complete" in ran.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("offset-adapter ", {*COMMANDS, "meta"}),
        ("offset-adapter meta s", {name for name in META_COMMANDS if name.startswith("s")}),
        ("offset-adapter groups ", {"broadcast", "clone", "describe", "handover", "list"}),
        ("offset-adapter groups list --wi", {"--wide"}),
        ("offset-adapter top --so", {"--sort"}),
        ("offset-adapter top --at-least st", {"stall", "stop"}),
        ("offset-adapter list --output ", {"table", "json", "csv"}),
    ],
)
def test_words_are_completed(monkeypatch: pytest.MonkeyPatch, words: str, expected: set[str]) -> None:
    """Commands, options, and the values of options."""
    monkeypatch.setenv("_OFFSET_ADAPTER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    ran = CliRunner().invoke(cli, [], prog_name="offset-adapter")
    assert {line.partition(",")[2] for line in ran.output.splitlines()} == expected


def test_completing_a_command_imports_none() -> None:
    """It is done at every press of the tabulator key."""
    code = (
        "import atexit, sys; sys.argv[0] = 'offset-adapter'; from adapter.__main__ import main\n"
        "atexit.register(lambda: print('\\n', *sys.modules)); main()"
    )
    words = {"_OFFSET_ADAPTER_COMPLETE": "bash_complete", "COMP_WORDS": "offset-adapter meta ", "COMP_CWORD": "2"}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **words})
    *completed, modules = ran.stdout.splitlines()
    assert {f"plain,{name}" for name in META_COMMANDS} <= {*completed}
    assert {*modules.split()} & {*HEAVY, *GRPC} == set()
