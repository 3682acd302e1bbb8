"""The transformations of an export: records -> parsed and checked names -> lines of files. Pure: DataFrame in, DataFrame out.

A row that the format cannot hold gets a `reason`. The files can be read by the job `import`, and by RocketMQ's and Kafka's tools.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from adapter.formats.files import LMQ_FILE
from adapter.formats.rocketmq_json import BROADCAST, LMQ, LMQ_OFFSETS, OFFSETS, SEPARATOR
from adapter.model.queues import QUEUE_MAX
from adapter.pipeline.config import ExportSection, fields_of
from adapter.pipeline.transfer.patterns import taken_apart

# A line of a file: the file's path below `output`, the table in the file, and the text without a line break.
LINE = ("file", "table", "line")
BROKER_FILE, CLIENT_FILE, CSV_FILE = "consumerOffset.json", "offsets.json", "offsets.csv"

# Values that Kafka's tool writes without quotes, see adapter.formats.kafka_csv.
_UNQUOTED = r"^[^\x00-,]{1,24}$"
_PLAIN_GROUP = f"^[^{SEPARATOR}]+({SEPARATOR}{BROADCAST})?$"
_NO_DIRECTORY = r"/|^\.{0,2}$"


def named(records: DataFrame, section: ExportSection) -> DataFrame:
    """Live records with topic, queue, broker, group and client as in the format; `reason` says why the format cannot hold one."""
    shard = taken_apart(F.col("shard"), section.shard)
    rows = records.where("live")
    if fields_of(section.group):
        group = taken_apart(F.col("group"), section.group)
    else:
        rows = rows.where(F.col("group") == section.group)
        group = {"group": F.col("group")}
    rows = rows.select(
        "namespace",
        F.col("group").alias("whole_group"),
        "shard",
        F.col("topic").alias("label"),
        "offset",
        "problem",
        group["group"].alias("group"),
        group.get("client", F.lit("")).alias("client"),
        shard["topic"].alias("topic"),
        shard["partition"].cast("long").alias("queue"),
        shard.get("broker", F.lit(section.broker)).alias("broker"),
    )
    return rows.withColumn("reason", F.coalesce(*_problems(section), *_problems_of_format(section)))


def _problems(section: ExportSection) -> list[Column]:
    other = (F.col("label") != "") & (F.col("label") != F.col("topic"))
    return [
        F.when(F.col("problem").isNotNull() | F.col("offset").isNull(), F.coalesce("problem", F.lit("offset is not known"))),
        F.when(F.col("group").isNull(), F.lit(f"group is not of the form {section.group}")),
        F.when(F.col("topic").isNull(), F.lit(f"shard is not of the form {section.shard}")),
        F.when(F.col("queue") > QUEUE_MAX, F.lit(f"partition is over {QUEUE_MAX}")),
        F.when(other, F.format_string("topic is '%s', but by its shard it would be '%s'", "label", "topic")),
    ]


def _problems_of_format(section: ExportSection) -> list[Column]:
    directories = [name for name in ("broker",) if section.format == "rocketmq" and name in fields_of(section.shard)]
    if section.format == "rocketmq-client":
        directories = fields_of(section.group) or ["group"]
    problems = [
        F.when(F.col(name).rlike(_NO_DIRECTORY), F.lit(f"{name} cannot be the name of a directory")) for name in directories
    ]
    if section.format == "rocketmq":
        what = f"has an {SEPARATOR}, which separates topic and group in the file"
        problems.append(F.when(F.col("topic").contains(SEPARATOR), F.lit(f"topic {what}")))
        problems.append(F.when(~F.col("group").rlike(_PLAIN_GROUP), F.lit(f"group {what}")))
    return problems


def rejects(rows: DataFrame) -> DataFrame:
    """The rows with a `reason`, which are written to no file."""
    return rows.where("reason IS NOT NULL").select("namespace", F.col("whole_group").alias("group"), "shard", "offset", "reason")


def counts(rows: DataFrame) -> DataFrame:
    """For each group: the number of written offsets and of rejects."""
    each = [F.count_if(F.col("reason").isNull()).alias("written"), F.count_if(F.col("reason").isNotNull()).alias("rejects")]
    return rows.groupBy(F.col("whole_group").alias("group")).agg(*each)


def lines(rows: DataFrame, section: ExportSection) -> DataFrame:
    """The rows LINE of all files, in order."""
    good = rows.where("reason IS NULL")
    if section.format == "rocketmq":
        return _broker_lines(good, F.col("broker") if "broker" in fields_of(section.shard) else None)
    if section.format == "rocketmq-client":
        return _client_lines(good)
    return _csv_lines(good, with_group=bool(fields_of(section.group)))


def _broker_lines(rows: DataFrame, broker: Column | None) -> DataFrame:
    """One file for each broker; a second one with all its offsets if some of them are of light message queues (LMQ).

    A broker with enableLmq loads lmqConsumerOffset.json, with the LMQ offsets in a table of their own; a broker without it loads
    consumerOffset.json and drops that table (LmqConsumerOffsetManager, ConsumerOffsetManager.decode).
    """
    directory = F.lit("") if broker is None else F.concat(broker, F.lit("/"))
    lmq = F.col("group").startswith(LMQ) & (F.col("queue") == 0)
    placed = rows.withColumns({"directory": directory, "lmq": lmq, "key": F.concat("topic", F.lit(SEPARATOR), "group")})
    with_lmq = placed.join(placed.where("lmq").select("directory").distinct(), "directory", "left_semi")
    keyed = _in_file(placed, BROKER_FILE, F.lit(OFFSETS)).union(
        _in_file(with_lmq, LMQ_FILE, F.when(F.col("lmq"), LMQ_OFFSETS).otherwise(OFFSETS))
    )
    queues = keyed.groupBy("file", "table", "key").agg(F.array_sort(F.collect_list(F.struct("queue", "offset"))).alias("queues"))
    pairs = F.transform(
        "queues", lambda queue: F.concat(F.lit('"'), queue["queue"].cast("string"), F.lit('":'), queue["offset"].cast("string"))
    )
    whole = F.concat(F.lit("{"), F.concat_ws(",", pairs), F.lit("}"))
    value = F.when(F.col("table") == LMQ_OFFSETS, F.col("queues")[0]["offset"].cast("string")).otherwise(whole)
    line = F.concat(_json("key"), F.lit(":"), value)
    return queues.orderBy("file", F.desc("table"), "key").select("file", "table", line.alias("line"))


def _in_file(rows: DataFrame, name: str, table: Column) -> DataFrame:
    return rows.select(F.concat("directory", F.lit(name)).alias("file"), table.alias("table"), "key", "queue", "offset")


def _client_lines(rows: DataFrame) -> DataFrame:
    file = F.concat_ws("/", F.when(F.col("client") != "", F.col("client")), "group", F.lit(CLIENT_FILE))
    # The order in which fastjson writes the fields of a key; it reads them in any order.
    key = F.concat(
        F.lit('{"brokerName":'), _json("broker"), F.lit(',"queueId":'), "queue", F.lit(',"topic":'), _json("topic"), F.lit("}")
    )
    line = F.concat(key, F.lit(":"), "offset")
    ordered = rows.withColumn("file", file).orderBy("file", "broker", "topic", "queue")
    return ordered.select("file", F.lit(OFFSETS).alias("table"), line.alias("line"))


def _csv_lines(rows: DataFrame, *, with_group: bool) -> DataFrame:
    names = [_csv("group")] if with_group else []
    line = F.concat_ws(",", *names, _csv("topic"), "queue", "offset")
    ordered = rows.orderBy("group", "topic", "queue")
    return ordered.select(F.lit(CSV_FILE).alias("file"), F.lit("").alias("table"), line.alias("line"))


def _json(column: str) -> Column:
    """A JSON string."""
    text = F.to_json(F.array(column))
    return F.substring(text, F.lit(2), F.length(text) - 2)


def _csv(column: str) -> Column:
    doubled = F.replace(F.col(column), F.lit('"'), F.lit('""'))
    return F.when(F.col(column).rlike(_UNQUOTED), F.col(column)).otherwise(F.concat(F.lit('"'), doubled, F.lit('"')))
