"""What a format cannot hold of the rows that are to be written: sieved out, named, told all at once."""

from collections.abc import Callable, Iterable, Iterator

from adapter.errors import InvalidInputError
from adapter.formats.rows import LONG_MAX, Naming, OffsetRow

PROBLEMS_SHOWN = 100
USE_JSON = "use --format json, or a file name that ends in .json"


class Sieve:
    """Lets the rows through that a format can hold. `problem_of` says why it cannot hold one."""

    def __init__(self, naming: Naming, problem_of: Callable[[OffsetRow], str | None]) -> None:
        self._naming = naming
        self._problem_of = problem_of
        self._problems: list[str] = []
        self._refused = 0
        self.count = 0

    def passed(self, rows: Iterable[OffsetRow]) -> Iterator[OffsetRow]:
        """The rows that can be held."""
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
        """How many rows passed. Raises InvalidInputError when some did not, which names the first hundred."""
        more = self._refused - len(self._problems)
        if self._problems:
            raise InvalidInputError("\n".join(self._problems + ([f"... and {more:,} more"] if more else [])))
        return self.count

    def _problem_of_any(self, row: OffsetRow) -> str | None:
        """What neither RocketMQ nor Kafka has: larger offsets, and namespaces in the files."""
        if row.offset > LONG_MAX:
            return f"has offset {row.offset}, and the format's largest is {LONG_MAX}; {USE_JSON}"
        if row.namespace != self._naming.namespace:
            return f"is in namespace {row.namespace!r}, not {self._naming.namespace!r}, and the format has none; {USE_JSON}"
        if self._naming.group and row.group != self._naming.group:
            return f"is not of group {self._naming.group!r}, of which alone the file is"
        return None
