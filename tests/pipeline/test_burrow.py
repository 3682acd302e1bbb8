"""The evaluation as Spark columns agrees with plain Python on random histories: both statuses, and the lag in seconds."""

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from adapter.pipeline import lag
from adapter.pipeline.config import LagSection
from tests.pipeline import burrow_reference as reference
from tests.pipeline.burrow_reference import History

HISTORIES = 20_000
NOW_MS = 1_764_547_200_700  # within a second: Burrow's own clock has whole ones
SETTLED_MS = NOW_MS - 3_000
SECTION = LagSection(window_points=8, minimum_points=3, allowed_lag=2, head_points=12)
LEAST_MS = SECTION.window_points * SECTION.point_distance_ms

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
_HEADS = pa.list_(pa.struct({"slot": pa.int64(), "t": pa.int64(), "high": pa.int64()}))
_NAMES = {"namespace": pa.string(), "group": pa.string(), "shard": pa.string()}


def history(random: Random) -> History:
    """The history of a steady, slow, stalled, rewinding or caught-up consumer; the head may stop."""
    points = random.choice((1, 2, 3, 3, 5, 8, 8, 8))
    silence = random.choice((0, 1_000, 4_000, 9_000, 20_000, 90_000, 700_000))
    last = NOW_MS - silence - random.randrange(1_500)
    gap = random.choice((1_000, 2_000, 30_000))
    times = sorted({last - at * gap - random.randrange(gap) for at in range(points)})
    habit = random.choice(("steady", "slow", "stalled", "rewinding", "caught up", "any"))
    offset = random.randrange(50)
    commits: list[tuple[int, int, int | None]] = []
    behind = random.randrange(12)
    for time in times:
        offset += {"stalled": 0, "rewinding": random.randrange(-6, 9), "any": random.randrange(-2, 4)}.get(
            habit, random.randrange(1, 9)
        )
        offset = max(0, offset)
        behind = {"slow": behind + random.randrange(-1, 4), "caught up": random.randrange(4)}.get(habit, random.randrange(1, 9))
        behind = max(0, behind)
        commits.append((time, offset, behind if random.random() < 0.9 else None))
    return History(commits, _heads(random, times, offset), NOW_MS, SETTLED_MS)


def _heads(random: Random, times: list[int], offset: int) -> list[tuple[int, int]]:
    if random.random() < 0.05:
        return []
    count = random.randrange(1, 13)
    begin = random.choice((times[0] - 100_000, times[0], times[-1] - 1, times[-1] + 1))
    spread = sorted(random.sample(range(min(begin, NOW_MS - 100), NOW_MS), count))
    head = max(0, offset - random.randrange(12))
    heads = []
    for time in spread:
        head = max(0, head + random.choice((0, 0, 0, 1, 3, 9, -1)))
        heads.append((time, head))
    return heads


def key_row(number: int, one: History) -> dict[str, Any]:
    """The state of a key, in the form that the job stores."""
    names = {"namespace": "n", "group": "g", "shard": str(number)}
    usual = {"epoch": 7, "live": True}
    points = [
        {**usual, "slot": time * 1_000, "t": time * 1_000, "offset": offset, "lag": lag} for time, offset, lag in one.commits
    ]
    labels = {"topic": "t", "partition": 0, "broker": "b"}
    return {**names, "points": points, "top": {"epoch": 7, "live": True, "t": 0, "offset": one.commits[-1][1], **labels}}


def head_row(number: int, one: History) -> dict[str, Any]:
    """The state of a shard's heads, in the form that the job stores."""
    heads = [{"slot": time * 1_000, "t": time * 1_000, "high": head} for time, head in one.heads]
    return {"namespace": "n", "shard": str(number), "heads": heads}


def test_both_statuses_and_the_seconds_agree_with_plain_python(spark: SparkSession) -> None:
    """Exactly equal on 20,000 random histories, in which every status occurs."""
    random = Random(5)
    histories = [history(random) for _ in range(HISTORIES)]
    key_schema = pa.schema({**_NAMES, "points": _POINTS, "top": _TOP})
    keys = pa.Table.from_pylist([key_row(at, one) for at, one in enumerate(histories)], key_schema)
    head_schema = pa.schema({"namespace": pa.string(), "shard": pa.string(), "heads": _HEADS})
    heads = pa.Table.from_pylist([head_row(at, one) for at, one in enumerate(histories) if one.heads], head_schema)
    clock = pa.table({"now": [NOW_MS * 1_000], "settled": [SETTLED_MS * 1_000]})
    frames = [spark.createDataFrame(table) for table in (keys, heads, clock)]
    found = {int(row["shard"]): row for row in lag.shards(frames[0], frames[1], frames[2], SECTION).collect()}
    assert len(found) == HISTORIES
    for at, one in enumerate(histories):
        row = found[at]
        burrow = reference.burrow(one, SECTION.minimum_points, SECTION.allowed_lag, SECTION.window_points)
        ours = reference.status(one, SECTION.minimum_points, SECTION.allowed_lag, LEAST_MS)
        assert (row["lag"], row["burrow"], row["status"]) == (one.lag, burrow, ours), one
        seconds = reference.lag_seconds(one)
        assert row["lag_seconds"] == (None if seconds is None else pytest.approx(seconds, rel=1e-9, abs=1e-6)), one
    for column in ("burrow", "status"):
        counts = Counter(row[column] for row in found.values())
        assert min(counts[name] for name in ("OK", "WARN", "STALL", "STOP", "REWIND")) > 200, counts
    assert sum(row["burrow"] != row["status"] for row in found.values()) > 200
