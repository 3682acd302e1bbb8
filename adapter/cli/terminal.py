"""What a terminal can show: its width, and whether colours are wanted."""

import os
import sys


def colour() -> bool | None:
    """For click's `color`: False where NO_COLOR is set (to anything but an empty text), else None, which asks the stream."""
    return False if os.environ.get("NO_COLOR") else None


def width() -> int:
    """Columns of the terminal: COLUMNS if it is set, else as the terminal says, else 80."""
    return _size("COLUMNS", 0, 80)


def height() -> int:
    """Lines of the terminal: LINES if it is set, else as the terminal says, else 24."""
    return _size("LINES", 1, 24)


def _size(variable: str, at: int, otherwise: int) -> int:
    """As shutil.get_terminal_size, which would load the modules of archives."""
    text = os.environ.get(variable, "")
    if text.isdecimal() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno())[at] or otherwise if sys.__stdout__ else otherwise
    except (OSError, ValueError):  # no terminal, or a closed stream
        return otherwise
