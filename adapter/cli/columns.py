"""Which columns a table has: the core ones, which fit a terminal of 120 columns, all (`--wide`), or those named (`--columns`)."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from adapter.cli.table import Side
from adapter.errors import InvalidInputError


class Asked(NamedTuple):
    """What the command line asks for; no `names`: not these."""

    wide: bool = False
    names: Sequence[str] = ()


CORE: Final = Asked()


class Chosen(NamedTuple):
    """The columns that are shown. `spare`: those that a narrow terminal may leave out, the first one first."""

    sides: Mapping[str, Side]
    at: Sequence[int]
    spare: Sequence[str] = ()

    def of(self, cells: Sequence[str]) -> list[str]:
        """Of a row with the cells of all columns, those that are shown."""
        return [cells[at] for at in self.at]


class Columns(NamedTuple):
    """All columns of a table, by their names; the first `core` of them are shown where nothing else is asked for."""

    every: Mapping[str, Side]
    core: int
    spare: Sequence[str] = ()

    def chosen(self, asked: Asked) -> Chosen:
        """The columns to show. Raises InvalidInputError for one that is not there."""
        names = [*self.every]
        unknown = next((name for name in asked.names if name not in names), None)
        if unknown is not None:
            raise InvalidInputError(f"--columns: there is no {unknown!r}; there are {', '.join(names)}")
        shown = asked.names or (names if asked.wide else names[: self.core])
        spare = () if asked.names or asked.wide else self.spare
        return Chosen({name: self.every[name] for name in shown}, [names.index(name) for name in dict.fromkeys(shown)], spare)
