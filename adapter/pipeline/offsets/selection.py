"""Which namespaces and groups a read is about: by its options, and by the filters that Spark offers. Pure."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In

from adapter.model.names import name_problem

MAX_RANGES = 1_000  # ranges of keys in one read; Spark applies filters that would make more


class Selection(NamedTuple):
    """Names to read; None: all."""

    namespaces: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None

    @classmethod
    def of(cls, namespace: str | None, group: str | None) -> "Selection":
        """The selection of a read's options."""
        return cls(None if namespace is None else (namespace,), None if group is None else (group,))

    def narrowed(self, filters: Sequence[Filter], *, by_range: bool) -> tuple["Selection", list[Filter]]:
        """The selection with as many filters as it can take, and the others.

        `by_range`: each selected name has to be a range of keys, which a group without a namespace is not.
        """
        found, left = self, list(filters)
        for column in ("namespace", "group"):
            if getattr(found, f"{column}s") is not None or (by_range and column == "group" and found.namespaces is None):
                continue
            offered = next(((one, names) for one in left if (names := _names(one, column))), None)
            narrowed = found._replace(**{f"{column}s": offered[1]}) if offered else found
            if offered and len(narrowed.ranges()) <= MAX_RANGES:
                found = narrowed
                left = [one for one in left if one is not offered[0]]
        return found, left

    def ranges(self) -> list[tuple[str, str]]:
        """(namespace, group) of each range of keys; empty strings are all."""
        if self.namespaces is None:
            return [("", "")]
        return list(product(self.namespaces, self.groups or ("",)))


def _names(found: Filter, column: str) -> tuple[str, ...]:
    """The names of which a filter wants one of; empty if it wants anything else. For what is no name, Spark finds no rows."""
    if isinstance(found, In) and found.attribute == (column,):
        values = tuple(found.value)
    elif isinstance(found, EqualTo | EqualNullSafe) and found.attribute == (column,):
        values = (found.value,)
    else:
        return ()
    return tuple(sorted({value for value in values if isinstance(value, str) and not name_problem(value)}))
