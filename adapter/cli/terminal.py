"""What a terminal can show: its width, whether colours are wanted, and which characters are safe."""

import os
import sys

_RAW_BYTES = range(0xDC80, 0xDD00)  # bytes that are not UTF-8, as errors="surrogateescape" decodes them
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def colour() -> bool | None:
    """For click's `color`: False where NO_COLOR is set (to anything but an empty text), else None, which asks the stream."""
    return False if os.environ.get("NO_COLOR") else None


def width() -> int:
    """Columns of the terminal: COLUMNS if it is set, else as the terminal says, else 80."""
    return _size("COLUMNS", 0, 80)


def height() -> int:
    """Lines of the terminal: LINES if it is set, else as the terminal says, else 24."""
    return _size("LINES", 1, 24)


def visible(text: str) -> str:
    """A text from outside as one printable line: unprintable characters are escaped as in a Python string."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _size(variable: str, at: int, otherwise: int) -> int:
    """As shutil.get_terminal_size, which would load the modules of archives."""
    text = os.environ.get(variable, "")
    if text.isdecimal() and int(text):
        return int(text)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno())[at] or otherwise if sys.__stdout__ else otherwise
    except (OSError, ValueError):  # no terminal, or a closed stream
        return otherwise


def _escape(letter: str) -> str:
    code = ord(letter)
    if code in _RAW_BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(letter) or (
        f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004
    )
