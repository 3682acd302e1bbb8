"""What a terminal can show: its width, and whether colours are wanted."""

import os
import shutil


def colour() -> bool | None:
    """For click's `color`: False where NO_COLOR is set (to anything but an empty text), else None, which asks the stream."""
    return False if os.environ.get("NO_COLOR") else None


def width() -> int:
    """Columns of the terminal: COLUMNS if it is set, else as the terminal says, else 80."""
    return shutil.get_terminal_size().columns


def height() -> int:
    """Lines of the terminal: LINES if it is set, else as the terminal says, else 24."""
    return shutil.get_terminal_size().lines
