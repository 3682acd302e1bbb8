"""Classifies the rows of a journal (commit, head, move, problem), and reduces a batch of them by key.

No row is dropped: one that cannot be used, or whose times contradict each other, is kept with its `problem`. The result does not
depend on the order of rows, or on how they are cut into batches. Times are microseconds, as longs, from here on to the tables.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from adapter.model.schemas import KINDS

KEY = ("namespace", "group", "shard")
# An additional column of a stream's rows: the time at which the batch was planned. Spark stores it with the batch.
PLANNED_AT = "planned_at"

COMMITS = ("flush", "rewind", "reset", "clone", "import", "delete", "expire")
MOVES = ("rewind", "reset", "clone", "import")

US_OF_MS = 1_000
US_OF_SECOND = 1_000_000
# Times from one machine that differ by more than this are a problem. The limit allows for clock steps and the time until a flush.
SKEW_US = 60 * US_OF_SECOND
# A row further ahead than this is not counted: one broker whose clock is years ahead would make every group look silent.
FUTURE_US = 3_600 * US_OF_SECOND
_MOVED = ("from_epoch", "from_offset", "epoch", "offset")


def slot(time: Column, distance_ms: int) -> Column:
    """The slot of a time in microseconds: the largest multiple of the distance that is not after it."""
    return time - sf.pmod(time, sf.lit(distance_ms * US_OF_MS).cast("long"))


def checked(rows: DataFrame, point_distance_ms: int) -> DataFrame:
    """Classify each row by these columns.

    `line`, of every row: its head (t, high, and low if it is known), its own time, its broker; parts that do not count are null.
    `point`, of commits and tombstones. Of two with the same offset and time, the one with the older head is the larger: it has
    the lag at the time of the commit. `top`: the same, ordered so that a larger record supersedes a smaller one. `odd`, of moves
    and of rows with a problem.
    """
    at, run_us = sf.unix_micros("at"), sf.col("run") * US_OF_MS
    t = sf.least(sf.coalesce(sf.unix_micros("committed_at"), at), at)
    kind, offset, high, low = sf.col("kind"), sf.col("offset"), sf.col("high_watermark"), sf.col("low_watermark")
    trusted = kind.isin(*KINDS) & (at <= sf.unix_micros(PLANNED_AT) + FUTURE_US)
    named = (sf.col("namespace") != "") & (sf.col("group") != "") & (sf.col("shard") != "")
    whole = sf.coalesce((offset >= 0) & (sf.col("epoch") >= 0), sf.lit(col=False))
    problem = _problem(at, run_us, whole, named)
    facts = rows.select(
        "*",
        (trusted & named & whole & kind.isin(*COMMITS)).alias("is_point"),
        sf.when(trusted & (sf.col("shard") != "") & (high >= 0), -sf.least(sf.unix_micros("watermark_at"), at)).alias("nearness"),
        problem.alias("trouble"),
        sf.when(trusted, at).alias("row_at"),
        t.alias("t"),
    )
    is_point, nearness = sf.col("is_point"), sf.col("nearness")
    is_odd = sf.col("trouble").isNotNull() | (is_point & kind.isin(*MOVES))
    point = sf.struct(
        slot(sf.col("t"), point_distance_ms).alias("slot"),
        *("epoch", "offset", "live", "t", "nearness"),
        sf.when(nearness.isNotNull(), sf.greatest(high - sf.greatest(offset, low), sf.lit(0).cast("long"))).alias("lag"),
    )
    ends = sf.when(nearness.isNotNull(), high).alias("high"), sf.when(nearness.isNotNull() & (low >= 0), low).alias("low")
    line = sf.struct((-nearness).alias("t"), *ends, sf.col("row_at").alias("at"), "broker", is_odd.alias("is_odd"))
    odd = sf.struct("at", "broker", "run", "seq", "segment", "kind", *_MOVED, sf.col("trouble").alias("problem"), "is_point")
    return facts.select(
        *KEY,
        line.alias("line"),
        sf.when(is_point, point).alias("point"),
        sf.when(is_point, sf.struct("epoch", "offset", "live", "t", "topic", "partition", "broker")).alias("top"),
        sf.when(is_odd, odd).alias("odd"),
    )


def reduced(rows: DataFrame) -> DataFrame:
    """Checked rows by key: all `lines`, `points` and `odds`, and the largest `top`. This is the only shuffle of a batch."""
    lists = {"lines": "line", "points": "point", "odds": "odd"}
    return rows.groupBy(*KEY).agg(
        sf.max("top").alias("top"), *(sf.collect_list(one).alias(several) for several, one in lists.items())
    )


def brokers(batch: DataFrame) -> DataFrame:
    """For each broker of a reduced batch: the newest time (`at`, microseconds, null if there is none), rows, and odd rows."""
    lines = batch.select(sf.explode("lines").alias("line"))
    return lines.groupBy("line.broker").agg(
        sf.max("line.at").alias("at"), sf.count(sf.lit(1)).alias("rows"), sf.count_if("line.is_odd").alias("odd")
    )


def _problem(at: Column, run_us: Column, whole: Column, named: Column) -> Column:
    """Why a row, or part of it, does not count; null for nearly all rows."""
    kind, committed = sf.col("kind"), sf.unix_micros("committed_at")
    ahead = at - sf.unix_micros(PLANNED_AT)
    late = committed - at
    return sf.coalesce(
        "problem",
        sf.when(
            ~kind.isin(*KINDS),
            sf.concat(
                sf.lit("kind '"), kind, sf.lit("' is not known here: use the pipeline of the adapter's version; not counted")
            ),
        ),
        sf.when(
            ahead > FUTURE_US,
            sf.concat(
                sf.lit("the broker's clock is "), _seconds(ahead), sf.lit(" s ahead of this machine: set the clocks; not counted")
            ),
        ),
        sf.when(kind == "heartbeat", sf.lit(None)).otherwise(
            sf.coalesce(
                sf.when(~named, sf.lit("namespace, group or shard is empty; not counted")),
                sf.when(~whole, sf.lit("offset or epoch is missing or negative; not counted")),
                sf.when(
                    late > SKEW_US,
                    sf.concat(
                        sf.lit("was committed "),
                        _seconds(late),
                        sf.lit(" s after it was journaled: set the clocks; the earlier time is taken"),
                    ),
                ),
            )
        ),
        sf.when(
            at < run_us - SKEW_US,
            sf.concat(
                sf.lit("the adapter's clock went back "),
                _seconds(run_us - at),
                sf.lit(" s behind its start; counted as it stands"),
            ),
        ),
    )


def _seconds(micros: Column) -> Column:
    return sf.floor(micros / US_OF_SECOND).cast("string")
