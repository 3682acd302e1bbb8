"""The tables of the lag job: the state of keys and heads, and the tables derived from it. Pure: DataFrame in, DataFrame out.

The state is a semilattice: late, repeated and reordered rows, cut into any batches, give the same tables. A key keeps the newest
`window_points` time slots, each with its largest (epoch, offset, live, time), and the largest of all. A shard keeps the newest
`head_points` slots, each with its newest head (log end offset), and the newest low (log start offset). A merge takes the union,
the largest of each slot, the newest slots.

A key whose largest record is a tombstone is in no table. Its state is kept for a week, as long as Meta Services keep tombstones,
so that late rows do not bring it back. A shard without a new head for a week is dropped too.
"""

from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from adapter.model.records import LONG_MAX
from adapter.pipeline.config import LagSection
from adapter.pipeline.lag import judging as lag_rows
from adapter.pipeline.lag.journal_rows import KEY, MOVES, US_OF_SECOND, slot
from adapter.pipeline.lag.status import burrow_group_name, severity, severity_name

DAY_US = 24 * 3_600 * US_OF_SECOND
KEPT_DAYS = 7
_SHARD = ("namespace", "shard")
_IDENTITY = ("broker", "run", "seq")
_LOW = "struct<t: bigint, low: bigint>"
# The columns of `shards` that do not depend on the rules, and those between them and the rest.
_TOP = ("topic", "partition", "broker", "epoch", "offset", "committed_at", "head", "head_at")


def merged_keys(state: DataFrame | None, batch: DataFrame, window_points: int) -> DataFrame:
    """Merge a reduced batch into the state of keys: the key, `points` and `top`."""
    added = batch.where(sf.col("top").isNotNull()).select(*KEY, sf.col("points").alias("added"), sf.col("top").alias("added_top"))
    if state is None:
        alone = added.withColumn("all", sf.sort_array("added"))
        return alone.select(*KEY, _newest(sf.col("all"), window_points).alias("points"), sf.col("added_top").alias("top"))
    both = state.join(added, [*KEY], "full_outer").withColumn("all", _union("points", "added"))
    merged = sf.when(sf.col("added").isNull(), sf.col("points")).otherwise(_newest(sf.col("all"), window_points))
    return both.select(*KEY, merged.alias("points"), sf.greatest("top", "added_top").alias("top"))


def merged_heads(state: DataFrame | None, batch: DataFrame, head_points: int, head_distance_ms: int) -> DataFrame:
    """Merge a reduced batch into the state of shards: namespace, shard, `heads` and `low`, which is null if nobody told it."""
    line = sf.col("line")
    known = batch.select(*_SHARD, sf.explode("lines").alias("line")).where(line["high"].isNotNull())
    found = known.select(
        *_SHARD, slot(line["t"], head_distance_ms).alias("slot"), *(line[name].alias(name) for name in ("t", "high", "low"))
    )
    shift = sf.lit(Decimal(2**63)).cast("decimal(19,0)")
    # The largest (t, high), encoded as one number: Spark finds the largest number by hashing, but sorts all rows for a struct.
    after = (sf.col("t") - sf.col("slot")).cast("decimal(12,0)")
    both = {name: sf.max(after * shift + sf.col(name).cast("decimal(19,0)")).alias(name) for name in ("high", "low")}
    largest = found.groupBy(*_SHARD, "slot").agg(*both.values())
    value = {name: (sf.col(name) % shift).cast("long") for name in both}
    t = {name: sf.col("slot") + ((sf.col(name) - sf.col(name) % shift) / shift).cast("long") for name in both}
    low = sf.when(sf.col("low").isNotNull(), sf.struct(t["low"].alias("t"), value["low"].alias("low")))
    heads = largest.select(
        *_SHARD, sf.struct("slot", t["high"].alias("t"), value["high"].alias("high")).alias("head"), low.alias("low")
    )
    added = heads.groupBy(*_SHARD).agg(sf.collect_list("head").alias("heads"), sf.max("low").alias("low"))
    every = added if state is None else added.unionByName(_with_low(state))
    together = every.groupBy(*_SHARD).agg(
        sf.sort_array(sf.flatten(sf.collect_list("heads"))).alias("all"), sf.max("low").alias("low")
    )
    return together.select(*_SHARD, _newest(sf.col("all"), head_points).alias("heads"), "low")


def kept_since(now: int) -> int:
    """The time before which state is dropped, in whole days: a new number makes Spark compile its code again."""
    return now - now % DAY_US - KEPT_DAYS * DAY_US


def kept_keys(keys: DataFrame, now: int) -> DataFrame:
    """Keys without the tombstones that are older than KEPT_DAYS."""
    return keys.where(sf.col("top.live") | (sf.col("top.t") >= kept_since(now)))


def kept_heads(heads: DataFrame, now: int) -> DataFrame:
    """Heads without the shards whose newest head is older than KEPT_DAYS."""
    return heads.where(_last(sf.col("heads"))["t"] >= kept_since(now))


def moves(batch: DataFrame, seen: DataFrame | None) -> DataFrame:
    """The moves (resets, rewinds and the like) of a reduced batch, without duplicates and without those of earlier batches."""
    once = odd_rows(batch).where(sf.col("is_point") & sf.col("kind").isin(*MOVES)).dropDuplicates([*_IDENTITY])
    return once if seen is None else once.join(seen, [*_IDENTITY], "left_anti")


