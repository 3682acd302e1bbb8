"""Files with the plan of a reset: the new offset of each shard of one group, or of several.

Kafka's CSV, or JSON if the name ends in `.json`.
Unlike an import, a plan is read completely or refused: applying half of a plan would leave the group in a mixed state.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.formats import files as formats
from adapter.formats.files import Format
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.model.records import GroupKey, OffsetKey
from adapter.runtime.durable import files

PROBLEMS_SHOWN = 100


class ResetPlan(NamedTuple):
    """The rows of a plan. `cut`: why the file may not be whole; empty if nothing shows that."""

    rows: list[OffsetRow]
    cut: str


def read(path: str, group: GroupKey, name: str = "") -> ResetPlan:
    """Read a plan for a group; if its name is empty, for the groups that the file names. Rows of one group may be apart.

    `name` is that of the file in errors, and says by its end what it is. Raises InvalidInputError that names every unreadable and
    every repeated entry.
    """
    kind = _kind(name or path)
    name = name or files.name_of(path, "standard input")
    naming = Naming(group.namespace, group.group)
    rows: dict[OffsetKey, OffsetRow] = {}
    problems: list[str] = []
    try:
        with files.on_disk(path) as copy:
            for entry in formats.read(copy, kind, naming):
                if isinstance(entry, Reject):
                    problems.append(f"{name}: {reject_text(entry)}")
                elif entry.namespace != group.namespace:
                    problems.append(f"{name}: namespace: {entry.namespace!r} is not that of --namespace, {group.namespace!r}")
                elif entry.key in rows:
                    of_group = "" if group.group else f" for group {entry.group!r}"
                    problems.append(f"{name}: shard: {entry.shard!r} is in it twice{of_group}")
                else:
                    rows[entry.key] = entry
            cut = formats.unterminated(copy, kind)
    except NotReadableError as error:
        raise InvalidInputError(f"{name}: {error}") from error
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        raise InvalidInputError("\n".join(problems[:PROBLEMS_SHOWN] + ([f"... and {more:,} more"] if more > 0 else [])))
    if not rows:
        raise InvalidInputError(f"{name}: holds no offsets")
    return ResetPlan(list(rows.values()), f"{name}: {reject_text(cut)}" if cut else "")


def write(path: str, rows: Iterable[OffsetRow], group: GroupKey) -> None:
    """Write a plan of a group, or with a column for the group if its name is empty, completely or not at all.

    Raises InvalidInputError, also for an offset that the format cannot hold.
    """
    formats.write(Path(path), _kind(path), rows, Naming(group.namespace, group.group))


def reject_text(entry: Reject) -> str:
    """An unreadable entry as a message: its line or place, the reason, and its text."""
    parts = [f"line {entry.line}" if entry.line else "", entry.place, entry.reason]
    return ": ".join(part for part in parts if part) + (f" (there stands {entry.text})" if entry.text else "")


def _kind(path: str) -> Format:
    return Format.JSON if path.lower().endswith(".json") else Format.KAFKA_CSV
