"""What the lag job judges agrees with plain Python on random histories: everything that the rules of lag find."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from adapter.model.lag_rows import LagSettings
from adapter.pipeline.lag.clock import Clock
from adapter.pipeline.lag.evaluate import evaluate
from adapter.pipeline.lag.part import HEADS, KEYS, POINTS, SHARDS, Part
from adapter.pipeline.lag.runs import NULL
from tests import lag_reference as reference
from tests.lag_histories import NOW, SETTLED, history
from tests.lag_reference import History, Rules

HISTORIES = 5_000  # tests/unit/model/test_lag.py has many more
SETTINGS = LagSettings(window_points=8, minimum_points=3, point_distance_ms=1, allowed_lag=2, head_points=12, head_distance_ms=1)
RULES = Rules(minimum=3, allowed=2, least=8 * 1_000, recent_heads=8)
_NAME = {"namespace": "n", "group": "g"}


def part_of(histories: Sequence[History]) -> Part:
    """The state of a key for each history; its shard is the number of the history."""
    keys, points, shards, heads = [], [], [], []
    for number, one in enumerate(histories):
        names = {**_NAME, "shard": str(number)}
        top = {"epoch": one.top[0], "offset": one.top[1], "live": 1, "t": one.top_time}
        keys.append(names | top | {"topic": "t", "partition": 0, "broker": "b"})
        for t, offset, lag, epoch in one.commits:
            known = {"near": NULL if lag is None else -t, "lag": NULL if lag is None else lag}
            points.append({"key": number, "epoch": epoch, "offset": max(offset, 0), "live": int(offset >= 0), "t": t, **known})
        if one.heads:
            low = {"low_t": NULL, "low": NULL} if one.low is None else {"low_t": 0, "low": one.low}
            shards.append({"namespace": "n", "shard": str(number), **low})
            heads += [{"shard": len(shards) - 1, "t": head.time, "high": head.high} for head in one.heads]
    tables = zip((keys, points, shards, heads), (KEYS, POINTS, SHARDS, HEADS), strict=True)
    return Part(*(pa.Table.from_pylist(rows, schema) for rows, schema in tables))


def test_the_table_has_what_plain_python_finds() -> None:
    """On random histories, in which every status occurs: whole numbers exactly, others nearly, null for unknown."""
    random = Random(5)
    # Without a head, its low is not known to the job.
    # It knows all commits of the journals; it is its first batch, and no log was replaced by another of another identity.
    drawn = (replace(history(random), watched=0, warned=False, anew=-1) for _ in range(HISTORIES))
    histories = [one if one.heads else replace(one, low=None) for one in drawn]
    shards = evaluate(None, [part_of(histories)], Clock(NOW, SETTLED), SETTINGS).shards
    found = {int(row["shard"]): row for row in shards.to_pylist()}
    assert len(found) == HISTORIES
    for at, one in enumerate(histories):
        row = found[at]
        whole = tuple(row[name] for name in ("lag", "lost", "burrow", "status", "points"))
        status = reference.status(one, RULES) if reference.judged(one, RULES) else "UNKNOWN"
        statuses = reference.burrow(one, RULES), status
        assert whole == (one.lag, one.lost, *statuses, len(one.window)), one
        for name, exact in (
            ("lag_seconds", reference.lag_seconds(one)),
            ("consume_rate", reference.commit_rate(one, RULES)),
            ("produce_rate", reference.produce_rate(one)),
            ("drain_seconds", reference.drain_seconds(one, RULES)),
            ("trend", reference.trend(one, RULES)),
        ):
            assert row[name] == (None if exact is None else pytest.approx(float(exact), rel=1e-9, abs=1e-6)), (name, one)
    for column, also in (("burrow", ()), ("status", ("BEYOND", "UNKNOWN"))):
        counts = Counter(row[column] for row in found.values())
        assert min(counts[name] for name in ("OK", "WARN", "STALL", "STOP", "REWIND", *also)) > 30, counts
    assert sum(row["burrow"] != row["status"] for row in found.values()) > 40
