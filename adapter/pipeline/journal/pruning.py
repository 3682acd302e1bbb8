"""Which directories and segments a batch read may leave out, by filters on `at`, `broker` and `run`.

Pure functions over names: the rows of a segment are all of the UTC date, the broker and the run that its path tells. Spark
applies the filters to the rows as well, so a filter that is not understood only costs time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple, Self

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_DAY = timedelta(days=1)
_TICK = timedelta(microseconds=1)

# Whether a column may have a value that passes, if its values are from the first to the last (both inclusive).
_MAY_PASS: Mapping[type[Filter], Callable[[Any, Any, Any], bool]] = {
    EqualTo: lambda first, last, value: first <= value <= last,
    EqualNullSafe: lambda first, last, value: first <= value <= last,
    In: lambda first, last, values: any(first <= value <= last for value in values),
    GreaterThan: lambda _, last, value: last > value,
    GreaterThanOrEqual: lambda _, last, value: last >= value,
    LessThan: lambda first, _, value: first < value,
    LessThanOrEqual: lambda first, _, value: first <= value,
    StringStartsWith: lambda first, _, value: first.startswith(value),
}


class _Condition(NamedTuple):
    column: str
    kind: type[Filter]
    value: Any


@dataclass(frozen=True)
class Pruning:
    """What the filters say about paths."""

    conditions: tuple[_Condition, ...]

    @classmethod
    def by(cls, filters: Sequence[Filter]) -> Self:
        """The filters that are understood, of all that have to pass."""
        return cls(tuple(condition for found in filters if (condition := _condition(found))))

    def date(self, text: str) -> bool:
        """Whether the directory of a date (YYYY-MM-DD, UTC) may have rows that pass."""
        begin = datetime.combine(date.fromisoformat(text), time(), UTC)
        return self._may_pass("at", begin, begin + _DAY - _TICK)

    def broker(self, name: str) -> bool:
        """Whether rows of this broker may pass."""
        return self._may_pass("broker", name, name)

    def run(self, number: int) -> bool:
        """Whether rows of this run may pass."""
        return self._may_pass("run", number, number)

    def _may_pass(self, column: str, first: object, last: object) -> bool:
        return all(_MAY_PASS[kind](first, last, value) for of, kind, value in self.conditions if of == column)


def _condition(found: Any) -> _Condition | None:  # noqa: ANN401 - of the many kinds of filters
    """A filter that compares a column of the table with values; None for others."""
    if type(found) not in _MAY_PASS or len(found.attribute) != 1:
        return None
    values = found.value if isinstance(found, In) else [found.value]
    # With a null, nothing passes, which Spark finds out anyway.
    return None if any(value is None for value in values) else _Condition(found.attribute[0], type(found), found.value)
