"""Compares the adapters' records to those of the Meta Service, and plans a repair. Pure: DataFrame in, DataFrame out.

The rules are those of `model` (merge, resolve) as Spark columns; tests/pipeline/test_reconcile.py compares both on random rows. A
plan cannot undo anything that is committed meanwhile, because its rows are merged with the epochs of the plan.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from adapter.model.records import FIRST_EPOCH, HOLD_MS, LOWER_HALF

KEY = ["namespace", "group", "shard"]
KINDS = ("missing", "behind", "epoch_conflict", "ahead", "unreadable")
WORST = 10  # keys that the summary names

# The fields of a record in the order in which records are compared (`model.OffsetRecord`).
_REGISTER = ("epoch", "offset", "live", "committed_at", "metadata", "topic", "partition")
_MASK_BITS = 63


def compare(local: DataFrame, remote: DataFrame, brokers: Sequence[str]) -> DataFrame:
    """The keys of `local` that differ from `remote`, one row each, with the columns of the table `differences`.

    `local`: the columns of schemas.SNAPSHOT and `broker`, an index into `brokers`. A key may occur once for each broker; the
    largest record counts. `remote`: the columns of schemas.RECORDS, tombstones included, each key once.

    L is the largest local record that is not equal to R, the Meta Service's. If another local record is equal to R, only a larger
    L is a difference. L is resolved by `model.resolve`: a record of unknown epoch (0) gets the epoch of R, unless that one was
    raised and the record is not later (and of a reset that is held, later by its hold). The kinds:

    - missing: no R. A tombstone that the Meta Service has had is no difference, because it deletes tombstones after a while.
    - behind: R < L in (epoch, offset); or R is the tombstone of an expiry at the place of L, and L is dirty or later.
    - ahead: L < R. For information only: flushed since the snapshot, moved by another adapter, or expired.
    - epoch_conflict: both live, and the one in the smaller epoch has the larger offset: a rewind or reset that one side does not
      know. Also a local tombstone above a record that was committed later: merging it would delete that record.
    - unreadable: a number that Spark cannot hold in a local record of the key, or in R.

    Planned are missing, behind, and epoch_conflict where L has the larger epoch and is live.
    """
    met = _resolved(_by_key(local, remote, brokers))
    names = F.array(*map(F.lit, brokers))
    return (
        met.withColumn("kind", F.explode(F.array_compact(F.array(_kind()))))  # drops rows without a kind
        .withColumn("planned", _planned())
        .select(
            *KEY,
            "kind",
            "planned",
            F.col("l.own_epoch").alias("local_epoch"),
            F.col("l.offset").alias("local_offset"),
            F.col("l.live").alias("local_live"),
            F.col("l.committed_at").alias("local_committed_at"),
            F.col("l.dirty").alias("local_dirty"),
            F.get(names, F.col("l.broker")).alias("broker"),
            _brokers(brokers).alias("brokers"),
            F.col("r.epoch").alias("remote_epoch"),
            F.col("r.offset").alias("remote_offset"),
            F.col("r.live").alias("remote_live"),
            F.col("r.committed_at").alias("remote_committed_at"),
            F.when(F.col("l.live") & F.col("r.live"), F.col("l.offset") - F.col("r.offset")).alias("difference"),
            F.col("l.epoch").alias("plan_epoch"),
            *(F.col(f"l.{name}").alias(name) for name in ("topic", "partition", "metadata")),
            F.coalesce("problem", "remote_problem").alias("problem"),
        )
    )


def planned(differences: DataFrame) -> DataFrame:
    """The rows that --apply merges, with the columns of the data source `offsets`."""
    values = [F.col(f"local_{name}").alias(name) for name in ("offset", "live", "committed_at")]
    labels = ["topic", "partition", "metadata"]
    return differences.where("planned").select(*KEY, F.col("plan_epoch").alias("epoch"), *values, *labels)


def applied(plan: DataFrame, standing: DataFrame) -> DataFrame:
    """The plan with the records stored now. `below`: smaller than planned; not if a planned tombstone has been swept since."""
    there = standing.select(*KEY, *(F.col(name).alias(f"now_{name}") for name in ("epoch", "offset", "live", "problem")))
    larger = (F.col("epoch") > F.col("now_epoch")) | (
        (F.col("epoch") == F.col("now_epoch")) & (F.col("offset") > F.col("now_offset"))
    )
    # An unreadable offset is above 2^63, and therefore above every planned one.
    gone = F.col("now_live").isNull() & F.col("live")
    below = gone | (F.col("now_problem").isNull() & F.coalesce(larger, F.expr("false")))
    columns = ["epoch", "offset", "live", "now_epoch", "now_offset", "now_live"]
    return plan.join(there, KEY, "left").select(*KEY, *columns, below.alias("below"))


def counts(differences: DataFrame) -> DataFrame:
    """For each kind: the number of keys, of planned keys, of tombstones, and the largest difference in messages."""
    return differences.groupBy("kind").agg(
        F.count("*").alias("keys"),
        F.count_if("planned").alias("planned"),
        F.count_if(~F.col("local_live")).alias("tombstones"),
        F.max(F.abs("difference")).alias("largest"),
    )


def worst(differences: DataFrame) -> DataFrame:
    """The WORST keys: those that differ by the most messages."""
    return differences.where("difference <> 0").orderBy(F.abs("difference").desc(), *KEY).limit(WORST)


def _by_key(local: DataFrame, remote: DataFrame, brokers: Sequence[str]) -> DataFrame:
    """One row for each local key that may differ: the largest record of known epoch, that of unknown epoch, and R.

    The join comes before the grouping, which then needs no exchange, because the rows of a key are adjacent. Rows are sorted by a
    hash of the key, since names with a common prefix are slow to compare. Records equal to R are only counted, in `settled`.
    """
    hashed = ["hash", *KEY]
    r_fields = F.struct("epoch", "offset", "live", "committed_at")
    there = remote.select(F.xxhash64(*KEY).alias("hash"), *KEY, r_fields.alias("r"), F.col("problem").alias("remote_problem"))
    here = local.select(F.xxhash64(*KEY).alias("hash"), *KEY, *_REGISTER, "dirty", "broker", "problem")
    met = here.join(there, hashed, "left")
    good = F.col("problem").isNull()
    equal = [F.col(name) == F.col(f"r.{name}") for name in ("epoch", "offset", "live")]
    settled = F.coalesce(good & equal[0] & equal[1] & equal[2], F.expr("false"))
    record = F.struct(*_REGISTER, "dirty", "broker", F.col("epoch").alias("own_epoch"))
    grouped = met.groupBy(*hashed).agg(
        F.max(F.when(good & ~settled & (F.col("epoch") > 0), record)).alias("known"),
        F.max(F.when(good & ~settled & (F.col("epoch") == 0), record)).alias("unknown"),
        F.max(F.when(F.col("live"), F.col("committed_at"))).alias("live_at"),
        F.max("problem").alias("problem"),
        F.first("r").alias("r"),
        F.first("remote_problem").alias("remote_problem"),
        F.bool_or(settled).alias("settled"),
        *_masks(len(brokers)),
    )
    below = (F.col("known.epoch") < F.col("r.epoch")) | (
        (F.col("known.epoch") == F.col("r.epoch")) & (F.col("known.offset") < F.col("r.offset"))
    )
    # After a tombstone, a commit may start at a lower offset.
    nothing_above = F.col("known").isNull() | (below & F.col("r.live"))
    unneeded = F.col("settled") & nothing_above & F.col("unknown").isNull()
    return grouped.where(~unneeded | F.col("problem").isNotNull() | F.col("remote_problem").isNotNull())


def _resolved(rows: DataFrame) -> DataFrame:
    """`l`: the largest local record, with the epoch that `model.resolve` gives it."""
    first = F.col("unknown").withField("epoch", F.lit(FIRST_EPOCH).cast("bigint"))
    known_place = F.struct(*(F.col(f"known.{name}").alias(name) for name in ("epoch", "offset", "live", "committed_at")))
    held = (F.col("s.epoch") > 0) & (F.col("s.epoch") % (LOWER_HALF + 1) == 0)
    lower = F.col("unknown.offset") < F.col("s.offset")
    over = F.col("s.epoch") + F.when(lower, F.when(F.col("s.live"), 0).otherwise(1)).otherwise(F.when(held, 1).otherwise(0))
    at = F.col("unknown.committed_at")
    until = F.when(held, _at("s") + F.expr(f"INTERVAL '{HOLD_MS // 1000}' SECOND")).otherwise(_at("s"))
    too_early = (over > FIRST_EPOCH) & at.isNotNull() & (at > _never()) & (at <= until)
    placed = (
        F.when(F.col("s").isNull(), first).when(too_early, F.col("unknown")).otherwise(F.col("unknown").withField("epoch", over))
    )
    return (
        rows.withColumn(
            "known", F.when(_begins_anew(), F.col("known").withField("epoch", F.col("known.epoch") + 1)).otherwise(F.col("known"))
        )
        .withColumn("s", F.greatest("r", F.when(F.col("known").isNotNull(), known_place)))
        .withColumn("l", F.greatest("known", F.when(F.col("unknown").isNotNull(), placed)))
    )


def _begins_anew() -> Column:
    """Whether it is a commit of a lower offset after an expiry that its adapter did not know of (`model._begins_anew`)."""
    later = _at("known") > _at("r")
    lower = (F.col("known.epoch") == F.col("r.epoch")) & (F.col("known.offset") < F.col("r.offset"))
    return F.coalesce(lower & F.col("known.live") & ~F.col("r.live") & later, F.expr("false"))


def _kind() -> Column:
    local_at, remote_at = _at("l"), _at("r")
    up = (F.col("l.epoch") > F.col("r.epoch")) | (
        (F.col("l.epoch") == F.col("r.epoch")) & (F.col("l.offset") > F.col("r.offset"))
    )
    level = (F.col("l.epoch") == F.col("r.epoch")) & (F.col("l.offset") == F.col("r.offset"))
    both_live = F.col("l.live") & F.col("r.live")
    crossed = both_live & F.when(up, F.col("l.offset") < F.col("r.offset")).otherwise(F.col("l.offset") > F.col("r.offset"))
    comes_back = F.col("l.live") & ~F.col("r.live") & (F.col("l.dirty") | (local_at > remote_at))
    return (
        F.when(F.col("problem").isNotNull() | F.col("remote_problem").isNotNull(), "unreadable")
        .when(
            F.col("r").isNull() & (F.col("l.live") | F.col("l.dirty")), F.when(_buries(), "epoch_conflict").otherwise("missing")
        )
        .when(F.col("r").isNull(), F.when(_buries(), "epoch_conflict"))
        .when(level & (F.col("l.live") == F.col("r.live")), None)
        .when(level & comes_back, "behind")
        .when(F.col("settled") & ~up, None)
        .when(level, "ahead")
        .when(crossed | (up & _buries()), "epoch_conflict")
        .when(up, "behind")
        .otherwise("ahead")
    )


def _buries() -> Column:
    """Whether it is a local tombstone above a live record that was committed later."""
    remote_at = F.when(F.col("r.live"), F.col("r.committed_at"))
    newest = F.greatest(F.col("live_at"), remote_at)
    return F.coalesce(~F.col("l.live") & (newest > _at("l")), F.expr("false"))


def _planned() -> Column:
    raised = F.col("l.live") & F.coalesce(F.col("l.epoch") > F.col("r.epoch"), F.expr("false"))
    return F.col("kind").isin("missing", "behind") | ((F.col("kind") == "epoch_conflict") & raised)


def _at(record: str) -> Column:
    """The commit time of a record; the earliest possible time if it has none."""
    return F.coalesce(f"{record}.committed_at", _never())


def _never() -> Column:
    return F.timestamp_seconds(F.lit(0))


def _masks(brokers: int) -> list[Column]:
    """The brokers that have a key, as bit masks: a list would make the grouping sort again."""
    bit = F.expr(f"shiftleft(1L, broker % {_MASK_BITS})")
    return [
        F.bit_or(F.when(F.expr(f"broker div {_MASK_BITS} = {mask}"), bit).otherwise(0)).alias(f"mask{mask}")
        for mask in range(-(-brokers // _MASK_BITS))
    ]


def _brokers(names: Sequence[str]) -> Column:
    """The names of the brokers in the masks, in the given order."""
    held = [
        F.when(F.expr(f"(mask{at // _MASK_BITS} & {1 << at % _MASK_BITS}L) <> 0"), F.lit(name)) for at, name in enumerate(names)
    ]
    return F.array_compact(F.array(*held))
