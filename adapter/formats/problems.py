"""Collects the rows that a format cannot hold, to report them all at once."""

from collections.abc import Callable, Iterable, Iterator

from adapter.errors import InvalidInputError
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.records import LONG_MAX

PROBLEMS_SHOWN = 100
USE_JSON = "use --format json, or a file name that ends in .json"


class Sieve:
    """Passes on the rows that a format can hold. `problem_of` says why a row cannot be held; None if it can."""

    def __init__(self, naming: Naming, problem_of: Callable[[OffsetRow], str | None]) -> None:
        self._naming = naming
        self._problem_of = problem_of
        self._problems: list[str] = []
        self._refused = 0
        self.count = 0

    def passed(self, rows: Iterable[OffsetRow]) -> Iterator[OffsetRow]:
        """The rows that the format can hold."""
        for row in rows:
            problem = self._problem_of_any(row) or self._problem_of(row)
            if not problem:
                self.count += 1
                yield row
                continue
            self._refused += 1
            if self._refused <= PROBLEMS_SHOWN:
                self._problems.append(f"shard {row.shard!r} of group {row.group!r} {problem}")

    def done(self) -> int:
        """The number of rows passed. Raises InvalidInputError if any was not; it names the first hundred."""
        more = self._refused - len(self._problems)
        if self._problems:
            raise InvalidInputError("\n".join(self._problems + ([f"... and {more:,} more"] if more else [])))
        return self.count

    def _problem_of_any(self, row: OffsetRow) -> str | None:
        """Problems in RocketMQ's and Kafka's formats alike: offsets above a Java long, and another namespace or group."""
        if row.offset > LONG_MAX:
            return f"has offset {row.offset}, and the format's largest is {LONG_MAX}; {USE_JSON}"
        if row.namespace != self._naming.namespace:
            return f"is in namespace {row.namespace!r}, not {self._naming.namespace!r}, and the format has none; {USE_JSON}"
        if self._naming.group and row.group != self._naming.group:
            return f"is not of group {self._naming.group!r}, the only group of the file"
        return None
