"""The lag tables: independent of order and batches, and correct if clocks, heads or rows are bad."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from adapter.model.schemas import TIME
from adapter.pipeline.config import LagSection
from adapter.pipeline.lag.batch import Steps, process, settled
from adapter.pipeline.lag.files import LagFiles
from tests.pipeline.segments import RUN, START, journal_table

SECTION = LagSection(window_points=5)
Journal = Sequence[Mapping[str, Any]]
EXTRA = ("broker", "run", "segment")


def at(seconds: float) -> datetime:
    """The time this many seconds after the start."""
    return START + timedelta(seconds=seconds)


def commit(seconds: float, offset: int, head: int | None = None, low: int = 0, **others: Any) -> dict[str, Any]:
    """A commit that is in the journal immediately."""
    heads = {} if head is None else {"low_watermark": low, "high_watermark": head, "watermark_at": at(seconds)}
    return {"at": at(seconds), "committed_at": at(seconds), "offset": offset, "broker": "b1", **heads, **others}


def batch(spark: SparkSession, files: LagFiles, number: int, rows: Journal, section: LagSection = SECTION) -> None:
    """Run one batch of the job on rows that need not be in files."""
    plain = journal_table([{key: value for key, value in row.items() if key not in EXTRA} for row in rows])
    table = (
        plain.append_column("broker", pa.array([row.get("broker", "b1") for row in rows]))
        .append_column("run", pa.array([row.get("run", RUN) for row in rows], pa.int64()))
        .append_column("segment", pa.array([row.get("segment", "s") for row in rows]))
        .append_column("planned_at", pa.array([at(86_400)] * len(rows), TIME))
    )
    process(spark.createDataFrame(table), number, section, files, Steps())


def read(files: LagFiles, name: str, number: int) -> list[dict[str, Any]]:
    """The rows of a table in a batch, sorted."""
    rows = pq.ParquetDataset(files.output / name / f"batch={number}").read().to_pylist()
    return sorted(rows, key=repr)


def utc(time: datetime) -> datetime:
    """Add the zone that Spark may leave out."""
    return time.replace(tzinfo=UTC)


def by_group(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows by group; each group has one shard."""
    return {row["group"]: row for row in rows}


def journal(random: Random) -> list[dict[str, Any]]:
    """Two brokers, six keys: commits, rewinds, resets, deletes, heartbeats, bad rows, jumping clocks. Each row has a number."""
    rows: list[dict[str, Any]] = []
    offsets: dict[tuple[str, str], int] = {}
    epochs: dict[tuple[str, str], int] = {}
    for seq in range(240):
        seconds = seq * 0.9 + random.choice((0, 0, 0, -20, 15))
        key = (random.choice("gh"), random.choice(("T/0", "T/1", "T/2")))
        names = {"group": key[0], "shard": key[1], "broker": random.choice(("b1", "b2")), "seq": seq}
        before = offsets.get(key, 0)
        kind = random.choice(("flush",) * 12 + ("rewind", "reset", "delete", "heartbeat", "bad"))
        offset = before + random.randrange(30)
        epoch = epochs.get(key, 0)
        moved = {"from_offset": before, "from_epoch": epoch}
        low = random.choice((0, 0, offset + random.randrange(-5, 20)))
        if kind in {"rewind", "reset", "delete"}:
            epoch = epoch + 1 if kind == "rewind" else ((epoch >> 32) + 1) << 32
            offset = 0 if kind == "delete" else max(0, before - random.randrange(40))
        rows.append(
            {
                **commit(seconds, offset, offset + random.randrange(50) if random.random() < 0.8 else None, low, **names),
                "epoch": epoch,
                "kind": "flush" if kind == "bad" else kind,
                "live": kind != "delete",
                **(moved if kind in {"rewind", "reset", "delete"} else {}),
                **({"offset": None, "problem": "offset 2**63 is beyond a long"} if kind == "bad" else {}),
                **({"group": "", "shard": ""} if kind == "heartbeat" else {}),
            }
        )
        if kind not in {"heartbeat", "bad"}:
            offsets[key], epochs[key] = offset, epoch
    return rows


