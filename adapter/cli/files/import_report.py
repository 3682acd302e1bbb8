"""The report of an import: how many offsets were new, raised, unchanged or refused, and which.

A table shows the first `SHOWN` rows of each kind, and only these are held in memory. JSON has every row, printed as it arrives.
"""

from collections import Counter
from typing import Any

from adapter.cli.offsets.change import moves, print_rows
from adapter.cli.output import note, tell, warn
from adapter.cli.table import json_text
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

SHOWN = 1_000  # rows of each kind in the table
NEW, RAISED, UNCHANGED, LARGER = "new", "raised", "unchanged", "larger_stands"

Row = offsets_pb.ChangeReply.Row


def kind_of(row: Row, *, execute: bool) -> str:
    """The outcome for an offset, or in a dry run the expected one: NEW, RAISED, UNCHANGED or LARGER.

    A dry run also warns of offsets that would be imported, though their log does not have them.
    """
    if row.warning and (execute or not row.changed):
        return LARGER
    if not row.changed or not moves(row):
        return UNCHANGED
    return RAISED if row.HasField("before") and not row.before.deleted else NEW


class Report:
    """Counts and prints the adapter's replies. `unreadable`: how many entries of the file could not be parsed."""

    def __init__(self, *, execute: bool, as_json: bool, unreadable: int) -> None:
        self._execute = execute
        self._as_json = as_json
        self._unreadable = unreadable
        self._counts: Counter[str] = Counter()
        self._shown: dict[str, list[Row]] = {NEW: [], RAISED: [], LARGER: []}
        self._contended: list[str] = []
        self._outside = 0  # offsets that their log does not have
        self._confirmed = True
        if as_json:
            _print('{"rows": [', end="")

    def add(self, reply: offsets_pb.ChangeReply) -> None:
        """Count and, as JSON, print the rows of one reply."""
        self._confirmed = self._confirmed and reply.executed == self._execute
        if self._as_json and reply.rows:
            _print("," if self._counts else "")
            _print(",\n".join(json_text(_as_dict(row)) for row in reply.rows), end="")
        for row in reply.rows:
            kind = kind_of(row, execute=self._execute)
            self._counts[kind] += 1
            self._outside += kind in (NEW, RAISED) and bool(row.warning)
            if kind != UNCHANGED and len(self._shown[kind]) < SHOWN:
                self._shown[kind].append(row)

    def add_contended(self, text: str) -> None:
        """Note a request that the adapter refused because another writer moved one of its offsets meanwhile."""
        self._contended.append(text)

    def end(self, repeated: int, *, whole: bool = True) -> bool:
        """Print the totals; `whole` is False if an error ended the import early. True if all was imported as requested."""
        counts = {kind: self._counts[kind] for kind in (NEW, RAISED, UNCHANGED, LARGER)}
        counts |= {"repeated": repeated, "unreadable": self._unreadable, "outside": self._outside}
        executed = self._execute and self._confirmed and whole
        if self._as_json:
            rest = {"executed": executed, "counts": counts, "contended": self._contended}
            _print(f"\n], {json_text(rest)[1:]}")
        elif whole or self._counts:
            self._tell(counts, executed=executed, whole=whole)
        for text in self._contended:
            note(f"not as it was asked for: {text}", style="red")
        if not self._confirmed:
            note("not done: the adapter does not confirm it; look with `groups describe`, and try again", style="red")
        if self._execute and not whole:
            warn("the error below ended the import: run it again; what was merged already stays as it is")
        return self._confirmed and not (counts[LARGER] or self._unreadable or self._contended)

    def _tell(self, counts: dict[str, int], *, executed: bool, whole: bool) -> None:
        shown = [row for rows in self._shown.values() for row in rows]
        print_rows(shown)
        more = counts[NEW] + counts[RAISED] + counts[LARGER] - len(shown)
        if more:
            tell(f"and {more:,} more; --json prints all")
        tell(
            f"{counts[NEW]:,} new, {counts[RAISED]:,} raised, {counts[UNCHANGED]:,} unchanged, "
            f"{counts[LARGER]:,} where a larger one stands; in the file: {counts['repeated']:,} repeated, "
            f"{counts['unreadable']:,} unreadable"
        )
        if self._outside:
            warn(
                f"{counted(self._outside, 'offset')} outside of the log, see the notes: the log was made anew, or the file is of "
                "another broker; once imported, `offsets reset GROUP --to-current` brings them into the log"
            )
        changed, total = counts[NEW] + counts[RAISED], self._counts.total()
        if not self._execute:
            done = "dry run" if whole else "dry run, not ended"
            tell(
                f"{done}: {changed:,} of {counted(total, 'offset')} would be imported"
                + ("; --execute does it" if changed else "")
            )
        elif self._confirmed:
            done = "done" if executed else "done before the error"
            tell(f"{done}: {changed:,} of {counted(total, 'offset')} imported, read back and equal")


def _as_dict(row: Row) -> dict[str, Any]:
    """The row as `as_dict` returns it. Written out by hand: ten times as fast, and an import may have millions of rows."""
    values: dict[str, Any] = {"namespace": row.namespace, "group": row.group, "shard": row.shard}
    for side in ("before", "after"):
        if row.HasField(side):
            position = getattr(row, side)
            values[side] = {"epoch": position.epoch, "offset": position.offset, "deleted": position.deleted}
    return {**values, "changed": row.changed, "warning": row.warning}


def _print(text: str, end: str = "\n") -> None:
    print(text, end=end)  # noqa: T201 - what the command is for
