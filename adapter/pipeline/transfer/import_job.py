"""The job `import`: reads files of offsets, and writes the tables `preview` and `rejects`.

With --apply it merges the rows of `preview`, reads them back, and writes the table `applied`. Only rows of the table `preview`
are merged. An unreadable row goes to `rejects`, and does not stop the others.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import DONE, NOT_AS_ASKED, WITH_REJECTS, Switches
from adapter.pipeline.offsets.options import FORMAT
from adapter.pipeline.transfer import imports
from adapter.pipeline.transfer.import_files import csv_lines, find_files, json_entries
from adapter.pipeline.transfer.summary import show_counts, show_rejects
from adapter.runtime.wording import counted


def run(spark: SparkSession, config: JobConfig, switches: Switches) -> int:
    """Run the import; returns the exit code. Raises ConfigError if a file is missing, MetaUnavailableError."""
    job = _Import(spark, config, switches)
    rows = job.read().persist()
    try:
        previewed, rejected = job.look(rows)
        show_counts(imports.counts(previewed), imports.COUNTS, switches)
        where = F.concat_ws(": ", "file", F.when(F.col("place") != "", F.col("place")))
        refused = show_rejects(rejected, where, switches)
        if switches.apply and job.apply(previewed):
            return NOT_AS_ASKED
        return WITH_REJECTS if refused else DONE
    finally:
        rows.unpersist()


class _Import:
    """The steps of an import and the values that they share."""

    def __init__(self, spark: SparkSession, config: JobConfig, switches: Switches) -> None:
        self._spark = spark
        self._options = config.meta.options()
        self._section = config.import_
        self._switches = switches

    def read(self) -> DataFrame:
        """Read and check the rows of the files."""
        section = self._section
        files = find_files([place.path for place in section.files], section.format)
        if section.format == "kafka-csv":
            entries = imports.csv_entries(csv_lines(self._spark, files))
        else:
            entries = json_entries(self._spark, files, section.format)
        return imports.named(entries, section)

    def look(self, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The tables `preview` and `rejects`; a dry run computes but does not write them."""
        with self._switches.step("reading the files and the Meta Service"):
            previewed = self._table("preview", imports.preview(imports.candidates(rows), self._standing()))
            return previewed, self._table("rejects", imports.rejects(rows))

    def apply(self, previewed: DataFrame) -> int:
        """Merge and read back; returns how many offsets are smaller than planned."""
        with self._switches.step("merging into the Meta Service"):
            writer = imports.planned(previewed).write.format(FORMAT).mode("append")
            writer.options(**self._options).save()
        with self._switches.step("reading back"):
            done = self._table("applied", imports.applied(previewed, self._standing()))
            total, below = done.agg(F.count("*"), F.count_if("below")).collect()[0]
        self._switches.tell(f"{counted(total, 'offset')} merged, {below:,} of them below what was merged")
        return int(below)

    def _standing(self) -> DataFrame:
        reader = self._spark.read.format(FORMAT).options(**self._options)
        return reader.option("namespace", self._section.namespace).load()

    def _table(self, name: str, frame: DataFrame) -> DataFrame:
        if self._switches.dry_run:
            return frame
        path = str((self._section.output / name).path)
        frame.write.mode("overwrite").parquet(path)
        return self._spark.read.parquet(path)
