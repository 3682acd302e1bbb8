"""The tables of the jobs as views, and the questions of examples/sql, on small tables."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from adapter.errors import ConfigError
from adapter.pipeline.lag.schemas import GROUPS
from adapter.pipeline.places import Place
from adapter.pipeline.tables import write_table
from adapter.pipeline.views import lag_views, reconcile_views
from tests.pipeline.lag_tables import complete, group, rewind, write

QUESTIONS = Path(__file__).parents[2] / "examples" / "sql"
ASKED = ("ahead_of_the_log", "brokers_that_disagree", "nobody_reads", "rewound_yesterday", "stalled_each_night")
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)  # as of lag_tables
HOUR = 3_600
NOW = 27 * HOUR  # 11 o'clock on the next day


def shard(name: str, committed_s: float, **others: Any) -> dict[str, Any]:
    """A row of `shards` of the newest batch."""
    usual = {"namespace": "default", "shard": f"{name}/0", "broker": "b1", "epoch": 1, "status": "OK", "burrow": "OK"}
    times = {"evaluated_at": when(NOW), "committed_at": when(committed_s), "head_at": when(NOW)}
    return {**usual, **times, "group": name, **others}


def when(seconds: float) -> datetime:
    """The time this many seconds after the start."""
    return START + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """A session with the views of two nights and the day after them."""
    path = tmp_path_factory.mktemp("lag [of a day]")
    night = {"both": "STALL", "first": "STOP", "day": "OK"}
    batches = [
        (-9 * HOUR, night),  # 23 o'clock
        (-8 * HOUR, {**night, "both": "OK"}),
        (5 * HOUR, {"both": "OK", "first": "OK", "day": "STALL"}),
        (21 * HOUR, {"both": "STOP", "first": "WARN", "day": "REWIND"}),  # 5 o'clock
        (NOW, {"both": "OK", "first": "OK", "day": "OK"}),
    ]
    for batch, (seconds, statuses) in enumerate(batches):
        rows = [group(name, status, 10 * batch) for name, status in statuses.items()]
        write(path, "groups", batch, [{"evaluated_at": when(seconds), **row} for row in rows])
        if batch == 3:
            moved = [rewind(12 * HOUR, "yesterday", 9, 1, 8), rewind(13 * HOUR, "costly", 900, 1, 899)]
            write(path, "rewinds", batch, [rewind(17 * HOUR, "today", 9, 1, 8), *moved])
        if batch == 4:
            shards = [
                shard("ahead", NOW - HOUR, offset=20, head=12, lag=0),
                shard("told-before", NOW - HOUR, offset=20, head=12, lag=0, head_at=when(NOW - 2 * HOUR)),
                shard("left", NOW - 25 * HOUR, offset=1, head=8, lag=7),
                shard("idle", NOW - 25 * HOUR, offset=8, head=8, lag=0),
            ]
            write(path, "shards", batch, shards)
        complete(path, batch, seconds)
    lag_views(spark, str(path))
    reconcile_views(spark, str(differences(spark, tmp_path_factory.mktemp("reconcile"))))
    return spark


def differences(spark: SparkSession, output: Path) -> Path:
    """The output of `reconcile`, with the columns that are asked for."""
    rows = [("b1", "behind", True, 5), ("b1", "behind", True, -7), ("b2", "missing", True, None), ("b1", "ahead", False, 3)]
    frame = spark.createDataFrame(rows, "broker string, kind string, planned boolean, difference long")
    write_table(frame, Place.of(output / "differences"))
    return output


def asked(spark: SparkSession, question: str) -> Sequence[Row]:
    """The answer to a question of examples/sql."""
    return spark.sql((QUESTIONS / f"{question}.sql").read_text()).collect()


def chosen(rows: Sequence[Row], *names: str) -> list[tuple[Any, ...]]:
    """Some columns of the rows."""
    return [tuple(row[name] for name in names) for row in rows]


def test_each_question_is_tested() -> None:
    """A new file needs a test here."""
    assert sorted(path.stem for path in QUESTIONS.iterdir()) == [*ASKED]


def test_who_rewound_yesterday(views: SparkSession) -> None:
    """The costliest first; today's is left out."""
    assert chosen(asked(views, "rewound_yesterday"), "group", "duplicates") == [("costly", 899), ("yesterday", 8)]


def test_which_groups_stall_each_night(views: SparkSession) -> None:
    """In both nights, at whatever time; not only in the first, and not by day."""
    assert chosen(asked(views, "stalled_each_night"), "group", "nights", "largest_lag") == [("both", 2, 30)]


def test_which_offsets_are_ahead_of_the_log(views: SparkSession) -> None:
    """By a head that is newer than the commit."""
    assert chosen(asked(views, "ahead_of_the_log"), "group", "ahead") == [("ahead", 8)]


def test_which_brokers_disagree_with_the_meta_service(views: SparkSession) -> None:
    """By kind, with what would be repaired."""
    assert chosen(asked(views, "brokers_that_disagree"), "broker", "kind", "keys", "planned", "messages") == [
        ("b1", "behind", 2, 2, 12),
        ("b2", "missing", 1, 1, None),
    ]


def test_which_groups_nobody_reads(views: SparkSession) -> None:
    """Where there is something to read."""
    assert chosen(asked(views, "nobody_reads"), "group", "lag", "last_commit") == [("left", 7, datetime(2026, 11, 21, 10, 0))]  # noqa: DTZ001 - the session's


def test_columns_have_their_comments_and_the_batch(views: SparkSession) -> None:
    """`DESCRIBE` shows units. Empty tables have the same columns."""
    described: Mapping[str, str] = {row.col_name: row.comment for row in views.sql("DESCRIBE lag_groups").collect()}
    assert described["total_lag"] == GROUPS.field("total_lag").metadata[b"comment"].decode()
    assert {row.batch for row in views.sql("SELECT batch FROM lag_groups").collect()} == {0, 1, 2, 3, 4}
    assert {row.batch for row in views.sql("SELECT batch FROM lag_shards").collect()} == {4}
    assert views.sql("SELECT problem, batch FROM lag_rejects").collect() == []


def test_what_is_not_there_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """With the job that makes it."""
    with pytest.raises(ConfigError, match=r"has no complete batch; .*run the job `lag` first"):
        lag_views(spark, str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no such table; run the job `reconcile` first"):
        reconcile_views(spark, str(tmp_path))
    with pytest.raises(ConfigError, match=r"s3://bucket/lag: has credentials in the URL") as refused:
        lag_views(spark, "s3://KEY:SECRET@bucket/lag")
    assert "SECRET" not in str(refused.value)
