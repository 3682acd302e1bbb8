"""What a command prints at a real terminal, whose width the kernel tells it."""

import os
import pty
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from termios import tcsetwinsize

from tests import forking

TIMEOUT_S = 120.0


def at_a_terminal(
    arguments: Sequence[str], environment: Mapping[str, str], columns: int = 80, *, errors: bool = False
) -> tuple[int, str]:
    """The exit code of a command, and what it prints on a terminal so wide; with `errors` also what it says there of itself."""
    ours, its = pty.openpty()
    tcsetwinsize(its, (1_000, columns))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OFFSET_ADAPTER_") and name != "COLUMNS"}
    with os.fdopen(ours, "rb", buffering=0) as screen, Path(os.devnull).open("wb") as nothing:
        started = forking.start_at(its, its if errors else nothing.fileno(), arguments, {**clean, **environment})
        os.close(its)
        shown = b""
        with suppress(OSError):  # so Linux says that it was all
            while chunk := screen.read(65_536):
                shown += chunk
    return started.wait(TIMEOUT_S), shown.decode().replace("\r\n", "\n")
