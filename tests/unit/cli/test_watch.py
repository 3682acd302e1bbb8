"""`--watch`: what each look prints, when it looks, and how it ends."""

import sys
from collections.abc import Callable
from io import StringIO

import click
import pytest
from click.testing import CliRunner

from adapter.cli import watch
from adapter.cli.output import note, tell
from adapter.errors import AdapterError
from tests.unit.cli.test_table import Terminal


@click.command(cls=watch.WatchCommand)
@click.argument("names", nargs=-1)
@watch.option
def shown(names: tuple[str, ...], every_s: float | None) -> None:
    """Print what was given."""
    click.echo(f"{names} {every_s}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["g"], "('g',) None"),
        (["--watch", "g"], "('g',) 2.0"),
        (["g", "--watch"], "('g',) 2.0"),
        (["--watch=0.5", "g"], "('g',) 0.5"),
        (["--", "--watch"], "('--watch',) None"),
    ],
)
def test_the_word_behind_watch_is_never_its_value(given: list[str], said: str) -> None:
    """As of GNU's options whose value may be left out: a group named 5 stays a group."""
    assert CliRunner().invoke(shown, given).output == f"{said}\n"
    assert CliRunner().invoke(shown, ["--watch=0"]).exit_code == 2


def looked(monkeypatch: pytest.MonkeyPatch, output: StringIO, once: Callable[[], bool], looks: int) -> list[float]:
    """Look so often, then press Ctrl-C; returns the seconds that were slept."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == looks:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setenv("LINES", "10")
    with pytest.raises(SystemExit) as ended:
        watch.look(once, 3.0)
    assert ended.value.code == 0
    return slept


def test_a_pipe_gets_each_look_behind_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what the command prints; Ctrl-C is how it ends, with exit code 0, whatever was seen."""
    output = StringIO()
    numbers = iter(range(9))

    def once() -> bool:
        tell(f"look {next(numbers)}")
        return False

    assert looked(monkeypatch, output, once, 3) == [3.0, 3.0, 3.0]
    assert output.getvalue() == "look 0\nlook 1\nlook 2\n"


def test_without_watch_the_exit_code_is_that_of_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 or 1."""
    monkeypatch.setattr("sys.stdout", StringIO())
    for good in (True, False):
        with pytest.raises(SystemExit) as ended:
            watch.look(lambda good=good: good, None)  # type: ignore[misc]
        assert ended.value.code == (0 if good else 1)


def test_a_terminal_shows_one_look_cut_to_its_height(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the notes of standard error; a list of any length takes the memory of a screen."""
    output = Terminal()

    def once() -> bool:
        assert sys.stdout.isatty()
        for number in range(1_000):
            tell(f"row {number}")
        note("1,000 rows")
        return True

    looked(monkeypatch, output, once, 2)
    first, second = output.getvalue().split("\x1b[H\x1b[2J\x1b[3J")[1:]
    lines = second.splitlines()
    assert lines[0].startswith("every 3 s, ")
    assert lines[1:] == [*(f"row {number}" for number in range(7)), "and 994 more lines"]
    assert first.splitlines()[1:] == lines[1:]
    assert len(lines) < 10


@pytest.mark.parametrize("output", [StringIO, Terminal])
def test_an_adapter_that_restarts_does_not_end_it_but_a_wrong_address_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: type[StringIO]
) -> None:
    """The first look raises; a later error is shown."""
    made = output()
    answers = iter([True, None, True])

    def once() -> bool:
        if next(answers) is None:
            raise AdapterError("UNAVAILABLE: it restarts")
        tell("it serves")
        return True

    looked(monkeypatch, made, once, 3)
    assert made.getvalue().count("it serves") == 2
    assert (made.getvalue() + capsys.readouterr().err).count("error: UNAVAILABLE: it restarts") == 1

    def never() -> bool:
        raise AdapterError("nobody is there")

    with pytest.raises(AdapterError, match="nobody is there"):
        watch.look(never, 3.0)
