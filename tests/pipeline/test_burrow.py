"""What the job judges agrees with plain Python on random histories: everything that the rules of lag find."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from adapter.pipeline.config import LagSection
from adapter.pipeline.lag import tables as lag
from tests import lag_reference as reference
from tests.lag_histories import NOW, SETTLED, history
from tests.lag_reference import SECOND, History, Rules

HISTORIES = 5_000  # tests/unit/model/test_lag.py has many more, without Spark
SECTION = LagSection(window_points=8, minimum_points=3, allowed_lag=2, head_points=12)
RULES = Rules(minimum=3, allowed=2, least=8 * SECOND, recent_heads=8)

_POINTS = pa.list_(
    pa.struct(
        {"slot": pa.int64(), "epoch": pa.int64(), "offset": pa.int64(), "live": pa.bool_(), "t": pa.int64(), "lag": pa.int64()}
    )
)
_TOP = pa.struct(
    {
        "epoch": pa.int64(),
        "offset": pa.int64(),
        "live": pa.bool_(),
        "t": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int64(),
        "broker": pa.string(),
    }
)
_LOW = pa.struct({"t": pa.int64(), "low": pa.int64()})
_HEADS = pa.list_(pa.struct({"slot": pa.int64(), "t": pa.int64(), "high": pa.int64()}))
_NAMES = {"namespace": pa.string(), "group": pa.string(), "shard": pa.string()}


def key_row(number: int, one: History) -> dict[str, Any]:
    """The state of a key, in the form that the job stores."""
    names = {"namespace": "n", "group": "g", "shard": str(number)}
    points = [
        {"slot": t, "epoch": epoch, "offset": max(offset, 0), "live": offset >= 0, "t": t, "lag": lag}
        for t, offset, lag, epoch in one.commits
    ]
    labels = {"topic": "t", "partition": 0, "broker": "b"}
    return {**names, "points": points, "top": {"epoch": one.top[0], "offset": one.top[1], "live": True, "t": 0, **labels}}


def head_row(number: int, one: History) -> dict[str, Any]:
    """The state of a shard's heads, in the form that the job stores."""
    heads = [{"slot": head.time, "t": head.time, "high": head.high} for head in one.heads]
    return {"namespace": "n", "shard": str(number), "heads": heads, "low": None if one.low is None else {"t": 0, "low": one.low}}


def test_the_table_has_what_plain_python_finds(spark: SparkSession) -> None:
    """On random histories, in which every status occurs: whole numbers exactly, others nearly, null for unknown."""
    random = Random(5)
    # Without a head, its low is not known to the job.
    histories = [one if one.heads else replace(one, low=None) for one in (history(random) for _ in range(HISTORIES))]
    key_schema = pa.schema({**_NAMES, "points": _POINTS, "top": _TOP})
    keys = pa.Table.from_pylist([key_row(at, one) for at, one in enumerate(histories)], key_schema)
    head_schema = pa.schema({"namespace": pa.string(), "shard": pa.string(), "heads": _HEADS, "low": _LOW})
    heads = pa.Table.from_pylist([head_row(at, one) for at, one in enumerate(histories) if one.heads], head_schema)
    clock = pa.table({"now": [NOW], "settled": [SETTLED]})
    frames = [spark.createDataFrame(table) for table in (keys, heads, clock)]
    found = {int(row["shard"]): row for row in lag.shards(frames[0], frames[1], frames[2], SECTION).collect()}
    assert len(found) == HISTORIES
    for at, one in enumerate(histories):
        row = found[at]
        whole = tuple(row[name] for name in ("lag", "lost", "burrow", "status", "points"))
        statuses = reference.burrow(one, RULES), reference.status(one, RULES)
        assert whole == (one.lag, one.lost, *statuses, len(one.window)), one
        for name, exact in (
            ("lag_seconds", reference.lag_seconds(one)),
            ("consume_rate", reference.commit_rate(one, RULES)),
            ("produce_rate", reference.produce_rate(one)),
            ("drain_seconds", reference.drain_seconds(one, RULES)),
            ("trend", reference.trend(one, RULES)),
        ):
            assert row[name] == (None if exact is None else pytest.approx(float(exact), rel=1e-9, abs=1e-6)), (name, one)
    for column in ("burrow", "status"):
        counts = Counter(row[column] for row in found.values())
        assert min(counts[name] for name in ("OK", "WARN", "STALL", "STOP", "REWIND")) > 40, counts
    assert sum(row["burrow"] != row["status"] for row in found.values()) > 40