def odd_rows(batch: DataFrame) -> DataFrame:
    """The moves of a reduced batch, and its rows with a problem."""
    return batch.where(sf.size("odds") > 0).select(*KEY, sf.explode("odds").alias("odd")).select(*KEY, "odd.*")


def seen_moves(seen: DataFrame | None, new: DataFrame, now: int) -> DataFrame:
    """The identities of all moves within KEPT_DAYS."""
    identities = new.select(*_IDENTITY, sf.unix_micros("at").alias("t"))
    both = identities if seen is None else seen.unionByName(identities)
    return both.where(sf.col("t") >= kept_since(now))


def rewinds(new: DataFrame) -> DataFrame:
    """The table of moves. `duplicates`: messages read again; `skipped`: messages never read; null without an offset before."""
    back = sf.col("from_offset") - sf.col("offset")
    zero = sf.lit(0).cast("long")
    return new.select(
        *("at", *KEY, "broker", "kind", "from_epoch", "from_offset", "epoch", "offset"),
        sf.when(back.isNotNull(), sf.greatest(back, zero)).alias("duplicates"),
        sf.when(back.isNotNull(), sf.greatest(-back, zero)).alias("skipped"),
    )


def rejects(batch: DataFrame) -> DataFrame:
    """The rows of a reduced batch with a problem, and the problem; each row of a segment once."""
    names = ("at", "broker", "run", "seq", "segment", "kind", *KEY, "epoch", "offset", "problem")
    return odd_rows(batch).where(sf.col("problem").isNotNull()).select(*names).distinct()


def shards(keys: DataFrame, heads: DataFrame, clock: DataFrame, section: LagSection) -> DataFrame:
    """One row for each live key, judged by the rules of `adapter.model.lag`. What is unknown is null.

    `clock`: one row with `now`, the largest time in the journals, and `settled`, up to which those of all live brokers are read
    (microseconds). It is a table because literals would make Spark compile its code again in each batch.
    """
    points, top, lines = sf.col("points"), sf.col("top"), sf.col("heads")
    newest = _last(lines)
    known = keys.where("top.live").join(_with_low(heads), [*_SHARD], "left").crossJoin(sf.broadcast(clock))
    facts = known.select(
        *KEY,
        *(top[name].alias(name) for name in ("topic", "partition", "broker", "epoch", "offset")),
        top["t"].alias("committed_at"),
        newest["high"].alias("head"),
        newest["t"].alias("head_at"),
        *("now", "settled", sf.col("low.low").alias("low")),
        *(points[name].alias(f"point_{name}") for name in lag_rows.POINTS),
        *(lines[name].alias(f"head_{name}") for name in lag_rows.HEADS),
    )
    copied = ("now", *KEY, *_TOP)
    types = {name: facts.schema[name].dataType.simpleString() for name in copied} | lag_rows.FOUND
    schema = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    judged = facts.mapInArrow(lag_rows.judging(section.rules, copied), schema)
    times = {name: sf.timestamp_micros(name).alias(name) for name in ("committed_at", "head_at")}
    return judged.select(
        sf.timestamp_micros("now").alias("evaluated_at"), *KEY, *(times.get(name, sf.col(name)) for name in _TOP), *lag_rows.FOUND
    )


def groups(shards: DataFrame) -> DataFrame:
    """One row for each group: the worst status of its shards, and sums over the shards whose lag is known.

    The order of status is OK < WARN < REWIND < STALL < STOP; `burrow` is Burrow's OK, WARN or ERR. The time to drain is that of
    the slowest shard; null if one does not drain, or is unknown.
    """
    level = severity(sf.col("status"))
    lag = sf.col("lag")
    sum_ = sf.sum(lag.cast("decimal(20,0)"))
    total = sf.when(sum_ > LONG_MAX, sf.lit(LONG_MAX)).otherwise(sum_.cast("long"))
    worst = sf.min(sf.struct((-level).alias("level"), (-sf.coalesce(lag, sf.lit(-1))).alias("lag"), "shard"))["shard"]
    return shards.groupBy("evaluated_at", "namespace", "group").agg(
        severity_name(sf.max(level)).alias("status"),
        burrow_group_name(sf.max(severity(sf.col("burrow")))).alias("burrow"),
        sf.count(sf.lit(1)).cast("int").alias("shards"),
        sf.count_if(lag.isNull()).cast("int").alias("unknown_lag_shards"),
        total.alias("total_lag"),
        sf.max("lag_seconds").alias("max_lag_seconds"),
        sf.when(sf.count("drain_seconds") == sf.count(sf.lit(1)), sf.max("drain_seconds")).alias("drain_seconds"),
        worst.alias("worst_shard"),
    )


def _union(old: str, new: str) -> Column:
    return sf.sort_array(sf.concat(sf.coalesce(old, sf.array()), sf.coalesce(new, sf.array())))


def _newest(values: Column, count: int) -> Column:
    """Of sorted structs that begin with a slot: the largest of each slot, and of these the newest `count`."""
    slots = values["slot"]
    largest = sf.filter(values, lambda value, i: ~sf.get(slots, i + 1).eqNullSafe(value["slot"]))
    return sf.reverse(sf.slice(sf.reverse(largest), 1, count))


def _last(values: Column) -> Column:
    """The last element of an array; null if it is empty."""
    return sf.get(values, sf.size(values) - 1)


def _with_low(heads: DataFrame) -> DataFrame:
    """State of an earlier release has no low."""
    return heads if "low" in heads.columns else heads.withColumn("low", sf.lit(None).cast(_LOW))
