"""The job `reconcile`: compares snapshots of adapters to the Meta Service, and merges the plan with --apply.

Only rows of the table `plan` are merged. An unreadable snapshot is reported and is a row of `differences`. It does not stop the
job, because merging the other snapshots is correct without it.
"""

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from rich.table import Table

from adapter.model.names import NAME_MAX_BYTES
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import DONE, NOT_AS_ASKED, WITH_REJECTS, JobError, Switches
from adapter.pipeline.offsets.options import FORMAT
from adapter.pipeline.reconcile import compare as reconcile
from adapter.pipeline.reconcile.snapshots import AGAIN, Snapshots, find_snapshots, read_snapshots
from adapter.pipeline.spark_errors import SPARK_ERRORS
from adapter.pipeline.tables import DAMAGED, damage, delete_table, read_table, write_table
from adapter.runtime.telemetry.logs import harmless
from adapter.runtime.wording import counted

_SHOWN = 20


def run(spark: SparkSession, config: JobConfig, switches: Switches) -> int:
    """Run the job; returns the exit code.

    Raises ConfigError without a snapshot, MetaUnavailableError, JobError for a damaged file.
    """
    found = find_snapshots(config.reconcile.snapshots)
    _tell_files(found, switches)
    job = _Reconcile(spark, config, switches)
    try:
        differences = job.compare(found)
        unreadable = job.show(differences)
        below = job.apply(differences) if switches.apply else 0
    except SPARK_ERRORS as error:
        damaged = damage(error)
        if damaged is None:
            raise
        advice = f": {AGAIN}, or move it away" if damaged.endswith(DAMAGED) else ""
        raise JobError(harmless(f"{damaged}, nothing was compared{advice}", 4 * NAME_MAX_BYTES)) from error
    if below:
        return NOT_AS_ASKED
    return WITH_REJECTS if unreadable else DONE


class _Reconcile:
    """The steps of a reconciliation and the values that they share."""

    def __init__(self, spark: SparkSession, config: JobConfig, switches: Switches) -> None:
        self._spark = spark
        self._options = config.meta.options()
        self._output = config.reconcile.output
        self._switches = switches

    def compare(self, found: Snapshots) -> DataFrame:
        """Compute the table `differences`; a dry run keeps it in memory."""
        with self._switches.step(
            f"comparing {counted(sum(file.records for file in found.newest), 'record')} with the Meta Service"
        ):
            local = read_snapshots(self._spark, found.newest)
            differences = reconcile.compare(local, self._standing(), [file.broker for file in found.newest])
            if found.unreadable:
                differences = differences.unionByName(self._files(found), allowMissingColumns=True)
            return self._table("differences", differences)

    def show(self, differences: DataFrame) -> int:
        """Write the plan and print the summary; returns how many rows or files are unreadable."""
        counts = {row["kind"]: row for row in reconcile.counts(differences).collect()}
        if not self._switches.dry_run:
            self._table("plan", reconcile.planned(differences))
            delete_table(self._output / "applied")  # the table of an earlier plan
        table = Table("kind", show_footer=True)
        table.columns[0].footer = "all"
        for name in ("keys", "planned", "tombstones"):
            table.add_column(name, justify="right", footer=f"{sum(row[name] for row in counts.values()):,}")
        table.add_column("largest difference", justify="right")
        for kind in reconcile.KINDS:
            if kind in counts:
                row = counts[kind]
                largest = "-" if row["largest"] is None else f"{row['largest']:,}"
                table.add_row(kind, *(f"{row[name]:,}" for name in ("keys", "planned", "tombstones")), largest)
        self._switches.console.print(table, markup=False)
        if counts:
            self._show_worst(differences)
        else:
            self._switches.tell("no differences: the Meta Service has all that the adapters have")
        unreadable = counts.get("unreadable")
        return int(unreadable["keys"]) if unreadable else 0

    def apply(self, differences: DataFrame) -> int:
        """Merge the plan and read back; returns how many offsets are smaller than planned."""
        plan = read_table(self._spark, self._output / "plan", reconcile.planned(differences).schema)
        with self._switches.step("merging the plan into the Meta Service"):
            plan.write.format(FORMAT).mode("append").options(**self._options).save()
        with self._switches.step("reading back"):
            done = self._table("applied", reconcile.applied(plan, self._standing()))
            total, below = done.agg(F.count("*"), F.count_if("below")).collect()[0]
        self._switches.tell(f"{counted(total, 'offset')} merged, {below:,} of them below the plan")
        if below:
            self._show_below(done)
        return int(below)

    def _standing(self) -> DataFrame:
        return self._spark.read.format(FORMAT).options(**self._options, tombstones="true").load()

    def _files(self, found: Snapshots) -> DataFrame:
        """The unreadable files, as rows of `differences`."""
        rows = [("", "", "", "unreadable", False, f"{place}: {problem}") for place, problem in found.unreadable]
        columns = "namespace string, group string, shard string, kind string, planned boolean, problem string"
        return self._spark.createDataFrame(rows, columns)

    def _table(self, name: str, frame: DataFrame) -> DataFrame:
        if self._switches.dry_run:
            return frame.persist()
        return write_table(frame, self._output / name)

    def _show_worst(self, differences: DataFrame) -> None:
        rows = reconcile.worst(differences).collect()
        table = Table("namespace", "group", "shard", "kind", "broker")
        for name in ("local_offset", "remote_offset", "difference"):
            table.add_column(name, justify="right")
        for row in rows:
            numbers = (row["local_offset"], row["remote_offset"], row["difference"])
            table.add_row(*_names(row), row["kind"], row["broker"], *(f"{number:,}" for number in numbers))
        if rows:
            self._switches.console.print(table, markup=False)

    def _show_below(self, done: DataFrame) -> None:
        table = Table("namespace", "group", "shard")
        for name in ("epoch", "offset", "now_epoch", "now_offset"):
            table.add_column(name, justify="right")
        for row in done.where("below").orderBy(*reconcile.KEY).limit(_SHOWN).collect():
            cells = (row[name] for name in ("epoch", "offset", "now_epoch", "now_offset"))
            table.add_row(*_names(row), *("-" if cell is None else f"{cell:,}" for cell in cells))
        self._switches.console.print(table, markup=False)


def _tell_files(found: Snapshots, switches: Switches) -> None:
    for file in found.older:
        switches.tell(harmless(f"{file.place}: not read, there is a newer snapshot of {file.broker}", 4 * NAME_MAX_BYTES))
    for place, problem in found.unreadable:
        switches.tell(harmless(f"{place}: {problem}", 4 * NAME_MAX_BYTES))


def _names(row: Row) -> list[str]:
    return [harmless(row[name], NAME_MAX_BYTES) for name in reconcile.KEY]
