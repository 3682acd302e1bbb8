"""How names of groups and shards are matched, sorted and guessed for a person.

There is one language of patterns, which docs/output.md describes: that of a shell for files. It is for a whole name, and tells
upper and lower case apart: `*` is any text, `?` one character, `[abc]` and `[a-z]` one of these, `[!a]` any other; a text with
none of `* ? [` is the name itself. Where somebody searches (the filter of `top`), such a text may be any part of a name.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

_SPECIAL: Final = "*?["
_DIGITS = re.compile("([0-9]+)")
GUESSES: Final = 3


def is_pattern(text: str) -> bool:
    """False for a text that is the name itself."""
    return any(letter in _SPECIAL for letter in text)


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """True for a name that one of the patterns matches, and for every name if there is none."""
    if not patterns:
        return lambda _: True
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)


def searcher(typed: str) -> Callable[[str], bool]:
    """True for a name that has all the words, in any case. One with a special character is a pattern of the whole name."""
    wanted = typed.lower().split()

    def takes(name: str) -> bool:
        lower = name.lower()
        return all(fnmatchcase(lower, word) if is_pattern(word) else word in lower for word in wanted)

    return takes


def natural_order(name: str) -> tuple[list[str | int], str]:
    """A sort key that puts orders-10 and orders/10 behind orders-9 and orders/9."""
    return [int(part) if at % 2 else part for at, part in enumerate(_DIGITS.split(name))], name


def guesses(name: str, known: Iterable[str]) -> str:
    """`; did you mean a, b?` of those that look like the name; empty if none does."""
    import difflib  # noqa: PLC0415 - only who mistyped needs it

    close = difflib.get_close_matches(name, known, GUESSES)
    return f"; did you mean {', '.join(close)}?" if close else ""