def test_late_repeated_and_reordered_rows_in_any_batches_end_in_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that is repeated writes the same rows."""
    random = Random(11)
    rows = journal(random)
    plain, mixed = LagFiles(tmp_path / "plain"), LagFiles(tmp_path / "mixed")
    batch(spark, plain, 0, rows)
    again = [*rows, *random.sample(rows, 60)]
    random.shuffle(again)
    cuts = [0, *sorted(random.sample(range(1, len(again)), 2)), len(again)]
    for number in range(3):
        batch(spark, mixed, number, again[cuts[number] : cuts[number + 1]])
    tables = {name: read(mixed, name, 2) for name in ("shards", "groups", "rewinds", "rejects")}
    assert tables["shards"] == read(plain, "shards", 0)
    assert tables["groups"] == read(plain, "groups", 0)
    assert len(tables["groups"]) == 2
    moves = [row for number in range(3) for row in read(mixed, "rewinds", number)]
    assert sorted(moves, key=repr) == read(plain, "rewinds", 0)
    assert len(moves) > 10
    problems = {row["seq"] for number in range(3) for row in read(mixed, "rejects", number)}
    assert problems == {row["seq"] for row in read(plain, "rejects", 0)} != set()
    batch(spark, mixed, 2, again[cuts[2] :])
    assert {name: read(mixed, name, 2) for name in tables} == tables


def scenario() -> list[dict[str, Any]]:
    """One group for each special case; the newest row is at 1000 s."""
    rows = [commit(1_000, 0, group="", shard="", kind="heartbeat")]
    # Read at once, then nothing for minutes; one more message came 4 s ago.
    rows += [commit(600 + at, 10 + at, 10 + at, group="slow", shard="slow") for at in range(5)]
    rows.append(commit(996, 1, 15, group="other", shard="slow"))
    # Stopped with something to read; the head goes on by what another group's rows tell.
    rows += [commit(900 + at, 100 + at, 150 + at, group="stopped", shard="S") for at in range(5)]
    rows.append(commit(999, 1, 900, group="other", shard="S"))
    # Slower than its producer, with one decrease.
    rows += [commit(990 + at * 2, at, at + lag, group="warned", shard="W") for at, lag in enumerate((10, 30, 60, 59, 120))]
    rows += [commit(990 + at * 2, at * 5, group="unknown", shard="U") for at in range(5)]
    rows += [
        commit(995, 7, 9, group="deleted", shard="D"),
        commit(996, 0, kind="delete", epoch=1 << 32, live=False, group="deleted", shard="D"),
    ]
    # Retention took what it had not read, and then more.
    rows += [commit(990 + at, 100 + at, 500, 50 + 30 * at, group="late", shard="T") for at in range(5)]
    rows.append(commit(998, 500, 520, 450, group="other", shard="T"))
    back: dict[str, Any] = {"group": "rewound", "shard": "R", "broker": "b2"}
    rows += [commit(994 + at, 50 + at, 60, **back) for at in range(3)]
    rows.append(commit(997, 20, 60, kind="rewind", epoch=1, from_epoch=0, from_offset=52, seq=77, **back))
    rows.append(commit(997, 20, 60, kind="rewind", epoch=1, from_epoch=0, from_offset=52, seq=77, segment="copy", **back))
    # Clocks: before the start of the adapter; committed after it was journaled; ahead of the job by a month.
    rows.append(commit(-500, 5, 5, group="past", shard="P", seq=1))
    rows.append({**commit(998, 6, 9, group="ahead", shard="A", seq=2), "committed_at": at(5_000)})
    rows.append(commit(30 * 86_400, 9, 9, group="future", shard="F", seq=3))
    rows.append(
        commit(998, 9, group="large", shard="L", seq=4) | {"offset": None, "problem": "offset 9223372036854775808 is too large"}
    )
    rows.append(
        {"at": at(-1_764_547_200), "kind": "unreadable", "group": "", "shard": "", "problem": "is torn", "segment": "x", "seq": 5}
    )
    rows.append(commit(998, 9, group="strange", shard="K", seq=6, kind="compact"))
    rows.append(commit(998, -4, group="negative", shard="N", seq=7))
    return [{"seq": 1_000 + place, **row} for place, row in enumerate(rows)]


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LagFiles:
    """The tables of the scenario as batch 0, and of batch 1 with the rewind again and a late head."""
    files = LagFiles(tmp_path_factory.mktemp("scenario"))
    rows = scenario()
    batch(spark, files, 0, rows)
    late = commit(1_001, 2, 2_000, group="other", shard="S")
    batch(spark, files, 1, [late, *(row for row in rows if row.get("kind") == "rewind")])
    return files


def test_a_slow_topic_is_not_stopped_while_what_came_is_new(told: LagFiles) -> None:
    """The last commit is 396 s old, and so is the head that it had reached."""
    row = by_group(read(told, "shards", 0))["slow"]
    assert (row["status"], row["lag"], row["lag_seconds"]) == ("OK", 1, 396.0)


def test_the_lag_of_a_stopped_consumer_goes_on_growing_with_the_head(told: LagFiles) -> None:
    """Heads come from the commits of all groups."""
    first, second = (by_group(read(told, "shards", number))["stopped"] for number in (0, 1))
    assert (first["status"], first["burrow"], first["lag"]) == ("STOP", "STOP", 900 - 104)
    assert (second["status"], second["lag"]) == ("STOP", 2_000 - 104)
    assert (first["consume_rate"], first["drain_seconds"]) == (0.0, None)


def test_what_retention_took_is_lost_and_not_lag(told: LagFiles) -> None:
    """By the newest log start, which here is in another group's row."""
    row = by_group(read(told, "shards", 0))["late"]
    assert (row["head"], row["offset"], row["lag"], row["lost"]) == (520, 104, 520 - 450, 450 - 104)
    assert by_group(read(told, "groups", 0))["late"]["total_lag"] == 70
    assert by_group(read(told, "shards", 0))["unknown"]["lost"] == 0


