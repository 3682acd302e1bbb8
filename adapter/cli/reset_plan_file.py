"""Files with a plan of a reset: which shard of one group goes where. Kafka's CSV, or JSON by the file's name.

Unlike an import, a plan is taken as a whole or not at all: a reset to half of a plan is none.
"""

from collections.abc import Iterable
from pathlib import Path

from adapter.errors import InvalidInputError
from adapter.formats import files as formats
from adapter.formats.files import Format
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.model.records import GroupKey
from adapter.runtime import files

PROBLEMS_SHOWN = 100


def read(path: str, group: GroupKey) -> list[OffsetRow]:
    """The plan in a file. Raises InvalidInputError that names every entry that cannot be read, or is there twice."""
    name = files.name_of(path, "standard input")
    naming = Naming(group.namespace, group.group)
    rows: dict[str, OffsetRow] = {}
    problems: list[str] = []
    try:
        with files.on_disk(path) as copy:
            for entry in formats.read(copy, _kind(path), naming):
                if isinstance(entry, Reject):
                    problems.append(f"{name}: {told(entry)}")
                elif entry.shard in rows:
                    problems.append(f"{name}: shard: {entry.shard!r} is in it twice")
                else:
                    rows[entry.shard] = entry
    except NotReadableError as error:
        raise InvalidInputError(f"{name}: {error}") from error
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        raise InvalidInputError("\n".join(problems[:PROBLEMS_SHOWN] + ([f"... and {more:,} more"] if more > 0 else [])))
    if not rows:
        raise InvalidInputError(f"{name}: holds no offsets")
    return list(rows.values())


def write(path: str, rows: Iterable[OffsetRow], group: GroupKey) -> None:
    """Write a plan. Raises InvalidInputError, also for what the format cannot hold: nothing is written then."""
    formats.write(Path(path), _kind(path), rows, Naming(group.namespace, group.group))


def told(entry: Reject) -> str:
    """What a person is told of an entry that cannot be read: its place, the reason, what stands there."""
    parts = [f"line {entry.line}" if entry.line else "", entry.place, entry.reason]
    return ": ".join(part for part in parts if part) + (f" (there stands {entry.text})" if entry.text else "")


def _kind(path: str) -> Format:
    return Format.JSON if path.lower().endswith(".json") else Format.KAFKA_CSV
