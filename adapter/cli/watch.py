"""`--watch[=SECONDS]`: runs a command's look at a process again and again, until Ctrl-C, which ends it with exit code 0.

At a terminal each look takes the place of the one before, cut to the terminal's height; elsewhere each is printed behind the one
before. An error of the first look ends the command; later ones are shown, and it looks again.
"""

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import click

from adapter.cli import terminal
from adapter.cli.connection import Target
from adapter.cli.output import note
from adapter.cli.terminal import visible
from adapter.errors import AdapterError

EVERY_S = 2.0
_WHOM = "adapter.cli.whom"  # in click's context
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"  # cursor home; clear the screen; clear what was scrolled away
_AROUND = 3  # lines of the screen that a look cannot have: title, "more", and the line of the cursor


class WatchCommand(click.Command):
    """A click command whose `--watch` takes a value only as `--watch=SECONDS`: the next word may be an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        end = args.index("--") if "--" in args else len(args)
        given = [f"--watch={EVERY_S:g}" if word == "--watch" else word for word in args[:end]]
        return super().parse_args(ctx, given + args[end:])


option = click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(0.1, 86_400),
    metavar="[=SECONDS]",
    help=f"Look again every {EVERY_S:g} s, or every SECONDS, until Ctrl-C.",
)


def tell_whom(target: Target) -> None:
    """Say at a terminal whom a command asks, unless that was typed; in the title of each look, where they are shown."""
    if not target.how or not sys.stderr.isatty():
        return
    text = f"asking {target.address} ({target.how})"
    context = click.get_current_context()
    if context.params.get("every_s") is not None and sys.stdout.isatty():
        context.meta[_WHOM] = f", {visible(text)}"
    else:
        note(text)


def look(once: Callable[[], bool], every_s: float | None) -> None:
    """Call `once`, which prints, and exit with code 1 if it returns False; or, with `every_s`, call it until Ctrl-C."""
    if every_s is None:
        sys.exit(0 if once() else 1)
    show = _Screen.show if sys.stdout.isatty() else _behind
    try:
        show(once, every_s, first=True)
        while True:
            time.sleep(every_s)
            show(once, every_s, first=False)
    except KeyboardInterrupt:
        sys.exit(0)


def _behind(once: Callable[[], bool], every_s: float, *, first: bool) -> None:  # noqa: ARG001 - as _Screen.show
    _tried(once, first=first)
    sys.stdout.flush()


def _tried(once: Callable[[], bool], *, first: bool) -> None:
    try:
        once()
    except AdapterError as error:
        if first:
            raise
        for line in str(error).splitlines():
            note(f"error: {line}", style="red")


class _Screen(io.TextIOBase):
    """Takes what a look prints, and keeps as many lines of it as the terminal has, so that it can be shown at once."""

    def __init__(self, lines: int) -> None:
        self._room = lines
        self._kept: list[str] = []
        self._open = ""  # the line that has no end yet
        self.more = 0  # lines that had no room

    @classmethod
    def show(cls, once: Callable[[], bool], every_s: float, *, first: bool) -> None:
        """Print a look in place of what the terminal shows. Raises the AdapterError of the first look."""
        screen = cls(max(terminal.height() - _AROUND, 1))
        with redirect_stdout(screen), redirect_stderr(screen):
            _tried(once, first=first)
        context = click.get_current_context(silent=True)
        whom = context.meta.get(_WHOM, "") if context else ""
        title = f"every {every_s:g} s, {time.strftime('%H:%M:%S')}{whom}; Ctrl-C ends it"
        more = f"and {screen.more:,} more lines\n" if screen.more else ""
        sys.stdout.write(f"{_CLEAR}{title}\n{screen.text}{more}")
        sys.stdout.flush()

    @property
    def text(self) -> str:
        """The lines that are kept."""
        return "".join(self._kept) + self._open

    def isatty(self) -> bool:
        """True: tables are printed as for a terminal."""
        return True

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Keep the text, or count its lines."""
        *lines, self._open = (self._open + text).split("\n")
        room = self._room - len(self._kept)
        self._kept += [f"{line}\n" for line in lines[:room]]
        self.more += len(lines[room:])
        return len(text)
