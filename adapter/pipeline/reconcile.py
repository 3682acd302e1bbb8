"""What the adapters hold against what the Meta Service holds, and what a repair would merge. DataFrame -> DataFrame.

All rules are those of `model` (merge, resolve), said in columns; tests/pipeline/test_reconcile.py compares both on random rows.
Nothing that is planned can take an offset back, whatever is committed meanwhile: it is merged with the epoch that it has here.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from adapter.model import FIRST_EPOCH
from adapter.tables import RECORDS

KEY = ["namespace", "group", "shard"]

# The fields of a record in the order of the register (`model.OffsetRecord`), and what says where it comes from.
_REGISTER = ("epoch", "offset", "live", "committed_at", "metadata", "topic", "partition")
_NEVER = "TIMESTAMP '1970-01-01 00:00:00'"  # committed_at of who does not say


def compare(local: DataFrame, remote: DataFrame) -> DataFrame:
    """The keys of `local` that differ from `remote`, a row for each.

    `local`: columns of tables.SNAPSHOT and `broker`; a key may be there several times, and the largest record counts. `remote`:
    columns of tables.RECORDS with tombstones, each key once. See docs/reference.md for the columns, and `_kind` for the kinds.
    """
    rows = _side(local, F.col("broker"), F.col("dirty")).unionByName(_side(remote, F.lit(None).cast("string"), F.lit(False)))
    return _judged(_met(_by_key(rows)))


def _side(rows: DataFrame, broker: Column, dirty: Column) -> DataFrame:
    """Records as structs that compare as `model.OffsetRecord` does. `broker` is null in the Meta Service's rows."""
    fields = [*_REGISTER, dirty.alias("dirty"), broker.alias("broker"), F.col("epoch").alias("own_epoch")]
    return rows.select(*KEY, F.struct(*fields).alias("record"), "problem")
