"""The output of import and export at their end: counts by group and the first rejects. Their tables have all rows."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from adapter.model.names import NAME_MAX_BYTES
from adapter.pipeline.jobs import Switches
from adapter.runtime.telemetry.logs import harmless
from adapter.runtime.wording import counted

SHOWN = 20
_WIDTH = 1_000  # characters of a reject that are printed


def show_counts(groups: pa.Table, names: Sequence[str], switches: Switches) -> None:
    """Print a line for each group, those with the most changes first, and the total. `groups`: a row for each group."""
    number = groups.num_rows
    table = Table(show_footer=True)
    table.add_column("group", footer=counted(number, "group"), overflow="fold")
    for name in names:
        table.add_column(name, justify="right", footer=f"{pc.sum(groups[name]).as_py() or 0:,}")
    order = [*((name, "descending") for name in names), ("group", "ascending")]
    for row in groups.sort_by(order).slice(0, SHOWN).to_pylist():
        table.add_row(harmless(row["group"], NAME_MAX_BYTES), *(f"{row[name]:,}" for name in names))
    if number > SHOWN:
        table.add_row(f"... and {number - SHOWN:,} more")
    switches.console.print(table, markup=False)


def show_rejects(total: int, first: Sequence[str], switches: Switches) -> int:
    """Print the first rejects, a line with place and reason for each; returns how many there are in all."""
    for line in first[:SHOWN]:
        switches.tell(harmless(line, _WIDTH))
    if total > SHOWN:
        switches.tell(f"... and {total - SHOWN:,} more")
    if total:
        switches.tell(f"{total:,} rejects, see the table `rejects`")
    return total
