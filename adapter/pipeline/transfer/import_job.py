"""The job `import`: reads files of offsets, and writes the tables `preview` and `rejects`.

With --apply it merges the rows of `preview`, reads them back, and writes the table `applied`. Only rows of the table `preview`
are merged. An unreadable row goes to `rejects`, and does not stop the others. A run that is killed has merged a part at most;
the next run merges the rest.
"""

import json
import uuid
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from adapter.model.schemas import RECORDS
from adapter.pipeline.config import ImportSection, JobConfig, MetaSection, fields_of
from adapter.pipeline.jobs import DONE, NOT_AS_ASKED, WITH_REJECTS, Switches
from adapter.pipeline.offsets.options import ReadOptions, WriteOptions, parse_options
from adapter.pipeline.offsets.reader import OffsetsReader
from adapter.pipeline.offsets.writer import OffsetsWriter
from adapter.pipeline.transfer import imports
from adapter.pipeline.transfer.import_files import doubts, find_files, pieces
from adapter.pipeline.transfer.import_tasks import COUNTS, MESSAGES, REJECTS, Work, publish, unpacked
from adapter.pipeline.transfer.imports import APPLIED, PREVIEW
from adapter.pipeline.transfer.summary import show_counts, show_rejects
from adapter.runtime.wording import counted

ROW_BYTES = 16  # of a file, at least, for most rows
BUCKET_ROWS = 250_000  # of the files; one task holds the rows of a bucket in memory
MAX_TASKS = 1_000
# A task has two calls of 20,000 offsets in flight, which keep a Meta Service busy; it admits 100,000 at once. The calls of a
# second task would go to the same one, and be refused.
MERGING_TASKS = 1
_MESSAGES = from_arrow_schema(MESSAGES)


def run(spark: SparkSession, config: JobConfig, switches: Switches) -> int:
    """Run the import; returns the exit code. Raises ConfigError if a file is missing, MetaUnavailableError."""
    job = _Import(spark, config, switches)
    refused = job.look()
    if switches.apply and job.apply():
        return NOT_AS_ASKED
    return WITH_REJECTS if refused else DONE


class _Import:
    """The steps of an import and the values that they share."""

    def __init__(self, spark: SparkSession, config: JobConfig, switches: Switches) -> None:
        self._spark = spark
        self._switches = switches
        # Made once: it has the commit time of the rows, which a repeated task must not change.
        self._writer = OffsetsWriter(parse_options(WriteOptions, config.meta.options()))
        self._work = _work(config.import_, config.meta, dry_run=switches.dry_run)
        self._merging: list[int] = []  # the buckets that have something to merge

    def look(self) -> int:
        """Write the tables `preview` and `rejects`, and show their summary; returns the number of rejects."""
        work = self._work
        for line in doubts(list(dict.fromkeys(piece.file for piece in work.pieces))):
            self._switches.tell(f"warning: {line}")
        with self._switches.step("reading the files and the Meta Service"):
            read = self._over(len(work.pieces) + len(work.parts)).mapInArrow(work.read, _MESSAGES)
            told = self._by_bucket(read).mapInArrow(work.compare, _MESSAGES).collect()
            found = {row.bucket: unpacked(row.data) for row in told if row.kind == COUNTS}
            refused = sorted((row.number, row.data) for row in told if row.kind == REJECTS)
            self._publish("preview", PREVIEW, sorted(found))
            self._publish("rejects", imports.REJECTS, [number for number, _ in refused])
        self._merging = sorted(bucket for bucket, counts in found.items() if imports.changes(counts))
        show_counts(imports.summed(list(found.values())), imports.COUNTS, self._switches)
        rejected = [json.loads(data) for _, data in refused]
        first = [_line(**row) for some in rejected for row in some["first"]]
        return show_rejects(sum(some["count"] for some in rejected), first, self._switches)

    def apply(self) -> int:
        """Merge and read back; returns how many offsets are smaller than planned."""
        work, merging = self._work, self._merging
        told = []
        with self._switches.step("merging into the Meta Service"):
            if merging:
                merge = partial(work.merge, buckets=merging, writer=self._writer)
                self._over(len(merging), MERGING_TASKS).mapInArrow(merge, _MESSAGES).collect()
        with self._switches.step("reading back"):
            if merging:
                read = self._over(len(work.parts)).mapInArrow(work.read_back, _MESSAGES)
                verify = partial(work.verify, merged=frozenset(merging))
                told = self._by_bucket(read).mapInArrow(verify, _MESSAGES).collect()
            self._publish("applied", APPLIED, sorted(row.bucket for row in told))
        found = [json.loads(row.data) for row in told]
        total, below = sum(row["merged"] for row in found), sum(int(row["below"]) for row in found)
        self._switches.tell(f"{counted(total, 'offset')} merged, {below:,} of them below what was merged")
        return below

    def _over(self, count: int, tasks: int = MAX_TASKS) -> DataFrame:
        """The numbers below `count`, distributed to at most so many tasks."""
        return self._spark.range(0, count, 1, min(count, tasks))

    def _by_bucket(self, messages: DataFrame) -> DataFrame:
        return messages.repartitionById(self._work.buckets, "bucket")

    def _publish(self, name: str, schema: pa.Schema, numbers: Sequence[int]) -> None:
        """Make the parts with these numbers a table. Raises AdapterError, ConfigError."""
        if self._work.output:
            publish(self._work.output / name, [self._work.part_name(number) for number in numbers], schema)


def _work(section: ImportSection, meta: MetaSection, *, dry_run: bool) -> Work:
    """List the files and the parts of the Meta Service. Raises ConfigError, MetaUnavailableError."""
    found = pieces(find_files(section.files, section.format), section.format)
    options = {**meta.options(), "namespace": section.namespace}
    if not fields_of(section.group):
        options["group"] = section.group
    reader = OffsetsReader(parse_options(ReadOptions, options), from_arrow_schema(RECORDS))
    parts = reader.partitions()
    rows = sum(piece.end - piece.start for piece in found) // ROW_BYTES
    buckets = max(-(-rows // BUCKET_ROWS), len(parts))
    output = None if dry_run else section.output
    return Work(section, output, uuid.uuid4().hex[:12], found, reader, parts, buckets)


def _line(file: str, place: str, reason: str, **_: str) -> str:
    return f"{file}: {place}: {reason}" if place else f"{file}: {reason}"
