"""Which namespaces and groups a read is about: by its options, and by the filters that Spark offers. Pure."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, StringStartsWith

from adapter.model.codec import pack_names
from adapter.model.names import NAME_MAX_BYTES, name_problem

MAX_RANGES = 1_000  # (namespace, group) pairs in one read; Spark applies filters that would make more


class Selection(NamedTuple):
    """What to read; None: all. `group_prefix`: what the names of groups begin with; only without `groups`."""

    namespaces: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    group_prefix: str | None = None

    @classmethod
    def of(cls, namespace: str | None, group: str | None) -> "Selection":
        """The selection of a read's options."""
        return cls(None if namespace is None else (namespace,), None if group is None else (group,))

    def narrowed(self, filters: Sequence[Filter], *, by_range: bool) -> tuple["Selection", list[Filter]]:
        """The selection with as many filters as it can take, and the others, which Spark has to apply.

        `by_range`: what is selected has to be ranges of keys, which groups without a namespace are not.
        """
        found, left = self, list(filters)
        if found.namespaces is None:
            found, left = _with_names(found, "namespace", left)
        if found.groups is None and (found.namespaces is not None or not by_range):
            found, left = _with_names(found, "group", left)
            if found.groups is None:
                found, left = _with_prefix(found, left)
        return found, left

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of (namespace, group) that are read; an empty string is all."""
        if self.namespaces is None:
            return [("", "")]
        return list(product(self.namespaces, self.groups or ("",)))


def prefix_ranges(cluster: str, namespace: str, prefix: str) -> Iterator[tuple[bytes, bytes]]:
    """The ranges of keys of the groups whose names begin with `prefix`: page tokens (after, until), ascending.

    There is one range for each length of a name, because a key has the length before the name.
    """
    start = len(prefix.encode())
    for more in range(NAME_MAX_BYTES - start + 1):
        yield (
            pack_names(cluster, namespace, prefix + "\0" * more, ""),
            pack_names(cluster, namespace, prefix + _largest(more), _largest(NAME_MAX_BYTES)),
        )


def intersection(
    parts: Sequence[tuple[bytes, bytes]], ranges: Sequence[tuple[bytes, bytes]]
) -> Iterator[list[tuple[bytes, bytes]]]:
    """For each part that has any, the ranges in it. All are (after, until); an empty `until` of a part is the end."""
    for after, until in parts:
        inside = [(max(after, low), min(until, high) if until else high) for low, high in ranges]
        found = [(low, high) for low, high in inside if low < high]
        if found:
            yield found


def _largest(size: int) -> str:
    """The largest text of so many bytes in UTF-8."""
    return "\U0010ffff" * (size // 4) + ("", "\x7f", "\u07ff", "\uffff")[size % 4]


def _with_names(selection: Selection, column: str, filters: list[Filter]) -> tuple[Selection, list[Filter]]:
    for offered in filters:
        names = _names(offered, column)
        narrowed = selection._replace(namespaces=names) if column == "namespace" else selection._replace(groups=names)
        if names and len(narrowed.pairs()) <= MAX_RANGES:
            return narrowed, [one for one in filters if one is not offered]
    return selection, filters


def _with_prefix(selection: Selection, filters: list[Filter]) -> tuple[Selection, list[Filter]]:
    for offered in filters:
        if isinstance(offered, StringStartsWith) and offered.attribute == ("group",) and not name_problem(offered.value):
            return selection._replace(group_prefix=offered.value), [one for one in filters if one is not offered]
    return selection, filters


def _names(found: Filter, column: str) -> tuple[str, ...]:
    """The names of which a filter wants one; empty if it wants anything else. For what is no name, Spark finds no rows."""
    if isinstance(found, In) and found.attribute == (column,):
        values = tuple(found.value)
    elif isinstance(found, EqualTo | EqualNullSafe) and found.attribute == (column,):
        values = (found.value,)
    else:
        return ()
    return tuple(sorted({value for value in values if isinstance(value, str) and not name_problem(value)}))
