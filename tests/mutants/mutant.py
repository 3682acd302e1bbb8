"""What a mutant is."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A bug: `old` in `file` (below adapter/) becomes `new`. `tests` are below tests/."""

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
