"""The output of import and export at their end: counts by group and the first rejects. Their tables have all rows."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from rich.table import Table

from adapter.model.names import NAME_MAX_BYTES
from adapter.pipeline.jobs import Switches
from adapter.runtime.logs import harmless
from adapter.runtime.wording import counted

_SHOWN = 20
_WIDTH = 1_000  # characters of a reject that are printed


def show_counts(groups: DataFrame, names: Sequence[str], switches: Switches) -> None:
    """Print a line for each group, those with the most changes first, and the total."""
    sums = [F.coalesce(F.sum(name), F.lit(0)) for name in names]
    number, *totals = groups.agg(F.count("*"), *sums).collect()[0]
    table = Table(show_footer=True)
    table.add_column("group", footer=counted(number, "group"), overflow="fold")
    for name, total in zip(names, totals, strict=True):
        table.add_column(name, justify="right", footer=f"{total:,}")
    first = [F.desc(name) for name in names]
    for row in groups.orderBy(*first, "group").limit(_SHOWN).collect():
        table.add_row(harmless(row["group"], NAME_MAX_BYTES), *(f"{row[name]:,}" for name in names))
    if number > _SHOWN:
        table.add_row(f"... and {number - _SHOWN:,} more")
    switches.console.print(table, markup=False)


def show_rejects(rejects: DataFrame, where: Column, switches: Switches) -> int:
    """Print the first rejects with their place (`where`) and reason; returns how many there are."""
    total = rejects.count()
    for row in rejects.select(F.concat_ws(": ", where, "reason")).limit(_SHOWN).collect():
        switches.tell(harmless(row[0], _WIDTH))
    if total > _SHOWN:
        switches.tell(f"... and {total - _SHOWN:,} more")
    if total:
        switches.tell(f"{total:,} rejects, see the table `rejects`")
    return total