def test_the_recorded_lag_is_what_could_be_read_then(told: LagFiles) -> None:
    """One of the window was small only because the log began late: without its low, this would be another status."""
    state = pq.ParquetDataset(told.state(0, "keys")).read().to_pylist()
    (late,) = (row for row in state if row["group"] == "late")
    assert [point["lag"] for point in late["points"]] == [400, 399, 500 - 110, 500 - 140, 500 - 170]


def test_state_of_an_earlier_release_and_of_a_larger_window_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Its heads have no low; its keys have more points until they commit again."""
    files = LagFiles(tmp_path / "old")
    rows = [commit(at, 10 + at, 90, 40, group="g", shard="T", seq=at) for at in range(5)]
    batch(spark, files, 0, rows)
    heads = files.state(0, "heads")
    old = pq.ParquetDataset(heads).read().drop_columns(["low"])
    for path in heads.glob("*.parquet"):
        path.unlink()
    for path in heads.glob(".*.crc"):
        path.unlink()
    pq.write_table(old, heads / "part.parquet")
    batch(spark, files, 1, [commit(9, 1, 91, group="other", shard="T", seq=9)], LagSection(window_points=3))
    row = by_group(read(files, "shards", 1))["g"]
    assert (row["points"], row["lag"], row["lost"]) == (5, 91 - 14, 0)
    batch(spark, files, 2, [commit(10, 1, 91, 60, group="other", shard="T", seq=10)], LagSection(window_points=3))
    row = by_group(read(files, "shards", 2))["g"]
    assert (row["points"], row["lag"], row["lost"]) == (5, 91 - 60, 60 - 14)


def test_one_decrease_does_not_clear_a_growing_lag(told: LagFiles) -> None:
    """In Burrow it does."""
    row = by_group(read(told, "shards", 0))["warned"]
    assert (row["status"], row["burrow"], row["points"]) == ("WARN", "OK", 5)


def test_without_a_head_the_lag_is_unknown_and_not_0(told: LagFiles) -> None:
    """Values derived from it are unknown too."""
    row = by_group(read(told, "shards", 0))["unknown"]
    assert [row[name] for name in ("head", "lag", "lag_seconds", "produce_rate", "drain_seconds")] == [None] * 5
    assert (row["status"], row["burrow"], row["consume_rate"]) == ("OK", "OK", 2.5)
    group = by_group(read(told, "groups", 0))["unknown"]
    assert (group["total_lag"], group["unknown_lag_shards"], group["drain_seconds"]) == (None, 1, None)


def test_a_deleted_key_is_in_no_table(told: LagFiles) -> None:
    """A group of which every key is deleted is in no table either."""
    assert "deleted" not in by_group(read(told, "shards", 0))
    assert "deleted" not in by_group(read(told, "groups", 0))


def test_a_rewind_is_counted_once(told: LagFiles) -> None:
    """Although it is twice in one batch, and again in the next."""
    (move,) = read(told, "rewinds", 0)
    assert [move[name] for name in ("group", "kind", "from_offset", "offset", "duplicates", "skipped")] == [
        "rewound",
        "rewind",
        52,
        20,
        32,
        0,
    ]
    assert read(told, "rewinds", 1) == []
    assert by_group(read(told, "shards", 0))["rewound"]["status"] == "REWIND"
    assert by_group(read(told, "groups", 0))["rewound"]["burrow"] == "ERR"


def test_rows_that_cannot_be_true_are_told_and_poison_nothing(told: LagFiles) -> None:
    """Every such row is in `rejects`, and the batch's time is that of the valid rows."""
    problems = {row["seq"]: row["problem"] for row in read(told, "rejects", 0)}
    parts = {
        1: "went back",
        2: "was committed",
        3: "ahead of this machine",
        4: "too large",
        5: "is torn",
        6: "'compact'",
        7: "negative",
    }
    assert {seq: part in problems[seq] for seq, part in parts.items()} == dict.fromkeys(parts, True)
    assert len(problems) == len(parts)
    rows = by_group(read(told, "shards", 0))
    assert {utc(row["evaluated_at"]) for row in rows.values()} == {at(1_000)}
    assert {"large", "future", "strange", "negative"}.isdisjoint(rows)
    assert (utc(rows["ahead"]["committed_at"]), rows["ahead"]["offset"], rows["past"]["lag"]) == (at(998), 6, 0)


def test_a_broker_whose_journal_is_late_holds_back_the_silence_of_all_until_it_is_gone() -> None:
    """For at most five minutes, no group counts as stopped."""
    minute = 60_000_000
    assert settled(10 * minute, {"a": 10 * minute, "b": 9 * minute}) == 9 * minute
    assert settled(10 * minute, {"a": 10 * minute, "b": 4 * minute}) == 10 * minute
