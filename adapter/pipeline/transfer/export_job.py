"""The job `export`: writes the Meta Service's offsets as files of RocketMQ or Kafka, and the table `rejects`.

A file is written completely or not at all.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from adapter.formats.rocketmq_json import OFFSETS, VERSION, data_version
from adapter.pipeline.config import JobConfig, fields_of
from adapter.pipeline.jobs import DONE, NOT_AS_ASKED, WITH_REJECTS, Switches
from adapter.pipeline.offsets.options import FORMAT
from adapter.pipeline.places import Place, unusable
from adapter.pipeline.tables import write_table
from adapter.pipeline.transfer import exports
from adapter.pipeline.transfer.summary import SHOWN, show_counts, show_rejects

FILES = "files"  # below `output`, beside the table `rejects`


def run(spark: SparkSession, config: JobConfig, switches: Switches) -> int:
    """Run the export; returns the exit code, NOT_AS_ASKED if there is nothing to write.

    Raises ConfigError, MetaUnavailableError.
    """
    section = config.export
    reader = spark.read.format(FORMAT).options(**config.meta.options()).option("namespace", section.namespace)
    if not fields_of(section.group):
        reader = reader.option("group", section.group)
    rows = exports.named(reader.load(), section).persist()
    try:
        with switches.step("reading the Meta Service"):
            rejected = exports.rejects(rows)
            if not switches.dry_run:
                rejected = write_table(rejected, section.output / "rejects")
        show_counts(exports.counts(rows).toArrow(), ("written", "rejects"), switches)
        line = F.concat_ws(": ", F.concat_ws(" ", "group", "shard"), "reason")
        first = [row[0] for row in rejected.select(line).limit(SHOWN).collect()]
        refused = show_rejects(rejected.count(), first, switches)
        table = exports.lines(rows, section).toArrow()
        for name, data in contents(table):
            if not switches.dry_run:
                _write(section.output / FILES / name, data)
        if not table.num_rows:
            switches.tell("there is nothing to write")
            return NOT_AS_ASKED
        return WITH_REJECTS if refused else DONE
    finally:
        rows.unpersist()


def _write(place: Place, data: bytes) -> None:
    try:
        place.write(data)
    except OSError as error:
        raise unusable(place, "[export] output", error) from error


def contents(lines: pa.Table) -> Iterator[tuple[str, bytes]]:
    """Sorted rows exports.LINE -> (path, content) of each file."""
    rows = zip(*(lines.column(column).to_pylist() for column in exports.LINE), strict=True)
    for name, found in groupby(rows, itemgetter(0)):
        yield name, (_csv if name == exports.CSV_FILE else partial(_json, _head(name)))(found)


def _csv(rows: Iterator[Sequence[str]]) -> bytes:
    return "".join(f"{line}\n" for _, _, line in rows).encode()


def _head(name: str) -> str:
    """What is before the tables of a file: a broker's has a version, see `data_version`."""
    if name.endswith(exports.CLIENT_FILE):
        return "{\n"
    return f'{{\n\t"{VERSION}":{data_version(time.time_ns() // 1_000_000).decode()},\n'


def _json(head: str, rows: Iterator[Sequence[str]]) -> bytes:
    """JSON in the layout of fastjson: all keys are quoted, except those that are objects."""
    tables = {OFFSETS: ""}
    tables |= {name: ",\n".join(f"\t\t{line}" for _, _, line in found) for name, found in groupby(rows, itemgetter(1))}
    return (head + ",\n".join(f'\t"{name}":{{\n{text}\n\t}}' for name, text in tables.items()) + "\n}\n").encode()
