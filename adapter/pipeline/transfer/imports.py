"""The transformations of an import: ENTRIES -> names, checks, duplicates, comparison with the Meta Service.

DataFrame -> DataFrame.

A row that is not imported has a `reason`. No offset is lowered: the largest offset of a key wins, in the files and when merged.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from adapter.formats.kafka_csv import LINE_MAX_BYTES
from adapter.formats.rows import TEXT_SHOWN
from adapter.model.names import NAME_MAX_BYTES
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import FIRST_EPOCH, LONG_MAX
from adapter.pipeline.config import ImportSection, fields_of
from adapter.pipeline.transfer.import_files import parted
from adapter.pipeline.transfer.patterns import filled

KEY = ["namespace", "group", "shard"]
PLACE = ["file", "place", "text"]
CHANGES = ("new", "raised", "unchanged", "lower")
WRITTEN = ("new", "raised")
COUNTS = (*CHANGES, "duplicates")

_DIGITS = "^[0-9]{1,20}$"
_CONTROL = r"[\x00-\x1f\x7f-\x9f]"
_VALUE_SHOWN = 50


def csv_entries(lines: DataFrame) -> DataFrame:
    """LINES as ENTRIES: `group,topic,partition,offset`, or without the group, as kafka-consumer-groups writes and reads them."""
    rows = parted(lines)
    long = F.octet_length(F.regexp_replace("value", "\r$", "")) > LINE_MAX_BYTES
    reason = F.coalesce(
        F.col("reason"),
        F.when(long, F.lit(f"is over {LINE_MAX_BYTES:,} bytes long; no line of offsets is")),
        F.when(F.col("topic").isNull(), F.lit("is not group,topic,partition,offset, nor topic,partition,offset")),
        _not_whole("queue", "partition", QUEUE_MAX),
        _not_whole("offset", "offset", LONG_MAX),
    )
    return rows.select(
        "file",
        F.when(F.col("line") > 0, F.concat(F.lit("line "), F.col("line"))).otherwise("").alias("place"),
        *(F.lit("").alias(name) for name in ("client", "broker")),
        *(F.coalesce(name, F.lit("")).alias(name) for name in ("group", "topic")),
        *(F.expr(f"try_cast(`{name}` AS BIGINT)").alias(name) for name in ("queue", "offset")),
        _shortened(F.col("value"), TEXT_SHOWN).alias("text"),
        reason.alias("reason"),
    )


def _not_whole(column: str, name: str, largest: int) -> Column:
    number = F.expr(f"try_cast(`{column}` AS DECIMAL(20, 0))")
    good = F.col(column).rlike(_DIGITS) & (number <= F.expr(f"CAST({largest} AS DECIMAL(20, 0))"))
    shown = _shortened(F.col(column), _VALUE_SHOWN)
    return F.when(~good, F.concat(F.lit(f"{name}: '"), shown, F.lit(f"' is not a whole number from 0 to {largest}")))


def _shortened(text: Column, size: int) -> Column:
    return F.when(F.length(text) > size, F.concat(F.substring(text, 1, size), F.lit("..."))).otherwise(text)


def named(entries: DataFrame, section: ImportSection) -> DataFrame:
    """ENTRIES with namespace, group and shard as they will be stored; `reason` says why a name is invalid."""
    broker = F.when(F.col("broker") != "", F.col("broker")).otherwise(section.broker)
    group = filled(section.group, {"group": F.col("group"), "client": F.col("client")})
    shard = filled(section.shard, {"topic": F.col("topic"), "partition": F.col("queue"), "broker": broker})
    problems = [_bad_group(section), _bad_name("topic")]
    rows = entries.withColumn("reason", F.coalesce("reason", *problems))
    rows = rows.withColumns({"namespace": F.lit(section.namespace), "group": group, "shard": shard})
    return rows.withColumn("reason", F.coalesce("reason", _bad_name("group"), _bad_name("shard")))


def _bad_group(section: ImportSection) -> Column:
    if fields_of(section.group):
        return F.when(F.col("group") == "", F.lit("group is missing; [import] group = 'NAME' names it for all files"))
    other = (F.col("group") != "") & (F.col("group") != section.group)
    said = F.concat(
        F.lit("group: '"), _shortened(F.col("group"), _VALUE_SHOWN), F.lit(f"' is not {section.group!r}, as [import] says")
    )
    return F.when(other, said)


def _bad_name(column: str) -> Column:
    """Why a name is invalid, by the rules of `model.names.check_name`; null if it is valid."""
    size = F.octet_length(column)
    return (
        F.when(size == 0, F.lit(f"{column} is empty"))
        .when(
            size > NAME_MAX_BYTES,
            F.concat(F.lit(f"{column} is "), size, F.lit(f" bytes long; at most {NAME_MAX_BYTES} are allowed")),
        )
        .when(F.col(column).rlike(_CONTROL), F.lit(f"{column} has a control character"))
    )


def rejects(rows: DataFrame) -> DataFrame:
    """The rows with a `reason`, which are not imported."""
    return rows.where("reason IS NOT NULL").select("file", "place", "text", "reason")


def candidates(rows: DataFrame) -> DataFrame:
    """One row for each key: its largest offset, and how many rows the files have for it."""
    best = F.max(F.struct("offset", "topic", "queue", "file", "place")).alias("best")
    found = rows.where("reason IS NULL").groupBy(*KEY).agg(best, F.count("*").alias("rows"))
    return found.select(
        *KEY, "best.topic", F.col("best.queue").alias("partition"), "best.offset", "rows", "best.file", "best.place"
    )


def preview(wanted: DataFrame, standing: DataFrame) -> DataFrame:
    """Candidates with the Meta Service's offsets. A stored offset that Spark cannot hold is larger than any candidate."""
    there = standing.select(
        *KEY, F.col("epoch").alias("standing_epoch"), F.col("offset").alias("standing_offset"), F.expr("true").alias("there")
    )
    change = (
        F.when(F.col("there").isNull(), "new")
        .when(F.col("offset") > F.col("standing_offset"), "raised")
        .when(F.col("offset") == F.col("standing_offset"), "unchanged")
        .otherwise("lower")
    )
    return wanted.join(there, KEY, "left").withColumn("change", change).drop("there")


def counts(previewed: DataFrame) -> DataFrame:
    """For each group: the shards by kind of change, and how many rows had a repeated key."""
    each = [F.count_if(F.col("change") == change).alias(change) for change in CHANGES]
    return previewed.groupBy("group").agg(*each, F.sum(F.col("rows") - 1).alias("duplicates"))


def planned(previewed: DataFrame) -> DataFrame:
    """The rows that raise an offset, with the columns of the data source `offsets`."""
    return previewed.where(F.col("change").isin(*WRITTEN)).select(*KEY, "topic", "partition", "offset")


def applied(previewed: DataFrame, standing: DataFrame) -> DataFrame:
    """The merged rows with the offsets stored now.

    `below`: the stored one is smaller, and not because of a later reset or rewind.
    """
    there = standing.select(
        *KEY, F.col("epoch").alias("now_epoch"), F.col("offset").alias("now_offset"), F.expr("true").alias("there")
    )
    reset = F.col("now_epoch") > F.greatest(F.coalesce("standing_epoch", F.lit(0)), F.lit(FIRST_EPOCH))
    below = F.col("there").isNull() | ((F.col("now_offset") < F.col("offset")) & ~reset)
    rows = previewed.where(F.col("change").isin(*WRITTEN)).join(there, KEY, "left")
    return rows.select(*KEY, "offset", "now_epoch", "now_offset", F.coalesce(below, F.expr("false")).alias("below"))
